"""A snapshot replaces a replica's state off the loop, and only if its rows can be restored."""

from __future__ import annotations

import asyncio
import dataclasses
import threading

import pytest
from raftmq.broker.replica.disk import Idle, Installing
from raftmq.broker.replica.initial_state import founder_state
from raftmq.errors import UnsupportedDataError
from raftmq.fsm.log_partition import LogPartition
from raftmq.fsm.tables import encode_value, number_key
from raftmq.raft.membership import Membership
from raftmq.raft.messages import AppendRequest
from raftmq.storage.errors import StorageFullError
from raftmq.types import ReplicaId, Term

from tests.support.broker.engine_cluster import EngineCluster
from tests.support.broker.imaginary_leader import entry, snapshot
from tests.support.broker.waiting import turn_until

GROUP = 7


async def test_a_snapshot_is_restored_off_the_loop_while_the_old_state_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decoding all rows on the loop would block the whole broker."""
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
        replica.core.step(snapshot(20, list(machine.rows())))
        node.engine.mark_dirty(replica)
        await turn_until(lambda: threads)
        assert threads[0] != threading.main_thread().name
        assert (machine.applied_index, type(replica.disk)) == (5, Installing), (
            "the old state serves, and nothing else moves"
        )
        may_restore.set()
        await turn_until(lambda: isinstance(replica.disk, Idle) and replica.log_start.index == 20)
        assert replica.state_machine is machine, "holders of the machine see the new state"
        assert machine.applied_index == 20
        assert node.broken == []


@pytest.mark.parametrize(
    ("row", "error"),
    [
        ((b"\x01nonsense", b"\xff\xff\xff"), Exception),
        ((number_key(1, 0), encode_value({"next_offset": 3, "added": 1})), UnsupportedDataError),
        ((b"\x63", b"a table of a later version"), UnsupportedDataError),
    ],
    ids=["damaged", "later field", "later table"],
)
async def test_a_snapshot_that_cannot_be_restored_leaves_the_file_unchanged(row, error) -> None:
    """Rows must be restored before they replace the file. With those of a newer version the replica waits for that version."""
    async with EngineCluster() as cluster:
        node = cluster.nodes[1]
        replica = node.add(GROUP, founder_state(Membership((1, 2, 3))))
        before = list(node.store.state_rows(replica.key))
        replica.core.step(snapshot(20, [row]))
        node.engine.mark_dirty(replica)
        await turn_until(lambda: node.broken)
        await asyncio.sleep(0.05)
        assert isinstance(node.broken[0][1], error)
        assert list(node.store.state_rows(replica.key)) == before
        node.store.close(replica.key)
        assert node.store.open(replica.key).position.index == 5


async def test_an_install_never_makes_a_commit_index_durable_beyond_the_snapshot():
    async with EngineCluster() as cluster:
        replica = cluster.nodes[1].add(GROUP, founder_state(Membership((1, 2, 3))))
        node = cluster.nodes[1]
        states = []
        install = node.store.install
        node.store.install = lambda key, hard_state, meta, rows: (
            states.append(hard_state),
            install(key, hard_state, meta, rows),
        )
        rows = list(replica.state_machine.rows())
        replica.core.step(snapshot(20, rows))
        replica.core.step(AppendRequest(2, 1, 6, 20, 6, (entry(21), entry(22)), 22))
        node.engine.mark_dirty(replica)
        await turn_until(lambda: states)
        assert states[0].commit_index == 20


@pytest.mark.parametrize("by", ["append", "snapshot"])
async def test_entries_that_another_leader_replaced_during_an_install_are_not_written_as_committed(by, monkeypatch):
    """They follow the snapshot in the same work, and are written after it. The core's commit index is that of other entries by then. After
    a crash before the next write the replica would have applied entries that were never committed.
    """
    may_restore = threading.Event()
    restore = LogPartition.restore

    def slow(self: LogPartition, rows: object, index: int) -> None:
        may_restore.wait(10)
        restore(self, rows, index)

    async with EngineCluster() as cluster:
        node = cluster.nodes[1]
        replica = node.add(GROUP, founder_state(Membership((1, 2, 3))))
        monkeypatch.setattr(LogPartition, "restore", slow)
        await turn_until(lambda: not replica.is_dirty)
        rows, updates, submit = list(replica.state_machine.rows()), [], node.writers.submit
        node.writers.submit = lambda key, update, token: (updates.append(update), submit(key, update, token))
        node.engine.on_message(2, GROUP, snapshot(20, rows))
        node.engine.on_message(2, GROUP, AppendRequest(2, 1, 6, 20, 6, (entry(21), entry(22)), 20))
        await turn_until(lambda: isinstance(replica.disk, Installing))
        if by == "append":
            other = entry(21, term=7, payload=b"another")
            node.engine.on_message(3, GROUP, AppendRequest(3, 1, 7, 20, 6, (other,), 21))
        else:
            later = snapshot(30, rows)
            node.engine.on_message(3, GROUP, dataclasses.replace(later, source=ReplicaId(3), term=Term(7)))
        assert replica.core.commit_index > 20
        may_restore.set()
        await turn_until(lambda: updates and isinstance(replica.disk, Idle) and not replica.is_dirty)
        assert [e.term for e in updates[0].entries] == [6, 6]
        assert updates[0].hard_state.commit_index == 20


async def test_a_snapshot_without_disk_space_waits_for_it(monkeypatch):
    monkeypatch.setattr("raftmq.broker.replica.snapshots.SPACE_RETRY_SECONDS", 0.01)
    async with EngineCluster() as cluster:
        replica = cluster.nodes[1].add(GROUP, founder_state(Membership((1, 2, 3))))
        node = cluster.nodes[1]
        install = node.store.install
        refusals = [StorageFullError(replica.key, "no room")]

        def refuse_once(*arguments):
            if refusals:
                raise refusals.pop()
            install(*arguments)

        node.store.install = refuse_once
        replica.core.step(snapshot(20, list(replica.state_machine.rows())))
        node.engine.mark_dirty(replica)
        await turn_until(
            lambda: cluster.fatal or (replica.log_start.index == 20 and isinstance(replica.disk, Idle) and not refusals)
        )
        assert cluster.fatal == []


async def test_a_snapshot_whose_state_silences_the_node_is_not_acknowledged(monkeypatch):
    """The state may be of a feature level that the program does not know."""
    async with EngineCluster() as cluster:
        node = cluster.nodes[1]
        replica = node.add(GROUP, founder_state(Membership((1, 2, 3))))
        sent = []
        monkeypatch.setattr(node.engine, "send", lambda sender, message: sent.append(message))
        replica.restored_listeners.append(node.engine.close)
        replica.core.step(snapshot(20, list(replica.state_machine.rows())))
        node.engine.mark_dirty(replica)
        await turn_until(lambda: replica.is_closed)
        await asyncio.sleep(0.01)
        assert replica.state_machine.applied_index == 20
        assert sent == []
