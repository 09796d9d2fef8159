"""Rows that arrive after the core took a snapshot, and before it is installed, belong to a state that is about to be replaced."""

from raftmq.broker.replica.disk import Idle, Writing
from raftmq.broker.replica.initial_state import founder_state
from raftmq.fsm.queue.partition import QueuePartition
from raftmq.fsm.row_reads import RowRange, RowsNeeded
from raftmq.raft.entry import Entry, EntryKind
from raftmq.raft.membership import Membership
from raftmq.raft.messages import AppendRequest
from raftmq.types import LogIndex

from tests.support.broker.engine_cluster import EngineCluster
from tests.support.broker.imaginary_leader import snapshot
from tests.support.broker.waiting import turn_until

GROUP = 7


def empty(index):
    return Entry(index, 6, EntryKind.EMPTY, 0, 0, 0, b"")


async def test_rows_that_arrive_between_a_snapshot_and_its_installation_stop_no_replica(monkeypatch):
    """The replica was quarantined: its machine was at the entry's index, and its core at the snapshot's."""
    apply, loads = QueuePartition.apply, []

    def missing(self, entry):
        if entry.index != 6:
            return apply(self, entry)
        self.delayed = entry
        return RowsNeeded((RowRange(b"a", b"b", 1),))

    monkeypatch.setattr(QueuePartition, "apply", missing)
    monkeypatch.setattr(QueuePartition, "resume", lambda self, found: apply(self, self.delayed))
    async with EngineCluster() as cluster:
        node = cluster.nodes[1]
        replica = node.add_queue(GROUP, founder_state(Membership((1, 2, 3))))
        monkeypatch.setattr(
            node.engine._row_loads, "start", lambda replica, needed, on_found: loads.append((replica, on_found))
        )
        node.engine.on_message(2, GROUP, AppendRequest(2, 1, 6, 5, 5, (empty(6),), 6))
        await turn_until(lambda: replica.applier.is_suspended)
        submit, held = node.writers.submit, []
        node.writers.submit = lambda key, update, token: held.append((key, update, token))
        # a write is under way when the snapshot arrives, as is the read
        node.engine.on_message(2, GROUP, AppendRequest(2, 1, 6, 6, 6, (empty(7),), 6))
        await turn_until(lambda: isinstance(replica.disk, Writing) and held)
        node.engine.on_message(2, GROUP, snapshot(20, list(node.store.state_rows(replica.key))))
        assert replica.core.log.position.index == 20
        for one, on_found in loads:
            node.engine.guarded(one, on_found, ((),))
        assert node.broken == []
        node.writers.submit = submit
        for write in held:
            submit(*write)
        await turn_until(lambda: isinstance(replica.disk, Idle) and replica.state_machine.applied_index == 20)
        assert node.broken == []
        assert replica.state_machine.applied_index == LogIndex(20)
