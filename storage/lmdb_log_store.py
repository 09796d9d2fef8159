"""`LogStore` and `StateStore` over LMDB. Creates, replaces and removes the files of replicas.

A replica has the file `groups/<group_id>-<replica_id>.mdb`, and some have `groups/<group_id>-<replica_id>.state.mdb` beside it.
The identity row of the first one says so: a state file that is missing is a missing replica, never an empty one.

A file appears under its name whole or not at all: it is built under a temporary name (`.new`), synced and renamed, and then
the directory is synced. So every file was complete once, and an unreadable file is damaged, never half created.
This module must not decide anything about replicas: it creates, deletes and replaces only the files that it is told to.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from raftmq.errors import invariant
from raftmq.raft.core import RestoredState
from raftmq.raft.entry import Entry, EntryHeader, LogPosition
from raftmq.raft.hard_state import HardState
from raftmq.raft.membership import Membership
from raftmq.raft.messages import SnapshotMeta
from raftmq.storage.disk_space import COPY_SUFFIX, NEW_SUFFIX, TIMES_SUFFIX, remove_leftovers
from raftmq.storage.durable_files import make_directory, replace_file, sync_directory, sync_file
from raftmq.storage.errors import (
    CommitFailedError,
    DamagedReplicaError,
    MissingReplicaError,
    ReplicaClosedError,
    ReplicaExistsError,
)
from raftmq.storage.fault_board import FaultBoard
from raftmq.storage.file_check import verify_in_child
from raftmq.storage.lmdb_env import (
    DAMAGE_ERRORS,
    Undisturbed,
    building,
    disturbed,
    lock_path,
    remove_environment,
)
from raftmq.storage.lmdb_file import LmdbFile
from raftmq.storage.lmdb_replica import LmdbReplica
from raftmq.storage.lmdb_state_file import LmdbStateFile
from raftmq.storage.log_scan import Verify
from raftmq.storage.log_store import ReplicaKey, StoredSnapshot, TimeSearch, Update
from raftmq.storage.page_release import FileSpace, HolesUnsupportedError, Released, allocated_bytes
from raftmq.storage.pending_state_write import (
    check_bodies_stay,
    hard_state_after_snapshot,
    rows_of_snapshot,
    state_meta_of_new_replica,
    state_meta_of_snapshot,
)
from raftmq.storage.pending_write import meta_of_new_replica, meta_of_snapshot
from raftmq.storage.replica_build import build_replica, build_state_file, settle_copy, settle_state_copy
from raftmq.storage.replica_codec import FORMAT_VERSION, FORMAT_WITH_STATE_FILE, Identity, ReplicaMeta
from raftmq.storage.row_scrub import ScrubPlace, ScrubSlice
from raftmq.storage.row_stream import ClosableRows, KeyRange, Row
from raftmq.storage.staged_state import LmdbStagedState
from raftmq.storage.state_codec import FORMAT_VERSION as STATE_FORMAT_VERSION
from raftmq.storage.state_codec import StateMeta
from raftmq.storage.state_copy import LmdbStateCopy, copying
from raftmq.storage.state_store import BoundedRange, FilePart, LocatedBody, StagedState, StateCopy, StateWrite
from raftmq.storage.trash import Trash
from raftmq.types import GroupId, LogIndex, Offset, ReplicaId, Term

FileT = TypeVar("FileT", bound=LmdbFile)

GIB = 1024**3
MIB = 1024**2

_REPLICA_FILE = re.compile(r"([0-9]+)-([0-9]+)\.mdb\Z")
_STATE_FILE = re.compile(r"([0-9]+)-([0-9]+)\.state\.mdb\Z")


def replica_file_count(data_dir: Path) -> int:
    """Return how many files of replicas a data directory holds. The directory need not exist."""
    groups = data_dir / "groups"
    return len(replica_files(groups)) + len(state_files(groups))


def replica_files(groups: Path) -> dict[ReplicaKey, Path]:
    """Return the file of each replica in a store's `groups` directory. Only their names are looked at."""
    return _files(groups, _REPLICA_FILE)


def replica_path(groups: Path, key: ReplicaKey) -> Path:
    """Return the path of a replica's file in a store's `groups` directory. It need not exist."""
    return groups / f"{key.group_id}-{key.replica_id}.mdb"


def state_files(groups: Path) -> dict[ReplicaKey, Path]:
    """Return the state files in a store's `groups` directory. Only their names are looked at."""
    return _files(groups, _STATE_FILE)


def _files(groups: Path, name: re.Pattern[str]) -> dict[ReplicaKey, Path]:
    found = {}
    for path in groups.glob("*.mdb"):
        match = name.match(path.name)
        if match is not None:
            found[ReplicaKey(GroupId(int(match[1])), ReplicaId(int(match[2])))] = path
    return found


@contextmanager
def _closed_on_error(file: LmdbFile) -> Iterator[None]:
    """Close a file that no other thread knows if the block fails."""
    try:
        yield
    except BaseException:
        file.detach()
        raise


def _opened_as(old: ReplicaKey, key: ReplicaKey, open_as: Callable[[ReplicaKey], FileT]) -> FileT:
    """Open a file that belongs to `old`, or already to `key` after a crash. Raises the error of the first attempt."""
    try:
        return open_as(old)
    except DamagedReplicaError as error:
        try:
            return open_as(key)
        except DamagedReplicaError:
            raise error from None


class LmdbLogStore:
    """A `StateStore` with one or two LMDB files per replica. Owns `<directory>/groups` and `<directory>/trash`."""

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
        self._map_bytes = map_bytes
        self._verify = Verify(verify)
        self._compact_bytes_min = compact_bytes_min
        self._compact_live_bytes_max = compact_live_bytes_max
        self._spare_bytes = spare_bytes
        self._replicas: dict[ReplicaKey, LmdbReplica] = {}
        self._states: dict[ReplicaKey, LmdbStateFile] = {}
        """The state files of those open replicas that have one."""
        self._without_holes: dict[tuple[ReplicaKey, FilePart], str] = {}
        """Files that cannot have holes, with the reason. They are compacted instead."""
        self._opening: set[ReplicaKey] = set()
        """Replicas that are being opened and checked, each on its writer's thread."""
        self._numbers = itertools.count(1)
        """Numbers of copies and of arriving snapshots: a replica may have several, whose users end at different times."""
        self._changing = threading.Lock()
        """Guards `_opening` and the check before it: the same file must never be open twice in a process."""
        make_directory(self._groups)
        self._trash = Trash(Path(directory) / "trash")
        remove_leftovers(self._groups)
        # the earlier process may have been killed between a rename and its sync: this one sees the new file, and must not rely on it before
        sync_directory(self._groups)

    # ------------------------------------------------------------------------------------------------------ life

    def path(self, key: ReplicaKey) -> Path:
        """Return the path of the replica's file, which need not exist."""
        return replica_path(self._groups, key)

    def state_path(self, key: ReplicaKey) -> Path:
        """Return the path of the replica's state file, which need not exist."""
        return self._groups / f"{key.group_id}-{key.replica_id}.state.mdb"

    def _times_path(self, key: ReplicaKey) -> Path:
        return self.path(key).with_suffix(TIMES_SUFFIX)

    def exists(self, key: ReplicaKey) -> bool:
        """Return whether the replica has a file. A state file alone is the rest of a creation or a retirement that a crash ended."""
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
        temporary = self._build(key, meta_of_new_replica(restored), FORMAT_VERSION, rows)
        self._put_in_place(key, temporary, self.path(key))

    def create_with_state_file(self, key: ReplicaKey, restored: RestoredState) -> None:
        """See `StateStore.create_with_state_file`. The log's file comes last, since the replica exists from then on."""
        if self.exists(key):
            raise ReplicaExistsError(key, "its file exists")
        meta = meta_of_new_replica(restored)
        temporary = self._build_state(key, state_meta_of_new_replica(restored), ())
        self._put_in_place(key, temporary, self.state_path(key))
        temporary = self._build(key, meta, FORMAT_WITH_STATE_FILE)
        self._put_in_place(key, temporary, self.path(key))

    def open(self, key: ReplicaKey) -> RestoredState:
        """See `LogStore.open`. Also raises `UnsupportedFormatError`, and `StorageFullError` if an installation cannot be completed."""
        with self._changing:
            is_free = key not in self._replicas and key not in self._opening
            invariant(is_free, "opened_once", group_id=key.group_id, replica_id=key.replica_id)
            if not self.exists(key):
                raise MissingReplicaError(key, "its file is missing")
            self._opening.add(key)
        try:
            touch = self.board.touch if self.board is not None else None
            replica = LmdbReplica(key, self.path(key), self._map_bytes, self._verify, touch, self._undisturbed)
            if replica.has_state_file:
                self._open_state(replica, touch)
            self._replicas[key] = replica
        finally:
            self._opening.discard(key)
        return self._restored(replica)

    def _open_state(self, replica: LmdbReplica, touch: Callable[[ReplicaKey], None] | None) -> None:
        """Open the state file of a replica, and complete an installation that a crash ended. If it fails, nothing stays open."""
        key, path = replica.key, self.state_path(replica.key)
        with _closed_on_error(replica):
            if not path.is_file():
                raise MissingReplicaError(key, "its state file is missing")
            state = LmdbStateFile(key, path, self._map_bytes, self._verify, touch, self._undisturbed)
            with _closed_on_error(state):
                self._match(replica, state.meta)
        self._states[key] = state

    def _match(self, replica: LmdbReplica, state: StateMeta) -> None:
        """Bring the log to the position that its state needs, if a crash ended an installation before it did."""
        start = replica.meta.position.index
        if start > state.state_index:
            raise DamagedReplicaError(
                replica.key,
                f"its log starts after entry {start}, but its state includes only entry {state.state_index}",
            )
        if start < state.position.index:
            hard_state = hard_state_after_snapshot(replica.meta.hard_state, state.position)
            snapshot = SnapshotMeta(state.position, state.state_index, state.membership)
            self._reset_log(replica, meta_of_snapshot(replica.meta, hard_state, snapshot))

    def _reset_log(self, replica: LmdbReplica, meta: ReplicaMeta) -> None:
        """Replace a log by an empty one."""
        self._swap(replica, self._build(replica.key, meta, FORMAT_WITH_STATE_FILE))

    def _restored(self, replica: LmdbReplica) -> RestoredState:
        restored = replica.restored()
        state = self._states.get(replica.key)
        if state is None:
            return restored
        return dataclasses.replace(restored, state_index=state.meta.state_index, membership=state.meta.membership)

    def verify(self, key: ReplicaKey) -> str | None:
        """Check the closed files in a child process, since a damaged page can kill its reader. Return the problem, or None."""
        problem = verify_in_child(self.path(key))
        if problem is None and self.state_path(key).is_file():
            problem = verify_in_child(self.state_path(key))
        return problem

    def scrub(self, key: ReplicaKey, place: ScrubPlace, bytes_max: int, rows_max: int) -> ScrubSlice:
        """Read the next slice of an open replica back, in any thread, and advance `place`. The state file follows the log's.

        Raises:
            DamagedReplicaError: The slice is damaged.
            ReplicaClosedError: The replica is not open.
        """
        if place.is_in_state_file:
            return self._state(key).scrub(place, bytes_max, rows_max)
        part = self._replica(key).scrub(place, bytes_max, rows_max)
        if place.is_done and key in self._states:
            place.begin_state_file()
        return part

    def store_verified(self, key: ReplicaKey) -> None:
        """Make the clean point durable that a whole pass of `scrub` has verified. Called on the replica's writer."""
        self._replica(key).store_verified()

    def close(self, key: ReplicaKey) -> None:
        """See `LogStore.close`."""
        replica = self._replicas.get(key)
        if replica is None:
            return
        state = self._states.get(key)
        if state is not None:
            # a copy would keep this thread, and all replicas that it writes, for minutes
            state.end_copies(is_closing=True)
            with state.changing(), state.gate.alone():
                state.detach()
            del self._states[key]
        with replica.gate.alone():
            replica.detach()
        del self._replicas[key]
        for part in FilePart:
            self._without_holes.pop((key, part), None)

    def found(self, key: ReplicaKey, old: ReplicaKey, term: Term) -> None:
        """Turn the files of the closed replica `old` into those of `key`, the only founder of a new group with the same data.

        Log and state stay as they are: entries that were not committed will be, since the founder leads alone. It takes no space, and
        after a crash at any point the call can be repeated.

        Args:
            key: The founder. It must not be open.
            old: The replica of a group that has lost its majority.
            term: The founder votes only in later terms.

        Raises:
            MissingReplicaError: There are no files of `old`.
            DamagedReplicaError: They are damaged.
        """
        if self.exists(key):
            self._rename(key, old)  # a crash ended an earlier attempt
            return
        if not self.exists(old):
            raise MissingReplicaError(key, f"replica {old.replica_id} of group {old.group_id} has no file to continue")
        membership = Membership((key.replica_id,))
        replica = _opened_as(old, key, lambda owner: self._log_of(owner, old))
        with _closed_on_error(replica):
            state_index = replica.meta.state_index
            if replica.has_state_file:
                state_index = self._found_state(key, old, replica, membership)
            hard_state = replica.meta.hard_state
            hard_state = HardState(Term(max(term, hard_state.term)), ReplicaId(0), hard_state.commit_index)
            replica.become(key, hard_state, membership, state_index)
        replica.detach()
        self._rename(key, old)

    def _found_state(self, key: ReplicaKey, old: ReplicaKey, replica: LmdbReplica, membership: Membership) -> LogIndex:
        state = _opened_as(old, key, lambda owner: self._state_of(owner, old, key))
        with _closed_on_error(state):
            self._match(replica, state.meta)
            state.become(key, membership)
        state.detach()
        return state.meta.state_index

    def _log_of(self, owner: ReplicaKey, old: ReplicaKey) -> LmdbReplica:
        touch = self.board.touch if self.board is not None else None
        return LmdbReplica(owner, self.path(old), self._map_bytes, self._verify, touch, self._undisturbed)

    def _state_of(self, owner: ReplicaKey, old: ReplicaKey, key: ReplicaKey) -> LmdbStateFile:
        path = next((path for path in (self.state_path(old), self.state_path(key)) if path.is_file()), None)
        if path is None:
            raise MissingReplicaError(key, "its state file is missing")
        touch = self.board.touch if self.board is not None else None
        return LmdbStateFile(owner, path, self._map_bytes, self._verify, touch, self._undisturbed)

    def _rename(self, key: ReplicaKey, old: ReplicaKey) -> None:
        """Rename the files. The log's comes last, since the replica exists from then on."""
        for source, target in ((self.state_path(old), self.state_path(key)), (self.path(old), self.path(key))):
            if source.is_file():
                try:
                    replace_file(source, target)
                except OSError as error:
                    raise CommitFailedError(key, f"its file could not be put in place: {error}") from error
            lock_path(source).unlink(missing_ok=True)
        self._times_path(old).unlink(missing_ok=True)

    def retire(self, key: ReplicaKey) -> None:
        """See `LogStore.retire`. Does nothing if there is no file: it was moved before a crash."""
        self.close(key)
        self._trash.put(self.path(key))
        self._trash.put(self.state_path(key))
        self._times_path(key).unlink(missing_ok=True)

    def empty_trash(self, grace_seconds: float, now_seconds: float | None = None) -> int:
        """Delete the files that were retired long enough ago, see `Trash.empty`. Return their number."""
        return self._trash.empty(grace_seconds, now_seconds)

    def _replica(self, key: ReplicaKey) -> LmdbReplica:
        replica = self._replicas.get(key)
        if replica is None:
            raise ReplicaClosedError(key, "not open")
        return replica

    def _state(self, key: ReplicaKey) -> LmdbStateFile:
        state = self._states.get(key)
        if state is None:
            raise ReplicaClosedError(key, "its state file is not open")
        return state

    def _file(self, key: ReplicaKey, part: FilePart) -> LmdbFile:
        return self._replica(key) if part is FilePart.LOG else self._state(key)

    def parts(self, key: ReplicaKey) -> tuple[FilePart, ...]:
        """Return the files of an open replica, each of which needs maintenance on its own writer."""
        self._replica(key)
        return tuple(FilePart) if key in self._states else (FilePart.LOG,)

    # ------------------------------------------------------------------------------------------------------ new files

    def _build(self, key: ReplicaKey, meta: ReplicaMeta, format_version: int, rows: Iterable[Row] = ()) -> Path:
        """Build a complete new file beside the replica's file and sync it."""
        identity = Identity(format_version, key.group_id, key.replica_id)
        return self._built(
            key,
            self.path(key),
            lambda path: build_replica(path, self._map_bytes, identity, meta, rows, self._undisturbed),
        )

    def _build_state(self, key: ReplicaKey, meta: StateMeta, rows: Iterable[Row]) -> Path:
        """Build a complete new file beside the replica's state file and sync it."""
        identity = Identity(STATE_FORMAT_VERSION, key.group_id, key.replica_id)
        return self._built(
            key,
            self.state_path(key),
            lambda path: build_state_file(path, self._map_bytes, identity, meta, rows, self._undisturbed),
        )

    @staticmethod
    def _built(key: ReplicaKey, path: Path, write: Callable[[Path], None]) -> Path:
        temporary = path.with_name(path.name + NEW_SUFFIX)
        remove_environment(temporary)
        with building(key, temporary):
            write(temporary)
            sync_file(temporary)
        return temporary

    @staticmethod
    def _put_in_place(key: ReplicaKey, temporary: Path, path: Path) -> None:
        with building(key, temporary):
            replace_file(temporary, path)
        lock_path(temporary).unlink(missing_ok=True)

    def install(self, key: ReplicaKey, hard_state: HardState, meta: SnapshotMeta, rows: Iterable[Row]) -> None:
        """See `LogStore.install`. After `StorageFullError` the replica is unchanged."""
        replica, state = self._replica(key), self._states.get(key)
        new = meta_of_snapshot(replica.meta, hard_state, meta)
        if state is None:
            self._swap(replica, self._build(key, new, FORMAT_VERSION, rows))
            return
        new_state = state_meta_of_snapshot(replica.meta.position, meta)
        # both files are complete before the first one is replaced, so that a lack of space leaves the replica unchanged
        log_file = self._build(key, new, FORMAT_WITH_STATE_FILE)
        with building(key, log_file):
            state_file = self._build_state(key, new_state, rows_of_snapshot(rows, meta.position))
        state.end_copies()
        with state.changing():
            self._swap(state, state_file)
        self._swap(replica, log_file)

    def stage(self, key: ReplicaKey, position: LogPosition) -> StagedState:
        """See `StateStore.stage`."""
        path = self.state_path(key)
        temporary = path.with_name(f"{path.name}{NEW_SUFFIX}.{next(self._numbers)}")
        return LmdbStagedState(key, temporary, self._map_bytes, position, self._undisturbed)

    def install_staged(self, key: ReplicaKey, hard_state: HardState, meta: SnapshotMeta, staged: StagedState) -> None:
        """See `StateStore.install_staged`."""
        assert isinstance(staged, LmdbStagedState)
        replica, state = self._replica(key), self._state(key)
        new = meta_of_snapshot(replica.meta, hard_state, meta)
        new_state = state_meta_of_snapshot(replica.meta.position, meta)
        log_file = self._build(key, new, FORMAT_WITH_STATE_FILE)
        with building(key, log_file):
            staged.settle(Identity(STATE_FORMAT_VERSION, key.group_id, key.replica_id), new_state)
        state.end_copies()
        with state.changing():
            self._swap(state, staged.detach())
        self._swap(replica, log_file)

    @staticmethod
    def _swap(file: LmdbFile, temporary: Path) -> None:
        """Replace the live file by a built one. Waits for reads in progress, and ends row streams. Raises as `LmdbFile.attach_again`."""
        with file.gate.alone():
            file.detach()
            try:
                replace_file(temporary, file.path)
            except OSError as error:
                raise CommitFailedError(file.key, f"the new file could not be put in place: {error}") from error
            # both lock files belong to closed files, and the next opening starts with an empty reader table
            lock_path(temporary).unlink(missing_ok=True)
            lock_path(file.path).unlink(missing_ok=True)
            file.attach_again()

    # ------------------------------------------------------------------------------------------------------ maintenance

    def space(self, key: ReplicaKey, part: FilePart = FilePart.LOG) -> FileSpace:
        """Return the bytes that the open file takes of the volume, and how many are in use. Cheap. Waits while the file is replaced.

        Raises:
            MissingReplicaError: The file was removed from its directory. Its data will be lost when the process ends.
        """
        return self._file(key, part).space()

    def reclaim(self, key: ReplicaKey, part: FilePart = FilePart.LOG) -> Released:
        """Return free pages of the file to the volume, a bounded number per call: call again until it is complete.

        The pages become holes, which writes almost nothing and needs no space. On a file system without holes the file is
        compacted. Runs on the file's writer while reads go on.
        """
        file = self._file(key, part)
        if (key, part) not in self._without_holes:
            try:
                with file.changing():
                    return file.release_free_pages()
            except HolesUnsupportedError as error:
                self._without_holes[key, part] = str(error)
        before = allocated_bytes(file.path)
        self.compact_if_sparse(key, part)
        return Released(max(0, before - allocated_bytes(file.path)), is_complete=True)

    def why_without_holes(self, key: ReplicaKey, part: FilePart = FilePart.LOG) -> str | None:
        """Return why the free pages of an open file cannot become holes. None: they can, as far as is known."""
        return self._without_holes.get((key, part))

    def compact_if_sparse(self, key: ReplicaKey, part: FilePart = FilePart.LOG) -> bool:
        """Rewrite the file without its free pages, if they are more than half of a file above the minimum size.

        So it writes no more bytes than it frees. Runs on the file's writer, and reads go on until the swap. Returns whether
        the file was rewritten. It is not if that would take too long, or if the volume has no space for both files.
        """
        file = self._file(key, part)
        space = file.space()
        if space.allocated_bytes <= self._compact_bytes_min or space.idle_bytes <= space.used_bytes:
            return False
        if space.used_bytes > self._compact_live_bytes_max:
            return False
        if self._spare_bytes is not None and space.used_bytes > self._spare_bytes():
            return False
        settle = settle_copy if part is FilePart.LOG else settle_state_copy

        def write(temporary: Path) -> None:
            try:
                file.environment.copy(str(temporary), compact=True)
            except DAMAGE_ERRORS as error:  # it reads every page, and says nothing about the new file
                raise DamagedReplicaError(key, f"unreadable: {error}") from error
            settle(temporary, self._map_bytes)

        with file.changing():
            self._swap(file, self._built(key, file.path, write))
        return True

    def map_fraction(self, key: ReplicaKey, part: FilePart = FilePart.LOG) -> float:
        """Return the used fraction of the file's map (0..1). An alarm is due at 0.7."""
        return self._file(key, part).map_fraction()

    def map_bytes(self, key: ReplicaKey, part: FilePart = FilePart.LOG) -> int:
        """Return the size of the open file's map, which is the file's maximum size."""
        return self._file(key, part).map_bytes()

    def grow_map(self, key: ReplicaKey, map_bytes: int, part: FilePart = FilePart.LOG) -> None:
        """Raise the maximum size of the file, on its writer. Waits for reads in progress.

        Raises:
            StorageUnavailableError: There is no address space. The file has its old size.
        """
        file = self._file(key, part)
        with file.changing():
            file.grow_map(map_bytes)

    def file_bytes(self, key: ReplicaKey) -> int:
        """See `LogStore.file_bytes`. 0 if there is no file."""
        return allocated_bytes(self.path(key)) + allocated_bytes(self.state_path(key))

    # ------------------------------------------------------------------------------------------------------ writes

    def append_batch(self, updates: Sequence[tuple[ReplicaKey, Update]]) -> None:
        """See `LogStore.append_batch`. All updates of one replica go into one transaction, in their order."""
        of_key: dict[ReplicaKey, list[Update]] = {}
        for key, update in updates:
            of_key.setdefault(key, []).append(update)
        for key, list_of_key in of_key.items():
            state = self._states.get(key)
            if state is not None and any(update.truncation is not None for update in list_of_key):
                check_bodies_stay(list_of_key, state.first_location(state.meta.evacuated_through))
            self._replica(key).append(list_of_key, state.meta if state is not None else None)

    def delete_truncated(self, key: ReplicaKey, rows_max: int) -> bool:
        """See `LogStore.delete_truncated`."""
        return self._replica(key).delete_truncated(rows_max)

    def write_state(self, key: ReplicaKey, write: StateWrite) -> None:
        """See `StateStore.write_state`."""
        self._state(key).write(write)

    def evacuate(self, key: ReplicaKey, bodies: Sequence[LocatedBody], after: int) -> bool:
        """See `StateStore.evacuate`."""
        return self._state(key).evacuate(bodies, after)

    def delete_rows(self, key: ReplicaKey, rows: KeyRange, rows_max: int) -> bool:
        """See `StateStore.delete_rows`."""
        return self._state(key).delete(rows, rows_max)

    # ------------------------------------------------------------------------------------------------------ reads

    def has_truncated_rows(self, key: ReplicaKey) -> bool:
        """Return whether rows before the truncation point remain for `delete_truncated`."""
        return self._replica(key).has_truncated_rows()

    def look(self, key: ReplicaKey, part: FilePart = FilePart.LOG) -> tuple[FileSpace, bool]:
        """Return `space` of a file and, of the log's, `has_truncated_rows`. Cheap for a file to which nothing was written."""
        return self._replica(key).look() if part is FilePart.LOG else (self._state(key).space(), False)

    def state_rows(self, key: ReplicaKey) -> ClosableRows:
        """See `LogStore.state_rows`."""
        return self.snapshot(key).rows

    def snapshot(self, key: ReplicaKey) -> StoredSnapshot:
        """See `LogStore.snapshot`."""
        replica = self._replica(key)
        if not replica.has_state_file:  # `_states` lacks the key also while the replica is being closed
            meta, rows = replica.stream()
            return StoredSnapshot(meta.position, meta.state_index, meta.membership, rows)
        # before the rows: the log is truncated no further than the state allows, so bodies truncated later are among the rows
        position = replica.meta.position
        state, rows = self._state(key).stream()
        return StoredSnapshot(position, state.state_index, state.membership, rows)

    def state_bytes(self, key: ReplicaKey) -> int:
        """See `StateStore.state_bytes`."""
        return self.space(key, FilePart.STATE).used_bytes

    def copy_state(self, key: ReplicaKey) -> StateCopy:
        """See `StateStore.copy_state`."""
        state = self._state(key)
        # before the copy, for the same reason as in `snapshot`
        position = self._replica(key).meta.position
        path = state.path.with_name(f"{state.path.name}{COPY_SUFFIX}.{next(self._numbers)}")
        with copying(key, path):
            state.copy_to(path)
            return LmdbStateCopy(key, path, position, self.board.touch if self.board is not None else None)

    def end_copies(self) -> None:
        """Have all copies of state files that are being written fail, because the volume is about to be full. For any thread."""
        for state in list(self._states.values()):
            state.end_copies()

    def has_state_file(self, key: ReplicaKey) -> bool:
        """See `StateStore.has_state_file`."""
        return self._replica(key).has_state_file

    def read_rows(self, key: ReplicaKey, ranges: Sequence[BoundedRange]) -> list[list[Row]]:
        """See `StateStore.read_rows`."""
        return self._state(key).read_rows(ranges)

    def resident_rows(self, key: ReplicaKey, ranges: Sequence[KeyRange]) -> ClosableRows:
        """See `StateStore.resident_rows`."""
        return self._state(key).stream(ranges)[1]

    def read_body(self, key: ReplicaKey, sequence: int) -> bytes | None:
        """See `StateStore.read_body`."""
        return self._state(key).read_body(sequence)

    def evacuated_through(self, key: ReplicaKey) -> int:
        """See `StateStore.evacuated_through`."""
        return self._state(key).meta.evacuated_through

    def first_location(self, key: ReplicaKey, after_sequence: int) -> int | None:
        """See `StateStore.first_location`."""
        return self._state(key).first_location(after_sequence)

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

    def find_timestamp(self, key: ReplicaKey, timestamp_ms: int, first_offset: Offset) -> TimeSearch:
        """See `LogStore.find_timestamp`."""
        return self._replica(key).find_timestamp(timestamp_ms, first_offset)
