"""Define the log of a group as the core sees it: a durable part behind a `LogView`, and the unstable tail in memory.

Must not decide anything about roles or votes. Invariants:

- `position.index <= applied <= applying <= commit <= last_index`.
- `offset <= offset_in_progress <= last_index + 1`.
- Entries are contiguous, terms never decrease, and `base_offset` continues `next_offset`.
- Nothing at or below `commit` is ever truncated.

Source: Ongaro's thesis 3.5 (log matching), 10.2.1 (writing in parallel). The offsets of the tail are those of etcd's raft.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from raftmq.errors import violated
from raftmq.raft.entry import Entry, EntryKind, LogPosition
from raftmq.raft.log_view import LogView
from raftmq.raft.messages import InstallSnapshot
from raftmq.types import LogIndex, Term


class RaftLog:
    """Hold the entries after `position`. Entries from `offset` on are not known to be durable."""

    __slots__ = (
        "_starts",
        "_terms",
        "_view",
        "append_time_ms",
        "applied",
        "applying",
        "commit",
        "last_index",
        "last_term",
        "membership_indexes",
        "next_offset",
        "offset",
        "offset_in_progress",
        "position",
        "snapshot",
        "snapshot_sequence",
        "unstable",
    )

    def __init__(
        self,
        view: LogView,
        position: LogPosition,
        last_index: int,
        next_offset: int,
        append_time_ms: int,
        term_starts: Sequence[tuple[Term, LogIndex]],
    ) -> None:
        self._view = view
        self.position = position
        """The point after which the log starts. Its term is the term of `position.index`."""
        # Two parallel lists, ascending: each term and its first index. The first row stands for `position`, so that
        # every index from there on has a row at or before it and both conflict hints are one bisect.
        self._terms: list[int] = [position.term]
        self._starts: list[int] = [position.index]
        for term, start in term_starts:
            if term != self._terms[-1]:
                self._terms.append(term)
                self._starts.append(start)
        self.last_index: int = last_index
        self.last_term: int = self._terms[-1]
        self.next_offset: int = next_offset
        """`next_offset` of the last entry (of `position` when the log is empty)."""
        self.append_time_ms: int = append_time_ms
        """Append time of the last entry. Later entries are never older."""
        self.unstable: list[Entry] = []
        """Entries from `offset` on."""
        self.offset: int = last_index + 1
        """Every entry below this index is durable. `mark_durable` raises it, and a truncation lowers it."""
        self.offset_in_progress: int = last_index + 1
        """Every entry below this index was handed to the writer."""
        self.snapshot: InstallSnapshot | None = None
        """A snapshot that is not durable yet. It replaces everything on the disk."""
        self.snapshot_sequence: int = 0
        """The number of the append that carries `snapshot`, or 0 while it is not handed out."""
        self.commit: int = position.index
        """The last entry that is known to be committed. It never decreases."""
        self.applying: int = position.index
        """Entries up to here were handed out for applying."""
        self.applied: int = position.index
        """Entries up to here were applied."""
        self.membership_indexes: list[int] = []
        """Indexes of MEMBERSHIP entries above `applied`, ascending: changes that are uncommitted or unapplied."""

    # ------------------------------------------------------------------------------------------------------- lookups

    def term_at(self, index: int) -> int:
        """Return the term of the entry at `index` (also of `position`), or 0 when the log does not hold it."""
        starts = self._starts
        if index >= starts[-1]:
            return self.last_term if index <= self.last_index else 0
        if index < starts[0]:
            return 0
        return self._terms[bisect_right(starts, index) - 1]

    def has(self, index: int, term: int) -> bool:
        """Return whether the log holds the entry (index, term), or starts directly after it."""
        return self.position.index <= index <= self.last_index and self.term_at(index) == term

    def find_hint(self, index: int, term: int) -> tuple[int, int]:
        """Return the largest index at or below `index` whose term is at most `term`, and its term.

        Both sides of a conflict use it, to skip a whole divergent term in one round trip. Term 0 means that the answer
        lies before the start of the log.
        """
        index = min(index, self.last_index)
        if index < self._starts[0]:
            return index, 0
        row = bisect_right(self._starts, index) - 1
        fitting = bisect_right(self._terms, term, 0, row + 1) - 1
        if fitting < 0:
            return max(self._starts[0] - 1, 0), 0
        if fitting == row:
            return index, self._terms[row]
        return self._starts[fitting + 1] - 1, self._terms[fitting]

    def find_news(self, entries: Sequence[Entry]) -> int:
        """Return how many of `entries` the log holds already. The rest conflicts or is new."""
        for position, entry in enumerate(entries):
            if entry.index > self.last_index or self.term_at(entry.index) != entry.term:
                return position
        return len(entries)

    def entries_from(self, first: int, bytes_max: int) -> tuple[Entry, ...] | None:
        """Return entries from `first` on, at least one unless there is none, or None when they must be fetched first."""
        if first > self.last_index:
            return ()
        if first < self.offset:
            return self._view.entries(LogIndex(first), LogIndex(self.offset - 1), bytes_max)
        start = first - self.offset
        end = start
        size = 0
        for entry in self.unstable[start:] if start else self.unstable:
            size += len(entry.payload)
            if size > bytes_max and end > start:
                break
            end += 1
        return tuple(self.unstable[start:end])

    def durable_entries(self, first: int, last: int, bytes_max: int) -> tuple[Entry, ...] | None:
        """Return durable entries `first`..`last`, at least one, or None when they must be fetched first."""
        return self._view.entries(LogIndex(first), LogIndex(last), bytes_max)

    @property
    def durable_index(self) -> int:
        """Return the index of the last entry that is known to be durable."""
        return self.offset - 1

    @property
    def has_committed_membership(self) -> bool:
        """Return whether a change of membership is committed and not yet applied."""
        return bool(self.membership_indexes) and self.membership_indexes[0] <= self.commit

    # ------------------------------------------------------------------------------------------------------- changes

    def append(self, entries: Sequence[Entry]) -> None:
        """Add entries to the tail. Entries that do not continue index, term and offset are a safety violation."""
        for entry in entries:
            if entry.index != self.last_index + 1:
                violated("log_contiguous", index=entry.index, last_index=self.last_index)
            if entry.base_offset != self.next_offset:
                violated(
                    "base_offset_continuity",
                    index=entry.index,
                    base_offset=entry.base_offset,
                    next_offset=self.next_offset,
                )
            if entry.term != self.last_term:
                if entry.term < self.last_term:
                    violated("log_terms", index=entry.index, term=entry.term)
                self._terms.append(entry.term)
                self._starts.append(entry.index)
                self.last_term = entry.term
            if entry.kind is EntryKind.MEMBERSHIP:
                self.membership_indexes.append(entry.index)
            self.last_index = entry.index
            self.next_offset += entry.record_count
            self.append_time_ms = max(self.append_time_ms, entry.append_time_ms)
        self.unstable.extend(entries)

    def truncate_after(self, index: int) -> None:
        """Remove every entry above `index`, and rewind the caches: terms, next offset, append time."""
        if index < self.commit:
            violated("truncate_committed", index=index, commit_index=self.commit)
        if index >= self.last_index:
            return
        self._rewind_caches(index)
        if index >= self.offset:
            del self.unstable[index - self.offset + 1 :]
        else:
            self.unstable.clear()
            self.offset = index + 1
        # A write of the removed entries may still be in flight. The entries that replace them must be handed out again.
        self.offset_in_progress = min(self.offset_in_progress, index + 1)
        self.last_index = index
        while self._starts[-1] > index:
            self._starts.pop()
            self._terms.pop()
        self.last_term = self._terms[-1]
        while self.membership_indexes and self.membership_indexes[-1] > index:
            self.membership_indexes.pop()

    def _rewind_caches(self, index: int) -> None:
        """Set next offset and append time to their values after the entry at `index`."""
        if index >= self.offset:
            entry = self.unstable[index - self.offset]
            self.next_offset, self.append_time_ms = entry.next_offset, entry.append_time_ms
        elif index == self.position.index:
            self.next_offset, self.append_time_ms = self.position.next_offset, self.position.append_time_ms
        else:
            header = self._view.header(LogIndex(index))
            self.next_offset, self.append_time_ms = header.next_offset, header.append_time_ms

    def commit_to(self, index: int) -> None:
        """Raise the commit index to `index`. A lower value changes nothing."""
        if index > self.commit:
            if index > self.last_index:
                violated("commit_within_log", commit_index=index, last_index=self.last_index)
            self.commit = index

    def applied_to(self, index: int) -> None:
        """Record that entries up to `index` are applied."""
        if not self.applied <= index <= self.applying:
            violated("applied_in_order", index=index, applying=self.applying)
        self.applied = index
        while self.membership_indexes and self.membership_indexes[0] <= index:
            del self.membership_indexes[0]

    def restore(self, snapshot: InstallSnapshot) -> None:
        """Remove every entry and start after the snapshot.

        Entries above its position are removed, too: they did not match. A suffix of older terms on top of the snapshot would
        corrupt the last term, and with it every comparison of logs (a defect of aioraft-ng).
        """
        position = snapshot.meta.position
        self.position = position
        self._terms = [position.term]
        self._starts = [position.index]
        self.last_index = position.index
        self.last_term = position.term
        self.next_offset = position.next_offset
        self.append_time_ms = position.append_time_ms
        self.unstable.clear()
        self.offset = self.offset_in_progress = position.index + 1
        self.commit = self.applying = self.applied = position.index
        self.membership_indexes.clear()
        self.snapshot = snapshot
        self.snapshot_sequence = 0

    def compacted(self, position: LogPosition) -> None:
        """Start after `position`, up to which the durable log was deleted."""
        if position.index <= self.position.index:
            return
        term = self.term_at(position.index)
        if position.index > self.applied or position.term != term:
            violated("compacted_applied", index=position.index, applied_index=self.applied)
        row = bisect_right(self._starts, position.index)
        self._starts = [position.index, *self._starts[row:]]
        self._terms = [position.term, *self._terms[row:]]
        self.position = position

    # ------------------------------------------------------------------------------------------------------- writing

    @property
    def has_pending_write(self) -> bool:
        """Return whether entries or a snapshot wait to be handed to the writer."""
        return self.last_index >= self.offset_in_progress or (self.snapshot is not None and not self.snapshot_sequence)

    def take_pending(self, sequence: int) -> tuple[tuple[Entry, ...], InstallSnapshot | None]:
        """Return everything that waits to be written, and record it as handed out by the append numbered `sequence`."""
        entries = tuple(self.unstable[self.offset_in_progress - self.offset :])
        self.offset_in_progress = self.last_index + 1
        snapshot = None
        if self.snapshot is not None and not self.snapshot_sequence:
            snapshot = self.snapshot
            self.snapshot_sequence = sequence
        return entries, snapshot

    def mark_durable(self, index: int, term: int) -> bool:
        """Record that the entry (index, term) and all before it are durable. Return False when the tail does not hold it."""
        if not self.offset <= index < self.offset_in_progress or self.term_at(index) != term:
            return False
        del self.unstable[: index - self.offset + 1]
        self.offset = index + 1
        return True
