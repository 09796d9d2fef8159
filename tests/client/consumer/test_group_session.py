"""Consumers with a group, on a real broker in memory: assignments, commits and rebalances."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
from raftmq import errors
from raftmq.broker.services import locator
from raftmq.client.admin import group_admin
from raftmq.client.admin.admin import Admin
from raftmq.client.admin.group_admin import OffsetChange
from raftmq.client.base import settings
from raftmq.client.connection.time_search import OffsetAndTimestamp
from raftmq.client.consumer.consumer import Consumer
from raftmq.client.consumer.rebalance_listener import RebalanceListener
from raftmq.fsm.feature_levels import FEATURE_LEVEL
from raftmq.fsm.log_commands import ResetOffset
from raftmq.fsm.metadata_commands import Done, RaiseFeatureLevel, RecoverPartition, TakeGroupEpoch
from raftmq.proto import queue_pb2 as pb
from raftmq.types import GroupId, Record, TopicPartition

from tests.support.broker.harness import Harness, running
from tests.support.client.broker_transport import ADDRESS, BrokerTransport, produce

TOPIC = "flights"
WAIT_SECONDS = 20


def part(number: int) -> TopicPartition:
    return TopicPartition(TOPIC, number)


class Listener(RebalanceListener):
    """Records its calls."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, frozenset[int]]] = []
        self.changed = asyncio.Event()

    def _note(self, what: str, partitions: frozenset[TopicPartition]) -> None:
        self.heard.append((what, frozenset(p.partition for p in partitions)))
        self.changed.set()

    async def on_assigned(self, partitions: frozenset[TopicPartition]) -> None:
        self._note("assigned", partitions)

    async def on_revoked(self, partitions: frozenset[TopicPartition]) -> None:
        self._note("revoked", partitions)

    async def on_lost(self, partitions: frozenset[TopicPartition]) -> None:
        self._note("lost", partitions)


class Members:
    """Consumers of one group on one broker."""

    def __init__(self, broker: Harness, stack: AsyncExitStack) -> None:
        self.broker = broker
        self._stack = stack

    def make(self, *topics: str, transport: BrokerTransport | None = None, **settings: object) -> Consumer:
        usual: dict[str, object] = {"group_id": "g", "auto_offset_reset": "earliest", "fetch_max_wait_ms": 50}
        return Consumer(
            *topics,
            bootstrap_servers=ADDRESS,
            transport=transport or BrokerTransport(self.broker),
            **(usual | settings),
        )

    async def start(self, *topics: str, **settings: object) -> Consumer:
        return await self._stack.enter_async_context(self.make(*(topics or (TOPIC,)), **settings))

    async def committed(self, number: int, topic_id: int = 0, group: str = "g") -> int:
        topics = {t.name: t for t in self.broker.metadata.state_machine.topics()}
        request = pb.FetchOffsetsRequest(group=group)
        request.partitions.add(topic_id=topic_id or topics[TOPIC].topic_id, partition=number)
        return (await self.broker.offsets.fetch_offsets(request, self.broker.call())).partitions[0].offset

    async def until_committed(self, number: int, offset: int) -> None:
        async with asyncio.timeout(WAIT_SECONDS):
            while await self.committed(number) < offset:
                await asyncio.sleep(0.01)


@pytest.fixture
async def broker() -> AsyncIterator[Harness]:
    async with running() as harness:
        coordinating = asyncio.create_task(harness.coordinator.run())
        yield harness
        coordinating.cancel()
        await asyncio.wait([coordinating])


@pytest.fixture
async def members(broker: Harness) -> AsyncIterator[Members]:
    async with AsyncExitStack() as stack:
        yield Members(broker, stack)


async def read(consumer: Consumer, count: int) -> list[Record]:
    found: list[Record] = []
    async with asyncio.timeout(WAIT_SECONDS):
        while len(found) < count:
            for records in (await consumer.getmany(timeout_ms=200)).values():
                found += records
    return found


async def until(condition, *reading: Consumer) -> list[Record]:
    """Let the consumers poll until the condition holds. Return the records that they got."""
    found: list[Record] = []
    async with asyncio.timeout(WAIT_SECONDS):
        while not condition():
            for consumer in reading:
                for records in (await consumer.getmany(timeout_ms=20)).values():
                    found += records
            await asyncio.sleep(0.01)
    return found


# -------------------------------------------------------------------------------------------------------------- sharing


async def test_the_next_member_continues_at_the_committed_offsets(broker: Harness, members: Members) -> None:
    topic = await broker.topic(TOPIC, partitions=2)
    for number in range(2):
        await produce(broker, topic, number, 10)
    async with members.make(TOPIC) as consumer:
        records = await read(consumer, 20)
        assert {(r.partition, r.value) for r in records} == {(p, b"%d" % n) for p in range(2) for n in range(10)}
        await consumer.commit()
        assert await consumer.committed() == {part(0): 10, part(1): 10}
    await produce(broker, topic, 1, 5, start=10)
    again = await members.start()
    assert [(r.partition, r.offset) for r in await read(again, 5)] == [(1, offset) for offset in range(10, 15)]


async def test_members_share_and_partitions_that_stay_are_never_interrupted(broker: Harness, members: Members) -> None:
    topic = await broker.topic(TOPIC, partitions=4)
    heard = Listener()
    first = await members.start(listener=heard)
    await until(lambda: len(first.assignment()) == 4, first)
    states = {p: first._fetcher.partitions[p] for p in first.assignment()}
    second = await members.start()
    await until(lambda: len(second.assignment()) == 2, first, second)
    assert first.assignment() | second.assignment() == {part(n) for n in range(4)}
    assert not first.assignment() & second.assignment()
    assert {p: first._fetcher.partitions[p] for p in first.assignment()}.items() <= states.items()
    moved = frozenset(p.partition for p in second.assignment())
    assert heard.heard == [("assigned", frozenset(range(4))), ("revoked", moved)]
    for number in range(4):
        await produce(broker, topic, number, 3)
    both = await until(lambda: sum(c.metrics().records_total for c in (first, second)) == 12, first, second)
    both += [r for c in (first, second) for records in (await c.getmany()).values() for r in records]
    assert len({(r.partition, r.offset) for r in both}) == len(both) == 12


async def test_a_leaving_member_commits_processed_records_and_releases_partitions_immediately(
    broker: Harness, members: Members
) -> None:
    topic = await broker.topic(TOPIC, partitions=2)
    for number in range(2):
        await produce(broker, topic, number, 4)
    first = members.make(TOPIC)
    async with first:
        await read(first, 8)
        second = await members.start()
        await until(lambda: len(second.assignment()) == 1, first)
    assert await members.committed(0) == await members.committed(1) == 4
    await until(lambda: len(second.assignment()) == 2)
    assert await second.getmany(timeout_ms=100) == {}


# -------------------------------------------------------------------------------------------------------- automatic commit


async def test_iterating_commits_the_previous_records_and_not_the_current_one(
    broker: Harness, members: Members
) -> None:
    topic = await broker.topic(TOPIC)
    await produce(broker, topic, 0, 10)
    consumer = await members.start(auto_commit_interval_ms=20)
    async for record in consumer:
        if record.offset == 5:
            break
    await members.until_committed(0, 5)
    await asyncio.sleep(0.1)
    assert await members.committed(0) == 5, "the record at 5 is still being processed"


async def test_getmany_commits_at_the_next_call(broker: Harness, members: Members) -> None:
    topic = await broker.topic(TOPIC)
    await produce(broker, topic, 0, 10)
    consumer = await members.start(auto_commit_interval_ms=20)
    await read(consumer, 10)
    await asyncio.sleep(0.15)
    assert await members.committed(0) in (-1, 0)
    await consumer.getmany()
    await members.until_committed(0, 10)


async def test_no_records_are_committed_after_an_exception(broker: Harness, members: Members) -> None:
    topic = await broker.topic(TOPIC)
    await produce(broker, topic, 0, 10)

    async def fail_at_5(consumer: Consumer) -> None:
        async for record in consumer:
            1 // (5 - record.offset)

    with pytest.raises(ZeroDivisionError):
        async with members.make(TOPIC) as consumer:
            await fail_at_5(consumer)
    assert await members.committed(0) == -1
    consumer = members.make(TOPIC)
    await consumer.start()
    try:
        await fail_at_5(consumer)
    except ZeroDivisionError:
        await consumer.close()
    assert await members.committed(0) == -1


async def test_a_clean_end_commits_the_processed_records(broker: Harness, members: Members) -> None:
    topic = await broker.topic(TOPIC)
    await produce(broker, topic, 0, 10)
    async with members.make(TOPIC) as consumer:
        async for record in consumer:
            if record.offset == 5:
                break
    assert await members.committed(0) == 6


async def test_closing_during_a_read_does_not_commit_the_current_record(broker: Harness, members: Members) -> None:
    topic = await broker.topic(TOPIC)
    await produce(broker, topic, 0, 10)
    consumer = members.make(TOPIC)
    await consumer.start()
    is_at_work, may_go_on = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        async for record in consumer:
            if record.offset == 5:
                is_at_work.set()
                await may_go_on.wait()

    working = asyncio.create_task(work())
    await is_at_work.wait()
    await consumer.close()
    may_go_on.set()
    await working
    assert await members.committed(0) == 5


async def test_without_automatic_commit_only_the_program_commits(broker: Harness, members: Members) -> None:
    topic = await broker.topic(TOPIC)
    await produce(broker, topic, 0, 10)
    async with members.make(TOPIC, enable_auto_commit=False, auto_commit_interval_ms=10) as consumer:
        await read(consumer, 10)
        await consumer.getmany()
        await asyncio.sleep(0.05)
    assert await members.committed(0) == -1


# -------------------------------------------------------------------------------------------------------------- commits


async def test_commits_keep_their_order_and_gather(broker: Harness, members: Members) -> None:
    topic = await broker.topic(TOPIC)
    await produce(broker, topic, 0, 10)
    transport = BrokerTransport(broker)
    consumer = await members.start(transport=transport, enable_auto_commit=False)
    await read(consumer, 10)
    gate = transport.gates["CommitOffsets"] = asyncio.Event()
    tasks = [consumer.commit_nowait({part(0): offset}) for offset in (3, 5, 4, 7, 2)]
    await asyncio.sleep(0)
    gate.set()
    await asyncio.gather(*tasks)
    assert await consumer.committed(part(0)) == {part(0): 2}
    assert transport.calls["CommitOffsets"] == 2


async def test_a_partition_without_a_leader_does_not_delay_the_commits_of_others(
    broker: Harness, members: Members
) -> None:
    """They waited for it, and so did every later commit of theirs, for up to `request_timeout_ms`."""
    topic = await broker.topic(TOPIC, partitions=2)
    for number in range(2):
        await produce(broker, topic, number, 10)
    consumer = await members.start(enable_auto_commit=False)
    await read(consumer, 20)
    silent = topic.partitions[1].group_id
    broker.lose_leadership(silent)
    both = consumer.commit_nowait({part(0): 4, part(1): 4})
    async with asyncio.timeout(WAIT_SECONDS):
        await consumer.commit({part(0): 7})
    assert await members.committed(0) == 7
    assert not both.done()
    broker.campaign(silent)
    await both
    assert await members.committed(1) == 4


async def test_a_partition_without_a_leader_does_not_delay_automatic_commits_of_others(
    broker: Harness, members: Members
) -> None:
    topic = await broker.topic(TOPIC, partitions=2)
    for number in range(2):
        await produce(broker, topic, number, 10)
    consumer = await members.start(auto_commit_interval_ms=20)
    await until(lambda: len(consumer.assignment()) == 2, consumer)
    broker.lose_leadership(topic.partitions[1].group_id)
    await consumer.seek(part(1), 4)
    for end in (10, 20, 30):
        await until(lambda end=end: consumer._fetcher.partitions[part(0)].processed == end, consumer)
        await members.until_committed(0, end)
        await produce(broker, topic, 0, 10, start=end)
    broker.campaign(topic.partitions[1].group_id)
    await members.until_committed(1, 4)


async def test_commits_above_the_end_or_of_foreign_partitions_are_refused(broker: Harness, members: Members) -> None:
    topic = await broker.topic(TOPIC, partitions=2)
    await produce(broker, topic, 0, 10)
    consumer = await members.start(enable_auto_commit=False)
    await read(consumer, 10)
    with pytest.raises(errors.OffsetOutOfRangeError):
        await consumer.commit({part(0): 11})
    with pytest.raises(errors.FencedError, match="flights/7"):
        await consumer.commit({part(0): 4, part(7): 1})
    assert await members.committed(0) == 4
    with pytest.raises(TypeError):
        await consumer.commit({part(0): "4"})  # type: ignore[dict-item]
    with pytest.raises(errors.InvalidArgumentError):
        await consumer.commit({part(0): -4})


async def test_assigned_partitions_have_named_offsets(broker: Harness, members: Members) -> None:
    topic = await broker.topic(TOPIC, partitions=2)
    await produce(broker, topic, 0, 10)
    async with members.make(group_id="named", enable_auto_commit=False) as consumer:
        consumer.assign([part(0)])
        await read(consumer, 10)
        assert await consumer.committed(part(0), part(1)) == {part(0): None, part(1): None}
        await consumer.commit({part(0): 7})
    async with members.make(group_id="named") as consumer:
        consumer.assign([part(0)])
        assert await consumer.position(part(0)) == 7
        assert [r.offset for r in await read(consumer, 3)] == [7, 8, 9]
        assert await consumer.lag() == {part(0): 0}
    assert await members.committed(0, group="named") == 10


async def test_named_offsets_are_committed_after_a_reset(broker: Harness, members: Members) -> None:
    topic = await broker.topic(TOPIC)
    await produce(broker, topic, 0, 10)
    async with members.make(group_id="named", enable_auto_commit=False) as consumer:
        consumer.assign([part(0)])
        await read(consumer, 10)
        await consumer.commit()
    reset = pb.ResetOffsetsRequest(group="named")
    reset.partitions.add(topic_id=topic.topic_id, partition=0, offset=2)
    await broker.groups_service.reset_offsets(reset, broker.call())
    async with members.make(group_id="named", enable_auto_commit=False) as consumer:
        consumer.assign([part(0)])
        assert [record.offset for record in await read(consumer, 8)] == list(range(2, 10))
        await consumer.commit()
        assert await members.committed(0, group="named") == 10
        member = await members.start(group_id="named")
        await until(lambda: member.assignment(), member)
        with pytest.raises(errors.FencedError):
            await consumer.commit({part(0): 5})


async def test_seek_to_committed_returns_to_the_committed_offsets(broker: Harness, members: Members) -> None:
    topic = await broker.topic(TOPIC, partitions=2)
    for number in range(2):
        await produce(broker, topic, number, 10)
    consumer = await members.start(enable_auto_commit=False)
    await read(consumer, 20)
    await consumer.commit({part(0): 4})
    assert await consumer.seek_to_committed() == {part(0): 4, part(1): None}
    assert sorted((r.partition, r.offset) for r in await read(consumer, 16)) == [
        *((0, offset) for offset in range(4, 10)),
        *((1, offset) for offset in range(10)),
    ]
    await consumer.commit({part(0): 6, part(1): 2})
    assert await consumer.seek_to_committed(part(1)) == {part(1): 2}
    assert [await consumer.position(part(number)) for number in range(2)] == [10, 2]
    with pytest.raises(errors.InvalidArgumentError, match="is not assigned"):
        await consumer.seek_to_committed(part(7))


async def test_seek_to_committed_without_commits_or_a_reset_policy_is_an_error(
    broker: Harness, members: Members
) -> None:
    topic = await broker.topic(TOPIC, partitions=2)
    await produce(broker, topic, 0, 10)
    async with members.make(group_id="named", enable_auto_commit=False, auto_offset_reset="none") as consumer:
        consumer.assign([part(0), part(1)])
        await consumer.seek(part(0), 3)
        await consumer.seek(part(1), 0)
        await consumer.commit({part(1): 0})
        with pytest.raises(errors.NoPositionError, match=r"no committed offset for flights/0: seek"):
            await consumer.seek_to_committed()
        assert await consumer.position(part(0)) == 3


async def test_operations_that_need_a_group_are_refused_without_one(broker: Harness, members: Members) -> None:
    await broker.topic(TOPIC)
    consumer = await members.start(group_id=None)
    for call in (lambda: consumer.commit(), lambda: consumer.committed(part(0)), lambda: consumer.seek_to_committed()):
        with pytest.raises(errors.InvalidArgumentError, match="group_id"):
            await call()
    with pytest.raises(errors.InvalidArgumentError, match="group_id"):
        consumer.subscribe(pattern="f.*")


# ----------------------------------------------------------------------------------------------------------- rebalances


async def test_a_partition_is_released_only_when_its_records_are_processed(broker: Harness, members: Members) -> None:
    topic = await broker.topic(TOPIC, partitions=2)
    for number in range(2):
        await produce(broker, topic, number, 4)
    heard = Listener()
    first = await members.start(listener=heard)
    async with asyncio.timeout(WAIT_SECONDS):
        while len(await first.getmany(timeout_ms=100)) < 2:
            await asyncio.sleep(0)
            await first.seek_to_beginning(*first.assignment())
    second = await members.start()
    await until(lambda: first._assignment.session.membership.steps().revoke)
    await asyncio.sleep(0.3)
    assert [what for what, _ in heard.heard] == ["assigned"]
    assert second.assignment() == frozenset()
    await first.getmany()
    await until(lambda: len(second.assignment()) == 1)
    (moved,) = second.assignment()
    assert await members.committed(moved.partition) == 4
    assert await second.getmany(timeout_ms=100) == {}


async def test_a_seek_ends_with_an_error_if_its_partition_moved_away_in_the_meantime(
    broker: Harness, members: Members
) -> None:
    """It changed only the state of the ended assignment, and reported success. A seek of all partitions leaves it out."""
    topic = await broker.topic(TOPIC, partitions=2)
    for number in range(2):
        await produce(broker, topic, number, 9)
    transport = BrokerTransport(broker)
    first = await members.start(transport=transport)
    await read(first, 18)
    gate = transport.gates["ListOffsets"] = asyncio.Event()
    seeks = [
        asyncio.create_task(call)
        for call in (
            first.seek_to_beginning(part(0), part(1)),
            first.seek_to_end(part(0), part(1)),
            first.seek_to_beginning(),
        )
    ]
    second = await members.start()
    await until(lambda: len(second.assignment()) == 1, first)
    (kept,) = first.assignment()
    gate.set()
    for named in seeks[:2]:
        with pytest.raises(errors.InvalidArgumentError, match="is not assigned"):
            await named
    await seeks[2]
    assert await first.position(kept) == 0
    assert [record.offset for record in await read(first, 9)] == list(range(9))


async def test_a_seek_counts_for_a_partition_that_was_assigned_again_in_the_meantime(
    broker: Harness, members: Members
) -> None:
    """It changed only the state of the ended assignment, and the next read continued at the committed offset."""
    topic = await broker.topic(TOPIC)
    await produce(broker, topic, 0, 9)
    heard = Listener()
    transport = BrokerTransport(broker)
    consumer = await members.start(transport=transport, listener=heard)
    await read(consumer, 9)
    gate = transport.gates["ListOffsets"] = asyncio.Event()
    seeking = asyncio.create_task(consumer.seek_to_beginning(part(0)))
    await until(lambda: transport.waiting["ListOffsets"] == 1, consumer)
    reset = pb.ResetOffsetsRequest(group="g", fence_members=True)
    reset.partitions.add(topic_id=topic.topic_id, partition=0, offset=7)
    await broker.groups_service.reset_offsets(reset, broker.call())
    await until(lambda: [what for what, _ in heard.heard] == ["assigned", "lost", "assigned"], consumer)
    gate.set()
    await seeking
    assert [record.offset for record in await read(consumer, 9)] == list(range(9))


async def test_a_position_of_a_partition_that_moves_away_is_an_error(broker: Harness, members: Members) -> None:
    """It waited for the state of the ended assignment until `request_timeout_ms`."""
    await broker.topic(TOPIC, partitions=2)
    transport = BrokerTransport(broker)
    gate = transport.gates["ListOffsets"] = asyncio.Event()
    first = await members.start(transport=transport)
    await until(lambda: len(first.assignment()) == 2, first)
    waiting = [asyncio.create_task(first.position(part(number))) for number in range(2)]
    second = await members.start()
    await until(lambda: len(second.assignment()) == 1, first)
    (kept,) = first.assignment()
    async with asyncio.timeout(WAIT_SECONDS):
        with pytest.raises(errors.InvalidArgumentError, match="is not assigned"):
            await waiting[1 - kept.partition]
        gate.set()
        assert await waiting[kept.partition] == 0


async def test_the_next_owner_begins_at_the_offset_committed_in_on_revoked(broker: Harness, members: Members) -> None:
    topic = await broker.topic(TOPIC, partitions=2)
    for number in range(2):
        await produce(broker, topic, number, 9)
    first: Consumer

    class Committing(RebalanceListener):
        async def on_revoked(self, partitions: frozenset[TopicPartition]) -> None:
            await first.commit(dict.fromkeys(partitions, 6))

    first = await members.start(listener=Committing(), enable_auto_commit=False)
    await read(first, 18)
    second = await members.start()
    found = await until(lambda: len(second.assignment()) == 1, first)
    assert found == []
    assert [record.offset for record in await read(second, 3)] == [6, 7, 8]


async def test_fetched_records_of_a_revoked_partition_are_not_returned(broker: Harness, members: Members) -> None:
    topic = await broker.topic(TOPIC, partitions=2)
    transport = BrokerTransport(broker)
    first = await members.start(transport=transport)
    await until(lambda: len(first.assignment()) == 2, first)
    gate = transport.gates["Poll"] = asyncio.Event()
    await until(lambda: first.metrics().requests_in_flight == transport.waiting["Poll"] > 0, first)
    for number in range(2):
        await produce(broker, topic, number, 4)
    second = await members.start()
    records = await until(lambda: len(second.assignment()) == 1, first)
    assert records == []
    gate.set()
    (moved,) = second.assignment()
    records = await read(first, 4)
    records += [r for found in (await first.getmany(timeout_ms=200)).values() for r in found]
    assert {r.partition for r in records} == {1 - moved.partition}
    assert len(await read(second, 4)) == 4


async def test_a_listener_that_fails_does_not_stop_the_rebalance(broker: Harness, members: Members) -> None:
    await broker.topic(TOPIC, partitions=2)

    class Failing(RebalanceListener):
        async def on_assigned(self, partitions: frozenset[TopicPartition]) -> None:
            raise ZeroDivisionError

    consumer = await members.start(listener=Failing())
    with pytest.raises(ZeroDivisionError):
        await until(lambda: False, consumer)
    assert len(consumer.assignment()) == 2
    assert await consumer.getmany() == {}


async def test_a_listener_that_awaits_a_cancelled_task_does_not_stop_the_consumer(
    broker: Harness, members: Members
) -> None:
    """It cancelled the task that processed the partition's records, and forgot that awaiting it raises."""
    topic = await broker.topic(TOPIC)
    await produce(broker, topic, 0, 3)

    class Cancelling(RebalanceListener):
        async def on_assigned(self, partitions: frozenset[TopicPartition]) -> None:
            task = asyncio.create_task(asyncio.sleep(60))
            task.cancel()
            await task

    consumer = await members.start(listener=Cancelling())
    with pytest.raises(RuntimeError, match="listener"):
        await until(lambda: False, consumer)
    assert len(await read(consumer, 3)) == 3


@pytest.mark.parametrize("is_again", [False, True])
async def test_partitions_that_exist_at_the_subscription_are_not_read_from_their_start(
    broker: Harness, members: Members, is_again: bool
) -> None:
    """Those that were added since the consumer's first subscription were, although it was one to another topic."""
    topic = await broker.topic(TOPIC)
    await broker.topic("other")
    consumer = await members.start(*((TOPIC,) if is_again else ("other",)), auto_offset_reset="latest")
    await until(consumer.assignment, consumer)
    consumer.subscribe(["other"])
    added = await broker.admin.add_partitions(pb.AddPartitionsRequest(name=TOPIC, total=2), broker.call())
    topic = added.topic
    await produce(broker, topic, 1, 5)
    await until(lambda: consumer._resolver.topics[TOPIC].partition_count == 2, consumer)
    consumer.subscribe([TOPIC])
    found = await until(lambda: part(1) in consumer.assignment(), consumer)
    assert await consumer.position(part(1)) == 5
    await produce(broker, topic, 1, 1, start=5)
    assert [record.offset for record in found + await read(consumer, 1)] == [5]


@pytest.mark.parametrize("then", ["assign", "unsubscribe", "close"])
async def test_processed_records_of_partitions_that_are_given_up_are_committed(
    broker: Harness, members: Members, then: str
) -> None:
    """Automatic commits happen before partitions are released, also where the program assigns them itself."""
    topic = await broker.topic(TOPIC, partitions=2)
    await produce(broker, topic, 0, 10)
    async with members.make(auto_commit_interval_ms=60_000) as consumer:
        consumer.assign([part(0)])
        await read(consumer, 10)
        assert await consumer.getmany() == {}  # they are processed
        if then == "unsubscribe":
            consumer.unsubscribe()
        else:
            consumer.assign([part(1)])
        if then != "close":
            await members.until_committed(0, 10)
    assert await members.committed(0) == 10


@pytest.mark.parametrize("is_automatic", [False, True])
async def test_unchanged_offsets_without_a_member_are_committed_again(
    broker: Harness, members: Members, monkeypatch: pytest.MonkeyPatch, is_automatic: bool
) -> None:
    """The consumer of a quiet topic lost its offsets after a week, and began at "latest" when it was restarted."""
    topic = await broker.topic(TOPIC)
    await produce(broker, topic, 0, 3)
    usual = {"enable_auto_commit": is_automatic, "auto_commit_interval_ms": 20}
    async with members.make(**usual) as consumer:
        consumer.assign([part(0)])
        await read(consumer, 3)
        await consumer.commit()
        offsets = broker.partition(topic).offsets
        assert await offsets.forget(("g",), 1 << 62, asyncio.get_running_loop().time() + 10)
        assert await members.committed(0) == -1
        monkeypatch.setattr(settings, "OFFSETS_TOUCH_SECONDS", 0)
        if not is_automatic:
            await consumer.commit()
        await members.until_committed(0, 3)


async def test_many_partitions_do_not_exceed_the_buffer_by_more_than_a_batch_each(
    broker: Harness, members: Members, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each partition without a buffered record fetched up to `max_partition_fetch_bytes`, however much the others held."""
    monkeypatch.setattr(settings, "CONSUMER_BUFFER_BYTES_MAX", 10_000)
    topic = await broker.topic(TOPIC, partitions=30)
    for number in range(30):
        for start in range(0, 2500, 500):
            await produce(broker, topic, number, 500, start=start)
    limits = {"fetch_max_bytes": 20_000, "max_partition_fetch_bytes": 20_000}
    consumer = await members.start(group_id=None, **limits)
    async with asyncio.timeout(WAIT_SECONDS):
        while not all(state.buffered_bytes for state in consumer._fetcher.partitions.values()):
            await asyncio.sleep(0.01)
    assert consumer.metrics().buffer_bytes < 250_000
    assert len(await read(consumer, 30 * 2500)) == 30 * 2500


async def test_on_assigned_may_seek_before_records_are_returned(broker: Harness, members: Members) -> None:
    topic = await broker.topic(TOPIC)
    await produce(broker, topic, 0, 10)
    consumer: Consumer

    class Seeking(RebalanceListener):
        async def on_assigned(self, partitions: frozenset[TopicPartition]) -> None:
            for partition in partitions:
                await consumer.seek(partition, 8)

    consumer = members.make(TOPIC, listener=Seeking())
    async with consumer:
        assert [record.offset for record in await read(consumer, 2)] == [8, 9]


async def test_a_session_that_ended_loses_everything_and_joins_again(broker: Harness, members: Members) -> None:
    topic = await broker.topic(TOPIC)
    await produce(broker, topic, 0, 10)
    heard = Listener()
    consumer = await members.start(listener=heard, enable_auto_commit=False)
    await read(consumer, 10)
    member_id = consumer._assignment.session.membership.member_id
    await broker.groups_service.leave(pb.LeaveRequest(group="g", member_id=member_id), broker.call())
    again = await until(lambda: len(heard.heard) == 3, consumer)
    assert heard.heard == [(what, frozenset({0})) for what in ("assigned", "lost", "assigned")]
    again += [r for found in (await consumer.getmany(timeout_ms=200)).values() for r in found]
    assert [record.offset for record in again] == list(range(10)), "nothing was committed"


async def test_an_offset_reset_restarts_a_member_and_fences_its_old_commit(broker: Harness, members: Members) -> None:
    topic = await broker.topic(TOPIC)
    await produce(broker, topic, 0, 10)
    transport = BrokerTransport(broker)
    heard = Listener()
    consumer = await members.start(listener=heard, enable_auto_commit=False, transport=transport)
    await read(consumer, 10)
    gate = transport.gates["Heartbeat"] = asyncio.Event()
    await asyncio.sleep(0)
    reset = pb.ResetOffsetsRequest(group="g", fence_members=True)
    reset.partitions.add(topic_id=topic.topic_id, partition=0, offset=8)
    await broker.groups_service.reset_offsets(reset, broker.call())
    with pytest.raises(errors.FencedError):
        await consumer.commit({part(0): 3})
    gate.set()
    found = await until(lambda: len(heard.heard) == 3, consumer)
    assert [what for what, _ in heard.heard] == ["assigned", "lost", "assigned"]
    found += [r for records in (await consumer.getmany(timeout_ms=200)).values() for r in records]
    assert [record.offset for record in found] == [8, 9]


async def test_a_member_that_is_fenced_while_it_hears_of_its_partitions_gets_no_records(
    broker: Harness, members: Members
) -> None:
    """They were handed out although another member reads them."""
    topic = await broker.topic(TOPIC)
    await produce(broker, topic, 0, 10)
    refused: list[errors.RaftMQError] = []

    class Committing(Listener):
        async def on_assigned(self, partitions: frozenset[TopicPartition]) -> None:
            if not self.heard:
                deadline = broker.loop.time() + WAIT_SECONDS
                await broker.groups_service.leader.execute(TakeGroupEpoch("g", False), Done, deadline)
                (partition,) = broker.offsets._locator.here()
                epoch = broker.metadata.state_machine.applied_index
                await partition.offsets.reset(ResetOffset("g", epoch, 3), deadline)
                try:
                    await consumer.commit({part(0): 0})
                except errors.FencedError as error:
                    refused.append(error)
            self._note("assigned", partitions)

    heard = Committing()
    consumer = members.make(TOPIC, listener=heard, enable_auto_commit=False)
    async with consumer:
        found = await until(lambda: heard.heard, consumer)
        found += [record for records in (await consumer.getmany(timeout_ms=300)).values() for record in records]
        assert refused
        assert found == []


@pytest.mark.parametrize("instance_id", [None, "one"])
async def test_a_member_joins_again_when_a_reset_was_interrupted(
    broker: Harness, members: Members, monkeypatch: pytest.MonkeyPatch, instance_id: str | None
) -> None:
    """The coordinator wrote the offset and died before it gave the owner a new epoch."""
    monkeypatch.setattr(settings, "FENCED_SECONDS", 0.2)
    topic = await broker.topic(TOPIC)
    await produce(broker, topic, 0, 10)
    heard = Listener()
    consumer = await members.start(listener=heard, auto_commit_interval_ms=20, group_instance_id=instance_id)
    await read(consumer, 10)
    assert await consumer.getmany(timeout_ms=0) == {}  # those records are done
    await members.until_committed(0, 10)  # the reset would refuse it, perhaps before the next read
    await broker.groups_service.leader.execute(TakeGroupEpoch("g", False), Done, broker.loop.time() + WAIT_SECONDS)
    epoch = broker.metadata.state_machine.applied_index
    (partition,) = broker.offsets._locator.here()
    await partition.offsets.reset(ResetOffset("g", epoch, 3), broker.loop.time() + WAIT_SECONDS)
    await produce(broker, topic, 0, 5, start=10)
    found = await read(consumer, 5)
    found += await read(consumer, 12)
    assert [record.offset for record in found] == [*range(10, 15), *range(3, 15)]
    assert [what for what, _ in heard.heard] == ["assigned", "lost", "assigned"]


async def test_a_restarted_static_member_gets_its_partitions_and_fences_its_former_process(
    broker: Harness, members: Members
) -> None:
    await broker.topic(TOPIC, partitions=2)
    first = await members.start(group_instance_id="one")
    await until(lambda: len(first.assignment()) == 2, first)
    second = await members.start(group_instance_id="one")
    await until(lambda: len(second.assignment()) == 2, second)
    with pytest.raises(errors.FencedError, match="instance 'one'"):
        await until(lambda: False, first)
    await until(lambda: not first.assignment())


async def test_a_static_member_that_closes_keeps_its_place(broker: Harness, members: Members) -> None:
    await broker.topic(TOPIC, partitions=2)
    async with members.make(TOPIC, group_instance_id="one") as first:
        await until(lambda: len(first.assignment()) == 2, first)
    group = broker.metadata.state_machine.consumer_group("g")
    assert group is not None
    assert [member.instance_id for member in group.members.values()] == ["one"]


async def test_a_program_that_does_not_poll_leaves_the_group_until_it_polls_again(
    broker: Harness, members: Members
) -> None:
    await broker.topic(TOPIC, partitions=2)
    heard = Listener()
    first = await members.start(listener=heard, max_poll_interval_ms=1000)
    await until(lambda: len(first.assignment()) == 2, first)
    await until(lambda: not first.assignment())
    assert heard.heard[-1] == ("lost", frozenset({0, 1}))
    group = broker.metadata.state_machine.consumer_group("g")
    assert group is not None
    await until(lambda: not group.members)
    await until(lambda: len(first.assignment()) == 2, first)


async def test_partitions_are_lost_after_a_session_without_answers_and_come_back_with_the_next_one(
    broker: Harness, members: Members
) -> None:
    topic = await broker.topic(TOPIC)
    await produce(broker, topic, 0, 3)
    transport = BrokerTransport(broker)
    heard = Listener()
    settings = {"session_timeout_ms": 1000, "heartbeat_interval_ms": 100}
    consumer = await members.start(listener=heard, transport=transport, enable_auto_commit=False, **settings)
    await read(consumer, 3)
    member_id = consumer._assignment.session.membership.member_id
    transport.refusals["Heartbeat"] = errors.NoLeaderError("nobody coordinates")
    broker.coordinator._sessions.shift(1000)  # a coordinator that is down expires no session
    await until(lambda: heard.heard[-1][0] == "lost", consumer)
    assert consumer.assignment() == frozenset()
    del transport.refusals["Heartbeat"]
    await until(lambda: heard.heard[-1][0] == "assigned", consumer)
    assert consumer._assignment.session.membership.member_id == member_id


# --------------------------------------------------------------------------------------------------------- subscriptions


async def test_a_pattern_matches_topics_created_later(broker: Harness, members: Members) -> None:
    await broker.topic("flights-a")
    consumer = await members.start("flights-a")
    consumer.subscribe(pattern="flights-.*")
    await until(lambda: len(consumer.assignment()) == 1, consumer)
    topic = await broker.topic("flights-b", partitions=2)
    await until(lambda: len(consumer.assignment()) == 3, consumer)
    await produce(broker, topic, 1, 2)
    assert [record.topic for record in await read(consumer, 2)] == ["flights-b"] * 2


async def test_added_partitions_are_read_from_their_start(broker: Harness, members: Members) -> None:
    topic = await broker.topic(TOPIC)
    consumer = await members.start(auto_offset_reset="latest")
    await until(lambda: len(consumer.assignment()) == 1, consumer)
    added = await broker.admin.add_partitions(pb.AddPartitionsRequest(name=TOPIC, total=3), broker.call())
    await produce(broker, added.topic, 2, 2)
    assert topic.topic_id == added.topic.topic_id
    assert [record.partition for record in await read(consumer, 2)] == [2, 2]
    assert consumer.assignment() == {part(0), part(1), part(2)}


async def test_a_position_at_the_assignment_belongs_to_the_group_that_had_it_committed(
    broker: Harness, members: Members
) -> None:
    """The first poll may come much later. Until then a recovery may lose the records before the position, and others get their offsets."""
    topic = await broker.topic(TOPIC)
    await produce(broker, topic, 0, 10)
    async with members.make(TOPIC, max_poll_records=6) as consumer:
        assert len(await read(consumer, 6)) == 6
        await consumer.commit()
    seen: list[tuple[int | None, int]] = []

    class Looking(RebalanceListener):
        async def on_assigned(self, partitions: frozenset[TopicPartition]) -> None:
            state = consumer._fetcher.partitions[part(0)]
            seen.append((state.position, state.read_group_id))

    async with members.make(listener=Looking()) as consumer:
        consumer.subscribe([TOPIC])
        await read(consumer, 4)
    assert seen == [(6, topic.partitions[0].group_id)]


async def recover_empty(broker: Harness, group_id: int) -> None:
    """Replace the group of a partition by one without records, as after the loss of a majority."""
    await broker.register(1, "uuid-1", feature_level_max=FEATURE_LEVEL)
    await broker._metadata(RaiseFeatureLevel(FEATURE_LEVEL))
    partition = broker.metadata.state_machine.partition(GroupId(group_id))
    assert partition is not None
    command = RecoverPartition(
        group_id=group_id, replica_id=partition.replicas[0].replica_id, term=9, log_end_offset=0, known_end_offset=0,
        expected_revision=partition.revision,
    )  # fmt: skip
    assert isinstance(await broker._metadata(command), Done)


@pytest.mark.parametrize(
    ("how", "method"),
    [
        ("opened", "OpenPartitions"),
        ("begun at committed", "FetchOffsets"),
        ("begun", "ListOffsets"),
        ("sought to committed", "FetchOffsets"),
        ("sought to end", "ListOffsets"),
    ],
)
async def test_a_position_that_a_recovered_group_returns_is_one_of_that_group(
    broker: Harness, members: Members, how: str, method: str
) -> None:
    """It was named one of the earlier group, which the look-up had asked first: the next read went back, or ended with an error."""
    topic = await broker.topic(TOPIC)
    old = topic.partitions[0].group_id
    transport = BrokerTransport(broker)
    is_begun, reset = how.startswith("begun"), "latest" if method == "ListOffsets" else "none"
    group_id = None if method == "ListOffsets" else "g"
    usual = {"group_id": group_id, "enable_auto_commit": False, "auto_offset_reset": reset, "transport": transport}
    consumer = members.make(**usual)
    async with consumer:
        if how.startswith("sought"):
            consumer.assign([part(0)])
            await consumer.seek(part(0), 0)
            await until(lambda: consumer._fetcher.partitions[part(0)].group_id == old)
            consumer.pause(part(0))
        transport.refusals[method] = errors.NoLeaderError("no leader")
        transport.calls.clear()
        if how == "opened":
            consumer.subscribe([TOPIC])
        elif is_begun:
            consumer.assign([part(0)])
        else:
            seek = consumer.seek_to_committed if group_id else consumer.seek_to_end
            seeking = asyncio.ensure_future(seek())
        await until(lambda: transport.calls[method] > 0)
        await recover_empty(broker, old)
        await until(lambda: consumer._resolver.present_group(old) != old)
        described = (await broker.admin.describe_topic(pb.DescribeTopicRequest(name=TOPIC), broker.call())).topic
        new = described.partitions[0].group_id
        await produce(broker, described, 0, 4)
        if group_id:
            async with members.make(group_id="g", enable_auto_commit=False) as other:
                other.assign([part(0)])
                await other.seek(part(0), 4)
                await other.commit({part(0): 4})
        del transport.refusals[method]
        if how.startswith("sought"):
            await seeking
        await until(lambda: part(0) in consumer.assignment())
        assert await consumer.position(part(0)) == 4
        assert consumer._fetcher.partitions[part(0)].read_group_id == new
        consumer.resume(part(0))
        await produce(broker, described, 0, 1, start=4)
        assert [record.offset for record in await read(consumer, 1)] == [4]


async def test_a_topic_that_is_created_again_is_a_different_topic(broker: Harness, members: Members) -> None:
    topic = await broker.topic(TOPIC)
    await produce(broker, topic, 0, 5)
    heard = Listener()
    consumer = await members.start(listener=heard)
    await read(consumer, 5)
    await broker.admin.delete_topic(pb.DeleteTopicRequest(name=TOPIC), broker.call())
    again = await broker.topic(TOPIC)
    await produce(broker, again, 0, 2)
    assert [record.offset for record in await read(consumer, 2)] == [0, 1]
    assert [what for what, _ in heard.heard] == ["assigned", "revoked", "assigned"]


async def created_again(
    broker: Harness, topic: pb.Topic, partitions: int, reader: Consumer, *, is_led: bool = True
) -> pb.Topic:
    """Delete a topic, and create it again. Return it when the reader knows it."""
    if not is_led:
        for partition in topic.partitions:
            broker.lose_leadership(partition.group_id)
    await broker.admin.delete_topic(pb.DeleteTopicRequest(name=TOPIC), broker.call())
    again = await broker.topic(TOPIC, partitions=partitions)
    await until(  # between the two it knows none
        lambda: (known := reader._resolver.topics.get(TOPIC)) is not None and known.topic_id == again.topic_id
    )
    return again


@pytest.mark.parametrize("is_led", [True, False])
@pytest.mark.parametrize("reset", ["earliest", "latest"])
@pytest.mark.parametrize("how", ["assigned", "named", "subscribed"])
async def test_without_a_membership_a_topic_that_is_created_again_is_read_from_its_start(
    broker: Harness, members: Members, how: str, reset: str, *, is_led: bool
) -> None:
    """Reading raised `UnknownTopicError` without end. In a group, the old offsets were committed to the new topic, and skipped its records."""
    topic = await broker.topic(TOPIC, partitions=2)
    topics = [TOPIC] if how == "subscribed" else []
    group = "named" if how == "named" else None
    async with members.make(*topics, group_id=group, auto_offset_reset=reset, auto_commit_interval_ms=20) as consumer:
        if how != "subscribed":
            consumer.assign([part(0), part(1)])
        await consumer.seek_to_beginning()
        await produce(broker, topic, 0, 9)
        await read(consumer, 9)
        again = await created_again(broker, topic, 2, consumer, is_led=is_led)
        for number in range(2):
            await produce(broker, again, number, 7)
        found = [(record.partition, record.offset) for record in await read(consumer, 14)]
        assert sorted(found) == [(number, offset) for number in range(2) for offset in range(7)]
        if how == "named":
            await consumer.commit()
            assert await consumer.committed() == {part(0): 7, part(1): 7}


async def test_buffered_records_are_returned_before_those_of_the_topic_that_is_created_again(
    broker: Harness, members: Members
) -> None:
    topic = await broker.topic(TOPIC)
    await produce(broker, topic, 0, 9)
    async with members.make(group_id=None) as consumer:
        consumer.assign([part(0)])
        async with asyncio.timeout(WAIT_SECONDS):
            while not await consumer.getmany(timeout_ms=50, max_records=1):
                pass
        again = await created_again(broker, topic, 1, consumer)
        await produce(broker, again, 0, 4)
        assert [record.offset for record in await read(consumer, 12)] == [*range(1, 9), *range(4)]


async def test_offsets_of_a_deleted_topic_are_not_committed_to_one_of_the_same_name(
    broker: Harness, members: Members
) -> None:
    topic = await broker.topic(TOPIC)
    await produce(broker, topic, 0, 9)
    transport = BrokerTransport(broker)
    async with members.make(group_id="named", transport=transport, enable_auto_commit=False) as consumer:
        consumer.assign([part(0)])
        await read(consumer, 9)
        broker.lose_leadership(topic.partitions[0].group_id)
        commit = consumer.commit_nowait()
        again = await created_again(broker, topic, 1, consumer)
        await produce(broker, again, 0, 20)
        with pytest.raises(errors.UsageError, match=r"created again|no topic with id"):
            await commit
        assert [record.offset for record in await read(consumer, 20)] == list(range(20))
        assert await consumer.committed() == {part(0): None}


async def test_without_a_reset_policy_a_topic_that_is_created_again_is_an_error_until_a_seek(
    broker: Harness, members: Members
) -> None:
    topic = await broker.topic(TOPIC)
    await produce(broker, topic, 0, 9)
    async with members.make(group_id=None, auto_offset_reset="none") as consumer:
        consumer.assign([part(0)])
        await consumer.seek(part(0), 4)
        await read(consumer, 5)
        again = await created_again(broker, topic, 1, consumer)
        await produce(broker, again, 0, 4)
        with pytest.raises(errors.NoPositionError, match=f"{TOPIC}/0 was deleted, and its topic was created again"):
            await until(lambda: False, consumer)
        await consumer.seek(part(0), 1)
        assert [record.offset for record in await read(consumer, 3)] == [1, 2, 3]


async def test_a_subscription_follows_a_topic_that_is_created_again_with_fewer_partitions(
    broker: Harness, members: Members
) -> None:
    topic = await broker.topic(TOPIC, partitions=3)
    async with members.make(TOPIC, group_id=None) as consumer:
        await produce(broker, topic, 2, 3)
        await read(consumer, 3)
        again = await created_again(broker, topic, 1, consumer)
        await produce(broker, again, 0, 4)
        assert [record.offset for record in await read(consumer, 4)] == [0, 1, 2, 3]
        assert consumer.assignment() == {part(0)}


async def test_a_broker_that_is_behind_takes_no_partition_from_a_subscription(
    broker: Harness, members: Members
) -> None:
    """Its table lacks the last partitions. They would be read again from their first records when a later table has them."""
    topic = await broker.topic(TOPIC, partitions=3)
    async with members.make(TOPIC, group_id=None) as consumer:
        await produce(broker, topic, 2, 3)
        await read(consumer, 3)
        resolver = consumer._resolver
        behind = pb.Topic(name=TOPIC, topic_id=topic.topic_id, partitions=topic.partitions[:2], kind="log")
        for table in ([behind], [], [behind], [topic]):
            brokers = [pb.Broker(broker_id=number, address=at) for number, at in resolver._broker_addresses.items()]
            resolver._apply(pb.TopologyUpdate(is_full=True, brokers=brokers, topics=table), ADDRESS)
            assert part(2) in consumer.assignment()
        await produce(broker, topic, 2, 1)
        assert [record.offset for record in await read(consumer, 1)] == [3]


async def test_an_assigned_partition_that_the_new_topic_lacks_is_an_error(broker: Harness, members: Members) -> None:
    topic = await broker.topic(TOPIC, partitions=2)
    await produce(broker, topic, 1, 3)
    async with members.make(group_id=None) as consumer:
        consumer.assign([part(0), part(1)])
        await read(consumer, 3)
        await created_again(broker, topic, 1, consumer)
        with pytest.raises(errors.UnknownPartitionError, match=f"{TOPIC} has partitions 0 to 0, not 1"):
            await until(lambda: False, consumer)


async def test_unsubscribing_releases_all_partitions_and_leaves_the_group(broker: Harness, members: Members) -> None:
    topic = await broker.topic(TOPIC)
    await produce(broker, topic, 0, 5)
    consumer = await members.start()
    await read(consumer, 5)
    consumer.unsubscribe()
    await until(lambda: not consumer.assignment(), consumer)
    assert await members.committed(0) == 5
    group = broker.metadata.state_machine.consumer_group("g")
    assert group is not None
    await until(lambda: not group.members)
    consumer.subscribe([TOPIC])
    await until(lambda: len(consumer.assignment()) == 1, consumer)


async def test_a_missing_topic_is_reported_at_the_start(members: Members) -> None:
    with pytest.raises(errors.UnknownTopicError):
        await members.start("nothing")


async def test_settings_that_brokers_refuse_are_raised_at_the_start(broker: Harness, members: Members) -> None:
    await broker.topic(TOPIC)
    with pytest.raises(errors.InvalidArgumentError):
        await members.start(assignor="best")
    with pytest.raises(errors.InvalidArgumentError):
        await members.start(session_timeout_ms=10, heartbeat_interval_ms=1)


@pytest.mark.parametrize(
    "settings",
    [
        {"group_id": ""}, {"group_instance_id": ""}, {"group_id": None, "group_instance_id": "i"},
        {"heartbeat_interval_ms": 50_000}, {"auto_commit_interval_ms": 0}, {"max_poll_interval_ms": -1},
    ],
)  # fmt: skip
def test_invalid_settings_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(errors.InvalidArgumentError):
        Consumer(TOPIC, **({"group_id": "g"} | settings))


# --------------------------------------------------------------------------------------------------------- administration


async def test_groups_are_described_and_reset(broker: Harness, members: Members) -> None:
    topic = await broker.topic(TOPIC, partitions=2)
    for number in range(2):
        await produce(broker, topic, number, 10)
    async with Admin(bootstrap_servers=ADDRESS, transport=BrokerTransport(broker)) as admin:
        assert await admin.list_groups() == []
        with pytest.raises(errors.UnknownGroupError):
            await admin.describe_group("g")
        async with members.make(TOPIC, rack="r1", client_id="c1") as consumer:
            await read(consumer, 20)
            await consumer.commit({part(0): 10, part(1): 4})
            described = await admin.describe_group("g")
            (one,) = described.members
            assert (one.client_id, one.rack, one.topics, one.partitions) == ("c1", "r1", (TOPIC,), (part(0), part(1)))
            assert [(o.partition, o.offset, o.lag_records) for o in described.offsets] == [
                (part(0), 10, 0), (part(1), 4, 6)
            ]  # fmt: skip
            assert {o.member_id for o in described.offsets} == {one.member_id}
            for call in (admin.delete_group("g"), admin.reset_group_offsets("g", to="earliest")):
                with pytest.raises(errors.GroupNotEmptyError):
                    await call
            with pytest.raises(errors.UnknownMemberError):
                await admin.remove_group_member("g", member_id="nobody")
        shown = await admin.reset_group_offsets("g", shift=-3, dry_run=True)
        assert shown == [OffsetChange(part(0), 10, 7), OffsetChange(part(1), 10, 7)]
        assert [o.offset for o in (await admin.describe_group("g")).offsets] == [10, 10]
        await admin.reset_group_offsets("g", shift=-3, partitions=[part(1)])
        assert [o.offset for o in (await admin.describe_group("g")).offsets] == [10, 7]
        assert [listed.group for listed in await admin.list_groups()] == ["g"]
        assert await admin.delete_group("g") == 2
        with pytest.raises(errors.UnknownGroupError):
            await admin.reset_group_offsets("g", to="latest")
        await admin.reset_group_offsets("g", to="latest", topics=[TOPIC])
        assert [o.offset for o in (await admin.describe_group("g")).offsets] == [10, 10]


async def test_a_reset_of_more_partitions_than_a_request_may_name(
    broker: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = await broker.topic(TOPIC, partitions=3)
    for number in range(3):
        await produce(broker, topic, number, 5)
    monkeypatch.setattr(locator, "PARTITIONS_PER_REQUEST_MAX", 2)
    monkeypatch.setattr(settings, "REQUEST_PARTITIONS_MAX", 2)
    async with Admin(bootstrap_servers=ADDRESS, transport=BrokerTransport(broker)) as admin:
        changes = await admin.reset_group_offsets("g", to="latest", topics=[TOPIC])
        assert changes == [OffsetChange(part(number), None, 5) for number in range(3)]
        assert [one.offset for one in (await admin.describe_group("g")).offsets] == [5, 5, 5]


async def test_a_dry_run_of_each_kind_of_reset_shows_what_the_reset_then_does(broker: Harness) -> None:
    """There are ten records, and ten more a minute later. A time in the future means the end, and a shift stops at the ends of the log."""
    topic = await broker.topic(TOPIC)
    began_ms = broker.clock_ms
    await produce(broker, topic, 0, 10, timestamp_ms=began_ms)
    broker.clock_ms += 60_000
    await produce(broker, topic, 0, 10, timestamp_ms=broker.clock_ms)
    kinds: list[tuple[dict[str, object], int]] = [
        ({"to": "earliest"}, 0),
        ({"to": "latest"}, 20),
        ({"time_ms": began_ms}, 0),
        ({"time_ms": began_ms + 1}, 10),
        ({"time_ms": broker.clock_ms + 1}, 20),
        ({"shift": 5}, 11),
        ({"shift": 100}, 20),
        ({"shift": -100}, 0),
        ({"offsets": {part(0): 3}}, 3),
    ]
    async with Admin(bootstrap_servers=ADDRESS, transport=BrokerTransport(broker)) as admin:

        async def committed() -> int | None:
            (offset,) = (await admin.describe_group("g")).offsets
            return offset.offset

        for kind, after in kinds:
            await admin.reset_group_offsets("g", offsets={part(0): 6})
            change = [OffsetChange(part(0), 6, after)]
            assert await admin.reset_group_offsets("g", dry_run=True, **kind) == change
            assert await committed() == 6
            assert await admin.reset_group_offsets("g", **kind) == change
            assert await committed() == after


async def test_a_reset_spares_a_topic_that_was_created_again(broker: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """The offsets were looked up in the earlier topic. In the new one they would skip the first records."""
    await produce(broker, await broker.topic(TOPIC), 0, 10)
    resolved = group_admin._resolved

    async def create_again(*arguments: object) -> dict[TopicPartition, int]:
        found = await resolved(*arguments)
        await broker.admin.delete_topic(pb.DeleteTopicRequest(name=TOPIC), broker.call())
        await produce(broker, await broker.topic(TOPIC), 0, 20)
        await admin._resolver.topic(TOPIC, 5, is_fresh=True)
        return found

    monkeypatch.setattr(group_admin, "_resolved", create_again)
    async with Admin(bootstrap_servers=ADDRESS, transport=BrokerTransport(broker)) as admin:
        with pytest.raises(errors.UnknownTopicError):
            await admin.reset_group_offsets("g", to="latest", topics=[TOPIC])
        with pytest.raises(errors.UnknownGroupError):
            await admin.describe_group("g")


async def test_lag_is_reported_in_records_and_in_seconds(broker: Harness, members: Members) -> None:
    """The lag in seconds is the age of the oldest unread record. For the consumer itself, unread means not returned to it."""
    topic = await broker.topic(TOPIC, partitions=2)
    await produce(broker, topic, 0, 10)
    broker.clock_ms += 90_000
    await produce(broker, topic, 0, 5, start=10)
    broker.clock_ms += 1_500
    async with members.make(group_id="g", enable_auto_commit=False, max_poll_records=4) as consumer:
        consumer.assign([part(0)])
        assert len(await read(consumer, 4)) == 4
        assert await consumer.lag() == {part(0): 11}
        async with Admin(bootstrap_servers=ADDRESS, transport=BrokerTransport(broker)) as admin:
            for offset, lag in ((4, (11, 91.5)), (10, (5, 1.5)), (15, (0, 0.0))):
                await consumer.commit({part(0): offset})
                (told,) = (await admin.describe_group("g")).offsets
                assert (told.lag_records, told.lag_seconds) == lag


@pytest.mark.parametrize(
    "target",
    [
        {},
        {"to": "earliest", "shift": 1},
        {"to": "here"},
        {"time_ms": -1},
        {"offsets": {}, "shift": 1},
        {"offsets": {}},
        {"offsets": {part(0): 1}, "topics": [TOPIC]},
        {"offsets": {part(0): 1}, "partitions": [part(1)]},
    ],
)
async def test_a_reset_needs_exactly_one_target(broker: Harness, target: dict[str, object]) -> None:
    async with Admin(bootstrap_servers=ADDRESS, transport=BrokerTransport(broker)) as admin:
        with pytest.raises(errors.InvalidArgumentError):
            await admin.reset_group_offsets("g", **target)


# --------------------------------------------------------------------------------------------------------------- zombies


async def test_no_records_of_a_partition_are_returned_after_a_fenced_commit(broker: Harness, members: Members) -> None:
    """Its session ended, another member opened the partition, and no heartbeat has reported that yet."""
    topic = await broker.topic(TOPIC)
    await produce(broker, topic, 0, 10)
    transport = BrokerTransport(broker)
    zombie = await members.start(transport=transport, enable_auto_commit=False)
    assert len((await zombie.getmany(timeout_ms=5000, max_records=4)).get(part(0), ())) == 4
    transport.gates["Heartbeat"] = asyncio.Event()
    session = zombie._assignment.session
    assert session is not None
    await broker.groups_service.leave(pb.LeaveRequest(group="g", member_id=session.membership.member_id), broker.call())
    other = await members.start(enable_auto_commit=False)
    await read(other, 10)
    with pytest.raises(errors.FencedError):
        await zombie.commit()
    assert await zombie.getmany(timeout_ms=100) == {}
    transport.gates["Heartbeat"].set()


async def test_a_frozen_process_returns_no_records_before_a_heartbeat_is_answered(
    broker: Harness, members: Members
) -> None:
    topic = await broker.topic(TOPIC)
    await produce(broker, topic, 0, 10)
    transport = BrokerTransport(broker)
    consumer = await members.start(transport=transport, enable_auto_commit=False)
    assert len((await consumer.getmany(timeout_ms=5000, max_records=4)).get(part(0), ())) == 4
    session = consumer._assignment.session
    assert session is not None
    gate = transport.gates["Heartbeat"] = asyncio.Event()
    await until(lambda: transport.waiting["Heartbeat"])
    session.membership._heard_at -= 1000
    assert await consumer.getmany(timeout_ms=100) == {}
    reading = asyncio.create_task(consumer.getmany(timeout_ms=WAIT_SECONDS * 1000))
    gate.set()
    assert [record.offset for record in (await reading)[part(0)]] == [4, 5, 6, 7, 8, 9]


async def test_a_reset_with_many_steps_obeys_the_time_limit_of_one_call(
    broker: Harness, members: Members, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step gets the time that the earlier ones left."""
    await broker.topic(TOPIC)
    given: list[float] = []

    async def list_offsets_late(resolver: object, times: dict[TopicPartition, int], timeout_seconds: float) -> object:
        given.append(timeout_seconds)
        await asyncio.sleep(0.01)
        return dict.fromkeys(times, OffsetAndTimestamp(0, 0))

    monkeypatch.setattr(group_admin, "list_offsets", list_offsets_late)
    async with Admin(bootstrap_servers=ADDRESS, transport=BrokerTransport(broker), request_timeout_ms=9_000) as admin:
        await admin.reset_group_offsets("g", time_ms=5, topics=[TOPIC], dry_run=True)
    assert len(given) == 3
    assert 9 > given[0] > given[1] > given[2]


async def test_close_ends_a_start_that_waits_for_the_group(broker: Harness, members: Members) -> None:
    transport = BrokerTransport(broker)
    transport.gates["Heartbeat"] = asyncio.Event()
    consumer = members.make(TOPIC, transport=transport)
    await broker.topic(TOPIC)
    starting = asyncio.create_task(consumer.start())
    async with asyncio.timeout(WAIT_SECONDS):
        while not transport.waiting["Heartbeat"]:
            await asyncio.sleep(0)
        await consumer.close()
        with pytest.raises(errors.ClosedClientError):
            await starting


async def test_a_frozen_process_returns_no_more_records_while_iterating(
    broker: Harness, members: Members, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Buffered records may belong to another member, because its session has ended as far as it can know."""
    topic = await broker.topic(TOPIC)
    await produce(broker, topic, 0, 10)
    consumer = await members.start()
    async with asyncio.timeout(WAIT_SECONDS):
        assert (await anext(consumer)).offset == 0
        session = consumer._assignment.session
        assert session is not None
        with monkeypatch.context() as patch:
            patch.setattr(session.membership, "is_overdue", lambda now: True)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await anext(consumer)
        assert (await anext(consumer)).offset == 1
