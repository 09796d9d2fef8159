"""One open LMDB file of a replica, whatever its tables hold: its readers, its row streams, and the space that it takes.

Any thread may read at any time: a read opens a short read transaction, copies its rows and checks them. This module does not know
where files are, and does not write rows.
"""

from __future__ import annotations

import errno
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakSet

import lmdb
from raftmq.storage.checksum import CHECKSUM_BYTES, Buffer, is_intact
from raftmq.storage.entry_codec import CodecError
from raftmq.storage.errors import (
    DamagedReplicaError,
    MissingReplicaError,
    ReplicaClosedError,
    StorageUnavailableError,
)
from raftmq.storage.lmdb_env import Undisturbed, committing, reading, translate
from raftmq.storage.log_scan import Verify
from raftmq.storage.log_store import ReplicaKey
from raftmq.storage.page_release import FileSpace, PageRelease, Released, bytes_on_volume
from raftmq.storage.read_gate import ReadGate
from raftmq.storage.row_scrub import ScrubPlace, ScrubSlice
from raftmq.storage.row_stream import KeyRange, Row

if TYPE_CHECKING:
    from lmdb import Cursor, Transaction, _Database

T = TypeVar("T")

_STREAM_ROWS = 256
_STREAM_BYTES = 256 * 1024
"""The limit of one slice of a row stream, so short that closing the file never waits noticeably."""


class LmdbFile(ABC):
    """An open file. A subclass opens it, knows its tables and writes them."""

    def __init__(
        self, key: ReplicaKey, path: Path, map_bytes: int, touch: Callable[[ReplicaKey], None] | None, undisturbed: Undisturbed
    ) -> None:  # fmt: skip
        """Prepare the file. Each thread calls `touch` with the key before it reads the file (see `FaultBoard`)."""
        self.key = key
        self.path = path
        self.gate = ReadGate()
        self._undisturbed = undisturbed
        self._touch = touch or _touch_nothing
        self._map_bytes = map_bytes
        self._environment: lmdb.Environment | None = None
        self._page_release: PageRelease | None = None
        self._streams: WeakSet[OpenStream] = WeakSet()
        """Weak references: the garbage collector ends an abandoned stream, and must not wait for the gate."""
        self._used: tuple[int, int] | None = None
        """The file's last transaction when its pages were last counted, and the bytes that they used."""
        self._page_bytes = 0
        """The size of a page. 0: not asked for since the file was opened."""

    @abstractmethod
    def attach(self, verify: Verify) -> None:
        """Open the file and check it. The caller holds the gate alone, or no other thread knows the file yet."""

    def attach_again(self) -> None:
        """Open the file after its map or the file itself was replaced. The caller holds the gate alone.

        Raises:
            ReplicaClosedError, DamagedReplicaError, MissingReplicaError: The file stays closed, so the replica must be closed, too.
        """
        try:
            self.attach(Verify.TAIL)
        except StorageUnavailableError as error:
            raise ReplicaClosedError(self.key, f"cannot be opened again: {error.what}") from error

    @abstractmethod
    def _handles(self) -> Sequence[_Database]:
        """Return the handles of all databases."""

    @abstractmethod
    def _put_meta_again(self, transaction: Transaction[bytes]) -> None:
        """Write the meta row without a change, except for the number of the transaction that writes it."""

    # ------------------------------------------------------------------------------------------------------ life

    @property
    def environment(self) -> lmdb.Environment:
        """The open file. Raises `ReplicaClosedError` if it is closed."""
        if self._environment is None:
            raise ReplicaClosedError(self.key, "closed")
        return self._environment

    def detach(self) -> None:
        """Close the file and end its streams. The caller holds the gate alone."""
        for stream in list(self._streams):
            stream.cut()
        self._streams.clear()
        if self._environment is not None:
            self._environment.close()
            self._environment = self._page_release = self._used = None
            self._page_bytes = 0

    def _check_open(self) -> None:
        """Raise `ReplicaClosedError` if the file is closed. The caller holds the gate."""
        if self._environment is None:
            raise ReplicaClosedError(self.key, "closed")

    def changing(self) -> AbstractContextManager[object]:
        """Return a context that keeps other threads from changing the file. The log's file has one writer, so it needs none."""
        return nullcontext()

    def touch(self) -> None:
        """Record that this thread is about to read the file."""
        self._touch(self.key)

    def _checked(self, read: Callable[[], T]) -> T:
        try:
            return read()
        except CodecError as error:
            raise DamagedReplicaError(self.key, str(error)) from error
        except FileNotFoundError as error:
            raise MissingReplicaError(self.key, "its file is missing") from error
        except OSError as error:
            if error.errno == errno.EIO:
                raise DamagedReplicaError(self.key, f"unreadable: {error.strerror}") from error
            raise StorageUnavailableError(self.key, f"cannot be read now: {error.strerror}") from error

    # ------------------------------------------------------------------------------------------------------ reads

    def _read(self) -> _Read:
        """Begin a short read transaction. A `CodecError` in its block becomes `DamagedReplicaError`."""
        self._touch(self.key)
        return _Read(self)

    def _read_file(self, place: ScrubPlace, bytes_max: int) -> ScrubSlice:
        """Read raw bytes of the file: a bad sector is an error here, but a SIGBUS in the map."""

        def read() -> int:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                place.file_end = place.file_end or os.fstat(descriptor).st_size
                return len(os.pread(descriptor, min(bytes_max, place.file_end - place.file_at), place.file_at))
            finally:
                os.close(descriptor)

        with self.gate.shared():
            self._check_open()  # a closed replica's file may be in the trash, which is no damage
            size = self._checked(read)
        place.file_at += size
        place.is_file_read = size == 0 or place.file_at >= place.file_end
        return ScrubSlice(size, 0)

    def forget_stream(self, stream: OpenStream) -> None:
        """Drop a stream that has ended."""
        self._streams.discard(stream)

    # ------------------------------------------------------------------------------------------------------ space

    def space(self) -> FileSpace:
        """Return the bytes that the file takes of its volume, and how many are in use. For any thread.

        Cheap: LMDB counts its pages, and they are not asked for again until something was written.
        """
        with self.gate.shared(), reading(self.key):
            return self._space(self._last_transaction())

    def _space(self, last: int) -> FileSpace:
        """Return the space as of the last transaction. The caller holds the gate."""
        used = self._used
        if used is None or used[0] != last:  # another thread may count at the same time, and replace `self._used`
            # LMDB names a transaction as the last one a moment before readers see it, so the count is filed under the one that was read
            seen, pages = self._count_pages()
            used = self._used = (seen, pages * int(self.environment.stat()["psize"]))
        try:
            found = self.path.stat()
        except FileNotFoundError as error:
            # a removed file stays usable until it is closed, so LMDB does not notice
            raise MissingReplicaError(self.key, "its file was removed while it was in use") from error
        return FileSpace(bytes_on_volume(found), used[1])

    def release_free_pages(self) -> Released:
        """Return a bounded number of free pages to the volume, on the file's writer.

        Raises `HolesUnsupportedError` if the file cannot have holes.
        """
        if self._page_release is None:
            self._page_release = PageRelease(self.path, self.environment)
        return self._page_release.release(self._used_pages(), self._commit_again)

    def _commit_again(self) -> int:
        """Commit again without a change: pages that the last commit freed become usable only after another commit."""
        with committing(self.key), self.environment.begin(write=True) as transaction:
            self._put_meta_again(transaction)
        return self._used_pages()

    def _last_transaction(self) -> int:
        """Return the number of the last transaction that wrote to the file. The caller holds the gate."""
        return int(self.environment.info()["last_txnid"])

    def _used_pages(self) -> int:
        """Count the pages in use, without the two meta pages and those of the free list."""
        return self._count_pages()[1]

    def _count_pages(self) -> tuple[int, int]:
        """Return the last transaction that a reader sees, and the pages in use as of then."""
        environment = self.environment
        with environment.begin() as transaction:
            seen = int(transaction.id())
            stats = [environment.stat(), *(transaction.stat(table) for table in self._handles())]
        return seen, sum(stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"] for stat in stats)

    def map_fraction(self) -> float:
        """Return the fraction of the map that the file's pages fill, free pages included."""
        with self.gate.shared():
            environment = self.environment
            if not self._page_bytes:
                self._page_bytes = int(environment.stat()["psize"])
            info = environment.info()
            return float((info["last_pgno"] + 1) * self._page_bytes / info["map_size"])

    def map_bytes(self) -> int:
        """Return the actual size of the map. LMDB gives a file that has outgrown the requested size a larger map."""
        with self.gate.shared():
            return int(self.environment.info()["map_size"])

    def grow_map(self, map_bytes: int) -> None:
        """Remap the file, on its writer. Row streams are ended first, because the map moves under its readers.

        Raises:
            StorageUnavailableError: There is no address space for the larger map. The file has its old map.
            ReplicaClosedError, DamagedReplicaError: There is none for the old map either. See `attach_again`.
        """
        with self.gate.alone():
            for stream in list(self._streams):
                stream.cut()
            try:
                self.environment.set_mapsize(map_bytes)
            except lmdb.Error as error:
                # without a map LMDB cannot use the file any more, and the binding has closed it
                self.detach()
                self.attach_again()
                raise StorageUnavailableError(self.key, f"its map cannot grow to {map_bytes} bytes: {error}") from error
            self._map_bytes = map_bytes


class _Read:
    """The context of a short read transaction. It keeps the file from being swapped, and translates errors."""

    __slots__ = ("_file", "_transaction")

    def __init__(self, file: LmdbFile) -> None:
        self._file = file

    def __enter__(self) -> Transaction[memoryview]:
        file = self._file
        file.gate.enter_shared()
        try:
            with reading(file.key):
                self._transaction: Transaction[memoryview] = file.environment.begin(buffers=True)
        except BaseException:
            file.gate.leave_shared()
            raise
        return self._transaction

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        file = self._file
        try:
            self._transaction.__exit__(kind, error, trace)
            if isinstance(error, CodecError):
                raise DamagedReplicaError(file.key, str(error)) from error
            translate(file.key, error)
        finally:
            file.gate.leave_shared()


def _touch_nothing(key: ReplicaKey) -> None:
    """Do nothing: the `touch` of a file without a fault board."""


WHOLE_TABLE: tuple[KeyRange, ...] = ((b"", None),)


class OpenStream:
    """The read transaction of a row stream. It is ended by its user, or by `detach`, which holds the gate alone."""

    def __init__(
        self, file: LmdbFile, environment: lmdb.Environment, table: _Database, ranges: Sequence[KeyRange] = WHOLE_TABLE
    ) -> None:
        self._file = file
        self._transaction: Transaction[memoryview] | None = environment.begin(buffers=True)
        self._cursor: Cursor[memoryview] = self._transaction.cursor(table)
        self._ranges = iter(ranges)
        self._end_key: bytes | None = None
        """The end of the range that is being read."""
        self._has_row = False
        self._begin_range()

    def get(self, key: bytes, table: _Database) -> Buffer:
        """Return a value of any table as this transaction sees it, or nothing."""
        assert self._transaction is not None
        return self._transaction.get(key, db=table) or b""

    def next_slice(self) -> list[Row]:
        """Return the next rows, none at the end. Raises `ReplicaClosedError` after `cut`."""
        rows: list[Row] = []
        size = 0
        self._file.touch()
        with self._file.gate.shared(), reading(self._file.key):
            if self._transaction is None:
                raise ReplicaClosedError(self._file.key, "closed or replaced while its rows were read")
            while self._has_row and len(rows) < _STREAM_ROWS and size < _STREAM_BYTES:
                row_key, value = self._cursor.item()
                key = bytes(row_key)
                # the row after a range is checked, too: a flipped key would hide rows of the range
                if not is_intact(key, value):
                    raise DamagedReplicaError(self._file.key, f"state row {key.hex()} does not match its checksum")
                if self._end_key is not None and key >= self._end_key:
                    self._begin_range()
                    continue
                rows.append((key, bytes(value[:-CHECKSUM_BYTES])))
                size += len(key) + len(value)
                if not self._cursor.next():
                    self._begin_range()
        return rows

    def _begin_range(self) -> None:
        """Go to the first row of the next range that has rows at or after its beginning."""
        self._has_row = False
        for first_key, end_key in self._ranges:
            if self._cursor.set_range(first_key) if first_key else self._cursor.first():
                self._has_row, self._end_key = True, end_key
                return

    def end(self) -> None:
        """End the transaction on behalf of the stream's user."""
        with self._file.gate.shared():
            self.cut()
            self._file.forget_stream(self)

    def cut(self) -> None:
        """End the transaction. The caller holds the gate."""
        if self._transaction is not None:
            self._cursor.close()
            self._transaction.abort()
            self._transaction = None
