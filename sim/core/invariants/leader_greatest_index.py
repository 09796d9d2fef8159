"""`LeaderGreatestIndex`: no log has an entry of a leader's term beyond the end of that leader's log (TLA+ `ElectionSafetyInv`; thesis 3.4, 3.5:
only the leader of a term makes entries of it, and never deletes one). Not to be mistaken for `ElectionSafety` in
`election_safety.py`, «one leader in a term», which TLA+ calls `MoreThanOneLeaderInv`.

Stronger than TLA+, which compares the logs of one moment: an entry counts for ever, also when its log has lost it or its leader leads no more.
"""

from __future__ import annotations

from itertools import pairwise

from raftmq.raft.entry import Entry

from sim.core.invariants.violation import demand


class LeaderGreatestIndex:
    """Remembers, for each term, how far its leader's log went and how far anybody's did."""

    def __init__(self) -> None:
        self._led: dict[int, int] = {}
        """Term -> greatest index of an entry of it in its leader's log, when last seen leading."""
        self._written: dict[int, int] = {}
        """Term -> greatest index of an entry of it that was handed to any disk."""

    def on_leader(self, replica_id: int, term: int, last_term: int, last_index: int) -> None:
        """A replica leads `term`, with a log that ends so. Called before anything of it leaves."""
        greatest = last_index if last_term == term else 0
        self._led[term] = greatest
        written = self._written.get(term, 0)
        demand(
            greatest >= written,
            "LeaderGreatestIndex",
            f"r{replica_id} leads term {term} and ends at {last_term}/{last_index}, {term}/{written} was written",
        )

    def on_written(self, replica_id: int, entries: tuple[Entry, ...]) -> None:
        """A replica hands `entries` to its disk."""
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
