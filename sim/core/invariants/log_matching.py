"""`LogMatching` and `DenseOffsets`: if two logs have entries of equal index and term, the logs are equal up to these entries
(thesis, figure 3.2 and section 3.5). Each entry starts at the offset where the one before it ended.
"""

from __future__ import annotations

from raftmq.raft.entry import Entry

from sim.core.disk import LogCopy
from sim.core.invariants.violation import demand


class LogMatching:
    """Checks every entry once, when it is submitted to a disk. By induction over the term before it, whole logs match."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], tuple[Entry, int]] = {}
        """(index, term) -> the entry, and the term of the entry before it."""

    def on_written(self, replica_id: int, log: LogCopy, entries: tuple[Entry, ...]) -> None:
        """Check entries that are about to replace the suffix of `log`."""
        first = entries[0]
        at = f"r{replica_id} writes {first.term}/{first.index}"
        term_before = log.term(first.index - 1)
        demand(term_before is not None, "LogMatching", f"{at} onto a log that ends at {log.last_index}")
        assert term_before is not None
        before = log.entry(first.index - 1)
        offset = before.next_offset if before is not None else log.position.next_offset
        index = int(first.index)
        for entry in entries:
            demand(entry.index == index, "LogMatching", f"{at}: index {entry.index} where {index} is due")
            demand(entry.term >= term_before, "LogMatching", f"{at}: term falls from {term_before} to {entry.term}")
            demand(
                entry.base_offset == offset,
                "DenseOffsets",
                f"{at}: {entry.index} starts at offset {entry.base_offset}, {offset} is due",
            )
            known = self._known.get((index, entry.term))
            if known is None:
                self._known[index, entry.term] = (entry, term_before)
            else:
                is_same = (known[0] is entry or known[0] == entry) and known[1] == term_before
                demand(is_same, "LogMatching", f"r{replica_id} at {entry.term}/{index}: {entry} differs from {known}")
            offset = entry.next_offset
            term_before = entry.term
            index += 1
