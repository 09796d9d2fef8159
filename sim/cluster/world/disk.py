"""A node's simulated disk and the product's parts that use it: replica files, the registry, the reserve, the writers.

A write is durable when a writer has finished it. A crash keeps a random number of whole transactions of the write under way and
loses the rest. The production store and replica code run on rows of bytes in memory, so that a flipped byte meets the same
checksums as on a real disk.
"""

# ruff: noqa: ANN401 -- as in the production parts

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any, TypeVar, cast

from raftmq.errors import invariant
from raftmq.raft.core import RestoredState
from raftmq.raft.entry import LogPosition
from raftmq.raft.hard_state import HardState
from raftmq.raft.messages import SnapshotMeta
from raftmq.storage.checksum import CHECKSUM_BYTES, seal
from raftmq.storage.disk_space import DiskReserve
from raftmq.storage.errors import (
    CommitFailedError,
    MissingReplicaError,
    RegistryError,
    ReplicaExistsError,
    StorageFullError,
)
from raftmq.storage.lmdb_env import disturbed, reading
from raftmq.storage.lmdb_file import WHOLE_TABLE, OpenStream
from raftmq.storage.lmdb_log_store import LmdbLogStore
from raftmq.storage.lmdb_replica import LmdbReplica
from raftmq.storage.lmdb_state_file import LmdbStateFile
from raftmq.storage.log_scan import Verify
from raftmq.storage.log_store import ReplicaKey, Update
from raftmq.storage.page_release import FileSpace, Released
from raftmq.storage.pending_state_write import (
    rows_of_snapshot,
    state_meta_of_new_replica,
    state_meta_of_snapshot,
)
from raftmq.storage.pending_write import meta_of_new_replica, meta_of_snapshot
from raftmq.storage.registry import MARK_BYTES, Registry
from raftmq.storage.registry_codec import NodeRow, decode_node, decode_row, encode_node, encode_row
from raftmq.storage.replica_codec import (
    FORMAT_VERSION,
    FORMAT_WITH_STATE_FILE,
    IDENTITY_KEY,
    META_KEY,
    CommitNote,
    Identity,
    ReplicaMeta,
    encode_identity,
    encode_meta,
)
from raftmq.storage.row_scrub import ScrubPlace, ScrubSlice
from raftmq.storage.row_stream import KeyRange, Row
from raftmq.storage.staged_state import LmdbStagedState
from raftmq.storage.state_codec import FORMAT_VERSION as STATE_FORMAT_VERSION
from raftmq.storage.state_codec import STATE_META_KEY, StateMeta, encode_state_meta
from raftmq.storage.state_copy import LmdbStateCopy
from raftmq.storage.state_store import FilePart, LocatedBody, StagedState, StateCopy, StateWrite
from raftmq.storage.time_index import TimesFile
from raftmq.storage.writer_threads import Completion, InlineWriter

from sim.cluster.world.loop import HANGS_SECONDS, VirtualLoop, run_into
from sim.cluster.world.memory_environment import MemoryEnvironment, RowFile

T = TypeVar("T")
_DATABASES = ("log", "meta", "state")
_STATE_DATABASES = ("rows", "meta")
_NODE = b"node"
BALLAST_BYTES = 4096
SPACE_SCALE = 4096
"""Factor between the bytes of a simulated file and its reported space, so that small files here count as large ones."""


class Disk:
    """One machine's disk. A wiped disk is replaced by another object."""

    def __init__(self, rng: random.Random, capacity: int) -> None:
        self.rng = rng
        self.capacity = capacity
        self.files: dict[ReplicaKey, RowFile] = {}
        self.state_files: dict[ReplicaKey, RowFile] = {}
        self.copies: list[RowFile] = []
        """Copies of state files, from which snapshots are sent. The next process deletes those that a crash leaves."""
        self.copies_left = 0
        """Number of copies that a crash left."""
        self.copies_made = 0
        self.trash: list[RowFile] = []
        self.times: dict[ReplicaKey, bytes] = {}
        """The files of bounds for searches by time."""
        self.times_written = 0
        self.registry: dict[bytes, bytes] = {}
        self.has_ballast = False
        self.is_full = False
        """Whether somebody else has filled the volume."""
        self.latency = 0.001
        """Mean duration of a commit in seconds."""
        self.slow_latency = 0.0
        """If not 0, it replaces `latency`."""
        self.slow_commits = 0
        self.stalled_until = 0.0
        """The end of a time in which no write ends."""
        self.reads_stalled_until = 0.0
        """The same for reads. Often all that is read is in memory, so that only writes stall."""
        self.hangs = False
        """Whether nothing that goes to the disk ends: no write, no installation of a snapshot, and no read of rows that entries need."""
        self.torn_commits = 0
        """Number of crashes during a write."""
        self.kept_write_backs = 0
        """Number of write-backs that became durable in a crash, unknown to the process that asked for them."""
        self.torn_installs = 0
        """Number of crashes between the two files of an installed snapshot."""
        self.overtaken_installs = 0
        """Number of installations of snapshots during which entries after the snapshot were replaced."""
        self.on_first_file: Callable[[], bool] = lambda: False
        """Called when the first of these files was replaced. Returns whether the process was killed by that."""
        self.refused_writes = 0
        self.failing_commits = 0
        """Number of the next commits that fail."""
        self.failed_commits = 0
        self.on_failed_commit: Callable[[], None] = lambda: None
        self.map_bytes_max = 0
        """If not 0, the size at which a file counts as full."""
        self.is_copy = False
        """Whether this is a copy of a disk that was in use."""

    def backup(self) -> Disk:
        """Return a copy of the durable data on another disk."""
        twin = Disk(random.Random(self.rng.getrandbits(64)), self.capacity)
        twin.is_copy = True
        twin.latency = self.latency
        twin.files = {key: file.copy() for key, file in self.files.items()}
        twin.state_files = {key: file.copy() for key, file in self.state_files.items()}
        twin.times = dict(self.times)
        twin.registry = dict(self.registry)
        return twin

    def node(self) -> NodeRow:
        """Return the node's row in its registry."""
        row = self.registry.get(_NODE)
        return decode_node(row[:-CHECKSUM_BYTES]) if row is not None else NodeRow()

    def free_bytes(self) -> int:
        """Return the number of free bytes."""
        if self.is_full:
            return 0
        free = self.capacity - BALLAST_BYTES * self.has_ballast
        for files in (self.files.values(), self.state_files.values(), self.copies):
            for file in files:
                free -= file.allocated
        return free

    def failing_commit(self) -> bool | None:
        """Return None if the present commit succeeds. Otherwise return whether it takes effect, which nobody can know."""
        if not self.failing_commits:
            return None
        self.failing_commits -= 1
        self.failed_commits += 1
        self.on_failed_commit()
        return self.rng.random() < 0.5

    def write_seconds(self, now: float) -> float:
        """Draw the duration of a commit that begins now."""
        latency = self.latency
        if self.slow_latency:
            self.slow_commits += 1
            latency = self.slow_latency
        seconds = latency * (0.5 + self.rng.expovariate(2.0))
        return max(0.0, self.stalled_until - now) + seconds

    def flip_byte(self, rng: random.Random) -> tuple[ReplicaKey, str, bytes] | None:
        """Damage one stored row. Return its replica, its table and its key, or None if there are no rows."""
        rows = [
            (key, name, file.tables[name], row)
            for files, names in ((self.files, ("log", "state", "meta")), (self.state_files, ("rows", "meta")))
            for key, file in sorted(files.items())
            for name in names
            for row in file.tables[name].keys()  # noqa: SIM118 -- a table's keys are sorted
        ]
        if not rows:
            return None
        key, name, table, row = rng.choice(rows)
        value = bytearray(table.rows[row])
        value[rng.randrange(len(value))] ^= 1 << rng.randrange(8)
        table.put(row, bytes(value))
        return key, name, row


class SimTimesFile(TimesFile):
    """A file of bounds, which is saved often. Some writes are lost, and others cut off."""

    save_bytes = 2048

    def __init__(self, key: ReplicaKey, disk: Disk) -> None:
        self._key = key
        self._disk = disk

    def read(self) -> bytes | None:
        """See `TimesFile`."""
        return self._disk.times.get(self._key)

    def write(self, content: bytes) -> None:
        """See `TimesFile`."""
        disk = self._disk
        disk.times_written += 1
        if disk.times_written % 5 == 0:
            content = content[: len(content) // 2]
        if disk.times_written % 3:
            disk.times[self._key] = content


class SimReplica(LmdbReplica):
    """The production replica over a file in memory."""

    def __init__(self, key: ReplicaKey, disk: Disk, file: RowFile, map_bytes: int, verify: Verify) -> None:
        self.file = file
        self._disk = disk
        super().__init__(key, Path(f"{key.group_id}-{key.replica_id}"), map_bytes, verify)

    def attach(self, verify: Verify) -> None:
        """See `LmdbReplica`. The file is in memory."""
        with reading(self.key):
            environment = MemoryEnvironment(self.file, self._map_bytes, self._disk.failing_commit)
            databases = cast("Any", _Databases)
            with environment.begin(buffers=True) as transaction:
                view = cast("Any", transaction)
                self._checked(lambda: self._read_all_meta(view, databases, verify))
        self._environment, self._databases = cast("Any", environment), databases

    def _times_file(self) -> TimesFile:
        return SimTimesFile(self.key, self._disk)

    def _read_file(self, place: ScrubPlace, bytes_max: int) -> ScrubSlice:
        """Read nothing, since there are no bytes except the rows."""
        place.is_file_read = True
        return ScrubSlice(0, 0)

    def stream(self) -> Any:
        """See `LmdbReplica`. The stream keeps seeing the current rows."""
        meta, rows = super().stream()
        _freeze(self._streams, "state", WHOLE_TABLE)
        return meta, rows


class SimStateFile(LmdbStateFile):
    """The production state file over rows in memory."""

    def __init__(self, key: ReplicaKey, disk: Disk, file: RowFile, map_bytes: int, verify: Verify) -> None:
        self.file = file
        self._disk = disk
        super().__init__(key, Path(f"{key.group_id}-{key.replica_id}.state"), map_bytes, verify)

    def attach(self, verify: Verify) -> None:
        """See `LmdbStateFile`. The file is in memory."""
        with reading(self.key):
            environment = MemoryEnvironment(self.file, self._map_bytes, self._disk.failing_commit)
            databases = cast("Any", _StateDatabases)
            with environment.begin(buffers=True) as transaction:
                view = cast("Any", transaction)
                self._checked(lambda: self._read_meta(view, databases, verify))
        self._environment, self._databases = cast("Any", environment), databases

    def _read_file(self, place: ScrubPlace, bytes_max: int) -> ScrubSlice:
        """Read nothing, since there are no bytes except the rows."""
        place.is_file_read = True
        return ScrubSlice(0, 0)

    def stream(self, ranges: Sequence[KeyRange] | None = None) -> Any:
        """See `LmdbStateFile`. The stream keeps seeing the current rows."""
        meta, rows = super().stream(ranges)
        _freeze(self._streams, "rows", WHOLE_TABLE if ranges is None else ranges)
        return meta, rows


class SimStateCopy(LmdbStateCopy):
    """The production copy over rows in memory."""

    def __init__(self, key: ReplicaKey, disk: Disk, file: RowFile, position: LogPosition) -> None:
        self._disk = disk
        self.file = file
        disk.copies.append(file)
        disk.copies_made += 1
        super().__init__(key, Path(f"{key.group_id}-{key.replica_id}.copy"), position)

    def attach(self, verify: Verify) -> None:
        """See `LmdbStateCopy`. The file is in memory, and so small that its size says nothing."""
        self.file_bytes = self.file.size
        with reading(self.key):
            environment = MemoryEnvironment(self.file, 0)
            databases = cast("Any", _StateDatabases)
            with environment.begin(buffers=True) as transaction:
                view = cast("Any", transaction)
                self._checked(lambda: self._read_meta(view, databases, verify))
        self._environment, self._databases = cast("Any", environment), databases

    def close(self) -> None:
        """See `StateCopy.close`."""
        self.detach()
        if self.file in self._disk.copies:
            self._disk.copies.remove(self.file)


class SimStagedState(LmdbStagedState):
    """The production file of an arriving snapshot, in memory. It is gone with the process."""

    def __init__(self, key: ReplicaKey, position: LogPosition) -> None:
        self.file = RowFile(*_STATE_DATABASES)
        super().__init__(key, Path("staged"), 0, position, disturbed)

    def _create(self, map_bytes: int) -> Any:
        return MemoryEnvironment(self.file, map_bytes), _StateDatabases


def _freeze(streams: Iterable[OpenStream], table: str, ranges: Sequence[KeyRange]) -> None:
    """Have the newest stream keep the current rows: transactions in memory see later ones, too."""
    for stream in streams:
        transaction = cast("Any", stream._transaction)
        if transaction is not None and not getattr(transaction, "is_frozen", False):
            transaction.is_frozen = True
            transaction.freeze()
            stream._cursor = transaction.cursor(table)
            stream._ranges = iter(ranges)
            stream._begin_range()


class _Databases:
    log, meta, state = _DATABASES


class _StateDatabases:
    rows, meta = _STATE_DATABASES


class SimLogStore(LmdbLogStore):
    """The production store, with files in memory."""

    def __init__(self, disk: Disk, *, map_bytes: int, verify: Verify = Verify.TAIL) -> None:
        self.disk = disk
        self._map_bytes = map_bytes
        self._verify = verify
        self._without_holes = {}
        self._states = {}
        self._replicas: dict[ReplicaKey, LmdbReplica] = {}
        self._opening: set[ReplicaKey] = set()
        self.installs = 0
        disk.copies_left += len(disk.copies)
        disk.copies.clear()
        self.is_crashing = False
        """Whether the process is being killed: the install under way may get no further than its first file."""

    def exists(self, key: ReplicaKey) -> bool:
        """See `LmdbLogStore`."""
        return key in self.disk.files

    def stored_replicas(self) -> list[ReplicaKey]:
        """See `LmdbLogStore`."""
        return sorted(self.disk.files)

    def create(self, key: ReplicaKey, restored: RestoredState, rows: Iterable[Row]) -> None:
        """See `LogStore.create`."""
        if self.exists(key):
            raise ReplicaExistsError(key, "its file exists")
        self._check_room(key, 1024)
        self.disk.files[key] = _log_file(key, meta_of_new_replica(restored), FORMAT_VERSION, rows)

    def create_with_state_file(self, key: ReplicaKey, restored: RestoredState) -> None:
        """See `StateStore.create_with_state_file`."""
        if self.exists(key):
            raise ReplicaExistsError(key, "its file exists")
        self._check_room(key, 1024)
        self.disk.state_files[key] = _state_file(key, state_meta_of_new_replica(restored), ())
        self.disk.files[key] = _log_file(key, meta_of_new_replica(restored), FORMAT_WITH_STATE_FILE, ())

    def open(self, key: ReplicaKey) -> RestoredState:
        """See `LogStore.open`."""
        invariant(key not in self._replicas, "opened_once", group_id=key.group_id, replica_id=key.replica_id)
        if not self.exists(key):
            raise MissingReplicaError(key, "its file is missing")
        replica = SimReplica(key, self.disk, self.disk.files[key], self._map_bytes, self._verify)
        if replica.has_state_file:
            if key not in self.disk.state_files:
                raise MissingReplicaError(key, "its state file is missing")
            state = SimStateFile(key, self.disk, self.disk.state_files[key], self._map_bytes, self._verify)
            self._match(replica, state.meta)
            self._states[key] = state
        self._replicas[key] = replica
        return self._restored(replica)

    def _reset_log(self, replica: LmdbReplica, meta: ReplicaMeta) -> None:
        """See `LmdbLogStore`."""
        self._exchange(cast("SimReplica", replica), _log_file(replica.key, meta, FORMAT_WITH_STATE_FILE, ()))

    def _exchange(self, replica: SimReplica, file: RowFile) -> None:
        replica.detach()
        self.disk.files[replica.key] = replica.file = file
        replica.attach(Verify.TAIL)

    def verify(self, key: ReplicaKey) -> str | None:
        """See `LmdbLogStore`. There are no pages here that can be damaged, only rows, which the opening checks."""
        return None

    def _log_of(self, owner: ReplicaKey, old: ReplicaKey) -> LmdbReplica:
        return SimReplica(owner, self.disk, self.disk.files[old], self._map_bytes, self._verify)

    def _state_of(self, owner: ReplicaKey, old: ReplicaKey, key: ReplicaKey) -> LmdbStateFile:
        file = self.disk.state_files.get(old) or self.disk.state_files.get(key)
        if file is None:
            raise MissingReplicaError(key, "its state file is missing")
        return SimStateFile(owner, self.disk, file, self._map_bytes, self._verify)

    def _rename(self, key: ReplicaKey, old: ReplicaKey) -> None:
        """See `LmdbLogStore`."""
        for files in (self.disk.state_files, self.disk.files):
            if old in files:
                files[key] = files.pop(old)
        self.disk.times.pop(old, None)

    def retire(self, key: ReplicaKey) -> None:
        """See `LogStore.retire`."""
        self.close(key)
        for files in (self.disk.files, self.disk.state_files):
            file = files.pop(key, None)
            if file is not None:
                self.disk.trash.append(file)
        self.disk.times.pop(key, None)

    def empty_trash(self, grace_seconds: float, now_seconds: float | None = None) -> int:
        """See `LmdbLogStore`."""
        count = len(self.disk.trash)
        self.disk.trash.clear()
        return count

    def install(self, key: ReplicaKey, hard_state: HardState, meta: SnapshotMeta, rows: Iterable[Row]) -> None:
        """See `LogStore.install`."""
        replica = cast("SimReplica", self._replica(key))
        self._check_room(key, 1024)
        new = meta_of_snapshot(replica.meta, hard_state, meta)
        state = cast("SimStateFile | None", self._states.get(key))
        if state is None:
            self._exchange(replica, _log_file(key, new, FORMAT_VERSION, rows))
        else:
            new_state = state_meta_of_snapshot(replica.meta.position, meta)
            file = _state_file(key, new_state, rows_of_snapshot(rows, meta.position))
            self._exchange_both(replica, state, file, new)
        self.installs += 1

    def _exchange_both(self, replica: SimReplica, state: SimStateFile, file: RowFile, new: ReplicaMeta) -> None:
        key = replica.key
        state.detach()
        self.disk.state_files[key] = state.file = file
        if (self.is_crashing and self.disk.rng.random() < 0.5) or self.disk.on_first_file():
            self.disk.torn_installs += 1
            raise CommitFailedError(key, "the process was killed between the two files")
        state.attach(Verify.TAIL)
        self._exchange(replica, _log_file(key, new, FORMAT_WITH_STATE_FILE, ()))

    def stage(self, key: ReplicaKey, position: LogPosition) -> StagedState:
        """See `StateStore.stage`."""
        return SimStagedState(key, position)

    def install_staged(self, key: ReplicaKey, hard_state: HardState, meta: SnapshotMeta, staged: StagedState) -> None:
        """See `StateStore.install_staged`."""
        replica, state = cast("SimReplica", self._replica(key)), cast("SimStateFile", self._state(key))
        self._check_room(key, 1024)
        new_state = state_meta_of_snapshot(replica.meta.position, meta)
        assert isinstance(staged, SimStagedState)
        file = staged.file.copy()
        _put_meta(file, key, new_state)
        self._exchange_both(replica, state, file, meta_of_snapshot(replica.meta, hard_state, meta))
        self.installs += 1

    def copy_state(self, key: ReplicaKey) -> StateCopy:
        """See `StateStore.copy_state`."""
        state = cast("SimStateFile", self._state(key))
        if self.disk.is_full:
            raise StorageFullError(key, "no room for a copy")
        return SimStateCopy(key, self.disk, state.file.copy(), self._replica(key).meta.position)

    def space(self, key: ReplicaKey, part: FilePart = FilePart.LOG) -> FileSpace:
        """See `LmdbLogStore`."""
        file = cast("SimReplica | SimStateFile", self._file(key, part)).file
        return FileSpace(file.allocated * SPACE_SCALE, file.size * SPACE_SCALE)

    def look(self, key: ReplicaKey, part: FilePart = FilePart.LOG) -> tuple[FileSpace, bool]:
        """See `LmdbLogStore`."""
        return self.space(key, part), part is FilePart.LOG and self.has_truncated_rows(key)

    def reclaim(self, key: ReplicaKey, part: FilePart = FilePart.LOG) -> Released:
        """See `LmdbLogStore`. One call returns all free space, since rows have no pages."""
        file = cast("SimReplica | SimStateFile", self._file(key, part)).file
        before, file.allocated = file.allocated, file.size
        return Released(before - file.size, is_complete=True)

    def append_batch(self, updates: Sequence[tuple[ReplicaKey, Update]]) -> None:
        """See `LogStore.append_batch`."""
        for key, update in updates:
            if update.entries:
                self._check_room(key, sum(len(entry.payload) for entry in update.entries))
        super().append_batch(updates)

    def write_state(self, key: ReplicaKey, write: StateWrite) -> None:
        """See `StateStore.write_state`."""
        self._check_room(key, sum(len(row) + len(value or b"") for row, value in write.rows))
        super().write_state(key, write)

    def evacuate(self, key: ReplicaKey, bodies: Sequence[LocatedBody], after: int) -> bool:
        """See `StateStore.evacuate`."""
        self._check_room(key, sum(len(body) for _, body in bodies))
        return super().evacuate(key, bodies, after)

    def _check_room(self, key: ReplicaKey, size: int) -> None:
        limit = self.disk.map_bytes_max
        if limit and self.file_bytes(key) + size > limit:
            self.disk.refused_writes += 1
            raise StorageFullError(key, "no room")

    def file_bytes(self, key: ReplicaKey) -> int:
        """See `LogStore.file_bytes`."""
        files = (self.disk.files.get(key), self.disk.state_files.get(key))
        return sum(file.size for file in files if file is not None)


def _log_file(key: ReplicaKey, meta: ReplicaMeta, format_version: int, rows: Iterable[Row]) -> RowFile:
    file = RowFile(*_DATABASES)
    for row, value in rows:
        file.tables["state"].put(bytes(row), seal(row, value))
    file.tables["meta"].put(IDENTITY_KEY, encode_identity(Identity(format_version, key.group_id, key.replica_id)))
    file.tables["meta"].put(META_KEY, encode_meta(meta, CommitNote(file.commits, meta.last_index)))
    file.grow()
    return file


def _state_file(key: ReplicaKey, meta: StateMeta, rows: Iterable[Row]) -> RowFile:
    file = RowFile(*_STATE_DATABASES)
    for row, value in rows:
        file.tables["rows"].put(bytes(row), seal(row, value))
    _put_meta(file, key, meta)
    return file


def _put_meta(file: RowFile, key: ReplicaKey, meta: StateMeta) -> None:
    identity = Identity(STATE_FORMAT_VERSION, key.group_id, key.replica_id)
    file.tables["meta"].put(IDENTITY_KEY, encode_identity(identity))
    file.tables["meta"].put(STATE_META_KEY, encode_state_meta(meta, file.commits))
    file.grow()


class SimRegistry(Registry):
    """The production registry over rows in memory."""

    def __init__(self, disk: Disk) -> None:
        import threading

        self._rows = disk.registry
        self._rng = disk.rng
        self._disk = disk
        self._path = Path("node")
        self._changing = threading.RLock()
        self._is_closed = False
        self._node = NodeRow()
        self._suspects = frozenset()
        self._replicas = {}
        self._retired = set()
        self._live_in_group = {}
        for key, row in sorted(self._rows.items()):
            body = self._unsealed(key, row)
            if key == _NODE:
                self._node = decode_node(body)
            else:
                group_id, replica_id = key[:8], key[8:]
                replica = ReplicaKey(int.from_bytes(group_id, "big"), int.from_bytes(replica_id, "big"))  # type: ignore[arg-type]
                self._remember(replica, decode_row(body))
        self.was_abnormal_exit = self._node.is_running
        self._begin_boot()

    def _new_mark(self) -> bytes:
        """See `Registry`."""
        return self._rng.randbytes(MARK_BYTES)

    def close(self, *, is_clean: bool) -> None:
        """See `Registry`."""
        if self._is_closed:
            return
        self._is_closed = True
        if is_clean:
            from dataclasses import replace

            closed = {
                key: replace(row, open_in_boot=0, abnormal_exits=0)
                for key, row in self._replicas.items()
                if row.open_in_boot
            }
            self._write(replace(self._node, is_running=False), closed)

    def _write(self, node: Any, rows: Any) -> None:
        takes_effect = self._disk.failing_commit()
        if takes_effect is not False:
            self._put(node, rows)
        if takes_effect is not None:
            raise RegistryError("node cannot be written: mdb_txn_commit: Input/output error")

    def _put(self, node: Any, rows: Any) -> None:
        if node is not None:
            self._rows[_NODE] = seal(_NODE, encode_node(node))
            self._node = node
        for key, row in rows.items():
            packed = int(key.group_id).to_bytes(8, "big") + int(key.replica_id).to_bytes(8, "big")
            self._rows[packed] = seal(packed, encode_row(row))
        for key, row in rows.items():
            self._remember(key, row)


class SimReserve(DiskReserve):
    """The production reserve over a simulated volume."""

    def __init__(self, disk: Disk, reserve_bytes: int) -> None:
        super().__init__(
            Path("volume"), reserve_bytes, ballast_bytes=BALLAST_BYTES, free_bytes=disk.free_bytes,
            volume_bytes=lambda: disk.capacity,
        )  # fmt: skip
        self._disk = disk

    def _start_bytes(self) -> int:
        """Return 0, since a start writes no lock files here."""
        return 0

    @property
    def has_ballast(self) -> bool:
        """See `DiskReserve`."""
        return self._disk.has_ballast

    def create_ballast(self) -> bool:
        """See `DiskReserve`."""
        if not self._disk.has_ballast and self.free_bytes() - BALLAST_BYTES >= self.reserve_bytes:
            self._disk.has_ballast = True
        return self._disk.has_ballast

    def release_ballast(self) -> bool:
        """See `DiskReserve`."""
        had, self._disk.has_ballast = self._disk.has_ballast, False
        return had


class SimExecutor(Executor):
    """An executor that runs functions on the loop instead of reader threads."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """See `Executor`."""
        return self._loop.submit(fn, *args)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """See `Executor`."""


class SimDiskReaders(SimExecutor):
    """Threads that read from the disk or write the registry, and wait while the whole disk stalls."""

    def __init__(self, loop: VirtualLoop, disk: Disk) -> None:
        super().__init__(loop)
        self._disk = disk

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """See `Executor`."""
        future: Future[T] = Future()
        future.set_running_or_notify_cancel()
        self._loop.submit(self.run_into, future, fn, args)
        return future

    def run_into(self, future: Any, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        """See `VirtualLoop.run_in_executor`."""
        seconds = self._seconds()
        if seconds > 0.0:
            self._loop.call_later(max(seconds, HANGS_SECONDS), self.run_into, future, function, arguments)
        else:
            run_into(future, function, arguments)

    def _seconds(self) -> float:
        """Return the time after which to look again, or 0 to go on."""
        return self._disk.reads_stalled_until - self._loop.now


class SimRowReaders(SimDiskReaders):
    """Reads of the rows that entries need, which wait for a disk that hangs, too."""

    def _seconds(self) -> float:
        return HANGS_SECONDS if self._disk.hangs else super()._seconds()


class SimWriters:
    """`WriterThreads` in virtual time: each thread takes its queue, works for a random time, and reports."""

    def __init__(
        self,
        loop: VirtualLoop,
        disk: Disk,
        store: SimLogStore,
        thread_count: int,
        on_done: Callable[[list[Completion]], None],
        on_error: Callable[[BaseException], None],
    ) -> None:
        self._threads = [_Thread(loop, disk, store, on_done, on_error) for _ in range(thread_count)]
        self._assigned: dict[ReplicaKey, _Thread] = {}

    def _thread_of(self, key: ReplicaKey) -> _Thread:
        thread = self._assigned.get(key)
        if thread is None:
            thread = self._assigned[key] = self._threads[len(self._assigned) % len(self._threads)]
        return thread

    def submit(self, key: ReplicaKey, update: Update, token: object) -> None:
        """See `WriterThreads`."""
        thread = self._thread_of(key)
        thread.writer.submit(key, update, token)
        thread.begin()

    def run(self, key: ReplicaKey, function: Callable[[], T]) -> Future[T]:
        """See `WriterThreads`."""
        thread = self._thread_of(key)
        future = thread.writer.run(key, function)
        thread.begin()
        return future

    def lane(self, key: ReplicaKey) -> int:
        """See `WriterThreads`."""
        return self._threads.index(self._thread_of(key))

    def forget_refused(self, key: ReplicaKey) -> None:
        """See `WriterThreads`."""
        self._thread_of(key).writer.forget_refused(key)

    def forget(self, key: ReplicaKey) -> None:
        """See `WriterThreads`."""
        thread = self._assigned.pop(key, None)
        if thread is not None:
            thread.writer.forget(key)

    def close(self) -> None:
        """See `WriterThreads`."""
        for thread in self._threads:
            thread.writer.pump()

    def crash(self) -> None:
        """Crash: only some transactions of the writes under way become durable."""
        for thread in self._threads:
            thread.crash()


class _Thread:
    def __init__(
        self,
        loop: VirtualLoop,
        disk: Disk,
        store: SimLogStore,
        on_done: Callable[[list[Completion]], None],
        on_error: Callable[[BaseException], None],
    ) -> None:
        self._loop = loop
        self._disk = disk
        self._on_done = on_done
        self._is_crashed = False
        self._on_error = on_error
        self._store = store
        self._taken = 0
        self.writer = InlineWriter(store, on_done=self._done, on_error=self._failed)

    def _failed(self, error: BaseException) -> None:
        if not self._is_crashed:
            self._on_error(error)

    def _done(self, completions: list[Completion]) -> None:
        if not self._is_crashed:
            self._on_done(completions)

    def begin(self) -> None:
        """Begin to write the queue, unless the thread is busy."""
        if not self._taken:
            self._loop.call_soon(self._take)
            self._taken = -1

    def _take(self) -> None:
        self._taken = self.writer.waiting_count
        if self._taken:
            self._loop.call_later(self._disk.write_seconds(self._loop.now), self._finish)

    def _finish(self) -> None:
        if self._disk.hangs:
            self._loop.call_later(HANGS_SECONDS, self._finish)
            return
        taken, self._taken = self._taken, 0
        self.writer.pump(taken)
        if self.writer.waiting_count:
            self.begin()

    def crash(self) -> None:
        """See `SimWriters.crash`."""
        self._is_crashed = True
        taken = self._taken
        if taken > 0:
            self._disk.torn_commits += 1
            kept = self._disk.rng.randrange(taken + 1)
            if kept:
                self._store.is_crashing = True
                self.writer.pump(kept)
        self.writer.drop()
