"""Settlements change what their token allows, and a repeat under the same session changes nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest
from raftmq.broker.services.call import Principal, Right
from raftmq.client.codec.queue_batch import encode_messages
from raftmq.proto import queue_pb2 as pb

from tests.support.broker.harness import Harness, running
from tests.support.broker.queues import ack_of, poll, put, queue_of, queue_topic, settle


async def leased(node: Harness, topic: pb.Topic, value: bytes = b"x", lease_ms: int = 30_000):
    await put(node, topic, value)
    (message,) = await poll(node, topic, lease_ms=lease_ms)
    return message


def copy_of(ack: pb.PartitionAck) -> pb.PartitionAck:
    """Return a copy to send: the broker takes the messages out of a request."""
    found = pb.PartitionAck()
    found.CopyFrom(ack)
    return found


async def session(node: Harness, topic: pb.Topic) -> int:
    request = pb.OpenSessionRequest(topic_id=topic.topic_id, partitions=[0])
    (opened,) = (await node.queues.open_session(request, node.call())).partitions
    assert not opened.HasField("error")
    return opened.session


async def test_an_accepted_message_is_gone():
    async with running() as node:
        topic = await queue_topic(node)
        message = await leased(node, topic)
        assert await settle(node, ack_of(topic, message)) == [pb.OK]
        assert queue_of(node, topic).replica.state_machine.message_count == 0
        assert await settle(node, ack_of(topic, message)) == [pb.LEASE_UNKNOWN]


async def test_a_released_message_comes_again_and_its_old_token_is_lost():
    async with running() as node:
        topic = await queue_topic(node, backoff_base_ms="0")
        message = await leased(node, topic)
        assert await settle(node, ack_of(topic, message, pb.RELEASE)) == [pb.OK]
        (again,) = await poll(node, topic)
        assert (again.attempts, again.lease_number) == (2, 2)
        assert await settle(node, ack_of(topic, message)) == [pb.LEASE_LOST]
        assert await settle(node, ack_of(topic, again, pb.RELEASE, is_uncounted=True)) == [pb.OK]
        (third,) = await poll(node, topic)
        assert (third.attempts, third.lease_number) == (2, 3)


async def test_a_release_can_set_delay_and_priority():
    async with running() as node:
        topic = await queue_topic(node)
        message = await leased(node, topic)
        assert await settle(node, ack_of(topic, message, pb.RELEASE, delay_ms=5000, priority=-7)) == [pb.OK]
        assert await poll(node, topic) == []
        node.clock_ms += 5000
        queue_of(node, topic).upkeep.tick()
        (again,) = await poll(node, topic, max_wait_ms=5000)
        assert again.priority == -7


async def test_a_release_may_wait_for_ten_years():
    async with running() as node:
        topic = await queue_topic(node)
        message = await leased(node, topic)
        years = 10 * 366 * 86_400_000
        assert await settle(node, ack_of(topic, message, pb.RELEASE, delay_ms=years + 1)) == [pb.INVALID_ARGUMENT]
        assert await settle(node, ack_of(topic, message, pb.RELEASE, delay_ms=years)) == [pb.OK]
        released = queue_of(node, topic).replica.state_machine.state.store.messages[message.sequence]
        assert released.due >= node.clock_ms + years - 1000


async def test_the_last_release_of_a_message_says_that_it_is_dead():
    async with running() as node:
        topic = await queue_topic(node, attempts_max="1")
        message = await leased(node, topic)
        assert await settle(node, ack_of(topic, message, pb.RELEASE, error="no")) == [pb.ATTEMPTS_EXHAUSTED]
        assert await poll(node, topic) == []


@pytest.mark.parametrize("detail", [{}, {"progress": "half"}], ids=["without details", "with progress"])
async def test_a_renewal_without_a_time_lasts_for_the_topic_s_lease(detail: dict[str, str]):
    async with running() as node:
        topic = await queue_topic(node, lease_ms="9000")
        message = await leased(node, topic, lease_ms=1000)
        assert await settle(node, ack_of(topic, message, pb.RENEW, **detail)) == [pb.OK]
        node.clock_ms += 8000
        queue_of(node, topic).upkeep.tick()
        assert await settle(node, ack_of(topic, message)) == [pb.OK]


async def granted(node: Harness, ack: pb.PartitionAck) -> list[int]:
    (result,) = (await node.queues.ack(pb.AckRequest(partitions=[ack]), node.call())).partitions
    return list(result.granted_ms)


async def test_a_renewal_is_answered_with_the_time_that_was_granted():
    async with running() as node:
        topic = await queue_topic(node, lease_max_ms="60000")
        message = await leased(node, topic)
        assert await granted(node, ack_of(topic, message, pb.RENEW, lease_ms=600_000)) == [60_000]
        assert await granted(node, ack_of(topic, message, pb.RENEW, lease_ms=5000)) == [5000]
        assert await granted(node, ack_of(topic, message)) == []


async def test_each_run_of_renewals_has_the_time_that_was_granted():
    async with running() as node:
        topic = await queue_topic(node)
        await put(node, topic, b"0", b"1", b"2")
        await poll(node, topic, 3)
        ack = pb.PartitionAck(
            topic_id=topic.topic_id, operations=[pb.RENEW, pb.ACCEPT, pb.RENEW, pb.RENEW], first_sequences=[0, 1, 2, 0],
            counts=[1, 1, 1, 1], lease_numbers=[1, 1, 1, 7], detail_numbers=[1, 0, 2, 1],
            details=[pb.AckDetail(lease_ms=8000), pb.AckDetail(lease_ms=9000)],
        )  # fmt: skip
        assert await granted(node, ack) == [8000, 0, 9000, 0]


async def test_a_repeated_renewal_is_answered_with_the_time_that_is_left():
    async with running() as node:
        topic = await queue_topic(node)
        number = await session(node, topic)
        message = await leased(node, topic)
        ack = ack_of(topic, message, pb.RENEW, session=number, request=1, lease_ms=20_000)
        assert await granted(node, ack) == [20_000]
        node.clock_ms += 15_000
        queue_of(node, topic).upkeep.tick()
        assert await granted(node, ack) == [5000]


async def test_settlements_of_many_messages_have_a_code_each():
    async with running() as node:
        topic = await queue_topic(node)
        await put(node, topic, b"0", b"1", b"2")
        messages = await poll(node, topic, 3)
        assert await settle(node, ack_of(topic, messages[1])) == [pb.OK]
        ack = pb.PartitionAck(
            topic_id=topic.topic_id, operations=[pb.ACCEPT], first_sequences=[0], counts=[3], lease_numbers=[1]
        )
        assert await settle(node, ack) == [pb.OK, pb.LEASE_UNKNOWN, pb.OK]


async def test_a_repeat_in_a_session_gets_the_first_answer():
    async with running() as node:
        topic = await queue_topic(node)
        number = await session(node, topic)
        message = await leased(node, topic)
        ack = ack_of(topic, message, session=number, request=1)
        assert await settle(node, ack) == [pb.OK]
        assert await settle(node, ack) == [pb.OK]
        assert await settle(node, ack_of(topic, message, session=number, request=2)) == [pb.LEASE_UNKNOWN]
        assert await settle(node, ack_of(topic, message, session=number + 1, request=1)) == [pb.UNKNOWN_SESSION]


async def test_an_old_request_that_a_session_has_forgotten_is_not_executed():
    async with running() as node:
        topic = await queue_topic(node)
        number = await session(node, topic)
        message = await leased(node, topic)
        for request in range(2, 8):
            await settle(node, ack_of(topic, message, pb.RENEW, session=number, request=request))
        assert await settle(node, ack_of(topic, message, session=number, request=1)) == [pb.UNKNOWN_SESSION]


async def test_wrong_settlements_are_refused_and_change_nothing():
    async with running() as node:
        topic = await queue_topic(node)
        message = await leased(node, topic)
        log = await node.topic("flights")
        good = ack_of(topic, message)
        wrong = []
        for field, value in (("operations", [9]), ("counts", [0]), ("counts", [501]), ("detail_numbers", [1])):
            ack = pb.PartitionAck()
            ack.CopyFrom(good)
            ack.ClearField(field)
            getattr(ack, field).extend(value)
            wrong.append((ack, pb.INVALID_ARGUMENT))
        ack = pb.PartitionAck()
        ack.CopyFrom(good)
        ack.lease_numbers.append(1)
        wrong.append((ack, pb.INVALID_ARGUMENT))
        wrong.append((ack_of(topic, message, pb.REJECT, error="x" * 2000), pb.INVALID_ARGUMENT))
        wrong.append((pb.PartitionAck(topic_id=log.topic_id), pb.TOPIC_KIND_MISMATCH))
        wrong.append((pb.PartitionAck(topic_id=topic.topic_id, partition=3), pb.UNKNOWN_PARTITION))
        for ack, code in wrong:
            assert await settle(node, ack) == [code], ack
        assert await settle(node, good) == [pb.OK]


def chain_of(ack: pb.PartitionAck, *values: bytes, **columns: object) -> pb.PartitionAck:
    """Return the acceptance of one message with messages to put."""
    ack.put = encode_messages(values, **columns).seal()
    ack.put_counts.append(len(values))
    return ack


async def test_an_acceptance_puts_messages_and_its_repeat_puts_nothing():
    async with running() as node:
        topic = await queue_topic(node)
        message = await leased(node, topic)
        number = await session(node, topic)
        ack = chain_of(ack_of(topic, message, session=number, request=1), b"next", b"and next", tenants=["a", "b"])
        assert await settle(node, copy_of(ack)) == [pb.OK]
        assert await settle(node, copy_of(ack)) == [pb.OK], "the session knows the answer"
        ack.session = 0
        assert await settle(node, copy_of(ack)) == [pb.LEASE_UNKNOWN], "the token has ended"
        assert sorted(one.value for one in await poll(node, topic, 9)) == [b"and next", b"next"]


async def test_messages_of_an_acceptance_whose_lease_is_lost_are_not_put():
    async with running() as node:
        topic = await queue_topic(node, backoff_base_ms="0")
        message = await leased(node, topic)
        assert await settle(node, ack_of(topic, message, pb.RELEASE)) == [pb.OK]
        assert await settle(node, chain_of(ack_of(topic, message), b"next")) == [pb.LEASE_LOST]
        assert [one.value for one in await poll(node, topic, 9)] == [b"x"]


async def test_messages_of_an_acceptance_are_judged_like_a_put():
    async with running() as node:
        topic = await queue_topic(
            node, partition_max_messages="2", partition_tenant_max_messages="1", max_message_bytes="1024"
        )
        message = await leased(node, topic)
        refused = [
            (chain_of(ack_of(topic, message), b"a", b"b", b"c", tenants=["a", "b", "c"]), pb.QUEUE_FULL),
            (chain_of(ack_of(topic, message), b"a", b"b", tenants=["a", "a"]), pb.TENANT_FULL),
            (chain_of(ack_of(topic, message), b"x" * 2000, tenants=["a"]), pb.RECORD_TOO_LARGE),
        ]
        for ack, code in refused:
            assert await settle(node, ack) == [code]
        good = chain_of(ack_of(topic, message), b"next", tenants=["a"])
        assert await settle(node, copy_of(good)) == [pb.OK]


async def test_a_chain_is_judged_by_the_growth_of_the_partition():
    """Otherwise a full partition whose messages each put the next one could never be worked off."""
    async with running() as node:
        limits = {
            "partition_max_messages": "2",
            "partition_max_bytes": "6",
            "partition_tenant_max_messages": "1",
            "partition_tenant_max_bytes": "4",
        }
        topic = await queue_topic(node, **limits)
        await put(node, topic, b"abc", b"def", tenants=["a", "b"])
        first, second = await poll(node, topic, 2)
        assert await settle(node, chain_of(ack_of(topic, first), b"abcd", tenants=["a"])) == [pb.QUEUE_FULL]
        assert await settle(node, chain_of(ack_of(topic, first), b"next", tenants=["b"])) == [pb.QUEUE_FULL]
        assert await settle(node, chain_of(ack_of(topic, first), b"abc", tenants=["b"])) == [pb.TENANT_FULL]
        assert await settle(node, chain_of(ack_of(topic, first), b"abc", tenants=["a"])) == [pb.OK]
        assert await settle(node, chain_of(ack_of(topic, second), b"x", tenants=["b"])) == [pb.OK]
        machine = queue_of(node, topic).replica.state_machine
        assert (machine.message_count, machine.byte_count) == (2, 4)
        found = await poll(node, topic, 2, max_wait_ms=5000)
        assert sorted(message.value for message in found) == [b"abc", b"x"]
        assert (await put(node, topic, b"y", tenants=["c"])).error.code == pb.QUEUE_FULL


async def test_an_acceptance_frees_nothing_for_the_messages_of_another():
    """The lease of the first may have ended when the chain is applied, and the second would then exceed the limit."""
    async with running() as node:
        topic = await queue_topic(node, partition_max_messages="2")
        await put(node, topic, b"0", b"1")
        first, second = await poll(node, topic, 2)
        ack = chain_of(ack_of(topic, first), b"a", b"b")
        ack.MergeFrom(ack_of(topic, second))
        del ack.put_counts[:]
        ack.put_counts.extend([0, 2])
        assert await settle(node, ack) == [pb.QUEUE_FULL]


async def test_a_repeated_chain_gets_its_answer_from_a_full_partition():
    async with running() as node:
        topic = await queue_topic(node, partition_max_messages="2")
        message = await leased(node, topic)
        number = await session(node, topic)
        ack = chain_of(ack_of(topic, message, session=number, request=1), b"next")
        assert await settle(node, copy_of(ack)) == [pb.OK]
        await put(node, topic, b"the last that fits")
        assert await settle(node, copy_of(ack)) == [pb.OK]


async def test_wrong_chains_are_refused_and_change_nothing():
    async with running() as node:
        topic = await queue_topic(node)
        message = await leased(node, topic)
        named = encode_messages([b"next"]).seal(producer_id=5)
        wrong = [
            (chain_of(ack_of(topic, message, pb.RELEASE), b"next"), pb.INVALID_ARGUMENT),
            (pb.PartitionAck(put=named, put_counts=[1]), pb.INVALID_ARGUMENT),
            (pb.PartitionAck(put=b"no batch", put_counts=[1]), pb.CORRUPT_BATCH),
            (pb.PartitionAck(put_counts=[0]), pb.CORRUPT_BATCH),
            (pb.PartitionAck(put=encode_messages([b"next"]).seal(), put_counts=[2]), pb.INVALID_ARGUMENT),
            (pb.PartitionAck(put=encode_messages([b"next"]).seal(), put_counts=[1, 0]), pb.INVALID_ARGUMENT),
            (pb.PartitionAck(put=encode_messages([b""] * 500).seal(), put_counts=[500]), pb.INVALID_ARGUMENT),
        ]
        for ack, code in wrong:
            if not ack.topic_id:
                ack.MergeFrom(ack_of(topic, message))
            assert await settle(node, ack) == [code], ack
        assert await settle(node, ack_of(topic, message)) == [pb.OK]
        assert queue_of(node, topic).replica.state_machine.message_count == 0


async def test_a_principal_without_the_right_to_produce_settles_and_puts_nothing():
    async with running() as node:
        topic = await queue_topic(node)
        message = await leased(node, topic)
        call = replace(node.call(), principal=Principal("reader", frozenset({Right.CONSUME})))
        (refused,) = (
            await node.queues.ack(pb.AckRequest(partitions=[chain_of(ack_of(topic, message), b"next")]), call)
        ).partitions
        assert refused.error.code == pb.PERMISSION_DENIED
        (settled,) = (await node.queues.ack(pb.AckRequest(partitions=[ack_of(topic, message)]), call)).partitions
        assert list(settled.codes) == [pb.OK]


async def test_another_broker_refuses_settlements():
    async with running() as node:
        topic = await queue_topic(node)
        message = await leased(node, topic)
        node.lose_leadership(queue_of(node, topic).replica.group_id)
        assert await settle(node, ack_of(topic, message)) == [pb.NO_LEADER]
        opened = await node.queues.open_session(
            pb.OpenSessionRequest(topic_id=topic.topic_id, partitions=[0, 5]), node.call()
        )
        assert [one.error.code for one in opened.partitions] == [pb.NO_LEADER, pb.UNKNOWN_PARTITION]
