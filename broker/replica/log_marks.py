"""Remember the size and the time of places in a replica's log, so that the length of its tail is known without a look at the disk.

Only entries that were appended since the replica was opened count: what was there before is older than each of them.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

from raftmq.raft.entry import Entry
from raftmq.types import LogIndex

MARK_BYTES: Final = 1 << 20
"""The distance of marks."""
MARKS_MAX: Final = 1_100
"""Marks that are remembered: a little more than the longest tail that a leader keeps. Older ones are forgotten."""
ENTRY_BYTES: Final = 64
"""Bytes of an entry beside its payload: its row's header and key, and its share of pages."""


class _Mark(NamedTuple):
    last_index: LogIndex
    bytes: int
    """Of all entries up to this one."""
    append_time_ms: int


class LogMarks:
    """The marks of one replica."""

    __slots__ = ("_bytes", "_marks", "_time_ms", "opened_index")

    def __init__(self) -> None:
        self._bytes = 0
        self._time_ms = 0
        self._marks: deque[_Mark] = deque()
        """By index. Empty before the first append."""
        self.opened_index: LogIndex | None = None
        """The last entry that was there before. None before the first append."""

    def append(self, entries: tuple[Entry, ...]) -> None:
        """Count entries, which replace the log from the first of them on. A suffix that they replace may stay counted up to one mark."""
        marks, first = self._marks, entries[0].index
        while marks and marks[-1].last_index >= first:
            self._bytes = marks.pop().bytes
        if not marks:
            before = LogIndex(first - 1)
            self.opened_index = before if self.opened_index is None else LogIndex(min(self.opened_index, before))
            marks.append(_Mark(before, self._bytes, entries[0].append_time_ms))
        next_at = marks[-1].bytes + MARK_BYTES
        for entry in entries:
            self._bytes += len(entry.payload) + ENTRY_BYTES
            if self._bytes >= next_at:
                marks.append(_Mark(entry.index, self._bytes, entry.append_time_ms))
                next_at = self._bytes + MARK_BYTES
        while len(marks) > MARKS_MAX:
            marks.popleft()
        self._time_ms = entries[-1].append_time_ms

    def clear(self) -> None:
        """Forget everything: the log was replaced, or is closed."""
        self._marks.clear()
        self.opened_index = None

    def index_before_bytes(self, size: int) -> LogIndex:
        """Return the last marked index after which there are at least so many bytes, or 0."""
        for mark in reversed(self._marks):
            if self._bytes - mark.bytes >= size:
                return mark.last_index
        return LogIndex(0)

    def index_before_time(self, elapsed_ms: int) -> LogIndex:
        """Return the last marked index that was appended so long before the last entry, or 0."""
        until = self._time_ms - elapsed_ms
        return next((mark.last_index for mark in reversed(self._marks) if mark.append_time_ms <= until), LogIndex(0))

    def bytes_between(self, first: LogIndex, last: LogIndex) -> int:
        """Return about how many bytes the entries between two indexes have, as far as they are known."""
        inside = [mark.bytes for mark in self._marks if first <= mark.last_index <= last]
        return inside[-1] - inside[0] if inside else 0
