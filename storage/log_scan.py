"""What opening a replica's log finds out: that it is whole, where terms start, and where it ends.

Reads through one transaction, changes nothing. Raises `CodecError` for anything that a correct writer cannot have
written; LMDB's own errors pass through. Rows up to the truncation point are waiting for deletion and are not looked at.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from raftmq.raft.entry import EntryKind
from raftmq.storage.checksum import Buffer, is_sound
from raftmq.storage.entry_codec import CodecError, RowFields, decode_key, decode_row_fields, encode_key
from raftmq.storage.lmdb_env import Databases
from raftmq.storage.replica_codec import ReplicaMeta
from raftmq.types import LogIndex, Term

if TYPE_CHECKING:
    from lmdb import Cursor, Transaction

TermStarts = tuple[tuple[Term, LogIndex], ...]

_DATA = int(EntryKind.DATA)

TAIL_BYTES = 4 * 1024 * 1024
"""What `Verify.TAIL` reads back from the end: what the last commits before a power cut wrote."""


class Verify(Enum):
    """How much of a file is checked when it is opened. Every read checks what it reads in any case."""

    FULL = "full"
    """Every row of every database: a flipped byte anywhere is found before the replica takes part."""
    TAIL = "tail"
    """Both ends of the log, its row count, `TAIL_BYTES` of entries and the meta rows."""


def scan(transaction: Transaction[memoryview], databases: Databases, meta: ReplicaMeta, verify: Verify) -> TermStarts:
    """Check the log against `meta` (and, in full, the state rows) and return where each term starts."""
    _check_ends(transaction, databases, meta)
    if verify is Verify.FULL:
        _check_state_rows(transaction, databases)
        return _scan_all(transaction, databases, meta)
    return _scan_tail(transaction, databases, meta)


def _check_ends(transaction: Transaction[memoryview], databases: Databases, meta: ReplicaMeta) -> None:
    """First and last key and the number of rows leave no room for a gap."""
    with transaction.cursor(databases.log) as cursor:
        if not cursor.first():
            if meta.last_index != meta.position.index:
                raise CodecError(f"the log is empty and should end at {meta.last_index}")
            return
        first = decode_key(cursor.key())
        cursor.last()
        last = decode_key(cursor.key())
    rows = transaction.stat(databases.log)["entries"]
    if rows != last - first + 1:
        raise CodecError(f"{rows} rows between index {first} and {last}")
    if meta.last_index > meta.position.index:
        if last != meta.last_index or first > meta.position.index + 1:
            raise CodecError(
                f"the log runs from {first} to {last} and should from {meta.position.index + 1} to {meta.last_index}"
            )
    elif last > meta.position.index:
        raise CodecError(f"the log runs to {last} and should end at {meta.position.index}")


def _check_state_rows(transaction: Transaction[memoryview], databases: Databases) -> None:
    with transaction.cursor(databases.state) as cursor:
        for key, value in cursor:
            if not is_sound(key, value):
                raise CodecError(f"state row {bytes(key).hex()} does not match its checksum")


def _scan_all(transaction: Transaction[memoryview], databases: Databases, meta: ReplicaMeta) -> TermStarts:
    starts: list[tuple[Term, LogIndex]] = []
    if meta.last_index == meta.position.index:
        return ()
    with transaction.cursor(databases.log) as cursor:
        _check_run(cursor, _Walk(meta.position.index, meta.position.term, meta.position.next_offset), meta, starts)
    return tuple(starts)


class _Walk:
    """The entry before the next one, as far as the next one must follow it."""

    __slots__ = ("append_time_ms", "index", "next_offset", "term")

    def __init__(self, index: int, term: int, next_offset: int, append_time_ms: int = 0) -> None:
        self.index = index
        self.term = term
        self.next_offset = next_offset
        self.append_time_ms = append_time_ms


def _check_run(cursor: Cursor[memoryview], walk: _Walk, meta: ReplicaMeta, starts: list[tuple[Term, LogIndex]]) -> None:
    """Every row after `walk` to the end: checksum, and that it continues the row before it."""
    if not cursor.set_key(encode_key(walk.index + 1)):
        raise CodecError(f"no row {walk.index + 1}")
    last_term = -1
    for key, value in cursor.iternext():
        fields = decode_row_fields(walk.index + 1, value)
        index, term, base_offset, append_time_ms, record_count, _, kind = fields
        if (
            key != encode_key(index)
            or base_offset != walk.next_offset
            or term < walk.term
            or append_time_ms < walk.append_time_ms
            or (record_count > 0) != (kind == _DATA)
        ):
            raise CodecError(f"entry {index} does not continue the log before it: {fields}")
        if term != last_term:
            last_term = term
            starts.append((Term(term), LogIndex(index)))
        walk.index, walk.term = index, term
        walk.next_offset, walk.append_time_ms = base_offset + record_count, append_time_ms
    _check_last(walk, meta)


def _check_last(walk: _Walk, meta: ReplicaMeta) -> None:
    if (walk.index, walk.next_offset, walk.append_time_ms) != (
        meta.last_index,
        meta.last_next_offset,
        meta.last_append_time_ms,
    ):
        raise CodecError(
            f"the log ends at index {walk.index} before offset {walk.next_offset},"
            f" and should at {meta.last_index} before {meta.last_next_offset}"
        )


def _scan_tail(transaction: Transaction[memoryview], databases: Databases, meta: ReplicaMeta) -> TermStarts:
    """Terms never fall along a log, so each term's start is found by bisection; then the tail is checked row by row."""
    if meta.last_index == meta.position.index:
        return ()

    def row_at(index: int) -> RowFields:
        return read_fields(transaction, databases, index)

    first, last = LogIndex(meta.position.index + 1), meta.last_index
    head = row_at(first)
    if head.base_offset != meta.position.next_offset or head.term < meta.position.term:
        raise CodecError(f"entry {first} does not continue the truncation point")
    starts = [(Term(head.term), first)]
    last_term = row_at(last).term
    while starts[-1][0] < last_term:
        low, high = starts[-1][1] + 1, last
        while low < high:
            middle = (low + high) // 2
            if row_at(middle).term > starts[-1][0]:
                high = LogIndex(middle)
            else:
                low = middle + 1
        starts.append((Term(row_at(low).term), LogIndex(low)))
    start = _tail_start(transaction, databases, meta)
    before = row_at(start - 1) if start > first else None
    with transaction.cursor(databases.log) as cursor:
        if before is None:
            walk = _Walk(meta.position.index, meta.position.term, meta.position.next_offset)
        else:
            walk = _Walk(before.entry_index, before.term, before.next_offset, before.append_time_ms)
        _check_run(cursor, walk, meta, [])
    return tuple(starts)


def _tail_start(transaction: Transaction[memoryview], databases: Databases, meta: ReplicaMeta) -> int:
    size = 0
    index = meta.last_index + 1
    with transaction.cursor(databases.log) as cursor:
        for value in cursor.iterprev(keys=False):
            if index == meta.position.index + 1 or size >= TAIL_BYTES:
                break
            size += len(value)
            index = LogIndex(index - 1)
    return index


def read_fields(transaction: Transaction[memoryview], databases: Databases, index: int) -> RowFields:
    """The header of a row that must be there; the row's checksum is verified."""
    value: Buffer | None = transaction.get(encode_key(index), db=databases.log)
    if value is None:
        raise CodecError(f"no row {index}")
    return decode_row_fields(index, value)
