"""`Acknowledged`: an operation that was acknowledged to its client stays in the committed log exactly once, and a refused
operation is never in it (thesis 6.3, the definite and the unknown outcome of a proposal).
"""

from __future__ import annotations

from raftmq.raft.entry import Entry, EntryKind

from sim.core.invariants.committed_log import CommittedLog
from sim.core.invariants.violation import demand


class Acknowledged:
    """The operations that were acknowledged to clients."""

    def __init__(self) -> None:
        self._acknowledged: list[Entry] = []
        self._appended: dict[bytes, int] = {}
        """Payload -> how often leaders appended it. A client repeats an operation of unknown outcome."""

    @property
    def count(self) -> int:
        """Number of acknowledged operations."""
        return len(self._acknowledged)

    def on_appended(self, entries: tuple[Entry, ...]) -> None:
        """Record entries that a leader appended."""
        for entry in entries:
            self._appended[entry.payload] = self._appended.get(entry.payload, 0) + 1

    def on_acknowledged(self, entry: Entry) -> None:
        """Record an entry that was acknowledged to its client."""
        self._acknowledged.append(entry)

    def check(self, committed: CommittedLog) -> None:
        """Check at the end that all acknowledged entries are committed, and no entry more often than leaders appended it."""
        for entry in self._acknowledged:
            known = committed.at(entry.index)
            is_kept = known is not None and known.entry == entry
            demand(is_kept, "Acknowledged", f"{entry} was acknowledged, committed is {known}")
        counts: dict[bytes, int] = {}
        for index in range(committed.first_index, committed.last_index + 1):
            known = committed.at(index)
            if known is not None and known.entry.kind in (EntryKind.DATA, EntryKind.COMMAND):
                payload = known.entry.payload
                counts[payload] = counts.get(payload, 0) + 1
                is_known = counts[payload] <= self._appended.get(payload, 0)
                demand(is_known, "Acknowledged", f"{known.entry} is committed more often than it was taken")
