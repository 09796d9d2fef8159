"""`Acknowledged`: an operation whose client was told «committed» is in the committed log, once and for ever, and one
that was refused never is (thesis 6.3; the definite and the unknown outcome of a proposal).
"""

from __future__ import annotations

from raftmq.raft.entry import Entry, EntryKind

from sim.core.invariants.committed_log import CommittedLog
from sim.core.invariants.violation import demand


class Acknowledged:
    """What clients were told."""

    def __init__(self) -> None:
        self._acknowledged: list[Entry] = []
        self._appended: dict[bytes, int] = {}
        """Payload -> how often some leader appended it (a client repeats what it does not know the fate of)."""

    @property
    def count(self) -> int:
        """Operations acknowledged."""
        return len(self._acknowledged)

    def on_appended(self, entries: tuple[Entry, ...]) -> None:
        """A leader took these."""
        for entry in entries:
            self._appended[entry.payload] = self._appended.get(entry.payload, 0) + 1

    def on_acknowledged(self, entry: Entry) -> None:
        """A client learned that its entry is committed."""
        self._acknowledged.append(entry)

    def check(self, committed: CommittedLog) -> None:
        """At the end: everything acknowledged is there, and nothing that no leader took, nor more often."""
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
