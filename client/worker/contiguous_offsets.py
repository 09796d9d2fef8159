"""`ContiguousOffsets`: tracks which records of one partition are done, and the prefix in which all of them are.

Pure: no clock, no input or output. Must not know records or who processes them. Invariants: the prefix never goes back and never passes a
record that was taken and is not done. Memory is bounded by the number of records taken beyond the prefix.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import NamedTuple

from raftmq.errors import invariant
from raftmq.offset_ranges import Ranges, encode_ranges


class Progress(NamedTuple):
    """The progress of a partition that may be committed."""

    offset: int
    """Every record taken below this offset is done."""
    finished: bytes = b""
    """The ranges that are done beyond `offset`, encoded by `offset_ranges`. If there are too many, the lowest are kept."""


class ContiguousOffsets:
    """Tracks offsets that are taken in ascending order and finished in any order. Gaps between them (trimmed records) do no harm."""

    __slots__ = ("_before", "_finished", "_last_taken", "_open", "_progress", "highest_finished", "prefix")

    def __init__(self, finished_before: Ranges = ()) -> None:
        """Start with the ranges that earlier owners of the partition finished beyond its committed offset."""
        self.prefix: int | None = None
        """The offset to continue from: every record taken below it is done. None until one is done. Written by `finish` only."""
        self.highest_finished = -1
        """The highest offset that is done; -1 if none is."""
        self._open: deque[int] = deque()  # taken and not below the prefix, ascending; the first is not finished
        self._finished: set[int] = set()  # the offsets of `_open` that are done
        self._last_taken = -1
        self._before = deque(finished_before)  # the ranges that end above the last offset taken
        self._progress: Progress | None = None  # None: to be computed

    @property
    def span(self) -> int:
        """Return the number of records taken and not below the prefix, done or not."""
        return len(self._open)

    @property
    def next_offset(self) -> int:
        """Return the lowest offset that may be taken next."""
        return self._last_taken + 1

    @property
    def first_open(self) -> int:
        """Return the first offset that is taken and not done, or `next_offset` if there is none."""
        return self._open[0] if self._open else self.next_offset

    @property
    def progress(self) -> Progress | None:
        """Return the progress that may be committed, or None if nothing is done."""
        if self._progress is None and self.highest_finished >= 0:
            self._progress = self._compute()
        return self._progress

    def _compute(self) -> Progress:
        # No record below the first one taken is missing: the committed offset of the earlier owner was there.
        offset = self.prefix if self.prefix is not None else self._open[0]
        taken = self._last_taken + 1
        beyond = ((max(start, taken), end) for start, end in self._before if end > taken)
        ranges = list(_joined(chain(((one, one + 1) for one in sorted(self._finished)), beyond)))
        if ranges and ranges[0][0] <= offset and not self._open:  # the next records were finished by an earlier owner
            offset = ranges.pop(0)[1]
        return Progress(offset, encode_ranges(offset, ranges))

    def take(self, offset: int) -> bool:
        """Record that a record is in work. Return False if an earlier owner finished it: then it is done."""
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
        """Record that a taken record is done, for the first time. Return whether that moved the prefix."""
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
    """Yield ascending ranges, with adjacent ones joined."""
    start = end = -1
    for next_start, next_end in ranges:
        if next_start != end:
            if end >= 0:
                yield start, end
            start = next_start
        end = next_end
    if end >= 0:
        yield start, end
