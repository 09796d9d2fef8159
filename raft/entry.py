"""Define the entries of a Raft log: a record batch, a command, a change of membership, or nothing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum

from raftmq.types import LogIndex, Offset, Term


class EntryKind(IntEnum):
    """Name the content of an entry. Values are on disk and on the wire: never reuse one."""

    EMPTY = 0
    """Nothing: the no-op of a new leader, or a change of membership that turned out invalid."""
    DATA = 1
    """One record batch. This is the only kind that takes offsets."""
    COMMAND = 2
    """One command for the state machine."""
    MEMBERSHIP = 3
    """A `MembershipChange`, encoded by `raft.membership`."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """Hold the content of a new entry. The core adds index, term, offset and time."""

    kind: EntryKind
    payload: bytes
    record_count: int = 0
    """Records in the batch: at least 1 for DATA, 0 for every other kind."""


@dataclass(frozen=True, slots=True)
class Entry:
    """Hold one log entry. Invariant: `base_offset` equals `next_offset` of the entry before it."""

    index: LogIndex
    term: Term
    kind: EntryKind
    base_offset: Offset
    """Offset of the first record of a DATA entry. For other kinds, the offset that the next record will get."""
    record_count: int
    append_time_ms: int
    """Time of the leader in milliseconds since the epoch. It never decreases along the log."""
    payload: bytes

    @property
    def next_offset(self) -> Offset:
        """Return the offset after the records of this entry (exclusive end)."""
        return Offset(self.base_offset + self.record_count)

    def header(self) -> EntryHeader:
        """Return the entry without its payload."""
        return EntryHeader(
            self.index,
            self.term,
            self.kind,
            self.base_offset,
            self.record_count,
            self.append_time_ms,
            len(self.payload),
        )


def fitting(entries: Iterable[Entry], bytes_max: int) -> tuple[Entry, ...]:
    """Return the first entries whose payloads fit into `bytes_max` together, but at least one."""
    out: list[Entry] = []
    size = 0
    for entry in entries:
        size += len(entry.payload)
        if out and size > bytes_max:
            break
        out.append(entry)
    return tuple(out)


@dataclass(frozen=True, slots=True)
class EntryHeader:
    """Hold an `Entry` without its payload, for finding positions and times."""

    index: LogIndex
    term: Term
    kind: EntryKind
    base_offset: Offset
    record_count: int
    append_time_ms: int
    payload_bytes: int

    @property
    def next_offset(self) -> Offset:
        """Return the offset after the records of this entry (exclusive end)."""
        return Offset(self.base_offset + self.record_count)


@dataclass(frozen=True, slots=True)
class LogPosition:
    """Name the point after which a log starts: everything up to `index` (inclusive) was removed.

    Every group starts at `GENESIS`. `append_time_ms` keeps append times from decreasing across a truncation.
    """

    index: LogIndex
    term: Term
    next_offset: Offset
    append_time_ms: int = 0


GENESIS = LogPosition(index=LogIndex(5), term=Term(5), next_offset=Offset(0))
"""The synthetic snapshot after which every group starts (index 5, term 5)."""
