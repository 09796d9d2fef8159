"""`LogStore` over LMDB: one file per replica, `groups/<group_id>-<replica_id>.mdb`, and how files come and go.

A file appears under its name whole or not at all: it is built beside (`.new`), synced, renamed, and the directory
synced. So a file that is there was finished once, and what does not read is damage, never a torn creation.
Must not decide anything about replicas: it creates, deletes and replaces only what it is told to.
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
    """The files in a store's `groups` directory that are replicas', by their names."""
    found = {}
    for path in groups.glob("*.mdb"):
        match = _REPLICA_FILE.match(path.name)
        if match is not None:
            found[ReplicaKey(GroupId(int(match[1])), ReplicaId(int(match[2])))] = path
    return found


class LmdbLogStore:
    """See the module and `LogStore`. Owns `<directory>/groups` and `<directory>/trash`."""

    board: FaultBoard | None = None
    """Where threads note whose file they read."""

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
        """Make the directories and remove unfinished files of an earlier process.

        Args:
            directory: The node's data directory.
            map_bytes: Address space per file, and its largest size. Virtual: 64 GiB times 1,000 files fit in 47 bits.
            verify: What `open` checks. The tail by default: some milliseconds, whatever the size; the scrubber reads the rest while
                the replica serves, and every read checks what it reads. "full" takes 2.5 µs a row and 10 GB/s on top (0.12 GB/s of
                300-byte entries), which 300 files of a restart cannot wait for.
            compact_bytes_min: Files below this size are never compacted (where a file system knows no holes, see `reclaim`).
            compact_live_bytes_max: Nor are files with more than so much in use: copying that keeps a writer thread, which other
                replicas share, for less than a second, far below an election timeout. Their free pages are used again.
            spare_bytes: What a compaction may write before it gives back more than that; None: anything.
            board: Where threads note whose file they read; None: nowhere.
            undisturbed: Keeps other threads from taking the GIL at each row of a transaction with many.
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
        """Replicas whose files cannot have holes, and why not: they are compacted."""
        self._opening: set[ReplicaKey] = set()
        """Being opened and checked now, each on its writer's thread."""
        self._changing = threading.Lock()
        """Guards who opens what: the same file must never be open twice in a process."""
        make_directory(self._groups)
        make_directory(self._trash)
        for leftover in self._groups.glob(f"*{_NEW}*"):
            leftover.unlink()

    # ------------------------------------------------------------------------------------------------------ life

    def path(self, key: ReplicaKey) -> Path:
        """The replica's file, which need not exist."""
        return self._groups / f"{key.group_id}-{key.replica_id}.mdb"

    def exists(self, key: ReplicaKey) -> bool:
        """Whether the replica has a file."""
        return self.path(key).is_file()  # a directory there is a person's, and holds no data

    def stored_replicas(self) -> list[ReplicaKey]:
        """Every replica that has a file here, sorted."""
        return sorted(replica_files(self._groups))

    def open_replicas(self) -> list[ReplicaKey]:
        """Every open replica, sorted."""
        return sorted(self._replicas)

    def create(self, key: ReplicaKey, restored: RestoredState, rows: Iterable[Row]) -> None:
        """See `LogStore.create`. Raises `ReplicaExistsError`, `StorageFullError`; nothing is left behind then."""
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
        """What is wrong with a closed file, read in a child process: a damaged page can end the reader."""
        return verify_in_child(self.path(key))

    def scrub(self, key: ReplicaKey, place: ScrubPlace, bytes_max: int, rows_max: int) -> ScrubSlice:
        """Read the next slice of an open file back, in any thread; `place` says how far it has come.

        Raises:
            DamagedReplicaError: as of any read.
            ReplicaClosedError: it was closed in the meantime.
        """
        return self._replica(key).scrub(place, bytes_max, rows_max)

    def store_verified(self, key: ReplicaKey) -> None:
        """Make durable what a whole pass of `scrub` has verified, on the replica's writer."""
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
        """See `LogStore.retire`; no-op when there is no file (it was moved before a crash)."""
        self.close(key)
        path = self.path(key)
        if not path.exists():
            return
        make_directory(self._trash)  # whoever needed the space may have taken it away with what was in it
        os.utime(path)  # its age in the trash counts from now
        targets = (self._trash / f"{path.name}.{number}" for number in itertools.count())
        replace_file(path, next(target for target in targets if not target.exists()))
        lock_path(path).unlink(missing_ok=True)

    def empty_trash(self, grace_seconds: float, now_seconds: float | None = None) -> int:
        """Delete what was retired at least `grace_seconds` before now (seconds since the epoch); how many files.

        A directory, which is a person's, stays. What cannot be deleted keeps nothing else from going. Raises OSError for the first such.
        """
        failure: OSError | None = None
        limit = (time.time() if now_seconds is None else now_seconds) - grace_seconds
        count = 0
        with suppress(FileNotFoundError, NotADirectoryError):  # a person may empty it, too, or take it away
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
        """A whole new file beside the replica's, synced."""
        path = self.path(key)
        temporary = path.with_name(path.name + _NEW)
        remove_environment(temporary)
        with building(key, temporary):
            build_replica(temporary, self._map_bytes, key, meta, rows, self._undisturbed)
            sync_file(temporary)
        return temporary

    def install(self, key: ReplicaKey, hard_state: HardState, meta: SnapshotMeta, rows: Iterable[Row]) -> None:
        """See `LogStore.install`. Raises `StorageFullError` with the replica as it was."""
        replica = self._replica(key)
        temporary = self._build(key, meta_of_snapshot(replica.meta, hard_state, meta), rows)
        self._swap(replica, temporary)

    def _swap(self, replica: LmdbReplica, temporary: Path) -> None:
        """Put a built file in the place of the live one. Reads in progress end first; row streams are cut."""
        with replica.gate.alone():
            replica.detach()
            try:
                replace_file(temporary, replica.path)
            except OSError as error:
                raise CommitFailedError(replica.key, f"the new file could not be put in place: {error}") from error
            # both lock files belong to files that are closed; the reader table starts empty with the next opening
            lock_path(temporary).unlink(missing_ok=True)
            lock_path(replica.path).unlink(missing_ok=True)
            replica.attach(Verify.TAIL)

    def space(self, key: ReplicaKey) -> FileSpace:
        """What the open file takes of the volume, and what of it is in use. Cheap; waits while the file is being replaced.

        Raises:
            MissingReplicaError: somebody removed the file. What is written to it is lost with the process.
        """
        return self._replica(key).space()

    def reclaim(self, key: ReplicaKey) -> Released:
        """Give free pages of the file back to the volume, a bounded part of them: call again until it is complete.

        They become holes, which writes next to nothing and needs no space. Where the file system knows no holes the file is
        compacted. Runs on the replica's writer; reads go on.
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
        """Why the free pages of an open file cannot be given back where they are; None: they can, as far as is known."""
        return self._without_holes.get(key)

    def compact_if_sparse(self, key: ReplicaKey) -> bool:
        """Rewrite the file without its free pages when they are over half of a file above the minimum size.

        So no more is written than is given back. Runs on the replica's writer; reads go on until the swap. True when done, False
        also when it would take too long, or space that there is not: for a while there are both files.
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
        """How much of the file's map is used (0..1): an alarm is due at 0.7."""
        return self._replica(key).map_fraction()

    def map_bytes(self, key: ReplicaKey) -> int:
        """The size of the open file's map: how large the file may become."""
        return self._replica(key).map_bytes()

    def grow_map(self, key: ReplicaKey, map_bytes: int) -> None:
        """Raise the limit of the file's size, on the replica's writer; reads in progress end first."""
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
        """Whether `delete_truncated` has something to do."""
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
        """See `LogStore.file_bytes`; 0 when there is no file."""
        return allocated_bytes(self.path(key))


def _delete_if_old(path: Path, limit: float) -> bool:
    """Delete a file, or a link, that was changed last at `limit` (seconds since the epoch) or before; whether it is gone now."""
    try:
        status = path.lstat()
        if stat.S_ISDIR(status.st_mode) or status.st_mtime > limit:
            return False
        path.unlink()
    except FileNotFoundError:  # somebody was quicker
        return False
    return True
