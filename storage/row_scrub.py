"""Reads a replica's rows back in slices, while it is in use: what opening leaves unread must be found before it is needed.

Each slice is one short read transaction (a long one would keep LMDB from using pages again). Between slices the log may be truncated
at either end and state rows may change: a slice begins where there is something left to begin with.
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
    from lmdb import Transaction


@dataclass(slots=True)
class ScrubPlace:
    """How far a pass over one file has come."""

    file_at: int = 0
    """Byte of the file: it is read to its end first, since the system's error is a value there and a signal in the map."""
    is_file_read: bool = False
    next_index: int = 0
    """Of the log."""
    is_log_read: bool = False
    state_after: bytes = b""
    """The state row that was read last."""
    is_done: bool = False


@dataclass(frozen=True, slots=True)
class ScrubSlice:
    """What one slice has read."""

    size: int
    """Bytes of values, or of the file."""
    rows: int
    verified_from: int = 0
    verified_to: int = 0
    """Entries of the log that were found sound, with both ends; `verified_to` 0: none."""


def read_log_slice(
    transaction: Transaction[memoryview], databases: Databases, meta: ReplicaMeta, place: ScrubPlace, bytes_max: int, rows_max: int
) -> ScrubSlice:  # fmt: skip
    """The next entries of the log, each checked, and how it continues the one before it. Raises `CodecError`."""
    first = max(place.next_index, meta.position.index + 1)
    if first > meta.last_index:
        place.is_log_read = True
        return ScrubSlice(0, 0)
    walk = walk_before(transaction, databases, meta, first)
    size = rows = 0
    with transaction.cursor(databases.log) as cursor:
        if not cursor.set_key(encode_key(first)):
            raise CodecError(f"no row {first}")
        for key, value in cursor.iternext():
            check_next(walk, key, value)
            size += len(value)
            rows += 1
            if size >= bytes_max or rows >= rows_max:
                break
    if walk.index >= meta.last_index:
        check_last(walk, meta)
        place.is_log_read = True
    elif size < bytes_max and rows < rows_max:
        raise CodecError(f"no row {walk.index + 1}")
    place.next_index = walk.index + 1
    return ScrubSlice(size, rows, first, walk.index)


def read_state_slice(
    transaction: Transaction[memoryview], databases: Databases, place: ScrubPlace, bytes_max: int, rows_max: int
) -> ScrubSlice:
    """The next state rows, each checked. Raises `CodecError`."""
    size = rows = 0
    with transaction.cursor(databases.state) as cursor:
        has_row = cursor.set_range(place.state_after + b"\0") if place.state_after else cursor.first()
        while has_row and size < bytes_max and rows < rows_max:
            key, value = cursor.item()
            if not is_intact(key, value):
                raise CodecError(f"state row {bytes(key).hex()} does not match its checksum")
            size += len(key) + len(value)
            rows += 1
            place.state_after = bytes(key)
            has_row = cursor.next()
    place.is_done = not has_row
    return ScrubSlice(size, rows)
