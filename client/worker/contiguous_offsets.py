"""`ContiguousOffsets`: which records of one partition are done, and up to where all of them are.

Pure: no clock, no input or output. Must not know what a record is or who works on it. Invariants: the prefix never goes back and never
passes a record that was taken and is not done; what is held is bounded by what was taken beyond the prefix.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import NamedTuple

from raftmq.errors import invariant
from raftmq.offset_ranges import Ranges, encode_ranges


class Progress(NamedTuple):
    """What may be committed of a partition."""

    offset: int
    """Everything taken below it is done."""
    finished: bytes = b""
    """What is done beyond it: `offset_ranges`, as many as may be kept, the lowest first."""


class ContiguousOffsets:
    """Offsets are taken in ascending order and finished in any order; gaps between them (records that were trimmed) are no obstacle."""

    __slots__ = ("_before", "_finished", "_last_taken", "_open", "_progress", "highest_finished", "prefix")

    def __init__(self, finished_before: Ranges = ()) -> None:
        """`finished_before`: what earlier owners of the partition finished beyond the offset where this one begins."""
        self.prefix: int | None = None
        """The offset to go on from: everything taken below it is done. None: nothing is. Only `finish` writes it."""
        self.highest_finished = -1
        """The highest offset that is done."""
        self._open: deque[int] = deque()  # taken and not below the prefix, ascending; the first is not finished
        self._finished: set[int] = set()  # those of `_open` that are done
        self._last_taken = -1
        self._before = deque(finished_before)  # what of it ends above the last one taken
        self._progress: Progress | None = None  # None: to be computed

    @property
    def span(self) -> int:
        """Records taken and not below the prefix, done or not."""
        return len(self._open)

    @property
    def progress(self) -> Progress | None:
        """What may be committed; None: nothing is done."""
        if self._progress is None and self.highest_finished >= 0:
            self._progress = self._compute()
        return self._progress

    def _compute(self) -> Progress:
        # Nothing before the first record taken is missing: whoever gave it to us began there.
        offset = self.prefix if self.prefix is not None else self._open[0]
        taken = self._last_taken + 1
        beyond = ((max(start, taken), end) for start, end in self._before if end > taken)
        ranges = list(_joined(chain(((one, one + 1) for one in sorted(self._finished)), beyond)))
        if ranges and ranges[0][0] <= offset and not self._open:  # what is taken next was finished before
            offset = ranges.pop(0)[1]
        return Progress(offset, encode_ranges(offset, ranges))

    def take(self, offset: int) -> bool:
        """A record is in work from now on. False: an earlier owner finished it, so it is done."""
        invariant(offset > self._last_taken, "offsets_are_taken_in_order", offset=offset, last_taken=self._last_taken)
        self._last_taken = offset
        self._open.append(offset)
        while self._before and self._before[0][1] <= offset:
            self._before.popleft()
        if self._before and self._before[0][0] <= offset:
            self.finish(offset)
            return False
        return True

    def finish(self, offset: int) -> bool:
        """A record that was taken is done, for the first time. True when that moved the prefix."""
        self._progress = None
        self.highest_finished = max(self.highest_finished, offset)
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


def _joined(ranges: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Ascending ranges, those that touch each other as one."""
    start = end = -1
    for next_start, next_end in ranges:
        if next_start != end:
            if end >= 0:
                yield start, end
            start = next_start
        end = next_end
    if end >= 0:
        yield start, end
