"""A group's log as the core sees it: a durable part behind a `LogView`, and the unstable tail in memory.

Must not decide anything about roles or votes. Invariants: `position.index <= applied <= applying <= commit <=
last_index`; `offset <= offset_in_progress <= last_index + 1`; entries are contiguous, terms never decrease, and
`base_offset` continues `next_offset`; nothing at or below `commit` is ever truncated.
Source: Ongaro's thesis 3.5 (log matching), 10.2.1 (writing in parallel); the tail's offsets are those of etcd's raft.
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
    """Entries after `position`, of which those from `offset` on are not known durable."""

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
        """The point the log starts after; its term answers for `position.index`."""
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
        """Append time of the last entry: later ones are never older."""
        self.unstable: list[Entry] = []
        """Entries from `offset` on."""
        self.offset: int = last_index + 1
        """Every entry below is durable. Written by `mark_durable`, and lowered by a truncation."""
        self.offset_in_progress: int = last_index + 1
        """Every entry below was handed to the writer."""
        self.snapshot: InstallSnapshot | None = None
        """A snapshot that is not durable yet; it replaces whatever the disk holds."""
        self.snapshot_sequence: int = 0
        """The append that carries `snapshot`; 0 while it was not handed out."""
        self.commit: int = position.index
        self.applying: int = position.index
        """Entries up to here were handed out for applying."""
        self.applied: int = position.index
        self.membership_indexes: list[int] = []
        """Indexes of MEMBERSHIP entries above `applied`, ascending: pending or unapplied changes."""

    # ------------------------------------------------------------------------------------------------------- lookups

    def term_at(self, index: int) -> int:
        """The term of the entry at `index` (also of `position`); 0 when the log does not hold it."""
        starts = self._starts
        if index >= starts[-1]:
            return self.last_term if index <= self.last_index else 0
        if index < starts[0]:
            return 0
        return self._terms[bisect_right(starts, index) - 1]

    def has(self, index: int, term: int) -> bool:
        """Whether the log holds the entry (index, term), or starts right after it."""
        return self.position.index <= index <= self.last_index and self.term_at(index) == term

    def find_hint(self, index: int, term: int) -> tuple[int, int]:
        """The largest index at or below `index` whose term is at most `term`, and its term.

        Both sides of a conflict use it: it skips a whole divergent term in one round trip. Term 0 means that the
        answer lies before the log's start.
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
        """How many of `entries` the log holds already: the rest conflicts or is new."""
        for position, entry in enumerate(entries):
            if entry.index > self.last_index or self.term_at(entry.index) != entry.term:
                return position
        return len(entries)

    def entries_from(self, first: int, bytes_max: int) -> tuple[Entry, ...] | None:
        """Entries from `first` on, at least one unless there is none; None when they must be fetched first."""
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
        """Durable entries `first`..`last`, at least one; None when they must be fetched first."""
        return self._view.entries(LogIndex(first), LogIndex(last), bytes_max)

    @property
    def durable_index(self) -> int:
        """The last entry known durable."""
        return self.offset - 1

    @property
    def has_committed_membership(self) -> bool:
        """Whether a change of membership is committed and not yet applied."""
        return bool(self.membership_indexes) and self.membership_indexes[0] <= self.commit

    # ------------------------------------------------------------------------------------------------------- changes

    def append(self, entries: Sequence[Entry]) -> None:
        """Add entries to the tail. They continue index, term, offset and time, or it is a safety violation."""
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
        """Drop every entry above `index`, rewinding the caches first: terms, next offset, append time."""
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
        # A write of the dropped entries may still be in flight; what replaces them must be handed out again.
        self.offset_in_progress = min(self.offset_in_progress, index + 1)
        self.last_index = index
        while self._starts[-1] > index:
            self._starts.pop()
            self._terms.pop()
        self.last_term = self._terms[-1]
        while self.membership_indexes and self.membership_indexes[-1] > index:
            self.membership_indexes.pop()

    def _rewind_caches(self, index: int) -> None:
        """Next offset and append time as they were after `index`."""
        if index >= self.offset:
            entry = self.unstable[index - self.offset]
            self.next_offset, self.append_time_ms = entry.next_offset, entry.append_time_ms
        elif index == self.position.index:
            self.next_offset, self.append_time_ms = self.position.next_offset, self.position.append_time_ms
        else:
            header = self._view.header(LogIndex(index))
            self.next_offset, self.append_time_ms = header.next_offset, header.append_time_ms

    def commit_to(self, index: int) -> None:
        """Entries up to `index` are committed. Never goes back."""
        if index > self.commit:
            if index > self.last_index:
                violated("commit_within_log", commit_index=index, last_index=self.last_index)
            self.commit = index

    def applied_to(self, index: int) -> None:
        """Entries up to `index` are applied."""
        if not self.applied <= index <= self.applying:
            violated("applied_in_order", index=index, applying=self.applying)
        self.applied = index
        while self.membership_indexes and self.membership_indexes[0] <= index:
            del self.membership_indexes[0]

    def restore(self, snapshot: InstallSnapshot) -> None:
        """Forget every entry and start after the snapshot.

        Also entries above its position go: they did not match, and a suffix of older terms on top of it would corrupt
        the last term and with it every comparison of logs (a defect of aioraft-ng).
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
        """The durable log up to `position` is gone."""
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
        """Whether entries or a snapshot wait to be handed to the writer."""
        return self.last_index >= self.offset_in_progress or (self.snapshot is not None and not self.snapshot_sequence)

    def take_pending(self, sequence: int) -> tuple[tuple[Entry, ...], InstallSnapshot | None]:
        """Hand everything pending to the writer, as the append numbered `sequence`."""
        entries = tuple(self.unstable[self.offset_in_progress - self.offset :])
        self.offset_in_progress = self.last_index + 1
        snapshot = None
        if self.snapshot is not None and not self.snapshot_sequence:
            snapshot = self.snapshot
            self.snapshot_sequence = sequence
        return entries, snapshot

    def mark_durable(self, index: int, term: int) -> bool:
        """The entry (index, term) and all before it are durable. False when it is not in the tail (any more)."""
        if not self.offset <= index < self.offset_in_progress or self.term_at(index) != term:
            return False
        del self.unstable[: index - self.offset + 1]
        self.offset = index + 1
        return True
