"""Reads a replica's rows back in slices while it is in use, to find damage that the opening did not read before the rows are needed.

Each slice is one short read transaction, because a long one would keep LMDB from reusing pages. Between slices the log may be
truncated at either end and state rows may change. A slice therefore begins at the next row that still exists. A pass ends where the
file, the log and the state ended when it came to them: more may be written than it reads, and the other replicas wait for its end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from raftmq.storage.checksum import is_intact
from raftmq.storage.entry_codec import CodecError, encode_key
from raftmq.storage.lmdb_env import Databases
from raftmq.storage.log_scan import check_last, check_next, walk_before
from raftmq.storage.replica_codec import ReplicaMeta

if TYPE_CHECKING:
    from lmdb import Transaction, _Database


@dataclass(slots=True)
class ScrubPlace:
    """The progress of one pass over a file."""

    file_at: int = 0
    """Next byte of the file to read. The file is read to its end first: a bad sector is an error of `pread`, but a signal in the map."""
    file_end: int = 0
    """Size of the file when its first bytes were read. 0: they were not."""
    is_file_read: bool = False
    next_index: int = 0
    """Next index of the log to read."""
    last_index: int = 0
    """Last index of the log when its first rows were read. 0: they were not."""
    is_log_read: bool = False
    state_after: bytes = b""
    """Key of the last state row that was read."""
    last_key: bytes = b""
    """Key of the last state row when the first ones were read. Empty: they were not."""
    is_done: bool = False
    is_in_state_file: bool = False
    """Whether the log's file was read and the replica's state file is being read."""

    def begin_state_file(self) -> None:
        """Go on with the state file, which has no log: its bytes, then its rows."""
        self.file_at, self.file_end, self.is_file_read = 0, 0, False
        self.state_after, self.last_key, self.is_done = b"", b"", False
        self.is_in_state_file = True


@dataclass(frozen=True, slots=True)
class ScrubSlice:
    """The result of one slice."""

    size: int
    """Bytes read, of rows or of the file."""
    rows: int
    verified_from: int = 0
    verified_to: int = 0
    """`verified_from` and `verified_to` are the first and last index of the intact entries. They are 0 if no entries were read."""


def read_log_slice(
    transaction: Transaction[memoryview], databases: Databases, meta: ReplicaMeta, place: ScrubPlace, bytes_max: int, rows_max: int
) -> ScrubSlice:  # fmt: skip
    """Check the next entries of the log, and that each continues the one before it. Raises `CodecError`."""
    place.last_index = place.last_index or meta.last_index
    first, last = max(place.next_index, meta.position.index + 1), min(place.last_index, meta.last_index)
    if first > last:
        place.is_log_read = True
        return ScrubSlice(0, 0)
    walk = walk_before(transaction, databases, meta, first)
    size = rows = 0
    with transaction.cursor(databases.log) as cursor:
        if not cursor.set_key(encode_key(first)):
            raise CodecError(f"log row {first} is missing")
        for key, value in cursor.iternext():
            check_next(walk, key, value)
            size += len(value)
            rows += 1
            if size >= bytes_max or rows >= rows_max:
                break
    if walk.index >= meta.last_index:
        check_last(walk, meta)
    elif size < bytes_max and rows < rows_max:
        raise CodecError(f"log row {walk.index + 1} is missing")
    place.is_log_read = walk.index >= last
    place.next_index = walk.index + 1
    return ScrubSlice(size, rows, first, walk.index)


def read_state_slice(
    transaction: Transaction[memoryview], database: _Database, place: ScrubPlace, bytes_max: int, rows_max: int
) -> ScrubSlice:
    """Check the next state rows. Raises `CodecError`."""
    size = rows = 0
    with transaction.cursor(database) as cursor:
        if not place.last_key and cursor.last():
            place.last_key = bytes(cursor.key())
        has_row = cursor.set_range(place.state_after + b"\0") if place.state_after else cursor.first()
        while has_row and size < bytes_max and rows < rows_max:
            key, value = cursor.item()
            if not is_intact(key, value):
                raise CodecError(f"state row {bytes(key).hex()} does not match its checksum")
            size += len(key) + len(value)
            rows += 1
            place.state_after = bytes(key)
            has_row = cursor.next()
    place.is_done = not has_row or place.state_after >= place.last_key
    return ScrubSlice(size, rows)
