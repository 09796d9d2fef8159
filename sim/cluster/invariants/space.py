"""`FreedSpaceReturns`: the space of deleted records is free again soon, without an operator (promise: deleted data do not fill the disk).

It is checked after the faults have ended: every replica's file has dropped the rows of trimmed records, and no file keeps more of the
disk than it may keep for its next appends.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

from raftmq.broker.cluster.space_return import FileLook
from raftmq.broker.replica.replica import Replica
from raftmq.fsm.log_partition import LogPartition
from raftmq.fsm.state_machine import StateMachine
from raftmq.storage.entry_codec import CodecError, decode_key, decode_row_fields
from raftmq.storage.log_store import ReplicaKey

from sim.cluster.cluster import SimNode
from sim.cluster.world.disk import SimLogStore, SimReplica


class FreedSpace:
    """The files that were seen without waste since the faults ended.

    Each counts by itself: metadata is written and trimmed all the time, so a file waits for the next round of its broker again and again, and
    perhaps there is no moment at which no file of any broker waits.
    """

    def __init__(self) -> None:
        self._returned: dict[tuple[int, ReplicaKey], None] = {}
        self._looks: dict[tuple[int, ReplicaKey], tuple[tuple[object, ...], str]] = {}
        """The last look at each other file: all that its result depends on, and the waste that was found."""

    def why_kept(self, nodes: Iterable[SimNode]) -> str:
        """Look at the other files. Return the first waste of space on any node, or an empty string."""
        first = ""
        for node in nodes:
            for group in node.engine.replicas.values():
                file = (node.view.node_id, group.key)
                if file in self._returned:
                    continue
                if waste := self._look(node, group):
                    first = first or waste
                else:
                    self._returned[file] = None
        return first

    def _look(self, node: SimNode, group: Replica[StateMachine]) -> str:
        """Return the waste of space by a replica, or an empty string. A file in which nothing changed is not read again."""
        file = (node.view.node_id, group.key)
        replica = cast("SimReplica | None", cast("SimLogStore", node.store)._replicas.get(group.key))
        rows = replica.file if replica is not None else None
        start = group.state_machine.log_start_offset if isinstance(group.state_machine, LogPartition) else 0
        seen = (rows, rows and rows.commits, rows and rows.allocated, start)
        known = self._looks.get(file)
        if known is None or known[0] != seen:
            known = self._looks[file] = seen, _waste(node, group)
        return known[1]


def _waste(node: SimNode, group: Replica[StateMachine]) -> str:
    """Return the waste of space by a replica, or an empty string."""
    store = cast("SimLogStore", node.store)
    replica = cast("SimReplica | None", store._replicas.get(group.key))
    if replica is None:
        return ""
    look = FileLook(group.key, store.space(group.key), store.has_truncated_rows(group.key))
    if look.has_truncated_rows or look.is_due(is_short=False):
        return f"node {node.view.node_id} keeps {look}"
    if isinstance(group.state_machine, LogPartition):
        start = group.state_machine.log_start_offset
        trimmed = _trimmed_rows(replica, start)
        if trimmed:
            return f"node {node.view.node_id} keeps {trimmed} entries of g{group.group_id} below its start {start}"
    return ""


def _trimmed_rows(replica: SimReplica, log_start_offset: int) -> int:
    """Count the DATA entries that are completely below the log's start."""
    count = 0
    for key, value in replica.file.tables["log"].rows.items():
        try:
            row = decode_row_fields(decode_key(key), value)
        except CodecError:  # a fault damaged the row, and nobody has read it yet
            continue
        count += bool(row.record_count) and row.next_offset <= log_start_offset
    return count
