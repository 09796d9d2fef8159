"""One open replica file: transactions on it, and nothing about where files are.

Writes come from one thread at a time (the replica's writer), reads from any thread at any time: each opens a short
read transaction, copies out and checks. `meta` is the durable truth in memory: it is replaced after each commit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TypeVar
from weakref import WeakSet

import lmdb
from raftmq.errors import invariant
from raftmq.raft.core import RestoredState
from raftmq.raft.entry import Entry, EntryHeader
from raftmq.storage.checksum import CHECKSUM_BYTES, is_sound, seal
from raftmq.storage.entry_codec import (
    ROW_OVERHEAD_BYTES,
    CodecError,
    RowFields,
    decode_key,
    decode_row,
    decode_row_fields,
    encode_entry,
    encode_key,
    header_of,
)
from raftmq.storage.errors import DamagedReplicaError, LogRangeError, ReplicaClosedError, UnsupportedFormatError
from raftmq.storage.file_check import verify_in_child
from raftmq.storage.lmdb_env import Databases, committing, open_databases, open_environment, reading
from raftmq.storage.log_scan import TermStarts, Verify, scan
from raftmq.storage.log_store import ReplicaKey, Update
from raftmq.storage.pending_write import PendingWrite, plan_write
from raftmq.storage.read_gate import ReadGate
from raftmq.storage.replica_codec import (
    FORMAT_VERSION,
    IDENTITY_KEY,
    META_KEY,
    ReplicaMeta,
    decode_identity,
    decode_meta,
    encode_meta,
)
from raftmq.storage.row_stream import Row, RowStream
from raftmq.types import LogIndex, Offset

if TYPE_CHECKING:
    from lmdb import Cursor, Transaction

T = TypeVar("T")

DATABASE_COUNT = 3
_STREAM_ROWS = 256
_STREAM_BYTES = 256 * 1024
"""A slice of a row stream: short enough that closing the file never waits noticeably."""


class LmdbReplica:
    """See the module. Not created for a missing file; a failed constructor leaves nothing open."""

    def __init__(self, key: ReplicaKey, path: Path, map_bytes: int, verify: Verify) -> None:
        self.key = key
        self.path = path
        self.gate = ReadGate()
        self._map_bytes = map_bytes
        self._environment: lmdb.Environment | None = None
        self._databases: Databases
        self._streams: WeakSet[_OpenStream] = WeakSet()
        """Weak: a stream that its user lost is ended by the collector, which must not wait at the gate."""
        self.meta: ReplicaMeta
        self.term_starts: TermStarts
        """As of the last (re)opening; the core keeps its own table from then on."""
        self.attach(verify)

    # ------------------------------------------------------------------------------------------------------ life

    def attach(self, verify: Verify) -> None:
        """Open the file and check it. The caller holds the gate alone, or nobody knows the replica yet."""
        with reading(self.key):
            environment = open_environment(self.path, self._map_bytes, database_count=DATABASE_COUNT)
            try:
                self._check_length(environment)
                databases = open_databases(environment)
                with environment.begin(buffers=True) as transaction:
                    meta = self._checked(lambda: self._read_meta(transaction, databases))
                    starts = self._checked(lambda: scan(transaction, databases, meta, verify))
            except BaseException:
                environment.close()
                raise
        self._environment, self._databases, self.meta, self.term_starts = environment, databases, meta, starts

    def detach(self) -> None:
        """Close the file; streams end. The caller holds the gate alone."""
        for stream in list(self._streams):
            stream.cut()
        self._streams.clear()
        if self._environment is not None:
            self._environment.close()
            self._environment = None

    def _check_length(self, environment: lmdb.Environment) -> None:
        """A page past the end of the file would be a SIGBUS, so a file that seems short is walked without LMDB."""
        pages = environment.info()["last_pgno"] + 1
        if self.path.stat().st_size < pages * environment.stat()["psize"]:
            problem = verify_in_child(self.path)
            if problem is not None:
                raise DamagedReplicaError(self.key, problem)

    def _read_meta(self, transaction: Transaction[memoryview], databases: Databases) -> ReplicaMeta:
        identity_row = transaction.get(IDENTITY_KEY, db=databases.meta)
        meta_row = transaction.get(META_KEY, db=databases.meta)
        if identity_row is None or meta_row is None:
            raise CodecError("a meta row is missing")
        identity = decode_identity(identity_row)
        if identity.format_version != FORMAT_VERSION:
            raise UnsupportedFormatError(
                self.key, f"format {identity.format_version}, this version reads {FORMAT_VERSION}"
            )
        if (identity.group_id, identity.replica_id) != self.key:
            raise CodecError(f"the file is of replica {identity.replica_id} of group {identity.group_id}")
        return decode_meta(meta_row)

    def _checked(self, read: Callable[[], T]) -> T:
        try:
            return read()
        except CodecError as error:
            raise DamagedReplicaError(self.key, str(error)) from error

    def restored(self) -> RestoredState:
        """What the core starts with."""
        meta = self.meta
        return RestoredState(
            meta.hard_state,
            meta.position,
            meta.last_index,
            meta.last_next_offset,
            meta.last_append_time_ms,
            self.term_starts,
            meta.membership,
            meta.state_index,
        )

    # ------------------------------------------------------------------------------------------------------ writes

    @property
    def environment(self) -> lmdb.Environment:
        """The open file; raises `ReplicaClosedError`."""
        if self._environment is None:
            raise ReplicaClosedError(self.key, "closed")
        return self._environment

    def append(self, updates: Sequence[Update]) -> None:
        """All updates in one transaction, durable on return. `StorageFullError`: nothing applied."""
        environment = self.environment
        write = plan_write(self.meta, updates)
        # every byte is made before the transaction begins: it then holds the file's lock for its pages only
        log_rows = [(encode_key(entry.index), encode_entry(entry)) for entry in write.entries]
        put_rows = [(key, seal(key, value)) for key, value in write.state_rows.items() if value is not None]
        delete_rows = [key for key, value in write.state_rows.items() if value is None]
        meta_row = encode_meta(write.meta)
        with committing(self.key), environment.begin(write=True) as transaction:
            self._write_log(transaction, write, log_rows)
            if delete_rows:
                for key in delete_rows:
                    transaction.delete(key, db=self._databases.state)
            if put_rows:
                with transaction.cursor(self._databases.state) as cursor:
                    cursor.putmulti(put_rows)
            transaction.put(META_KEY, meta_row, db=self._databases.meta)
        self.meta = write.meta

    def _write_log(
        self, transaction: Transaction[bytes], write: PendingWrite, log_rows: list[tuple[bytes, bytes]]
    ) -> None:
        if not log_rows:
            return
        for index in range(write.delete_from, self.meta.last_index + 1):
            invariant(transaction.delete(encode_key(index), db=self._databases.log), "log_has_no_gap", missing=index)
        with transaction.cursor(self._databases.log) as cursor:
            _, added = cursor.putmulti(log_rows, append=True)
            invariant(
                added == len(log_rows),
                "append_goes_to_the_end",
                group_id=self.key.group_id,
                replica_id=self.key.replica_id,
                first=write.entries[0].index,
                added=added,
                rows=len(log_rows),
            )

    def delete_truncated(self, rows_max: int) -> bool:
        """One slice of rows behind the truncation point; True when more are left."""
        environment = self.environment
        with environment.begin() as look, look.cursor(self._databases.log) as cursor:
            first = decode_key(cursor.key()) if cursor.first() else None
        end = self.meta.position.index + 1
        if first is None or first >= end:
            return False
        slice_end = min(end, first + rows_max)
        with committing(self.key), environment.begin(write=True) as transaction:
            for index in range(first, slice_end):
                transaction.delete(encode_key(index), db=self._databases.log)
        return slice_end < end

    # ------------------------------------------------------------------------------------------------------ space

    def free_fraction(self) -> float:
        """Free pages among all pages of the file (0..1). Two of the others are meta pages; the free list is counted
        as free, which it is after a compaction.
        """
        environment, databases = self.environment, self._databases
        with environment.begin() as transaction:
            stats = [environment.stat(), *(transaction.stat(database) for database in databases)]
        used = 2 + sum(stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"] for stat in stats)
        return 1.0 - used / (environment.info()["last_pgno"] + 1)

    def map_fraction(self) -> float:
        """Pages in the file, free ones too, by the pages that its map has room for."""
        with self.gate.shared():
            info = self.environment.info()
            return float((info["last_pgno"] + 1) * self.environment.stat()["psize"] / info["map_size"])

    def map_bytes(self) -> int:
        """The map as it is; LMDB opens a file that outgrew the size it was given with a larger one."""
        with self.gate.shared():
            return int(self.environment.info()["map_size"])

    def grow_map(self, map_bytes: int) -> None:
        """Remap the file. Row streams are cut: a map moves under its readers."""
        with self.gate.alone():
            for stream in list(self._streams):
                stream.cut()
            self.environment.set_mapsize(map_bytes)
            self._map_bytes = map_bytes

    # ------------------------------------------------------------------------------------------------------ reads

    @contextmanager
    def _read(self) -> Iterator[Transaction[memoryview]]:
        """A short read transaction; what does not decode is damage."""
        with self.gate.shared(), reading(self.key), self.environment.begin(buffers=True) as transaction:
            try:
                yield transaction
            except CodecError as error:
                raise DamagedReplicaError(self.key, str(error)) from error

    def entries(self, first: LogIndex, last: LogIndex, bytes_max: int) -> tuple[Entry, ...]:
        """See `LogStore.entries`."""
        self._check_range(first, last)
        found: list[Entry] = []
        size = 0
        with self._read() as transaction, transaction.cursor(self._databases.log) as cursor:
            if not cursor.set_key(encode_key(first)):
                self._missing_row(transaction, first)
            for row_key, value in cursor.iternext():
                size += len(value) - ROW_OVERHEAD_BYTES
                if found and (size > bytes_max or found[-1].index == last):
                    break
                found.append(decode_row(decode_key(row_key), value))
                if found[-1].index != first + len(found) - 1:
                    raise CodecError(f"row {first + len(found) - 1} is not where it belongs")
            else:
                if not found or found[-1].index < last:
                    self._missing_row(transaction, LogIndex(first + len(found)))
        return tuple(found)

    def header(self, index: LogIndex) -> EntryHeader:
        """See `LogStore.header`."""
        self._check_range(index, index)
        with self._read() as transaction:
            return header_of(self._row(transaction, index))

    def find_offset(self, offset: Offset) -> LogIndex | None:
        """See `LogStore.find_offset`."""
        with self._read() as transaction:
            meta = self._meta_in(transaction)
            if not meta.position.next_offset <= offset < meta.last_next_offset:
                return None
            row = self._first_row(transaction, meta, lambda row: row.next_offset > offset)
            if not row.base_offset <= offset < row.next_offset:
                raise CodecError(f"offset {offset} is not in entry {row.entry_index}, where it belongs")
            return LogIndex(row.entry_index)

    def find_time(self, append_time_ms: int) -> EntryHeader | None:
        """See `LogStore.find_time`."""
        with self._read() as transaction:
            meta = self._meta_in(transaction)
            if meta.last_index == meta.position.index or meta.last_append_time_ms < append_time_ms:
                return None
            timed = self._first_row(transaction, meta, lambda row: row.append_time_ms >= append_time_ms)
            if timed.base_offset >= meta.last_next_offset:
                return None
            # entries without records may lie between: the first one with records holds the offset that comes next
            return header_of(self._first_row(transaction, meta, lambda row: row.next_offset > timed.base_offset))

    def _first_row(
        self, transaction: Transaction[memoryview], meta: ReplicaMeta, is_reached: Callable[[RowFields], bool]
    ) -> RowFields:
        """The first entry of the log that satisfies a condition that, once true, stays true. The last one does."""
        low, high = meta.position.index + 1, int(meta.last_index)
        found: RowFields | None = None
        while low < high:
            middle = (low + high) // 2
            row = self._row(transaction, middle)
            if is_reached(row):
                high, found = middle, row
            else:
                low = middle + 1
        if found is None or found.entry_index != low:
            found = self._row(transaction, low)
        return found

    def _row(self, transaction: Transaction[memoryview], index: int) -> RowFields:
        value = transaction.get(encode_key(index), db=self._databases.log)
        if value is None:
            self._missing_row(transaction, LogIndex(index))
        return decode_row_fields(index, value)

    def _meta_in(self, transaction: Transaction[memoryview]) -> ReplicaMeta:
        """The meta row as this transaction sees it (`self.meta` may be of an earlier or later commit)."""
        return decode_meta(transaction.get(META_KEY, db=self._databases.meta) or b"")

    def _check_range(self, first: LogIndex, last: LogIndex) -> None:
        meta = self.meta
        if not meta.position.index < first <= last <= meta.last_index:
            raise LogRangeError(
                self.key, f"{first}..{last} asked for, the log has {meta.position.index + 1}..{meta.last_index}"
            )

    def _missing_row(self, transaction: Transaction[memoryview], index: LogIndex) -> NoReturn:
        """A row that is not there was truncated since the caller looked, or the file lost it."""
        meta = self._meta_in(transaction)
        if meta.position.index < index <= meta.last_index:
            raise CodecError(f"no row {index}")
        raise LogRangeError(self.key, f"entry {index} was truncated")

    # ------------------------------------------------------------------------------------------------------ streams

    def stream(self) -> tuple[ReplicaMeta, RowStream]:
        """The meta row and all state rows, from one read transaction."""
        with self.gate.shared(), reading(self.key):
            stream = _OpenStream(self, self.environment, self._databases)
            try:
                meta = stream.read_meta()
            except BaseException:
                stream.cut()
                raise
            self._streams.add(stream)
        return meta, RowStream(stream.next_slice, stream.end)

    def forget_stream(self, stream: _OpenStream) -> None:
        """The stream ended by itself."""
        self._streams.discard(stream)


class _OpenStream:
    """One read transaction under a row stream. Cut by `detach` (which holds the gate alone) or ended by its user."""

    def __init__(self, replica: LmdbReplica, environment: lmdb.Environment, databases: Databases) -> None:
        self._replica = replica
        self._databases = databases
        self._transaction: Transaction[memoryview] | None = environment.begin(buffers=True)
        self._cursor: Cursor[memoryview] = self._transaction.cursor(databases.state)
        self._has_row = self._cursor.first()

    def read_meta(self) -> ReplicaMeta:
        assert self._transaction is not None
        try:
            return decode_meta(self._transaction.get(META_KEY, db=self._databases.meta) or b"")
        except CodecError as error:
            raise DamagedReplicaError(self._replica.key, str(error)) from error

    def next_slice(self) -> list[Row]:
        rows: list[Row] = []
        size = 0
        key = self._replica.key
        with self._replica.gate.shared(), reading(key):
            if self._transaction is None:
                raise ReplicaClosedError(key, "closed or replaced while its rows were read")
            while self._has_row and len(rows) < _STREAM_ROWS and size < _STREAM_BYTES:
                row_key, value = self._cursor.item()
                if not is_sound(row_key, value):
                    raise DamagedReplicaError(key, f"state row {bytes(row_key).hex()} does not match its checksum")
                rows.append((bytes(row_key), bytes(value[:-CHECKSUM_BYTES])))
                size += len(row_key) + len(value)
                self._has_row = self._cursor.next()
        return rows

    def end(self) -> None:
        with self._replica.gate.shared():
            self.cut()
            self._replica.forget_stream(self)

    def cut(self) -> None:
        if self._transaction is not None:
            self._cursor.close()
            self._transaction.abort()
            self._transaction = None
