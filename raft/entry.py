"""One entry of a Raft log: a record batch, a command, a change of membership, or nothing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum

from raftmq.types import LogIndex, Offset, Term


class EntryKind(IntEnum):
    """What an entry carries. Values are on disk and on the wire: never reuse one."""

    EMPTY = 0
    """Nothing: a new leader's no-op, or a membership change that turned out invalid."""
    DATA = 1
    """One record batch; the only kind that takes offsets."""
    COMMAND = 2
    """One command for the state machine."""
    MEMBERSHIP = 3
    """A `MembershipChange`, encoded by `raft.membership`."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """What a leader is asked to append; the core gives it index, term, offset and time."""

    kind: EntryKind
    payload: bytes
    record_count: int = 0
    """Records in the batch: at least 1 for DATA, 0 for every other kind."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A log entry. Invariant: `base_offset` equals `next_offset` of the entry before it."""

    index: LogIndex
    term: Term
    kind: EntryKind
    base_offset: Offset
    """Offset of the first record of a DATA entry; for other kinds the offset the next record will get."""
    record_count: int
    append_time_ms: int
    """Stamped by the leader (milliseconds since the epoch), never decreasing along the log."""
    payload: bytes

    @property
    def next_offset(self) -> Offset:
        """The offset after this entry's records (exclusive end)."""
        return Offset(self.base_offset + self.record_count)

    def header(self) -> EntryHeader:
        """All but the payload."""
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
    """The first entries whose payloads fit into `bytes_max` together, at least one."""
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
    """An `Entry` without its payload: what positions and times are found by."""

    index: LogIndex
    term: Term
    kind: EntryKind
    base_offset: Offset
    record_count: int
    append_time_ms: int
    payload_bytes: int

    @property
    def next_offset(self) -> Offset:
        """The offset after this entry's records (exclusive end)."""
        return Offset(self.base_offset + self.record_count)


@dataclass(frozen=True, slots=True)
class LogPosition:
    """The point a log starts after: everything up to `index` (inclusive) is gone.

    Every group is born at `GENESIS`. `append_time_ms` keeps append times from decreasing across a truncation.
    """

    index: LogIndex
    term: Term
    next_offset: Offset
    append_time_ms: int = 0


GENESIS = LogPosition(index=LogIndex(5), term=Term(5), next_offset=Offset(0))
"""The synthetic snapshot every group starts after (index 5, term 5)."""
