"""The state file that an arriving snapshot brings: rows are written straight into it, a bounded transaction at a time.

The file has a temporary name beside the replica's file. Its commits do not sync, since it has no meaning until it is settled, synced
and renamed. A file that is never installed is deleted with the last reference to its object, or by the next start. This module must not
touch the replica's own files.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import lmdb
from raftmq.raft.entry import LogPosition
from raftmq.storage.checksum import CHECKSUM_BYTES, is_intact, seal
from raftmq.storage.durable_files import sync_file
from raftmq.storage.errors import StorageFullError, StorageUnavailableError
from raftmq.storage.lmdb_env import (
    StateDatabases,
    Undisturbed,
    is_volume_full,
    open_environment,
    open_state_databases,
    put_rows,
    remove_environment,
)
from raftmq.storage.log_store import ReplicaKey
from raftmq.storage.pending_state_write import rows_of_snapshot
from raftmq.storage.replica_build import put_state_meta
from raftmq.storage.replica_codec import Identity
from raftmq.storage.row_stream import KeyRange, Row
from raftmq.storage.state_codec import StateMeta

if TYPE_CHECKING:
    from lmdb import Cursor

SYNC_BYTES: Final = 64 * 1024 * 1024
"""Bytes of rows after which the file is synced, so that the end of a large snapshot does not write gigabytes together."""


class LmdbStagedState:
    """A `StagedState`. Used by one thread at a time."""

    def __init__(
        self, key: ReplicaKey, path: Path, map_bytes: int, position: LogPosition, undisturbed: Undisturbed
    ) -> None:
        """Create the file. Raises `StorageFullError` or `StorageUnavailableError`."""
        self.key = key
        self.path = path
        self._position = position
        self._undisturbed = undisturbed
        self._unsynced_bytes = 0
        with _staging(key):
            self._environment, self._databases = self._create(map_bytes)
        self._end = weakref.finalize(self, _discard, self._environment, path)

    def _create(self, map_bytes: int) -> tuple[lmdb.Environment, StateDatabases]:
        remove_environment(self.path)
        environment = open_environment(self.path, map_bytes, is_new=True)
        try:
            return environment, open_state_databases(environment, is_new=True)
        except BaseException:
            _discard(environment, self.path)
            raise

    def put(self, rows: Sequence[Row]) -> None:
        """See `StagedState.put`."""
        sealed = [(key, seal(key, value)) for key, value in rows_of_snapshot(rows, self._position)]
        with _staging(self.key):
            self._make_room(sum(len(key) + len(value) for key, value in sealed))
            with self._environment.begin(write=True) as transaction, transaction.cursor(self._databases.rows) as cursor:
                put_rows(cursor, sealed, self._undisturbed)
            self._unsynced_bytes += sum(len(value) for _, value in sealed)
            if self._unsynced_bytes >= SYNC_BYTES:
                self._sync()

    def _make_room(self, size: int) -> None:
        """Enlarge the map before it is full: the file of the sender may have outgrown the configured size, too."""
        info = self._environment.info()
        used_bytes = (info["last_pgno"] + 1) * self._environment.stat()["psize"]
        if 2 * (used_bytes + size) > info["map_size"]:
            self._environment.set_mapsize(4 * (used_bytes + size))

    def finish(self) -> None:
        """See `StagedState.finish`."""
        with _staging(self.key):
            self._sync()

    def _sync(self) -> None:
        self._environment.sync(True)
        self._unsynced_bytes = 0

    def rows(self, ranges: Sequence[KeyRange]) -> Iterator[Row]:
        """See `StagedState.rows`."""
        with (
            _staging(self.key),
            self._environment.begin(buffers=True) as transaction,
            transaction.cursor(self._databases.rows) as cursor,
        ):
            for part in ranges:
                yield from self._rows_within(cursor, *part)

    def _rows_within(self, cursor: Cursor[memoryview], first_key: bytes, end_key: bytes | None) -> Iterator[Row]:
        if not (cursor.set_range(first_key) if first_key else cursor.first()):
            return
        for view, value in cursor.iternext():
            key = bytes(view)
            if not is_intact(key, value):
                problem = f"row {key.hex()} of an arrived snapshot does not read back as it was written"
                raise StorageUnavailableError(self.key, problem)
            if end_key is not None and key >= end_key:
                return
            yield key, bytes(value[:-CHECKSUM_BYTES])

    def settle(self, identity: Identity, meta: StateMeta) -> None:
        """Write the rows of the table `meta`, which make the file valid, and sync it. May be repeated."""
        put_state_meta(self._environment, self._databases.meta, identity, meta)
        self._sync()
        sync_file(self.path)

    def detach(self) -> Path:
        """Close the file without deleting it, and return its path."""
        self._end.detach()
        self._environment.close()
        return self.path

    def close(self) -> None:
        """See `StagedState.close`."""
        self._end()


def _discard(environment: lmdb.Environment, path: Path) -> None:
    environment.close()
    remove_environment(path)


@contextmanager
def _staging(key: ReplicaKey) -> Iterator[None]:
    """Translate LMDB's errors. The replica's own files are not concerned, so none of them ends the process."""
    try:
        yield
    except (lmdb.Error, OSError) as error:
        if isinstance(error, lmdb.MapFullError) or is_volume_full(error):
            raise StorageFullError(key, f"no room for an arriving snapshot: {error}") from error
        raise StorageUnavailableError(key, f"an arriving snapshot cannot be written: {error}") from error
