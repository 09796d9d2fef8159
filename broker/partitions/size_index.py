"""Tell retention by size how many bytes of a partition lie after an offset, from memory.

The state machine counts the payload bytes of all applied records. A mark remembers that count at an offset, one mark per
`spacing` bytes. Bytes are counted from the log's end, so a trim by any caller needs no accounting: marks below the new start are
dropped. After a restart older marks are read back from headers, newest first, and only as far as needed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from raftmq.raft.entry import EntryHeader
from raftmq.types import LogIndex, Offset

_SPACING_MIN = 64 * 1024
_SPACING_MAX = 1024 * 1024
_MARKS_PER_RETENTION = 64
"""A partition may exceed its limit by one part in this many."""
HEADERS_PER_STEP = 5_000
"""Headers read in one step back through the log: about 0.15 s of a reader thread."""


class SizeMark(NamedTuple):
    """The payload bytes that the partition had ever applied at an offset."""

    offset: Offset
    total_bytes: int


def spacing_for(retention_bytes: int) -> int:
    """Return the bytes between two marks. They bound the memory, and how far a trim may fall short of the limit."""
    return max(_SPACING_MIN, min(_SPACING_MAX, retention_bytes // _MARKS_PER_RETENTION))


class SizeIndex:
    """Marks of one partition for one limit, ascending by offset. They grow at both ends from the position of creation."""

    def __init__(self, retention_bytes: int, applied_index: LogIndex, next_offset: int, total_bytes: int) -> None:
        self.retention_bytes = retention_bytes
        self.spacing = spacing_for(retention_bytes)
        self.is_complete = False
        """Whether reading back reached the log's start, or a point before which everything must be deleted."""
        self._marks: deque[SizeMark] = deque([SizeMark(Offset(next_offset), total_bytes)])
        self._newest_bytes = total_bytes
        self._oldest_bytes = total_bytes
        """Counts of the outermost marks ever created. New marks keep their distance from these."""
        self._back_index = applied_index
        """The next entry to read back. Everything above it is covered."""
        self._back_bytes = total_bytes
        """Payload bytes applied up to and including `_back_index`."""

    def applied(self, next_offset: int, total_bytes: int) -> None:
        """Record that the partition's end moved."""
        if total_bytes - self._newest_bytes >= self.spacing:
            self._marks.append(SizeMark(Offset(next_offset), total_bytes))
            self._newest_bytes = total_bytes

    def trim_target(self, log_start_offset: int, total_bytes: int) -> int | None:
        """Return the offset before which records may be deleted so that `retention_bytes` remain. None: delete nothing."""
        marks = self._marks
        while marks and marks[0].offset <= log_start_offset:
            marks.popleft()
        target: int | None = None
        for mark in marks:
            if total_bytes - mark.total_bytes < self.retention_bytes:
                break
            target = mark.offset
        return target

    def read_back(
        self,
        header: Callable[[LogIndex], EntryHeader],
        first_index: LogIndex,
        log_start_offset: int,
        total_bytes: int,
    ) -> tuple[list[SizeMark], LogIndex, int, bool]:
        """Read one step back through the log, in a thread. It changes nothing: pass its result to `take_back`."""
        found: list[SizeMark] = []
        index, counted, last = self._back_index, self._back_bytes, self._oldest_bytes
        for _ in range(HEADERS_PER_STEP):
            if index < first_index:
                return found, index, counted, True
            entry = header(index)
            if entry.next_offset <= log_start_offset:
                return found, index, counted, True
            if last - counted >= self.spacing:
                found.append(SizeMark(entry.next_offset, counted))
                last = counted
                if total_bytes - counted >= self.retention_bytes:
                    return found, index, counted, True
            index = LogIndex(index - 1)
            if entry.record_count:
                counted -= entry.payload_bytes
        return found, index, counted, False

    def take_back(self, found: list[SizeMark], index: LogIndex, counted: int, is_complete: bool) -> None:
        """Add the marks that `read_back` found."""
        self._marks.extendleft(found)
        if found:
            self._oldest_bytes = found[-1].total_bytes
        self._back_index = index
        self._back_bytes = counted
        self.is_complete = is_complete
