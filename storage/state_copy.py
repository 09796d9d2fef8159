"""A copy of a replica's state file, from which snapshots are streamed.

A stream lasts as long as its receiver takes, and a read transaction of the live file that is open so long keeps LMDB from reusing any page
that is freed in the meantime. The copy is made in one transaction, so position, state index, membership, rows and bodies belong together. It
has no lock file and is never written. Leftovers are deleted at the next start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import lmdb
from raftmq.raft.entry import LogPosition
from raftmq.raft.membership import Membership
from raftmq.storage.errors import DamagedReplicaError, StorageFullError, StorageUnavailableError
from raftmq.storage.lmdb_env import StateDatabases, is_volume_full, reading
from raftmq.storage.lmdb_state_file import LmdbStateFile
from raftmq.storage.log_scan import Verify
from raftmq.storage.log_store import ReplicaKey
from raftmq.storage.row_stream import ClosableRows
from raftmq.types import LogIndex


class LmdbStateCopy(LmdbStateFile):
    """A `StateCopy`. Any thread may read it."""

    def __init__(
        self, key: ReplicaKey, path: Path, position: LogPosition, touch: Callable[[ReplicaKey], None] | None = None
    ) -> None:
        """Open a copy. `position` is that of the log before the copy was made. Raises `StorageUnavailableError`."""
        self.position = position
        self.file_bytes: int
        """The size of the copy. It has no free pages."""
        super().__init__(key, path, 0, Verify.TAIL, touch)

    def attach(self, verify: Verify) -> None:
        """Open the file without a lock, since nobody writes it."""
        self._touch(self.key)
        self.file_bytes = self.path.stat().st_size
        with reading(self.key):
            environment = lmdb.open(
                str(self.path), map_size=self.file_bytes, subdir=False, readonly=True, lock=False, max_dbs=2
            )
            try:
                databases = StateDatabases(
                    environment.open_db(b"rows", create=False), environment.open_db(b"meta", create=False)
                )
                with environment.begin(buffers=True) as transaction:
                    self._checked(lambda: self._read_meta(transaction, databases, verify))
            except BaseException:
                environment.close()
                raise
        self._environment, self._databases = environment, databases

    @property
    def state_index(self) -> LogIndex:
        """The entry that the rows include."""
        return self.meta.state_index

    @property
    def membership(self) -> Membership:
        """The membership as of `state_index`."""
        return self.meta.membership

    def rows_from(self, first_key: bytes) -> ClosableRows:
        """See `StateCopy.rows_from`."""
        return self.stream([(first_key, None)])[1]

    def close(self) -> None:
        """See `StateCopy.close`. Waits for a read in progress."""
        with self.gate.alone():
            self.detach()
            self.path.unlink(missing_ok=True)


@contextmanager
def copying(key: ReplicaKey, path: Path) -> Iterator[None]:
    """Translate the errors of making and opening a copy, and remove it.

    None of them says that the replica is damaged: a read of the rows from the replica's file reports that.
    """
    try:
        yield
    except BaseException as error:
        path.unlink(missing_ok=True)
        if is_volume_full(error):
            raise StorageFullError(key, f"no room for a copy: {error}") from error
        if isinstance(error, (lmdb.Error, OSError, DamagedReplicaError)):
            raise StorageUnavailableError(key, f"cannot be copied: {error}") from error
        raise
