"""Checks a replica's log when it is opened: that it is complete, where each term starts, and where the log ends.

It reads through one transaction and changes nothing. It raises `CodecError` for anything that a correct writer cannot have
written, and LMDB's own errors pass through. Rows up to the truncation point await deletion and are not checked.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from enum import Enum
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

from raftmq.raft.entry import EntryKind
from raftmq.storage.checksum import Buffer, is_intact
from raftmq.storage.entry_codec import (
    HEADER,
    HEADER_BYTES,
    CodecError,
    RowFields,
    decode_key,
    decode_row_fields,
    encode_key,
)
from raftmq.storage.lmdb_env import Databases
from raftmq.storage.replica_codec import ReplicaMeta
from raftmq.types import LogIndex, Term

if TYPE_CHECKING:
    from lmdb import Cursor, Transaction, _Database

TermStarts = tuple[tuple[Term, LogIndex], ...]
Borders = tuple[int, ...]
"""Presumed indexes at which terms start, except the first term."""

_DATA = int(EntryKind.DATA)

TAIL_BYTES = 512 * 1024
TAIL_ROWS_MAX = 512
"""How far `Verify.TAIL` reads back from the end at most: this covers the last commits before a power cut. At 2.5 µs per row it takes a
millisecond or two per file, so that hundreds of files open in a second. Entries before the tail are left to readers and the scrubber."""


class Verify(Enum):
    """How much of a file is checked when it is opened. Independently of this, every read checks its rows."""

    FULL = "full"
    """Every row of every database: a flipped byte in any row is found before the replica takes part in its group."""
    TAIL = "tail"
    """Both ends of the log, its row count, the starts of terms, the meta rows, and the entries after the clean point, but at most
    `TAIL_BYTES` or `TAIL_ROWS_MAX` of them. State rows are checked when the state machine is restored from them."""


class Scan(NamedTuple):
    """The result of a scan."""

    term_starts: TermStarts
    checked_from: int
    """The entries from here on were checked, and that each continues the one before. Past the log's end if none was checked."""
    rows_checked: int
    """The number of entries checked, which determines how long the opening took."""


def scan(
    transaction: Transaction[memoryview],
    databases: Databases,
    meta: ReplicaMeta,
    verify: Verify,
    verified_index: int = 0,
    borders: Borders = (),
) -> Scan:
    """Check the log against `meta` (and, in full, the state rows) and return where each term starts.

    Args:
        transaction: A read transaction that sees the last commit.
        databases: The file's databases.
        meta: The content of the meta row.
        verify: How much is checked.
        verified_index: The clean point. `Verify.TAIL` skips the entries up to it, which an earlier scan has checked.
        borders: Presumed starts of terms, in order. Each is proven before it is used, and missing ones are searched for.

    Raises:
        CodecError: The log is not one that a correct writer can have written.
    """
    _check_ends(transaction, databases, meta)
    if verify is Verify.FULL:
        check_rows(transaction, databases.state)
        found = _scan_all(transaction, databases, meta)
    else:
        found = _scan_tail(transaction, databases, meta, verified_index, borders)
    _check_term(found.term_starts, meta)
    return found


def term_at(starts: TermStarts, index: int) -> Term:
    """Return the term of an entry of a log whose terms start there."""
    return starts[bisect_right(starts, index, key=itemgetter(1)) - 1][0]


def _check_term(starts: TermStarts, meta: ReplicaMeta) -> None:
    """Check that the hard state's term is not below the last entry's: a lower term is an old hard state, which could vote twice."""
    last_term = starts[-1][0] if starts else meta.position.term
    if last_term > meta.hard_state.term:
        raise CodecError(f"the log ends in term {last_term}, but the stored term is only {meta.hard_state.term}")


def _check_ends(transaction: Transaction[memoryview], databases: Databases, meta: ReplicaMeta) -> None:
    """Check that the first key, the last key and the number of rows leave no room for a gap."""
    with transaction.cursor(databases.log) as cursor:
        if not cursor.first():
            if meta.last_index != meta.position.index:
                raise CodecError(f"the log is empty, but should end with entry {meta.last_index}")
            return
        first = decode_key(cursor.key())
        cursor.last()
        last = decode_key(cursor.key())
    rows = transaction.stat(databases.log)["entries"]
    if rows != last - first + 1:
        raise CodecError(f"the log has {rows} rows between the indexes {first} and {last}")
    if meta.last_index > meta.position.index:
        if last != meta.last_index or first > meta.position.index + 1:
            raise CodecError(
                f"the log has the entries {first} to {last}, but should have {meta.position.index + 1} to {meta.last_index}"
            )
    elif last > meta.position.index:
        raise CodecError(f"the log ends with entry {last}, but should end with {meta.position.index}")


def check_rows(transaction: Transaction[memoryview], database: _Database) -> None:
    """Check every row of a table of the derived state. Raises `CodecError`."""
    with transaction.cursor(database) as cursor:
        for key, value in cursor:
            if not is_intact(key, value):
                raise CodecError(f"state row {bytes(key).hex()} does not match its checksum")


def _scan_all(transaction: Transaction[memoryview], databases: Databases, meta: ReplicaMeta) -> Scan:
    starts: list[tuple[Term, LogIndex]] = []
    first = meta.position.index + 1
    if meta.last_index >= first:
        with transaction.cursor(databases.log) as cursor:
            _check_run(cursor, Walk(meta.position.index, meta.position.term, meta.position.next_offset), meta, starts)
    return Scan(tuple(starts), first, meta.last_index - meta.position.index)


class Walk:
    """The position in a check of consecutive entries: the properties of the last entry that the next one must continue."""

    __slots__ = ("append_time_ms", "index", "next_offset", "term")

    def __init__(self, index: int, term: int, next_offset: int, append_time_ms: int = 0) -> None:
        self.index = index
        self.term = term
        self.next_offset = next_offset
        self.append_time_ms = append_time_ms


def _check_run(cursor: Cursor[memoryview], walk: Walk, meta: ReplicaMeta, starts: list[tuple[Term, LogIndex]]) -> None:
    """Check every row after `walk` to the end of the log: its checksum, and that it continues the row before it."""
    if not cursor.set_key(encode_key(walk.index + 1)):
        raise CodecError(f"log row {walk.index + 1} is missing")
    last_term = -1
    for key, value in cursor.iternext():
        check_next(walk, key, value)
        if walk.term != last_term:
            last_term = walk.term
            starts.append((Term(walk.term), LogIndex(walk.index)))
    check_last(walk, meta)


def check_next(walk: Walk, key: Buffer, value: Buffer) -> None:
    """Check a row's checksum and that it continues the entry in `walk`, and advance `walk` to it."""
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
    walk.index, walk.term = index, term
    walk.next_offset, walk.append_time_ms = base_offset + record_count, append_time_ms


def check_last(walk: Walk, meta: ReplicaMeta) -> None:
    """Check that the log ends where the meta row says."""
    if (walk.index, walk.next_offset, walk.append_time_ms) != (
        meta.last_index,
        meta.last_next_offset,
        meta.last_append_time_ms,
    ):
        raise CodecError(
            f"the log ends at index {walk.index} before offset {walk.next_offset},"
            f" but should end at {meta.last_index} before {meta.last_next_offset}"
        )


def _scan_tail(
    transaction: Transaction[memoryview],
    databases: Databases,
    meta: ReplicaMeta,
    verified_index: int,
    borders: Borders,
) -> Scan:
    """Look up the starts of terms, then check the tail row by row."""
    first, last = meta.position.index + 1, int(meta.last_index)
    if last < first:
        return Scan((), first, 0)
    head = read_fields(transaction, databases, first)
    if head.base_offset != meta.position.next_offset or head.term < meta.position.term:
        raise CodecError(f"entry {first} does not continue the truncation point")
    starts = _find_term_starts(transaction, databases, head, last, borders)
    start = _tail_start(transaction, databases, meta, max(first, verified_index + 1))
    walk = walk_before(transaction, databases, meta, start)
    if start > last:
        check_last(walk, meta)
    else:
        with transaction.cursor(databases.log) as cursor:
            _check_run(cursor, walk, meta, [])
    return Scan(starts, start, last - start + 1)


def walk_before(transaction: Transaction[memoryview], databases: Databases, meta: ReplicaMeta, index: int) -> Walk:
    """Return the position that the entry at `index` must continue: the entry before it, or the truncation point."""
    if index == meta.position.index + 1:
        return Walk(meta.position.index, meta.position.term, meta.position.next_offset)
    before = read_fields(transaction, databases, index - 1)
    return Walk(before.entry_index, before.term, before.next_offset, before.append_time_ms)


def _find_term_starts(
    transaction: Transaction[memoryview], databases: Databases, head: RowFields, last: int, borders: Borders
) -> TermStarts:
    """Find where each term starts. Both rows at each border are checked whole, which proves the border."""
    starts = [(Term(head.term), LogIndex(head.entry_index))]
    last_term = read_fields(transaction, databases, last).term
    while starts[-1][0] < last_term:
        term, low = starts[-1]
        high = next((border for border in borders if low < border <= last), None)
        after = _term_after(transaction, databases, term, high) if high is not None else None
        if high is None or after is None:
            high = find_border(lambda index: _term_at(transaction, databases, index), term, low, last)
            after = _term_after(transaction, databases, term, high)
        if after is None:
            raise CodecError(f"the term of entry {high} does not follow that of entry {high - 1}")
        starts.append((after, LogIndex(high)))
    return tuple(starts)


def _term_after(transaction: Transaction[memoryview], databases: Databases, term: int, border: int) -> Term | None:
    """Return the term that starts at a border, if `term` ends there. Both rows are checked whole."""
    after = read_fields(transaction, databases, border).term
    is_border = read_fields(transaction, databases, border - 1).term == term < after
    return Term(after) if is_border else None


def find_border(term_at: Callable[[int], int], term: int, low: int, last: int) -> int:
    """Find the first entry with a later term than `term`, which is entry `low`'s. The last entry has a later term.

    Terms never fall along a log, so doubling steps and then bisection find it. `term_at` is called for few entries and needs to
    read only their headers: a row may have megabytes.
    """
    step = 1
    while low + step < last and term_at(low + step) == term:
        step *= 2
    low, high = low + step // 2, min(low + step, last)
    while low + 1 < high:
        middle = (low + high) // 2
        if term_at(middle) > term:
            high = middle
        else:
            low = middle
    return high


def _term_at(transaction: Transaction[memoryview], databases: Databases, index: int) -> int:
    value: Buffer | None = transaction.get(encode_key(index), db=databases.log)
    if value is None or len(value) < HEADER_BYTES:
        raise CodecError(f"log row {index} is missing")
    return int(HEADER.unpack_from(value)[1])


def _tail_start(transaction: Transaction[memoryview], databases: Databases, meta: ReplicaMeta, least: int) -> int:
    """Return the first entry of the tail to check row by row, at least `least`. It is after the last entry if there is none."""
    size = rows = 0
    index = int(meta.last_index) + 1
    with transaction.cursor(databases.log) as cursor:
        for value in cursor.iterprev(keys=False):
            if index == least or size >= TAIL_BYTES or rows >= TAIL_ROWS_MAX:
                break
            size += len(value)
            rows += 1
            index -= 1
    return index


def read_fields(transaction: Transaction[memoryview], databases: Databases, index: int) -> RowFields:
    """Return the header of a row that must exist, after checking the row's checksum."""
    value: Buffer | None = transaction.get(encode_key(index), db=databases.log)
    if value is None:
        raise CodecError(f"log row {index} is missing")
    return decode_row_fields(index, value)
