"""A snapshot in the place of a replica's state: off the loop, and only when it makes sense."""

from __future__ import annotations

import asyncio
import threading

import pytest
from raftmq.broker.replica.disk import Idle, Installing
from raftmq.broker.replica.initial_state import founder_state
from raftmq.fsm.log_partition import LogPartition
from raftmq.raft.entry import LogPosition
from raftmq.raft.membership import Membership
from raftmq.raft.messages import InstallSnapshot, SnapshotMeta

from tests.broker.engine_cluster import EngineCluster
from tests.broker.test_review import until

GROUP = 7


def snapshot(rows: list[tuple[bytes, bytes]]) -> InstallSnapshot:
    meta = SnapshotMeta(LogPosition(20, 6, 15, 0), 20, Membership((1, 2, 3)))
    return InstallSnapshot(2, 1, 6, meta, rows)


async def test_a_snapshot_is_restored_off_the_loop_while_the_old_state_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decoding all rows on the loop would stall the whole broker."""
    threads: list[str] = []
    may_restore = threading.Event()
    restore = LogPartition.restore

    def slow(self: LogPartition, rows: object, index: int) -> None:
        threads.append(threading.current_thread().name)
        may_restore.wait(10)
        restore(self, rows, index)

    async with EngineCluster() as cluster:
        node = cluster.nodes[1]
        replica = node.add(GROUP, founder_state(Membership((1, 2, 3))))
        monkeypatch.setattr(LogPartition, "restore", slow)
        machine = replica.state_machine
        replica.core.step(snapshot(list(machine.rows())))
        node.engine.mark_dirty(replica)
        await until(lambda: threads)
        assert threads[0] != threading.main_thread().name
        assert (machine.applied_index, type(replica.disk)) == (5, Installing), (
            "the old state serves, and nothing else moves"
        )
        may_restore.set()
        await until(lambda: isinstance(replica.disk, Idle) and replica.log_start.index == 20)
        assert replica.state_machine is machine, "who holds the machine sees the new state"
        assert machine.applied_index == 20
        assert node.broken == []


async def test_a_snapshot_that_makes_no_sense_leaves_the_file_as_it_was() -> None:
    """Rows must be restored before they replace the file."""
    async with EngineCluster() as cluster:
        node = cluster.nodes[1]
        replica = node.add(GROUP, founder_state(Membership((1, 2, 3))))
        before = list(node.store.state_rows(replica.key))
        replica.core.step(snapshot([(b"\x01nonsense", b"\xff\xff\xff")]))
        node.engine.mark_dirty(replica)
        await until(lambda: node.broken)
        await asyncio.sleep(0.05)
        assert list(node.store.state_rows(replica.key)) == before
        node.store.close(replica.key)
        assert node.store.open(replica.key).position.index == 5
