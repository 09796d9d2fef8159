"""Keep the newest entries of every group in memory, so that followers and tailing consumers never touch the disk.

Each group has a contiguous run that ends at its last appended entry. One budget bounds all runs, and the oldest entries are evicted
first.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque

from raftmq.raft.entry import Entry, EntryKind
from raftmq.types import LogIndex, Offset, Term

_COMPACT_AFTER = 256
"""Evicted slots at the front of a list before they are removed, which amortizes moving the rest."""
_OVERHEAD_BYTES = 200
"""Memory of an entry beside its payload: the object, its numbers, its references in the lists here."""
_EVICTED = Entry(LogIndex(0), Term(0), EntryKind.EMPTY, Offset(0), 0, 0, b"")
"""Replaces an evicted entry in its slot: its payload must be freed immediately, not when the slots are removed."""
_SWEPT_ABOVE_MIN = 4096
"""Entries in the order of age before removed ones are searched among them."""


class RecentEntriesBudget:
    """The budget that all groups' recent entries share."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes_used = 0
        self._order: deque[tuple[RecentEntries, LogIndex]] = deque()
        """Entries, oldest first, including removed ones (trimmed, replaced, their group closed) until the next sweep."""
        self._swept_above = _SWEPT_ABOVE_MIN

    def added(self, owner: RecentEntries, index: LogIndex, size: int) -> None:
        """Count an entry, and evict the oldest ones if the budget is exceeded."""
        self.bytes_used += size
        self._order.append((owner, index))
        while self.bytes_used > self.bytes_max and len(self._order) > 1:
            oldest, oldest_index = self._order.popleft()
            oldest.evict_through(oldest_index)
        if len(self._order) > self._swept_above:
            self._sweep()

    def _sweep(self) -> None:
        """Forget removed entries: if trims keep the budget from being reached, nothing else removes them."""
        self._order = deque(pair for pair in self._order if pair[0].get(pair[1]) is not None)
        self._swept_above = max(_SWEPT_ABOVE_MIN, 2 * len(self._order))


class RecentEntries:
    """One group's contiguous run of recent entries."""

    __slots__ = ("_budget", "_entries", "_start", "bytes_used")

    def __init__(self, budget: RecentEntriesBudget) -> None:
        self._budget = budget
        self.bytes_used = 0
        """The part of the budget that this run uses."""
        self._entries: list[Entry] = []
        self._start = 0

    @property
    def first_index(self) -> int:
        """Return the index of the first entry held, or 0 if there is none."""
        return self._entries[self._start].index if len(self._entries) > self._start else 0

    def append(self, entries: tuple[Entry, ...]) -> None:
        """Add entries at the end. A suffix that they replace is dropped, and a gap starts a new run."""
        held = self._entries
        if len(held) > self._start:
            first_new = entries[0].index
            if first_new <= held[-1].index:
                self.truncate_from(first_new)
            elif first_new != held[-1].index + 1:
                self.clear()
        for entry in entries:
            held.append(entry)
            size = len(entry.payload) + _OVERHEAD_BYTES
            self.bytes_used += size
            self._budget.added(self, entry.index, size)

    def truncate_from(self, index: LogIndex) -> None:
        """Drop entries from `index` on."""
        held = self._entries
        while len(held) > self._start and held[-1].index >= index:
            self._release(held.pop())

    def shrink(self, bytes_max: int, through: LogIndex) -> None:
        """Drop the oldest entries up to `through` until at most `bytes_max` bytes are held."""
        held = self._entries
        while self.bytes_used > bytes_max and len(held) > self._start and held[self._start].index <= through:
            self.evict_through(held[self._start].index)

    def evict_through(self, index: LogIndex) -> None:
        """Drop entries up to `index`."""
        held, start = self._entries, self._start
        while start < len(held) and held[start].index <= index:
            self._release(held[start])
            held[start] = _EVICTED
            start += 1
        if start > _COMPACT_AFTER or start == len(held):
            del held[:start]
            start = 0
        self._start = start

    def clear(self) -> None:
        """Drop everything."""
        for position in range(self._start, len(self._entries)):
            self._release(self._entries[position])
        self._entries.clear()
        self._start = 0

    def _release(self, entry: Entry) -> None:
        size = len(entry.payload) + _OVERHEAD_BYTES
        self.bytes_used -= size
        self._budget.bytes_used -= size

    def slice(self, first: LogIndex, last: LogIndex, bytes_max: int) -> tuple[Entry, ...] | None:
        """Return entries first..last, at least one and then up to `bytes_max`, or None if `first` is not held."""
        held, start = self._entries, self._start
        if len(held) <= start or first < held[start].index or first > held[-1].index:
            return None
        position = start + first - held[start].index
        out: list[Entry] = []
        size = 0
        while position < len(held):
            entry = held[position]
            size += len(entry.payload)
            if entry.index > last or (out and size > bytes_max):
                break
            out.append(entry)
            position += 1
        return tuple(out)

    def get(self, index: LogIndex) -> Entry | None:
        """Return the entry at `index`, or None if it is not held."""
        held, start = self._entries, self._start
        if len(held) <= start or index < held[start].index or index > held[-1].index:
            return None
        return held[start + index - held[start].index]

    def index_of_offset(self, offset: Offset) -> LogIndex | None:
        """Return the index of the entry that holds `offset`, or None if it is not held."""
        held, start = self._entries, self._start
        if len(held) <= start or offset < held[start].base_offset or offset >= held[-1].next_offset:
            return None
        if offset >= held[-1].base_offset:  # as for a reader at the end of the log
            return held[-1].index
        # next_offset never decreases: the first entry whose next_offset is above `offset` holds it
        position = bisect_right(held, offset, lo=start, key=lambda entry: entry.next_offset)
        return held[position].index
