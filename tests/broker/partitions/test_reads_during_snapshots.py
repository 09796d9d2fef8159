"""A follower serves no record that is not committed while a snapshot is on its way in."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace

from raftmq.broker.base.limits import Timing
from raftmq.broker.partitions.log import PartitionLog
from raftmq.broker.replica.disk import Installing
from raftmq.broker.replica.initial_state import founder_state
from raftmq.fsm.log_partition import LogPartition
from raftmq.raft.membership import Membership
from raftmq.raft.messages import AppendRequest

from tests.support.broker.engine_cluster import EngineCluster
from tests.support.broker.imaginary_leader import entry, snapshot
from tests.support.broker.waiting import turn_until


async def diverged_follower(cluster: EngineCluster):
    """Return a follower with committed records 0..4 (index 6..10), and 5..14 (index 11..20) that are written and never committed."""
    for other in (2, 3):
        cluster.isolate(other)
    node = cluster.nodes[1]
    replica = node.add(7, founder_state(Membership((1, 2, 3))))
    host = SimpleNamespace(
        loop=asyncio.get_running_loop(), timing=Timing(), is_clock_trusted=True, now_ms=lambda: 0, metadata=None
    )
    log = PartitionLog(replica, host, node.store)
    entries = tuple(entry(index, term=5, payload=b"old") for index in range(6, 21))
    replica.step(AppendRequest(2, 1, 5, 5, replica.core.log.position.term, entries, 10))
    node.engine.mark_dirty(replica)
    await turn_until(lambda: log.high_watermark == 5 and replica.core.log.durable_index == 20)
    return node, replica, log


def slow_restore(monkeypatch):
    """Let snapshots be installed only after the returned event is set."""
    may_restore = threading.Event()
    restore = LogPartition.restore

    def slow(self, rows, index):
        may_restore.wait(10)
        restore(self, rows, index)

    monkeypatch.setattr(LogPartition, "restore", slow)
    return may_restore


async def test_no_uncommitted_record_is_read_from_disk_while_a_snapshot_is_installed(monkeypatch):
    may_restore = slow_restore(monkeypatch)
    async with EngineCluster() as cluster:
        node, replica, log = await diverged_follower(cluster)
        assert [e.index for e in await log.read(0, 1 << 20)] == [6, 7, 8, 9, 10]
        replica.step(snapshot(15, list(LogPartition(15).rows())))
        node.engine.mark_dirty(replica)
        await turn_until(lambda: isinstance(replica.disk, Installing))
        found = await log.read(0, 1 << 20)
        may_restore.set()
        assert [e.index for e in found] == [6, 7, 8, 9, 10], "entries 11.. are not committed"


async def test_no_uncommitted_record_is_read_from_memory_while_a_write_delays_a_snapshot():
    async with EngineCluster() as cluster:
        _, replica, log = await diverged_follower(cluster)
        replica.step(
            snapshot(15, list(LogPartition(15).rows()))
        )  # before the engine's pass, or while a write is under way
        found = log.read_recent(0, 1 << 20)
        assert found is not None
        assert [e.index for e in found] == [6, 7, 8, 9, 10], "entries 11.. are not committed"


async def test_no_uncommitted_record_is_read_if_any_snapshot_arrives_during_the_read(monkeypatch):
    may_restore = slow_restore(monkeypatch)
    async with EngineCluster() as cluster:
        node, replica, log = await diverged_follower(cluster)
        replica.log.recent.clear()  # as for older records
        in_thread, calls = log.in_thread, []

        async def during(function, *arguments):
            found = await in_thread(function, *arguments)
            if not calls:
                calls.append(1)
                replica.step(snapshot(15, list(LogPartition(30).rows()), state_index=30))
                node.engine.mark_dirty(replica)
            return found

        log.in_thread = during
        found = await log.read(0, 1 << 20)
        may_restore.set()
        assert [e.index for e in found] == [6, 7, 8, 9, 10], "entries 11.. are not committed"
