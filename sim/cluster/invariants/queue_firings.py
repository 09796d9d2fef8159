"""`OneFiring`: a schedule fires once per due time, not before it, and only as its newest version wants (promise: one firing per due time,
under any leader).

Firings are taken from the entries that replicas apply. A leader may propose one twice, and a deposed one may propose one that is not
awaited any more. Such an entry makes no message.
"""

from __future__ import annotations

from raftmq.batch_header import FIRING_MAGIC, magic_of
from raftmq.fsm.queue.partition import QueuePartition
from raftmq.fsm.queue.results import Enqueued
from raftmq.queue_batch import parse_firing
from raftmq.raft.entry import Entry, EntryKind

from sim.core.invariants.violation import demand


class Firings:
    """The firings of all schedules of a run."""

    def __init__(self) -> None:
        self._fired: dict[tuple[int, bytes, int, int], int] = {}
        """(group, schedule, version, due time) -> the index of the entry that made its message."""
        self._stale: dict[tuple[int, int], None] = {}
        """(group, index) of entries that made none."""

    @property
    def fired(self) -> int:
        """Return the number of firings that made a message."""
        return len(self._fired)

    @property
    def stale(self) -> int:
        """Return the number of firings that made none."""
        return len(self._stale)

    def on_applied(self, group_id: int, entry: Entry, result: object, machine: QueuePartition) -> None:
        """Check an entry that a replica has just applied."""
        if entry.kind is not EntryKind.DATA or magic_of(entry.payload) != FIRING_MAGIC:
            return
        if not isinstance(result, Enqueued) or result.is_stale:
            self._stale[group_id, entry.index] = None
            return
        firing = parse_firing(entry.payload)
        name = firing.schedule.decode()
        where = f"{name!r} in g{group_id} fires at entry {entry.index} for {firing.due_ms}"
        key = (group_id, firing.schedule, firing.revision, firing.due_ms)
        first = self._fired.setdefault(key, entry.index)
        demand(first == entry.index, "OneFiring", f"{where}, and at entry {first}")
        demand(firing.due_ms <= entry.append_time_ms, "OneFiring", f"{where} already at {entry.append_time_ms}")
        row = machine.schedule(name)
        version = None if row is None else row.version
        demand(version == firing.revision, "OneFiring", f"{where} in version {firing.revision}, and is in {version}")
