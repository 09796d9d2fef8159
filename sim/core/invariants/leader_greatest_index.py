"""`LeaderGreatestIndex`: no log has an entry of a leader's term beyond the end of that leader's log. TLA+ calls it `ElectionSafetyInv`, and
the thesis explains it in 3.4 and 3.5: only the leader of a term creates its entries, and it never deletes one. Do not confuse it with
`ElectionSafety` in `election_safety.py`, "one leader in a term", which TLA+ calls `MoreThanOneLeaderInv`.

It is stronger than TLA+, which compares simultaneous logs: here an entry counts permanently, even if its log has lost it or its
leader has stepped down.
"""

from __future__ import annotations

from itertools import pairwise

from raftmq.raft.entry import Entry

from sim.core.invariants.violation import demand


class LeaderGreatestIndex:
    """Remembers for each term the greatest index in its leader's log and in any log."""

    def __init__(self) -> None:
        self._led: dict[int, int] = {}
        """Term -> greatest index of its entries in its leader's log, as last seen while it led."""
        self._written: dict[int, int] = {}
        """Term -> greatest index of its entries that were submitted to any disk."""

    def on_leader(self, replica_id: int, term: int, last_term: int, last_index: int) -> None:
        """Check and record the log end of the leader of `term`. Called before any message of it leaves."""
        greatest = last_index if last_term == term else 0
        self._led[term] = greatest
        written = self._written.get(term, 0)
        demand(
            greatest >= written,
            "LeaderGreatestIndex",
            f"r{replica_id} leads term {term} and ends at {last_term}/{last_index}, {term}/{written} was written",
        )

    def on_written(self, replica_id: int, entries: tuple[Entry, ...]) -> None:
        """Check entries that a replica submits to its disk."""
        if entries[0].term != entries[-1].term:
            for entry, following in pairwise(entries):
                if entry.term != following.term:
                    self._on_last_of_term(replica_id, entry)
        self._on_last_of_term(replica_id, entries[-1])

    def _on_last_of_term(self, replica_id: int, entry: Entry) -> None:
        greatest = self._led.get(entry.term, 0)
        demand(
            entry.index <= greatest,
            "LeaderGreatestIndex",
            f"r{replica_id} writes {entry.term}/{entry.index}, the log of that term's leader ended at {greatest}",
        )
        if entry.index > self._written.get(entry.term, 0):
            self._written[entry.term] = entry.index
