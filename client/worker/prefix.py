"""`PrefixTracker`: which records of one partition are done, and up to where all of them are.

Pure: no clock, no input or output. Must not know what a record is or who works on it. Invariants: the prefix never goes back and never
passes a record that was taken and is not done; what is held is bounded by what was taken beyond the prefix.
"""

from __future__ import annotations

from collections import deque

from raftmq.errors import invariant


class PrefixTracker:
    """Offsets are taken in ascending order and finished in any order; gaps between them (records that were trimmed) are no obstacle."""

    __slots__ = ("_finished", "_last_taken", "_open", "prefix")

    def __init__(self) -> None:
        self.prefix: int | None = None
        """The offset to go on from: everything taken below it is done. None: nothing is. Only `finish` writes it."""
        self._open: deque[int] = deque()  # taken and not below the prefix, ascending; the first is not finished
        self._finished: set[int] = set()  # those of `_open` that are done
        self._last_taken = -1

    @property
    def span(self) -> int:
        """Records taken and not below the prefix, done or not: what would be repeated if nothing more were committed."""
        return len(self._open)

    def take(self, offset: int) -> None:
        """A record is in work from now on."""
        invariant(offset > self._last_taken, "offsets_are_taken_in_order", offset=offset, last_taken=self._last_taken)
        self._last_taken = offset
        self._open.append(offset)

    def finish(self, offset: int) -> bool:
        """A record that was taken is done, for the first time. True when that moved the prefix."""
        opened = self._open
        if not opened or offset != opened[0]:
            self._finished.add(offset)
            return False
        last = opened.popleft()
        while opened and opened[0] in self._finished:
            last = opened.popleft()
            self._finished.remove(last)
        self.prefix = last + 1
        return True
