"""Settlements change what their token allows, and a repeat under the same session changes nothing."""

from __future__ import annotations

import pytest
from raftmq.proto import queue_pb2 as pb

from tests.support.broker.harness import Harness, running
from tests.support.broker.queues import ack_of, poll, put, queue_of, queue_topic, settle


async def leased(node: Harness, topic: pb.Topic, value: bytes = b"x", lease_ms: int = 30_000):
    await put(node, topic, value)
    (message,) = await poll(node, topic, lease_ms=lease_ms)
    return message


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
