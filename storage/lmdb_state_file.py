"""The open state file of a replica whose derived state is not in its log's file. Its transactions and reads.

One thread at a time writes: the state's writer, or the owner of `changing`, who waits for it. `meta` mirrors the durable meta row in
memory and is replaced after each commit.
"""

from __future__ import annotations

import dataclasses
import fcntl
import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import lmdb
from raftmq.raft.membership import Membership
from raftmq.storage.checksum import CHECKSUM_BYTES, is_intact, seal
from raftmq.storage.entry_codec import CodecError
from raftmq.storage.errors import ReplicaClosedError
from raftmq.storage.lmdb_env import (
    StateDatabases,
    Undisturbed,
    committing,
    disturbed,
    open_environment,
    open_state_databases,
    put_rows,
    reading,
)
from raftmq.storage.lmdb_file import LmdbFile, OpenStream
from raftmq.storage.log_scan import Verify, check_rows
from raftmq.storage.log_store import ReplicaKey, StateRow
from raftmq.storage.meta_pages import check_pages
from raftmq.storage.pending_state_write import (
    after_evacuation,
    bodies_alive,
    body_of_deleted,
    check_evacuation,
    check_state_rows,
    plan_state_write,
)
from raftmq.storage.replica_codec import IDENTITY_KEY, Identity, check_identity, encode_identity
from raftmq.storage.row_scrub import ScrubPlace, ScrubSlice, read_state_slice
from raftmq.storage.row_stream import KeyRange, Row, RowStream
from raftmq.storage.state_codec import (
    FORMAT_VERSION,
    STATE_META_KEY,
    StateMeta,
    decode_state_meta,
    encode_state_meta,
    state_transaction_id,
)
from raftmq.storage.state_store import (
    LOCATION_KEY,
    BoundedRange,
    LocatedBody,
    StateWrite,
    body_key,
    is_location,
    location_key,
    sequence_of,
)

if TYPE_CHECKING:
    from lmdb import Cursor, Transaction, _Database

RowT = TypeVar("RowT")

_FULL_DEVICE = "/dev/full"
"""Every write to it fails for lack of room. LMDB offers no other way to end a copy. Systems without it have a device that is opened for reading
alone instead: a write to that fails, too."""
_BLOCK_ROWS = 512
"""Rows that are sealed and written in one go, which takes about 2 ms. A write-back has no hurry, and its thread competes for the GIL with
the event loop: after each block it rests for as long as the block took."""


class LmdbStateFile(LmdbFile):
    """An open state file. The file must exist. If the constructor fails, nothing stays open."""

    def __init__(
        self,
        key: ReplicaKey,
        path: Path,
        map_bytes: int,
        verify: Verify,
        touch: Callable[[ReplicaKey], None] | None = None,
        undisturbed: Undisturbed = disturbed,
    ) -> None:
        """Open the file. Each thread calls `touch` with the key before it reads the file (see `FaultBoard`)."""
        super().__init__(key, path, map_bytes, touch, undisturbed)
        self._writing = threading.Lock()
        """Held during each change of the file. A thread that closes or replaces the file takes it before the gate."""
        self.meta: StateMeta
        self._databases: StateDatabases
        self._copies: set[int] = set()
        """Descriptors of the copies that are being written."""
        self._copying = threading.Lock()
        """Guards `_copies`: a descriptor in it is open."""
        self._is_closing = False
        self.attach(verify)

    # ------------------------------------------------------------------------------------------------------ life

    def attach(self, verify: Verify) -> None:
        """Open the file and check its meta row. Other rows are checked as they are read, or now with `Verify.FULL`."""
        self._touch(self.key)
        with reading(self.key):
            self._checked(lambda: check_pages(self.path, b"meta", state_transaction_id))
            environment = open_environment(self.path, self._map_bytes)
            try:
                databases = open_state_databases(environment)
                with environment.begin(buffers=True) as transaction:
                    self._checked(lambda: self._read_meta(transaction, databases, verify))
            except BaseException:
                environment.close()
                raise
        self._environment, self._databases = environment, databases

    def _read_meta(self, transaction: Transaction[memoryview], databases: StateDatabases, verify: Verify) -> None:
        identity_row = transaction.get(IDENTITY_KEY, db=databases.meta)
        meta_row = transaction.get(STATE_META_KEY, db=databases.meta)
        if identity_row is None or meta_row is None:
            raise CodecError("a meta row of the state is missing")
        check_identity(self.key, identity_row, (FORMAT_VERSION,))
        self.meta = decode_state_meta(meta_row)
        if verify is Verify.FULL:
            check_rows(transaction, databases.rows)

    def changing(self) -> AbstractContextManager[object]:
        """Return the lock of the file's writers."""
        return self._writing

    def _handles(self) -> Sequence[_Database]:
        return self._databases

    def _put_meta_again(self, transaction: Transaction[bytes]) -> None:
        self._put_meta(transaction, self.meta)

    def _put_meta(self, transaction: Transaction[bytes], meta: StateMeta) -> None:
        """Write the meta row. Every transaction must do so, since the row names the transaction that wrote it."""
        transaction.put(STATE_META_KEY, encode_state_meta(meta, transaction.id()), db=self._databases.meta)

    # ------------------------------------------------------------------------------------------------------ writes

    def write(self, write: StateWrite) -> None:
        """Make a write-back durable in one transaction. After `StorageFullError` nothing was applied."""
        self._touch(self.key)
        with self._writing:
            meta = plan_state_write(self.meta, write)
            with committing(self.key), self.environment.begin(write=True) as transaction:
                self._change(transaction, write.rows)
                self._put_meta(transaction, meta)
            self.meta = meta

    def become(self, key: ReplicaKey, membership: Membership) -> None:
        """Give the file another owner, as `LmdbReplica.become` does. The caller closes the file afterwards."""
        meta = dataclasses.replace(self.meta, membership=membership)
        identity = encode_identity(Identity(FORMAT_VERSION, key.group_id, key.replica_id))
        with self._writing, committing(self.key), self.environment.begin(write=True) as transaction:
            transaction.put(IDENTITY_KEY, identity, db=self._databases.meta)
            self._put_meta(transaction, meta)
        self.meta = meta

    def evacuate(self, bodies: Sequence[LocatedBody], after: int) -> bool:
        """Write the bodies of those messages that still have a location, and move `evacuated_through` to the last of all. See `StateStore`."""
        self._touch(self.key)
        with self._writing:
            if self.meta.evacuated_through != after:
                return False
            check_evacuation(self.meta, bodies)
            meta = after_evacuation(self.meta, bodies)
            first_key = bodies[0][0][:-8] + (self.meta.evacuated_through + 1).to_bytes(8, "big")
            with committing(self.key), self.environment.begin(write=True) as transaction:
                with transaction.cursor(self._databases.rows) as cursor:
                    alive = bodies_alive(bodies, set(_keys(cursor, first_key, bodies[-1][0] + b"\0")))
                    for block in _blocks(alive):
                        put_rows(cursor, [_body_row(at, body) for at, body in block], self._undisturbed)
                self._put_meta(transaction, meta)
            self.meta = meta
        return True

    def delete(self, rows: KeyRange, rows_max: int) -> bool:
        """Delete the first rows of a range, and the bodies of deleted locations. Return True if as many as `rows_max` were found."""
        self._touch(self.key)
        with self._writing:
            with reading(self.key), self.environment.begin() as look, look.cursor(self._databases.rows) as cursor:
                found = list(itertools.islice(_keys(cursor, *rows), rows_max))
            if found:
                with committing(self.key), self.environment.begin(write=True) as transaction:
                    self._change(transaction, [(key, None) for key in found])
                    self._put_meta(transaction, self.meta)
        return len(found) == rows_max

    def _change(self, transaction: Transaction[bytes], rows: Sequence[StateRow]) -> None:
        with transaction.cursor(self._databases.rows) as cursor:
            for block in _blocks(rows):
                self._change_block(transaction, cursor, block)

    def _change_block(self, transaction: Transaction[bytes], cursor: Cursor[bytes], rows: Sequence[StateRow]) -> None:
        check_state_rows(rows)
        put = [(key, seal(key, value)) for key, value in rows if value is not None]
        deleted = [key for key, value in rows if value is None]
        finished = (body_of_deleted(self.meta, key) for key in deleted)
        deleted += [body_key(sequence) for sequence in finished if sequence is not None]
        with self._undisturbed(len(rows)):
            cursor.putmulti(put)
            for key in deleted:
                transaction.delete(key, db=self._databases.rows)

    # ------------------------------------------------------------------------------------------------------ reads

    def read_rows(self, ranges: Sequence[BoundedRange]) -> list[list[Row]]:
        """Return the rows of each range, from one read transaction."""
        with self._read() as transaction, transaction.cursor(self._databases.rows) as cursor:
            return [_rows_of(cursor, *part) for part in ranges]

    def read_body(self, sequence: int) -> bytes | None:
        """Return an evacuated body, or None."""
        key = body_key(sequence)
        with self._read() as transaction:
            value = transaction.get(key, db=self._databases.rows)
            return None if value is None else _value_of(key, value)

    def first_location(self, after_sequence: int) -> int | None:
        """Return the lowest sequence above this one that has a location, in any generation."""
        with self._read() as transaction, transaction.cursor(self._databases.rows) as cursor:
            return min(_first_of_generations(cursor, after_sequence), default=None)

    def stream(self, ranges: Sequence[KeyRange] | None = None) -> tuple[StateMeta, RowStream]:
        """Return the meta row and all rows, or those of some ranges, from one read transaction."""
        with self.gate.shared(), reading(self.key):
            table = self._databases.rows
            stream = OpenStream(self, self.environment, table, *(() if ranges is None else (ranges,)))
            try:
                meta = self._checked(lambda: decode_state_meta(stream.get(STATE_META_KEY, self._databases.meta)))
            except BaseException:
                stream.cut()
                raise
            self._streams.add(stream)
        return meta, RowStream(stream.next_slice, stream.end)

    def copy_to(self, path: Path) -> None:
        """Write the file as of one transaction, without its free pages. The writer goes on, but nobody may close or remap the file.

        Raises:
            ReplicaClosedError: The file was closed, or is about to be.
            lmdb.DiskError: There is no room, or `end_copies` was called.
        """
        self._touch(self.key)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            with suppress(OSError):  # as LMDB does itself: the pages of a copy should not displace others from memory
                fcntl.fcntl(descriptor, fcntl.F_SETFL, getattr(os, "O_DIRECT", 0))
            with self.gate.shared(), self._registered_copy(descriptor):
                self.environment.copyfd(descriptor, compact=True)
        except lmdb.Error as error:
            if self._is_closing:
                raise ReplicaClosedError(self.key, "closed while it was copied") from error
            raise
        finally:
            os.close(descriptor)

    @contextmanager
    def _registered_copy(self, descriptor: int) -> Iterator[None]:
        with self._copying:
            if self._is_closing:
                raise ReplicaClosedError(self.key, "about to be closed")
            self._copies.add(descriptor)
        try:
            yield
        finally:
            with self._copying:
                self._copies.discard(descriptor)

    def end_copies(self, *, is_closing: bool = False) -> None:
        """Have the copies that are being written fail, as if the volume was full: a large one takes minutes. For any thread.

        `is_closing` says that the caller is about to close the file, so that no other copy may begin.
        """
        with self._copying:
            self._is_closing |= is_closing
            if self._copies:
                has_device = Path(_FULL_DEVICE).exists()
                full = os.open(_FULL_DEVICE, os.O_WRONLY) if has_device else os.open(os.devnull, os.O_RDONLY)
                for descriptor in self._copies:
                    os.dup2(full, descriptor, inheritable=False)
                os.close(full)

    def grow_map(self, map_bytes: int) -> None:
        """See `LmdbFile.grow_map`. Copies fail, since every reader would wait with the caller for as long as a large one takes."""
        self.end_copies()
        super().grow_map(map_bytes)

    def scrub(self, place: ScrubPlace, bytes_max: int, rows_max: int) -> ScrubSlice:
        """Read the next slice of the file back, in any thread. Raises `DamagedReplicaError`."""
        if not place.is_file_read:
            return self._read_file(place, bytes_max)
        with self._read() as transaction:
            return read_state_slice(transaction, self._databases.rows, place, bytes_max, rows_max)


def _blocks(rows: Sequence[RowT]) -> Iterator[Sequence[RowT]]:
    """Yield rows in blocks. Rest after each but the last, so that the thread leaves half of its time to others."""
    for first in range(0, len(rows), _BLOCK_ROWS):
        began_at = time.perf_counter()
        yield rows[first : first + _BLOCK_ROWS]
        if first + _BLOCK_ROWS < len(rows):
            time.sleep(time.perf_counter() - began_at)


def _body_row(location: bytes, body: bytes) -> Row:
    key = body_key(sequence_of(location))
    return key, seal(key, body)


def _value_of(key: bytes, value: memoryview) -> bytes:
    """Return the value of a row without its checksum. Raises `CodecError`."""
    if not is_intact(key, value):
        raise CodecError(f"state row {key.hex()} does not match its checksum")
    return bytes(value[:-CHECKSUM_BYTES])


def _rows_of(cursor: Cursor[memoryview], first_key: bytes, end_key: bytes, rows_max: int) -> list[Row]:
    rows: list[Row] = []
    if rows_max <= 0 or not _seek(cursor, first_key):
        return rows
    for view, value in cursor.iternext():
        key = bytes(view)
        body = _value_of(
            key, value
        )  # also of the row after the range: a flipped key there would hide rows of the range
        if key >= end_key:
            break
        rows.append((key, body))
        if len(rows) == rows_max:
            break
    return rows


def _seek(cursor: Cursor[Any], first_key: bytes) -> bool:
    """Go to the first row at or after a key. LMDB refuses the empty key."""
    return cursor.set_range(first_key) if first_key else cursor.first()


def _keys(cursor: Cursor[bytes], first_key: bytes, end_key: bytes | None) -> Iterator[bytes]:
    """Yield the keys of a range. Their values are not looked at."""
    if _seek(cursor, first_key):
        for key in cursor.iternext(values=False):
            if end_key is not None and key >= end_key:
                return
            yield key


def _first_of_generations(cursor: Cursor[memoryview], after_sequence: int) -> Iterator[int]:
    """Yield the first sequence above `after_sequence` of each generation that has one."""
    generation = 0
    while cursor.set_range(location_key(generation, 0)) and is_location(bytes(cursor.key())):
        _, generation, _ = LOCATION_KEY.unpack(cursor.key())
        if cursor.set_range(location_key(generation, after_sequence + 1)):
            view, value = cursor.item()
            key = bytes(view)
            _value_of(key, value)
            if is_location(key) and LOCATION_KEY.unpack(key)[1] == generation:
                yield sequence_of(key)
        generation += 1
