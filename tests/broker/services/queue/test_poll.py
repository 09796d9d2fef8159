"""Unary polls of queue topics lease messages, wait for them, and lose none."""

from __future__ import annotations

import asyncio

import pytest
from raftmq.broker.base.request_error import RequestError
from raftmq.broker.partitions.queue import gate as gate_module
from raftmq.broker.services.queue import poll as poll_module
from raftmq.client.codec.queue_batch import TimeColumns
from raftmq.fsm.queue.commands import Item, Lease, PauseTenant, ResumeTenant
from raftmq.fsm.queue.results import Done
from raftmq.proto import queue_pb2 as pb
from raftmq.raft.ready import Role, RoleChange
from raftmq.types import ReplicaId, Term

from tests.support.broker.harness import Harness, running
from tests.support.broker.queues import Stream, ack_of, poll, put, queue_of, queue_topic, received, settle


async def settled(node: Harness) -> None:
    """Let the callbacks of several turns of the loop run."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_poll_returns_messages_with_their_fields():
    async with running() as node:
        topic = await queue_topic(node)
        await put(
            node, topic, b"body", b"other", keys=[b"k", None], tenants=["acme.eu", ""], priorities=[-1, 0],
            ids=["order-1", None], headers=[(("h", b"1"),), ()],
        )  # fmt: skip
        first, second = await poll(node, topic, 10, lease_ms=30_000)
        assert (first.value, first.key, first.tenant, first.priority, first.id) == (
            b"body", b"k", "acme.eu", -1, "order-1",
        )  # fmt: skip
        assert (first.headers, first.attempts, first.lease_number, first.sequence) == ((("h", b"1"),), 1, 1, 0)
        assert first.enqueued_ms == node.clock_ms
        assert first.lease_remaining_ms == 30_000
        assert (second.value, second.key, second.tenant, second.id, second.headers) == (b"other", None, "", None, ())
        assert await poll(node, topic, 10) == [], "both are leased"


async def test_a_lease_that_is_too_short_is_refused():
    async with running() as node:
        topic = await queue_topic(node)
        await put(node, topic, b"x")
        before = queue_of(node, topic).replica.core.last_index
        with pytest.raises(RequestError, match="at least 1000 ms") as refused:
            await poll(node, topic, lease_ms=999)
        assert refused.value.code == pb.INVALID_ARGUMENT
        stream = Stream(node, topic, lease_ms=999)
        stream.credit(1)
        assert (await stream.next()).error.code == pb.INVALID_ARGUMENT
        assert queue_of(node, topic).replica.core.last_index == before
        (message,) = await poll(node, topic, lease_ms=1000)
        assert await settle(node, ack_of(topic, message, pb.RENEW, lease_ms=999)) == [pb.INVALID_ARGUMENT]
        assert await settle(node, ack_of(topic, message, pb.RENEW, lease_ms=1000)) == [pb.OK]


async def test_an_empty_queue_answers_a_poll_that_must_not_wait_without_an_entry():
    async with running() as node:
        topic = await queue_topic(node)
        await put(node, topic, b"late", due=TimeColumns(after_ms=[60_000]))
        before = queue_of(node, topic).replica.core.last_index
        assert await poll(node, topic) == []
        assert queue_of(node, topic).replica.core.last_index == before


async def test_a_waiting_poll_gets_a_message_that_is_enqueued_later():
    async with running() as node:
        topic = await queue_topic(node)
        polling = asyncio.ensure_future(poll(node, topic, max_wait_ms=5000))
        await settled(node)
        assert not polling.done()
        await put(node, topic, b"x")
        assert [message.value for message in await polling] == [b"x"]


async def test_the_lease_of_a_waiting_poll_is_committed_together_with_the_message():
    async with running() as node:
        topic = await queue_topic(node)
        queue = queue_of(node, topic)
        polling = asyncio.ensure_future(poll(node, topic, max_wait_ms=5000))
        await settled(node)
        node.hold_commits = True
        putting = asyncio.ensure_future(put(node, topic, b"x"))
        await settled(node)
        assert [len(work.entries) for _, work in node._held] == [2], "the message and its lease, in one write"
        node.release_commits()
        assert [message.value for message in await polling] == [b"x"]
        await putting
        assert queue.leases.consumers == 0


async def test_a_poll_that_finds_nothing_in_time_is_empty():
    async with running() as node:
        topic = await queue_topic(node)
        assert await poll(node, topic, max_wait_ms=20) == []
        assert queue_of(node, topic).leases.consumers == 0


async def test_polls_get_messages_in_the_order_of_their_arrival():
    async with running() as node:
        topic = await queue_topic(node)
        polls = [asyncio.ensure_future(poll(node, topic, max_wait_ms=5000)) for _ in range(3)]
        await settled(node)
        await put(node, topic, b"0", b"1", b"2")
        assert [found[0].value for found in await asyncio.gather(*polls)] == [b"0", b"1", b"2"]


async def test_messages_of_a_poll_whose_caller_is_gone_are_given_back_uncounted():
    async with running() as node:
        topic = await queue_topic(node)
        polling = asyncio.ensure_future(poll(node, topic, max_wait_ms=5000))
        await settled(node)
        node.hold_commits = True
        putting = asyncio.ensure_future(put(node, topic, b"x"))
        await settled(node)
        polling.cancel()
        await settled(node)
        node.release_commits()
        await putting
        await settled(node)
        (again,) = await poll(node, topic)
        assert (again.lease_number, again.attempts) == (2, 1)


@pytest.mark.parametrize("is_this_term", [True, False])
async def test_a_lease_that_is_applied_after_its_leader_changed_reaches_its_consumer(*, is_this_term: bool):
    async with running() as node:
        topic = await queue_topic(node)
        leases, replica = queue_of(node, topic).leases, queue_of(node, topic).replica
        polling = asyncio.ensure_future(poll(node, topic, max_wait_ms=2_000))
        await settled(node)
        node.hold_commits = True
        putting = asyncio.ensure_future(put(node, topic, b"x"))
        await settled(node)
        replica.on_role_change(RoleChange(Role.FOLLOWER, replica.core.term, ReplicaId(0)))
        if not is_this_term:
            leases._lost = {number: (Term(term - 1), one) for number, (term, one) in leases._lost.items()}
        await settled(node)
        assert not polling.done()
        node.release_commits()
        assert [one.value for one in await polling] == ([b"x"] if is_this_term else []), "another leader's lease"
        assert replica.state_machine.leased_count == 1
        assert not leases._lost
        await putting


async def test_each_partition_has_a_group_of_its_own():
    async with running() as node:
        topic = await queue_topic(node, partitions=3)
        queues = [queue_of(node, topic, number) for number in range(3)]
        assert len({queue.replica.group_id for queue in queues}) == 3
        before = [queue.replica.core.last_index for queue in queues]
        await put(node, topic, b"x", partition=1)
        (message,) = await poll(node, topic)
        assert await settle(node, ack_of(topic, message)) == [pb.LEASE_UNKNOWN], "partition 0 knows nothing of it"
        grown = [queue.replica.core.last_index - index for queue, index in zip(queues, before, strict=True)]
        assert grown[1] >= 2
        assert grown[2] == 0
        assert [queue.replica.state_machine.message_count for queue in queues] == [0, 1, 0]


async def test_messages_do_not_wait_for_the_lease_of_a_partition_without_a_majority(monkeypatch: pytest.MonkeyPatch):
    async with running() as node:
        topic = await queue_topic(node, partitions=2)
        stuck = queue_of(node, topic, 1)
        leased: asyncio.Future[object] = node.loop.create_future()
        submit = stuck.commands.submit
        monkeypatch.setattr(poll_module, "STRAGGLER_SECONDS", 0.05)
        with monkeypatch.context() as patch:
            patch.setattr(stuck.commands, "submit", lambda _item: leased)
            request = pb.QueuePollRequest(topic_id=topic.topic_id, max_messages=10, max_wait_ms=50_000)
            polling = asyncio.ensure_future(node.queues.poll(request, node.call()))
            await settled(node)
            await put(node, topic, b"1", partition=1)
            await settled(node)
            await put(node, topic, b"0")
            async with asyncio.timeout(5):
                assert [one.value for one in received((await polling).partitions)] == [b"0"]
        leased.set_result(await submit(Lease(0, 0, 1, 30_000)))
        (again,) = await poll(node, topic, 10, max_wait_ms=5000)
        assert (again.value, again.lease_number, again.attempts) == (b"1", 2, 1), "it was given back, uncounted"


async def test_a_poll_takes_from_all_partitions_of_the_topic():
    async with running() as node:
        topic = await queue_topic(node, partitions=3)
        for partition in range(3):
            await put(node, topic, b"%d" % partition, partition=partition)
        values = {message.value for message in await poll(node, topic, 10)}
        while len(values) < 3:
            found = await poll(node, topic, 10)
            assert found
            values |= {message.value for message in found}
        assert values == {b"0", b"1", b"2"}


async def test_a_poll_can_name_partitions():
    async with running() as node:
        topic = await queue_topic(node, partitions=2)
        await put(node, topic, b"0", partition=0)
        assert await poll(node, topic, 10, partitions=[1], max_wait_ms=20) == []
        assert [one.value for one in await poll(node, topic, 10, partitions=[0])] == [b"0"]


@pytest.mark.parametrize("max_wait_ms", [0, 20])
async def test_a_named_partition_that_is_led_elsewhere_is_answered_with_an_error(max_wait_ms: int) -> None:
    """It looked empty. So a run that ends when nothing is ready left out the messages of a partition that had just moved."""
    async with running() as node:
        topic = await queue_topic(node, partitions=3)
        node.lose_leadership(queue_of(node, topic, 1).replica.group_id)
        request = pb.QueuePollRequest(topic_id=topic.topic_id, partitions=[0, 1], max_wait_ms=max_wait_ms)
        answer = await node.queues.poll(request, node.call())
        assert [(one.partition, one.error.code) for one in answer.partitions] == [(1, pb.NO_LEADER)]


async def test_a_poll_takes_no_more_than_its_messages_and_bytes():
    async with running() as node:
        topic = await queue_topic(node)
        await put(node, topic, *[b"x" * 1000] * 10)
        assert len(await poll(node, topic, 3)) == 3
        request = pb.QueuePollRequest(topic_id=topic.topic_id, max_messages=10, max_bytes=2500)
        assert len(received((await node.queues.poll(request, node.call())).partitions)) == 2
        request.max_bytes = 10
        assert len(received((await node.queues.poll(request, node.call())).partitions)) == 1, "one always fits"


async def test_headers_count_towards_the_bytes_of_an_answer():
    """An answer of 500 messages with 16 KiB of headers each would not fit into a frame of gRPC."""
    async with running() as node:
        topic = await queue_topic(node)
        headers = (("h", b"x" * 16_000),)
        await put(node, topic, *[b"x"] * 200, headers=[headers] * 200)
        request = pb.QueuePollRequest(topic_id=topic.topic_id, max_messages=200)
        answer = await node.queues.poll(request, node.call())
        assert answer.ByteSize() < node.limits.poll_bytes_max
        assert 1 < len(received(answer.partitions)) < 200


async def test_a_poll_takes_only_the_tenants_that_it_names():
    async with running() as node:
        topic = await queue_topic(node)
        await put(node, topic, b"a", b"b", b"c", tenants=["acme.eu", "acme.us", "other"])
        assert [one.value for one in await poll(node, topic, 10, tenants=["acme"])] == [b"a", b"b"]
        assert await poll(node, topic, 10, tenants=["acme"], max_wait_ms=20) == []
        assert [one.value for one in await poll(node, topic, 10)] == [b"c"]


async def test_a_poll_for_a_key_gets_its_head_alone():
    async with running() as node:
        topic = await queue_topic(node, ordered_by_key="true")
        await put(node, topic, b"1", b"2", b"3", keys=[b"a", b"b", b"a"], tenants=["t", "t", "t"])
        (head,) = await poll(node, topic, 10, tenants=["t"], key=b"a")
        assert head.value == b"1"
        assert await poll(node, topic, 10, tenants=["t"], key=b"a") == [], "its head is leased"
        assert await settle(node, ack_of(topic, head)) == [pb.OK]
        assert [one.value for one in await poll(node, topic, 10, tenants=["t"], key=b"a", max_wait_ms=5000)] == [b"3"]


async def test_a_key_may_be_any_bytes_and_its_tenant_the_root():
    async with running() as node:
        topic = await queue_topic(node, ordered_by_key="true")
        await put(node, topic, b"1", b"2", keys=[b"\xff", b"b"])
        (head,) = await poll(node, topic, 10, tenants=[""], key=b"\xff")
        assert head.value == b"1"


async def test_a_poll_for_a_key_of_a_topic_without_order_is_refused():
    async with running() as node:
        topic = await queue_topic(node)
        request = pb.QueuePollRequest(topic_id=topic.topic_id, tenants=["t"], key=b"a")
        with pytest.raises(RequestError, match="not ordered by key") as caught:
            await node.queues.poll(request, node.call())
        assert caught.value.code == pb.INVALID_ARGUMENT


async def test_messages_are_accepted_before_they_are_delivered_at_most_once():
    async with running() as node:
        topic = await queue_topic(node)
        await put(node, topic, b"x", b"y")
        found = await poll(node, topic, 10, auto_accept=True)
        assert [one.value for one in found] == [b"x", b"y"]
        assert queue_of(node, topic).replica.state_machine.message_count == 0
        assert await settle(node, ack_of(topic, found[0])) == [pb.LEASE_UNKNOWN]


async def test_bodies_that_are_not_in_memory_are_read_from_the_disk():
    async with running(recent_bytes_max=1) as node:
        topic = await queue_topic(node)
        await put(node, topic, b"first")
        await put(node, topic, b"second")
        before = node.reads_in_thread
        assert [one.value for one in await poll(node, topic, 10)] == [b"first", b"second"]
        assert node.reads_in_thread > before


async def test_polls_that_cannot_be_served_are_refused():
    async with running() as node:
        topic = await queue_topic(node)
        log = await node.topic("flights")
        cases = [
            (pb.QueuePollRequest(topic_id=log.topic_id), pb.TOPIC_KIND_MISMATCH),
            (pb.QueuePollRequest(topic_id=77), pb.UNKNOWN_TOPIC),
            (pb.QueuePollRequest(topic_id=topic.topic_id, tenants=["a..b"]), pb.INVALID_ARGUMENT),
            (pb.QueuePollRequest(topic_id=topic.topic_id, tenants=["a"] * 17), pb.INVALID_ARGUMENT),
            (pb.QueuePollRequest(topic_id=topic.topic_id, key=b"k"), pb.INVALID_ARGUMENT),
        ]
        for request, code in cases:
            with pytest.raises(RequestError) as refused:
                await node.queues.poll(request, node.call())
            assert refused.value.code == code, request
        node.lose_leadership(queue_of(node, topic).replica.group_id)
        with pytest.raises(RequestError) as refused:
            await node.queues.poll(pb.QueuePollRequest(topic_id=topic.topic_id), node.call())
        assert refused.value.code == pb.NO_LEADER


async def test_a_poll_waits_until_the_queue_clock_runs():
    async with running() as node:
        topic = await queue_topic(node)
        queue = queue_of(node, topic)
        await put(node, topic, b"x")
        queue.clock.is_running = False
        node.median_ms = lambda: None  # type: ignore[method-assign]
        queue.clock._median_ms = node.median_ms
        polling = asyncio.ensure_future(poll(node, topic, max_wait_ms=5000))
        await asyncio.sleep(0.12)
        assert not polling.done()
        queue.clock._median_ms = lambda: node.clock_ms
        assert [one.value for one in await polling] == [b"x"]


@pytest.mark.parametrize(
    ("part", "auto_accept"), [("leased_facts", False), ("read_bodies", False), ("read_bodies", True)]
)
@pytest.mark.parametrize("failure", [RuntimeError("a defect"), RequestError(pb.NOT_READY, "the disk is slow")])
async def test_messages_that_cannot_be_delivered_are_given_back_uncounted(
    part: str, failure: Exception, monkeypatch: pytest.MonkeyPatch, *, auto_accept: bool
):
    async with running(recent_bytes_max=1) as node:
        topic = await queue_topic(node)
        await put(node, topic, b"x")
        await put(node, topic, b"the body of x is on disk")
        queue, failures = queue_of(node, topic), list[BaseException]()
        monkeypatch.setattr(node.supervisor, "record_failure", lambda _work, error: failures.append(error))
        works = getattr(queue, part)

        def fail_once(*arguments: object) -> object:
            monkeypatch.setattr(queue, part, works)
            raise failure

        monkeypatch.setattr(queue, part, fail_once)
        found = await poll(node, topic, 1, auto_accept=auto_accept, max_wait_ms=5000)
        assert [(one.value, one.attempts) for one in found] == [(b"x", 1)]
        assert failures == [failure] * (part == "leased_facts" or isinstance(failure, RuntimeError))


async def test_a_lowered_limit_binds_from_the_first_poll_on():
    async with running() as node:
        topic = await queue_topic(node)
        await put(node, topic, *[b"x"] * 5)
        await node.admin.alter_topic(pb.AlterTopicRequest(name="jobs", set={"partition.max.leased": "2"}), node.call())
        assert len(await poll(node, topic, 5, max_wait_ms=5000)) == 2


async def entries_of_a_put(node: Harness, topic: pb.Topic, tenant: str) -> int:
    """Return how many entries a message takes while consumers wait."""
    core = queue_of(node, topic).replica.core
    before = core.last_index
    await put(node, topic, b"x", tenants=[tenant])
    await settled(node)
    return core.last_index - before


async def execute(node: Harness, topic: pb.Topic, item: Item) -> None:
    await queue_of(node, topic).commands.execute(item, Done, node.loop.time() + 5)


@pytest.mark.parametrize("paused", ["", "acme"])
async def test_no_lease_is_proposed_for_a_message_that_is_paused(paused: str):
    """Each put of a paused topic once cost a second entry, which leased nothing."""
    async with running() as node:
        topic = await queue_topic(node)
        await execute(node, topic, PauseTenant(paused))
        polling = asyncio.ensure_future(poll(node, topic, max_wait_ms=5000))
        await settled(node)
        assert [await entries_of_a_put(node, topic, "acme.eu") for _ in range(3)] == [1, 1, 1]
        await execute(node, topic, ResumeTenant(paused))
        assert [message.tenant for message in await polling] == ["acme.eu"]


@pytest.mark.parametrize("limit", ["partition_max_leased", "partition_tenant_max_leased"])
async def test_no_lease_is_proposed_for_a_message_beyond_the_limit_of_leases(limit: str):
    async with running() as node:
        topic = await queue_topic(node, **{limit: "1"})
        await put(node, topic, b"x", tenants=["a"])
        (held,) = await poll(node, topic)
        polling = asyncio.ensure_future(poll(node, topic, max_wait_ms=5000))
        await settled(node)
        assert [await entries_of_a_put(node, topic, "a") for _ in range(2)] == [1, 1]
        await settle(node, ack_of(topic, held))
        assert len(await polling) == 1


async def test_a_consumer_of_another_tenant_takes_no_lease_from_the_right_one():
    async with running() as node:
        topic = await queue_topic(node)
        wrong = asyncio.ensure_future(poll(node, topic, 5, tenants=["a"], max_wait_ms=200))
        await settled(node)
        right = asyncio.ensure_future(poll(node, topic, 5, tenants=["b"], max_wait_ms=5000))
        await settled(node)
        assert await entries_of_a_put(node, topic, "b.c") == 2, "the message, and one lease in the same commit"
        assert [message.tenant for message in await right] == ["b.c"]
        assert await wrong == []


async def test_with_many_tenants_under_way_any_consumer_may_be_meant(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(gate_module, "TENANTS_EXAMINED_MAX", 2)
    async with running() as node:
        topic = await queue_topic(node)
        polling = asyncio.ensure_future(poll(node, topic, 5, tenants=["d"], max_wait_ms=5000))
        await settled(node)
        await put(node, topic, b"1", b"2", b"3", b"4", tenants=["a", "b", "c", "d"])
        assert [message.value for message in await polling] == [b"4"]


async def test_a_poll_ends_after_its_wait_although_a_lease_is_under_way_that_finds_nothing() -> None:
    """It waited for messages that it did not ask for any more, until the deadline of its call."""
    async with running() as node:
        topic = await queue_topic(node)
        await put(node, topic, b"x", expiry=TimeColumns(after_ms=[1_000]))
        node.clock_ms += 2_000
        node.hold_commits = True
        polling = asyncio.ensure_future(poll(node, topic, max_wait_ms=20))
        await asyncio.sleep(0.05)
        assert not polling.done(), "a lease is under way"
        node.release_commits()
        assert await asyncio.wait_for(polling, 1) == []
