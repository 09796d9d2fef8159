"""`LogStore` over LMDB: one file per replica, `groups/<group_id>-<replica_id>.mdb`. Creates, replaces and removes these files.

A file appears under its name whole or not at all: it is built under a temporary name (`.new`), synced and renamed, and then
the directory is synced. So every file was complete once, and an unreadable file is damaged, never half created.
This module must not decide anything about replicas: it creates, deletes and replaces only the files that it is told to.
"""

from __future__ import annotations

import itertools
import os
import re
import stat
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from raftmq.errors import invariant
from raftmq.raft.core import RestoredState
from raftmq.raft.entry import Entry, EntryHeader
from raftmq.raft.hard_state import HardState
from raftmq.raft.membership import Membership
from raftmq.raft.messages import SnapshotMeta
from raftmq.storage.durable_files import make_directory, replace_file, sync_directory, sync_file
from raftmq.storage.errors import CommitFailedError, MissingReplicaError, ReplicaClosedError, ReplicaExistsError
from raftmq.storage.fault_board import FaultBoard
from raftmq.storage.file_check import verify_in_child
from raftmq.storage.lmdb_env import (
    Undisturbed,
    building,
    disturbed,
    lock_path,
    remove_environment,
)
from raftmq.storage.lmdb_replica import LmdbReplica
from raftmq.storage.log_scan import Verify
from raftmq.storage.log_store import ReplicaKey, Update
from raftmq.storage.page_release import FileSpace, HolesUnsupportedError, Released, allocated_bytes
from raftmq.storage.pending_write import meta_of_new_replica, meta_of_snapshot
from raftmq.storage.replica_build import build_replica, settle_copy
from raftmq.storage.replica_codec import (
    ReplicaMeta,
)
from raftmq.storage.row_scrub import ScrubPlace, ScrubSlice
from raftmq.storage.row_stream import ClosableRows, Row
from raftmq.types import GroupId, LogIndex, Offset, ReplicaId

GIB = 1024**3
MIB = 1024**2

_NEW = ".new"
_REPLICA_FILE = re.compile(r"([0-9]+)-([0-9]+)\.mdb\Z")


def replica_file_count(data_dir: Path) -> int:
    """Return how many replica files a data directory holds. The directory need not exist."""
    return len(replica_files(data_dir / "groups"))


def replica_files(groups: Path) -> dict[ReplicaKey, Path]:
    """Return the replica files in a store's `groups` directory. Only their names are looked at."""
    found = {}
    for path in groups.glob("*.mdb"):
        match = _REPLICA_FILE.match(path.name)
        if match is not None:
            found[ReplicaKey(GroupId(int(match[1])), ReplicaId(int(match[2])))] = path
    return found


class LmdbLogStore:
    """A `LogStore` with one LMDB file per replica. Owns `<directory>/groups` and `<directory>/trash`."""

    board: FaultBoard | None = None
    """The board on which threads record whose file they read."""

    def __init__(
        self,
        directory: Path | str,
        *,
        map_bytes: int = 64 * GIB,
        verify: Verify | str = Verify.TAIL,
        compact_bytes_min: int = 16 * MIB,
        compact_live_bytes_max: int = 128 * MIB,
        spare_bytes: Callable[[], int] | None = None,
        board: FaultBoard | None = None,
        undisturbed: Undisturbed = disturbed,
    ) -> None:
        """Create the directories and remove unfinished files of an earlier process.

        Args:
            directory: The node's data directory.
            map_bytes: Address space per file, which is also its maximum size. It is virtual: 1,000 files of 64 GiB fit in 47 bits.
            verify: How much `open` checks. The default, the tail, takes a few milliseconds for a file of any size. The scrubber
                reads the rest while the replica serves, and every read checks its rows. "full" takes 2.5 µs per row and reads
                10 GB/s (0.12 GB/s of 300-byte entries), which is too slow for a restart with 300 files.
            compact_bytes_min: Files below this size are never compacted. Compaction is for file systems without holes, see
                `reclaim`.
            compact_live_bytes_max: Files with more bytes in use are never compacted, and their free pages are only reused.
                Copying so many bytes occupies a writer thread, which other replicas share, for less than a second. That is far
                below an election timeout.
            spare_bytes: Returns the bytes that a compaction may write, since it frees space only afterwards. None: no limit.
            board: The board on which threads record whose file they read, or None.
            undisturbed: Returns a context in which other threads cannot take the GIL at each row of a large transaction.
        """
        self.board = board
        self._undisturbed = undisturbed
        self._groups = Path(directory) / "groups"
        self._trash = Path(directory) / "trash"
        self._map_bytes = map_bytes
        self._verify = Verify(verify)
        self._compact_bytes_min = compact_bytes_min
        self._compact_live_bytes_max = compact_live_bytes_max
        self._spare_bytes = spare_bytes
        self._replicas: dict[ReplicaKey, LmdbReplica] = {}
        self._without_holes: dict[ReplicaKey, str] = {}
        """Replicas whose files cannot have holes, with the reason. They are compacted instead."""
        self._opening: set[ReplicaKey] = set()
        """Replicas that are being opened and checked, each on its writer's thread."""
        self._changing = threading.Lock()
        """Guards `_opening` and the check before it: the same file must never be open twice in a process."""
        make_directory(self._groups)
        make_directory(self._trash)
        for leftover in self._groups.glob(f"*{_NEW}*"):
            leftover.unlink()

    # ------------------------------------------------------------------------------------------------------ life

    def path(self, key: ReplicaKey) -> Path:
        """Return the path of the replica's file, which need not exist."""
        return self._groups / f"{key.group_id}-{key.replica_id}.mdb"

    def exists(self, key: ReplicaKey) -> bool:
        """Return whether the replica has a file."""
        return self.path(key).is_file()  # a directory of this name was made by a person and holds no data

    def stored_replicas(self) -> list[ReplicaKey]:
        """Return every replica that has a file here, sorted."""
        return sorted(replica_files(self._groups))

    def open_replicas(self) -> list[ReplicaKey]:
        """Return every open replica, sorted."""
        return sorted(self._replicas)

    def create(self, key: ReplicaKey, restored: RestoredState, rows: Iterable[Row]) -> None:
        """See `LogStore.create`. Raises `ReplicaExistsError` or `StorageFullError`, and leaves no file behind then."""
        if self.exists(key):
            raise ReplicaExistsError(key, "its file exists")
        temporary = self._build(key, meta_of_new_replica(restored), rows)
        with building(key, temporary):
            replace_file(temporary, self.path(key))
        lock_path(temporary).unlink(missing_ok=True)

    def open(self, key: ReplicaKey) -> RestoredState:
        """See `LogStore.open`. Also raises `UnsupportedFormatError`."""
        with self._changing:
            is_free = key not in self._replicas and key not in self._opening
            invariant(is_free, "opened_once", group_id=key.group_id, replica_id=key.replica_id)
            if not self.exists(key):
                raise MissingReplicaError(key, "its file is missing")
            self._opening.add(key)
        try:
            touch = self.board.touch if self.board is not None else None
            replica = LmdbReplica(key, self.path(key), self._map_bytes, self._verify, touch, self._undisturbed)
            self._replicas[key] = replica
        finally:
            self._opening.discard(key)
        return replica.restored()

    def verify(self, key: ReplicaKey) -> str | None:
        """Check a closed file in a child process, since a damaged page can kill its reader. Return the problem, or None."""
        return verify_in_child(self.path(key))

    def scrub(self, key: ReplicaKey, place: ScrubPlace, bytes_max: int, rows_max: int) -> ScrubSlice:
        """Read the next slice of an open file back, in any thread, and advance `place`.

        Raises:
            DamagedReplicaError: The slice is damaged.
            ReplicaClosedError: The replica is not open.
        """
        return self._replica(key).scrub(place, bytes_max, rows_max)

    def store_verified(self, key: ReplicaKey) -> None:
        """Make the clean point durable that a whole pass of `scrub` has verified. Called on the replica's writer."""
        self._replica(key).store_verified()

    def close(self, key: ReplicaKey) -> None:
        """See `LogStore.close`."""
        replica = self._replicas.get(key)
        if replica is not None:
            with replica.gate.alone():
                replica.detach()
            del self._replicas[key]
            self._without_holes.pop(key, None)

    def retire(self, key: ReplicaKey) -> None:
        """See `LogStore.retire`. Does nothing if there is no file: it was moved before a crash."""
        self.close(key)
        path = self.path(key)
        if not path.exists():
            return
        make_directory(self._trash)  # an operator who needed space may have removed it with its content
        os.utime(path)  # its age in the trash counts from now
        targets = (self._trash / f"{path.name}.{number}" for number in itertools.count())
        replace_file(path, next(target for target in targets if not target.exists()))
        lock_path(path).unlink(missing_ok=True)

    def empty_trash(self, grace_seconds: float, now_seconds: float | None = None) -> int:
        """Delete the files that were retired at least `grace_seconds` before now (seconds since the epoch). Return their number.

        A directory in the trash stays, since a person made it. A file that cannot be deleted does not prevent the deletion of
        others. At the end OSError is raised for the first such file.
        """
        failure: OSError | None = None
        limit = (time.time() if now_seconds is None else now_seconds) - grace_seconds
        count = 0
        with suppress(FileNotFoundError, NotADirectoryError):  # an operator may also empty or remove the trash
            for path in sorted(self._trash.iterdir()):
                try:
                    count += _delete_if_old(path, limit)
                except OSError as error:
                    failure = failure or error
            if count:
                sync_directory(self._trash)
        if failure is not None:
            raise failure
        return count

    def _replica(self, key: ReplicaKey) -> LmdbReplica:
        replica = self._replicas.get(key)
        if replica is None:
            raise ReplicaClosedError(key, "not open")
        return replica

    # ------------------------------------------------------------------------------------------------------ new files

    def _build(self, key: ReplicaKey, meta: ReplicaMeta, rows: Iterable[Row]) -> Path:
        """Build a complete new file beside the replica's file and sync it."""
        path = self.path(key)
        temporary = path.with_name(path.name + _NEW)
        remove_environment(temporary)
        with building(key, temporary):
            build_replica(temporary, self._map_bytes, key, meta, rows, self._undisturbed)
            sync_file(temporary)
        return temporary

    def install(self, key: ReplicaKey, hard_state: HardState, meta: SnapshotMeta, rows: Iterable[Row]) -> None:
        """See `LogStore.install`. After `StorageFullError` the replica is unchanged."""
        replica = self._replica(key)
        temporary = self._build(key, meta_of_snapshot(replica.meta, hard_state, meta), rows)
        self._swap(replica, temporary)

    def _swap(self, replica: LmdbReplica, temporary: Path) -> None:
        """Replace the live file by a built one. Waits for reads in progress, and ends row streams."""
        with replica.gate.alone():
            replica.detach()
            try:
                replace_file(temporary, replica.path)
            except OSError as error:
                raise CommitFailedError(replica.key, f"the new file could not be put in place: {error}") from error
            # both lock files belong to closed files, and the next opening starts with an empty reader table
            lock_path(temporary).unlink(missing_ok=True)
            lock_path(replica.path).unlink(missing_ok=True)
            replica.attach(Verify.TAIL)

    def space(self, key: ReplicaKey) -> FileSpace:
        """Return the bytes that the open file takes of the volume, and how many are in use. Cheap. Waits while the file is replaced.

        Raises:
            MissingReplicaError: The file was removed from its directory. Its data will be lost when the process ends.
        """
        return self._replica(key).space()

    def reclaim(self, key: ReplicaKey) -> Released:
        """Return free pages of the file to the volume, a bounded number per call: call again until it is complete.

        The pages become holes, which writes almost nothing and needs no space. On a file system without holes the file is
        compacted. Runs on the replica's writer while reads go on.
        """
        replica = self._replica(key)
        if key not in self._without_holes:
            try:
                return replica.release_free_pages()
            except HolesUnsupportedError as error:
                self._without_holes[key] = str(error)
        before = self.file_bytes(key)
        self.compact_if_sparse(key)
        return Released(max(0, before - self.file_bytes(key)), is_complete=True)

    def why_without_holes(self, key: ReplicaKey) -> str | None:
        """Return why the free pages of an open file cannot become holes. None: they can, as far as is known."""
        return self._without_holes.get(key)

    def compact_if_sparse(self, key: ReplicaKey) -> bool:
        """Rewrite the file without its free pages, if they are more than half of a file above the minimum size.

        So it writes no more bytes than it frees. Runs on the replica's writer, and reads go on until the swap. Returns whether
        the file was rewritten. It is not if that would take too long, or if the volume has no space for both files at once.
        """
        replica = self._replica(key)
        space = replica.space()
        if space.allocated_bytes <= self._compact_bytes_min or space.idle_bytes <= space.used_bytes:
            return False
        if space.used_bytes > self._compact_live_bytes_max:
            return False
        if self._spare_bytes is not None and space.used_bytes > self._spare_bytes():
            return False
        temporary = replica.path.with_name(replica.path.name + _NEW)
        remove_environment(temporary)
        with building(key, temporary):
            replica.environment.copy(str(temporary), compact=True)
            settle_copy(temporary, self._map_bytes)
            sync_file(temporary)
        self._swap(replica, temporary)
        return True

    def map_fraction(self, key: ReplicaKey) -> float:
        """Return the used fraction of the file's map (0..1). An alarm is due at 0.7."""
        return self._replica(key).map_fraction()

    def map_bytes(self, key: ReplicaKey) -> int:
        """Return the size of the open file's map, which is the file's maximum size."""
        return self._replica(key).map_bytes()

    def grow_map(self, key: ReplicaKey, map_bytes: int) -> None:
        """Raise the maximum size of the file, on the replica's writer. Waits for reads in progress."""
        self._replica(key).grow_map(map_bytes)

    # ------------------------------------------------------------------------------------------------------ writes

    def append_batch(self, updates: Sequence[tuple[ReplicaKey, Update]]) -> None:
        """See `LogStore.append_batch`. All updates of one replica go into one transaction, in their order."""
        of_key: dict[ReplicaKey, list[Update]] = {}
        for key, update in updates:
            of_key.setdefault(key, []).append(update)
        for key, list_of_key in of_key.items():
            self._replica(key).append(list_of_key)

    def delete_truncated(self, key: ReplicaKey, rows_max: int) -> bool:
        """See `LogStore.delete_truncated`."""
        return self._replica(key).delete_truncated(rows_max)

    # ------------------------------------------------------------------------------------------------------ reads

    def has_truncated_rows(self, key: ReplicaKey) -> bool:
        """Return whether rows before the truncation point remain for `delete_truncated`."""
        return self._replica(key).has_truncated_rows()

    def state_rows(self, key: ReplicaKey) -> ClosableRows:
        """See `LogStore.state_rows`."""
        return self._replica(key).stream()[1]

    def snapshot(self, key: ReplicaKey) -> tuple[LogIndex, Membership, ClosableRows]:
        """See `LogStore.snapshot`."""
        meta, rows = self._replica(key).stream()
        return meta.state_index, meta.membership, rows

    def entries(self, key: ReplicaKey, first: LogIndex, last: LogIndex, bytes_max: int) -> tuple[Entry, ...]:
        """See `LogStore.entries`."""
        return self._replica(key).entries(first, last, bytes_max)

    def header(self, key: ReplicaKey, index: LogIndex) -> EntryHeader:
        """See `LogStore.header`."""
        return self._replica(key).header(index)

    def find_offset(self, key: ReplicaKey, offset: Offset) -> LogIndex | None:
        """See `LogStore.find_offset`."""
        return self._replica(key).find_offset(offset)

    def find_time(self, key: ReplicaKey, append_time_ms: int) -> EntryHeader | None:
        """See `LogStore.find_time`."""
        return self._replica(key).find_time(append_time_ms)

    def file_bytes(self, key: ReplicaKey) -> int:
        """See `LogStore.file_bytes`. 0 if there is no file."""
        return allocated_bytes(self.path(key))


def _delete_if_old(path: Path, limit: float) -> bool:
    """Delete a file or link last changed at or before `limit` (seconds since the epoch). Return whether it was deleted."""
    try:
        status = path.lstat()
        if stat.S_ISDIR(status.st_mode) or status.st_mtime > limit:
            return False
        path.unlink()
    except FileNotFoundError:  # somebody else deleted it first
        return False
    return True
