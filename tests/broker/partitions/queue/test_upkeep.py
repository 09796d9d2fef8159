"""The unasked work of a queue partition, over real files."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from raftmq.broker.base.request_error import RequestError
from raftmq.broker.partitions.queue import bodies
from raftmq.broker.partitions.queue.partition import LEASE_NUMBERS_PER_TERM
from raftmq.broker.partitions.queue.upkeep import evacuate, first_needed
from raftmq.fsm.metadata import Metadata
from raftmq.fsm.queue.commands import Operation, Tick
from raftmq.fsm.queue.results import Done
from raftmq.proto import queue_pb2 as pb
from raftmq.queue_batch import MessageColumns
from raftmq.raft.entry import Entry
from raftmq.storage.log_store import ReplicaKey
from raftmq.storage.state_store import EVACUATED_BYTES_MAX
from raftmq.types import LogIndex, Offset

from tests.support.broker.queue_node import Queue, queue_node
from tests.support.fsm.queue.host import COLD


@pytest.fixture(params=[None, COLD], ids=["in memory", "windows of one"])
async def queue(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Queue]:
    async with queue_node(tmp_path, request.param) as node:
        yield await node.queue()


async def test_what_is_due_by_time_alone_happens_without_a_request(queue: Queue) -> None:
    await queue.put(2, delay=20)
    await queue.progress_until(lambda: queue.partition.statistics.counts().ready == 2)
    await queue.lease(2, 20)
    queue.node.pass_time(20_000)  # beyond the grace of the election
    await queue.progress_until(lambda: queue.partition.statistics.counts().leased == 0)


@pytest.mark.parametrize("delay", [1_000, 60_000])
async def test_what_came_due_during_a_stop_happens_when_the_clocks_are_known(queue: Queue, delay: int) -> None:
    """It waited for the next round of upkeep: nothing else looks at the clock of an idle queue."""
    await queue.put(1, delay=delay)
    clock = queue.partition.clock
    known, clock._median_ms, clock.is_running = clock._median_ms, lambda: None, False
    if delay == 1_000:
        clock._time_ns += 2_000_000_000  # due by the last append time already
    queue.node.pass_time(0)
    await asyncio.sleep(0.02)
    queue.node.offset_ms += 61_000
    clock._median_ms = known
    async with asyncio.timeout(2):
        await queue.progress_until(lambda: queue.partition.statistics.counts().ready == 1)


async def test_a_queue_whose_clock_stands_still_for_long_looks_at_it_seldom(queue: Queue) -> None:
    """One broker of three, after a recovery of the metadata: a thousand partitions that looked 20 times a second took a whole processor."""
    await queue.put(1, delay=1_000)
    clock, looks = queue.partition.clock, []
    clock._median_ms, clock.is_running = lambda: looks.append(1), False
    queue.node.pass_time(3_600_000)
    await asyncio.sleep(0.1)
    looks.clear()
    await asyncio.sleep(0.5)
    assert len(looks) <= 4


@pytest.mark.parametrize("queue", [None], indirect=True)
async def test_a_message_that_comes_due_during_a_tick_gets_a_tick_of_its_own(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would otherwise wait until the first one is applied. A third tick waits."""
    for delay in (1_000, 2_000, 3_000):
        await queue.put(1, delay=delay)
    submitted: list[object] = []

    def submit(item: object) -> asyncio.Future[object]:
        submitted.append(item)
        return queue.node.loop.create_future()

    monkeypatch.setattr(queue.partition.commands, "submit", submit)
    for ticks in (1, 2, 2):
        queue.node.pass_time(1_000)
        while len(submitted) < ticks:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.02)
        assert submitted == [Tick()] * ticks


async def test_promoting_and_counting_messages_reads_no_body(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    await queue.put(20, delay=1_000)
    await queue.write_back()

    def refuse(*_arguments: object) -> None:
        raise AssertionError("a body was read")

    monkeypatch.setattr(bodies, "each_body", refuse)
    monkeypatch.setattr(queue.partition.bodies, "in_memory", refuse)
    queue.node.pass_time(1_000)
    await queue.progress_until(lambda: queue.partition.statistics.counts().ready == 20)
    await queue.partition.statistics.measure(queue.partition.views)
    with pytest.raises(AssertionError, match="a body was read"):
        await queue.partition.read_bodies([0])


async def test_leases_end_again_after_passes_that_found_none(queue: Queue) -> None:
    await queue.put(2)
    for number in (1, 2, 3):
        assert [token[1] for token in await queue.lease(1, 60_000)] == [number]
        await queue.partition.commands.execute(Tick(), Done, queue.node.loop.time() + 5)
        assert queue.partition.statistics.totals.expired_leases == number - 1, "this pass finds nothing"
        queue.node.pass_time(70_000)
        await queue.progress_until(lambda ended=number: queue.partition.statistics.totals.expired_leases == ended)  # type: ignore[misc]


async def test_while_leases_are_spared_after_an_election_no_entries_are_proposed_for_them(queue: Queue) -> None:
    await queue.put(1)
    await queue.lease(1, 2_000)
    await queue.restart()
    queue.node.pass_time(3_000)
    await asyncio.sleep(0.05)
    assert queue.partition.statistics.counts().leased == 1, "its consumer may still settle it"
    entries = queue.partition.replica.core.last_index
    await asyncio.sleep(0.1)
    assert queue.partition.replica.core.last_index == entries
    queue.node.pass_time(11_000)
    await queue.progress_until(lambda: queue.partition.statistics.counts().leased == 0)


async def test_a_lease_of_the_new_leader_ends_on_time_while_earlier_ones_are_spared(queue: Queue) -> None:
    await queue.put(2)
    await queue.lease(1, 2_000)
    await queue.restart()
    queue.node.pass_time(1)  # leases of the millisecond of the election are spared, too
    await queue.lease(1, 2_000)
    queue.node.pass_time(3_000)
    await queue.progress_until(lambda: queue.partition.statistics.counts().leased == 1)
    assert queue.partition.replica.state_machine.state.store.is_leased(0, 1), "only the lease of 1 has ended"
    queue.node.pass_time(11_000)
    await queue.progress_until(lambda: queue.partition.statistics.counts().leased == 0)


async def test_what_was_due_while_the_leadership_was_doubted_happens_when_it_is_confirmed(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    replica = queue.partition.replica
    await queue.put(1)
    await queue.lease(1, 60_000)
    await queue.put(1, delay=20)
    with monkeypatch.context() as patch:
        patch.setattr(type(replica.core), "is_confirmed_leader", property(lambda _: False))
        replica.require_confirmation()
        await asyncio.sleep(0.1)
        replica.end_doubt()
        assert replica.is_doubted
    await asyncio.sleep(0.05)
    assert queue.partition.statistics.counts().ready == 0, "its timer ended during the doubt"
    replica.end_doubt()
    await queue.progress_until(lambda: queue.partition.statistics.counts().ready == 1)


def missing(_node: object) -> None:
    """Refuse as a broker does while a snapshot replaces its metadata."""
    raise RequestError(pb.NOT_READY, "this broker has not received the cluster's metadata yet")


async def test_the_settings_stay_known_while_the_metadata_of_the_broker_is_replaced(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that lost its disk gets the metadata from the others. Its partitions broke when they looked for their settings."""
    known = queue.partition.config()
    monkeypatch.setattr(type(queue.node), "metadata", property(missing))
    assert queue.partition.config() == known
    queue.partition.upkeep.configure()
    queue.partition.leases.wake()


async def test_the_settings_are_known_to_a_replica_that_begins_to_lead_while_the_metadata_is_replaced(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had not asked for them before, as a follower needs none. The refusal stopped it."""
    known = queue.partition.config()
    with monkeypatch.context() as patch:
        patch.setattr(type(queue.node), "metadata", property(missing))
        await queue.restart()
        assert not queue.node.broken
        assert queue.partition.config() == known
        assert await queue.put(1) == 0


async def test_leases_of_a_recovered_queue_have_new_numbers_also_while_the_metadata_is_replaced(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Holders of lost leases could have settled the messages of others."""
    recovery = SimpleNamespace(term=1000)
    monkeypatch.setattr(Metadata, "recovery", lambda self, group_id: recovery)
    monkeypatch.setattr(type(queue.node), "metadata", property(missing))
    await queue.put(1)
    ((_, number),) = await queue.lease(1)
    assert number > 1000 * LEASE_NUMBERS_PER_TERM


async def test_the_body_of_a_finished_message_goes_with_its_location(queue: Queue) -> None:
    """A write-back that named the body itself would be refused by the store, and the replica would break."""
    node, key = queue.node, queue.partition.replica.key
    await queue.put(3)
    await queue.write_back()
    replica = queue.partition.replica
    assert evacuate(node.store, key, replica.core.applied_index)
    assert node.store.read_body(key, 1) is not None
    tokens = await queue.lease(3)
    await queue.settle(Operation.ACCEPT, tokens[1])
    await queue.write_back()
    assert not node.broken
    assert node.store.read_body(key, 1) is None
    assert node.store.read_body(key, 2) is not None


async def test_an_evacuation_goes_no_further_than_it_must(queue: Queue) -> None:
    for _ in range(3):
        await queue.put(2)
    await queue.write_back()
    store, key = queue.node.store, queue.partition.replica.key
    second = store.find_offset(key, Offset(3))
    assert second is not None
    assert evacuate(store, key, second)
    assert store.evacuated_through(key) == 3
    assert not evacuate(store, key, second)


async def test_a_state_ahead_of_its_log_waits_for_the_log(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed snapshot brings the state first, and the entries with its bodies follow."""
    await queue.put(3)
    await queue.write_back()
    store, replica = queue.node.store, queue.partition.replica
    monkeypatch.setattr(store, "find_offset", lambda key, offset: None)

    assert not evacuate(store, replica.key, replica.core.applied_index)
    assert first_needed(store, replica.key) == 1, "all of the log"


async def test_an_evacuation_reads_no_more_large_bodies_than_it_copies(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(8):
        await queue.put_columns(MessageColumns([b"b" * (EVACUATED_BYTES_MAX // 2)]))
    await queue.write_back()
    store, replica = queue.node.store, queue.partition.replica
    read: list[int] = []
    entries = store.entries

    def count_entries(key: ReplicaKey, first: LogIndex, last: LogIndex, bytes_max: int) -> tuple[Entry, ...]:
        read.append(first)
        return entries(key, first, last, bytes_max)

    monkeypatch.setattr(store, "entries", count_entries)
    assert evacuate(store, replica.key, replica.core.applied_index)
    copied = [sequence for sequence in range(8) if store.read_body(replica.key, sequence) is not None]
    assert copied
    assert len(read) <= len(copied) + 1
