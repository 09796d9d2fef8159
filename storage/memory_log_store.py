"""`LogStore` and `StateStore` in memory, for tests and the simulator: the same answers, and a crash on demand.

An update counts as durable here when `LmdbLogStore` would have it on disk. With `hold_updates` an `append_batch` is durable
and visible only after `sync`. `crash` drops the held updates, as a power cut drops bytes that were not flushed. Changes of a state
file are durable immediately.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

from raftmq.batch_header import max_timestamp_of
from raftmq.errors import invariant
from raftmq.raft.core import RestoredState
from raftmq.raft.entry import Entry, EntryHeader, EntryKind, LogPosition, fitting
from raftmq.raft.hard_state import HardState
from raftmq.raft.messages import SnapshotMeta
from raftmq.storage.entry_codec import ROW_OVERHEAD_BYTES
from raftmq.storage.errors import (
    DamagedReplicaError,
    LogRangeError,
    MissingReplicaError,
    ReplicaClosedError,
    ReplicaExistsError,
    StorageFullError,
)
from raftmq.storage.log_store import ReplicaKey, StoredSnapshot, TimeSearch, Update
from raftmq.storage.pending_state_write import (
    after_evacuation,
    bodies_alive,
    body_of_deleted,
    check_bodies_stay,
    check_evacuation,
    check_state_rows,
    plan_log_write,
    plan_state_write,
    rows_of_snapshot,
    state_meta_of_new_replica,
    state_meta_of_snapshot,
)
from raftmq.storage.pending_write import meta_of_new_replica, meta_of_snapshot, plan_write
from raftmq.storage.replica_codec import ReplicaMeta
from raftmq.storage.row_stream import ClosableRows, KeyRange, Row, RowStream
from raftmq.storage.state_codec import StateMeta
from raftmq.storage.state_store import (
    BoundedRange,
    LocatedBody,
    StagedState,
    StateCopy,
    StateWrite,
    body_key,
    is_location,
    sequence_of,
)
from raftmq.types import LogIndex, Offset, Term

_STREAM_ROWS = 256


@dataclass(slots=True)
class _StateImage:
    """The durable content of one state file."""

    meta: StateMeta
    rows: dict[bytes, bytes] = field(default_factory=dict)

    def delete(self, key: bytes) -> None:
        """Delete a row, and with a location the body of its message."""
        self.rows.pop(key, None)
        sequence = body_of_deleted(self.meta, key)
        if sequence is not None:
            self.rows.pop(body_key(sequence), None)

    def within(self, first_key: bytes, end_key: bytes | None) -> list[Row]:
        """Return the rows of a range in key order."""
        keys = sorted(key for key in self.rows if first_key <= key and (end_key is None or key < end_key))
        return [(key, self.rows[key]) for key in keys]

    def locations(self) -> list[bytes]:
        """Return the keys of all locations, of any generation."""
        return [key for key in self.rows if is_location(key)]


@dataclass(slots=True)
class _Image:
    """The durable content of one replica."""

    meta: ReplicaMeta
    log: dict[LogIndex, Entry] = field(default_factory=dict)
    """Rows before the truncation point stay until `delete_truncated`, as on disk."""
    state: dict[bytes, bytes] = field(default_factory=dict)
    state_file: _StateImage | None = None
    damage: str = ""


class _MemoryCopy:
    """A `StateCopy` in memory."""

    def __init__(self, key: ReplicaKey, stored: StoredSnapshot, rows: list[Row]) -> None:
        self._key = key
        self.position, self.state_index, self.membership = stored.position, stored.state_index, stored.membership
        self._rows = rows
        self._is_closed = False

    @property
    def file_bytes(self) -> int:
        """The bytes of the rows."""
        return sum(len(key) + len(value) for key, value in self._rows)

    def rows_from(self, first_key: bytes) -> ClosableRows:
        """See `StateCopy.rows_from`."""
        rows = iter([row for row in self._rows if row[0] >= first_key])

        def fetch() -> list[Row]:
            if self._is_closed:
                raise ReplicaClosedError(self._key, "the copy was deleted while its rows were read")
            return list(islice(rows, _STREAM_ROWS))

        return RowStream(fetch, lambda: None)

    def close(self) -> None:
        """See `StateCopy.close`."""
        self._is_closed = True


class MemoryStagedState:
    """A `StagedState` in memory."""

    def __init__(self, position: LogPosition) -> None:
        self._position = position
        self._rows: dict[bytes, bytes] = {}

    def put(self, rows: Sequence[Row]) -> None:
        """See `StagedState.put`."""
        self._rows.update(rows_of_snapshot(rows, self._position))

    def finish(self) -> None:
        """Do nothing."""

    def rows(self, ranges: Sequence[KeyRange]) -> Iterator[Row]:
        """See `StagedState.rows`."""
        for first_key, end_key in ranges:
            for key in sorted(self._rows):
                if first_key <= key and (end_key is None or key < end_key):
                    yield key, self._rows[key]

    def close(self) -> None:
        """See `StagedState.close`."""
        self._rows.clear()


class MemoryLogStore:
    """A `LogStore` whose replicas are dictionaries, with faults on demand."""

    def __init__(self, *, hold_updates: bool = False, replica_bytes_max: int | None = None) -> None:
        """Start empty.

        Args:
            hold_updates: Whether appends become durable and visible only with `sync`.
            replica_bytes_max: A write that would give a replica more bytes of rows than this raises `StorageFullError`.
        """
        self._hold_updates = hold_updates
        self._replica_bytes_max = replica_bytes_max
        self._images: dict[ReplicaKey, _Image] = {}
        self._trash: list[ReplicaKey] = []
        self._open: dict[ReplicaKey, object] = {}
        """Open replicas, each with a mark of its current opening. A stream of an earlier opening has another mark."""
        self._held: list[tuple[ReplicaKey, list[Update]]] = []

    # ------------------------------------------------------------------------------------------------------ faults

    def sync(self, count: int | None = None) -> None:
        """Make held updates durable, oldest first: the first `count` replica writes, or all."""
        due, self._held = self._held[:count], self._held[len(self._held[:count]) :]
        for key, updates in due:
            self._write(key, updates)

    @property
    def held_count(self) -> int:
        """Replica writes waiting for `sync`."""
        return len(self._held)

    def crash(self) -> None:
        """Simulate a crash of the process: drop held updates and close every replica."""
        self._held.clear()
        self._open.clear()

    def damage(self, key: ReplicaKey, what: str = "damaged on purpose") -> None:
        """Damage the replica: every later opening and read of it raises `DamagedReplicaError`."""
        self._images[key].damage = what

    # ------------------------------------------------------------------------------------------------------ life

    def exists(self, key: ReplicaKey) -> bool:
        """Return whether the replica is stored."""
        return key in self._images

    def stored_replicas(self) -> list[ReplicaKey]:
        """Return every stored replica, sorted."""
        return sorted(self._images)

    def open_replicas(self) -> list[ReplicaKey]:
        """Return every open replica, sorted."""
        return sorted(self._open)

    def create(self, key: ReplicaKey, restored: RestoredState, rows: Iterable[Row]) -> None:
        """See `LogStore.create`."""
        if key in self._images:
            raise ReplicaExistsError(key, "it exists")
        self._images[key] = _Image(meta_of_new_replica(restored), state=dict(rows))

    def create_with_state_file(self, key: ReplicaKey, restored: RestoredState) -> None:
        """See `StateStore.create_with_state_file`."""
        self.create(key, restored, ())
        self._images[key].state_file = _StateImage(state_meta_of_new_replica(restored))

    def open(self, key: ReplicaKey) -> RestoredState:
        """See `LogStore.open`."""
        invariant(key not in self._open, "opened_once", group_id=key.group_id, replica_id=key.replica_id)
        if key not in self._images:
            raise MissingReplicaError(key, "it does not exist")
        image = self._images[key]
        if image.damage:
            raise DamagedReplicaError(key, image.damage)
        self._open[key] = object()
        meta = image.meta
        state = image.state_file.meta if image.state_file is not None else meta
        starts: list[tuple[Term, LogIndex]] = []
        for index in range(meta.position.index + 1, meta.last_index + 1):
            entry = image.log[LogIndex(index)]
            if not starts or starts[-1][0] != entry.term:
                starts.append((entry.term, entry.index))
        return RestoredState(
            meta.hard_state,
            meta.position,
            meta.last_index,
            meta.last_next_offset,
            meta.last_append_time_ms,
            tuple(starts),
            state.membership,
            state.state_index,
        )

    def close(self, key: ReplicaKey) -> None:
        """See `LogStore.close`."""
        self._open.pop(key, None)

    def retire(self, key: ReplicaKey) -> None:
        """See `LogStore.retire`."""
        self.close(key)
        if self._images.pop(key, None) is not None:
            self._trash.append(key)

    def empty_trash(self, grace_seconds: float, now_seconds: float | None = None) -> int:
        """Delete all retired replicas of any age, since there is no clock here. Return their number."""
        del grace_seconds, now_seconds
        count = len(self._trash)
        self._trash.clear()
        return count

    def _image(self, key: ReplicaKey) -> _Image:
        if key not in self._open:
            raise ReplicaClosedError(key, "not open")
        image = self._images[key]
        if image.damage:
            raise DamagedReplicaError(key, image.damage)
        return image

    def _state(self, key: ReplicaKey) -> _StateImage:
        state = self._image(key).state_file
        if state is None:
            raise ReplicaClosedError(key, "its state file is not open")
        return state

    # ------------------------------------------------------------------------------------------------------ writes

    def append_batch(self, updates: Sequence[tuple[ReplicaKey, Update]]) -> None:
        """See `LogStore.append_batch`."""
        of_key: dict[ReplicaKey, list[Update]] = {}
        for key, update in updates:
            of_key.setdefault(key, []).append(update)
        for key, list_of_key in of_key.items():
            if self._hold_updates:
                self._image(key)
                self._held.append((key, list_of_key))
            else:
                self._write(key, list_of_key)

    def _write(self, key: ReplicaKey, updates: Sequence[Update]) -> None:
        image = self._image(key)
        if image.state_file is None:
            write = plan_write(image.meta, updates)
        else:
            check_bodies_stay(updates, self.first_location(key, image.state_file.meta.evacuated_through))
            write = plan_log_write(image.meta, updates, image.state_file.meta.state_index)
        added = sum(len(entry.payload) + ROW_OVERHEAD_BYTES for entry in write.entries)
        if self._replica_bytes_max is not None and self.file_bytes(key) + added > self._replica_bytes_max:
            raise StorageFullError(key, "no room")
        for index in range(write.delete_from, image.meta.last_index + 1):
            del image.log[LogIndex(index)]
        for entry in write.entries:
            image.log[entry.index] = entry
        for row, value in write.state_rows.items():
            if value is None:
                image.state.pop(row, None)
            else:
                image.state[row] = value
        image.meta = write.meta

    def install(self, key: ReplicaKey, hard_state: HardState, meta: SnapshotMeta, rows: Iterable[Row]) -> None:
        """See `LogStore.install`. Held updates of the replica are dropped, since the snapshot replaces them."""
        image = self._image(key)
        new = _Image(meta_of_snapshot(image.meta, hard_state, meta))
        if image.state_file is None:
            new.state = dict(rows)
        else:
            state = state_meta_of_snapshot(image.meta.position, meta)
            new.state_file = _StateImage(state, dict(rows_of_snapshot(rows, meta.position)))
        self._images[key] = new
        self._held = [held for held in self._held if held[0] != key]
        self._open[key] = object()

    def delete_truncated(self, key: ReplicaKey, rows_max: int) -> bool:
        """See `LogStore.delete_truncated`."""
        image = self._image(key)
        dead = (index for index in sorted(image.log) if index <= image.meta.position.index)
        doomed = list(islice(dead, rows_max + 1))
        for index in doomed[:rows_max]:
            del image.log[index]
        return len(doomed) > rows_max

    # ------------------------------------------------------------------------------------------------------ state files

    def has_state_file(self, key: ReplicaKey) -> bool:
        """See `StateStore.has_state_file`."""
        return self._image(key).state_file is not None

    def write_state(self, key: ReplicaKey, write: StateWrite) -> None:
        """See `StateStore.write_state`."""
        state = self._state(key)
        meta = plan_state_write(state.meta, write)
        check_state_rows(write.rows)
        for row, value in write.rows:
            if value is None:
                state.delete(row)
            else:
                state.rows[row] = value
        state.meta = meta

    def evacuate(self, key: ReplicaKey, bodies: Sequence[LocatedBody], after: int) -> bool:
        """See `StateStore.evacuate`."""
        state = self._state(key)
        if state.meta.evacuated_through != after:
            return False
        check_evacuation(state.meta, bodies)
        last = bodies[-1][0]
        waiting = {
            location
            for location in state.locations()
            if location[:-8] == last[:-8] and state.meta.evacuated_through < sequence_of(location) <= sequence_of(last)
        }
        for location, body in bodies_alive(bodies, waiting):
            state.rows[body_key(sequence_of(location))] = body
        state.meta = after_evacuation(state.meta, bodies)
        return True

    def delete_rows(self, key: ReplicaKey, rows: KeyRange, rows_max: int) -> bool:
        """See `StateStore.delete_rows`."""
        state = self._state(key)
        found = state.within(*rows)[:rows_max]
        for row, _ in found:
            state.delete(row)
        return len(found) == rows_max

    def read_rows(self, key: ReplicaKey, ranges: Sequence[BoundedRange]) -> list[list[Row]]:
        """See `StateStore.read_rows`."""
        state = self._state(key)
        return [state.within(first_key, end_key)[:rows_max] for first_key, end_key, rows_max in ranges]

    def resident_rows(self, key: ReplicaKey, ranges: Sequence[KeyRange]) -> ClosableRows:
        """See `StateStore.resident_rows`."""
        state = self._state(key)
        return self._stream(key, [row for part in ranges for row in state.within(*part)])

    def read_body(self, key: ReplicaKey, sequence: int) -> bytes | None:
        """See `StateStore.read_body`."""
        return self._state(key).rows.get(body_key(sequence))

    def evacuated_through(self, key: ReplicaKey) -> int:
        """See `StateStore.evacuated_through`."""
        return self._state(key).meta.evacuated_through

    def first_location(self, key: ReplicaKey, after_sequence: int) -> int | None:
        """See `StateStore.first_location`."""
        sequences = map(sequence_of, self._state(key).locations())
        return min((sequence for sequence in sequences if sequence > after_sequence), default=None)

    # ------------------------------------------------------------------------------------------------------ reads

    def state_rows(self, key: ReplicaKey) -> ClosableRows:
        """See `LogStore.state_rows`."""
        return self.snapshot(key).rows

    def snapshot(self, key: ReplicaKey) -> StoredSnapshot:
        """See `LogStore.snapshot`."""
        image = self._image(key)
        if image.state_file is None:
            meta, rows = image.meta, self._stream(key, sorted(image.state.items()))
            return StoredSnapshot(meta.position, meta.state_index, meta.membership, rows)
        state = image.state_file.meta
        rows = self._stream(key, image.state_file.within(b"", None))
        return StoredSnapshot(image.meta.position, state.state_index, state.membership, rows)

    def state_bytes(self, key: ReplicaKey) -> int:
        """See `StateStore.state_bytes`."""
        return sum(len(row) + len(value) for row, value in self._state(key).rows.items())

    def copy_state(self, key: ReplicaKey) -> StateCopy:
        """See `StateStore.copy_state`."""
        return _MemoryCopy(key, self.snapshot(key), self._state(key).within(b"", None))

    def stage(self, key: ReplicaKey, position: LogPosition) -> StagedState:
        """See `StateStore.stage`."""
        del key
        return MemoryStagedState(position)

    def install_staged(self, key: ReplicaKey, hard_state: HardState, meta: SnapshotMeta, staged: StagedState) -> None:
        """See `StateStore.install_staged`."""
        self._state(key)
        self.install(key, hard_state, meta, staged.rows(((b"", None),)))

    def _stream(self, key: ReplicaKey, found: list[Row]) -> RowStream:
        opening = self._open[key]
        rows = iter(found)

        def fetch() -> list[Row]:
            if self._open.get(key) is not opening:
                raise ReplicaClosedError(key, "closed or replaced while its rows were read")
            return list(islice(rows, _STREAM_ROWS))

        return RowStream(fetch, lambda: None)

    def entries(self, key: ReplicaKey, first: LogIndex, last: LogIndex, bytes_max: int) -> tuple[Entry, ...]:
        """See `LogStore.entries`."""
        image = self._image(key)
        _check_range(key, image.meta, first, last)
        return fitting((image.log[LogIndex(index)] for index in range(first, last + 1)), bytes_max)

    def header(self, key: ReplicaKey, index: LogIndex) -> EntryHeader:
        """See `LogStore.header`."""
        image = self._image(key)
        _check_range(key, image.meta, index, index)
        return image.log[index].header()

    def find_offset(self, key: ReplicaKey, offset: Offset) -> LogIndex | None:
        """See `LogStore.find_offset`. It looks at every entry, which makes it an independent check of the bisection."""
        for entry in self._live_data(key):
            if entry.base_offset <= offset < entry.next_offset:
                return entry.index
        return None

    def find_time(self, key: ReplicaKey, append_time_ms: int) -> EntryHeader | None:
        """See `LogStore.find_time`."""
        for entry in self._live_data(key):
            if entry.append_time_ms >= append_time_ms:
                return entry.header()
        return None

    def find_timestamp(self, key: ReplicaKey, timestamp_ms: int, first_offset: Offset) -> TimeSearch:
        """See `LogStore.find_timestamp`. It looks at every batch."""
        for entry in self._live_data(key):
            time_ms = max_timestamp_of(entry.payload)
            if entry.next_offset > first_offset and time_ms is not None and time_ms >= timestamp_ms:
                return TimeSearch(entry.header())
        return TimeSearch(None)

    def _live_data(self, key: ReplicaKey) -> Iterable[Entry]:
        image = self._image(key)
        indexes = range(image.meta.position.index + 1, image.meta.last_index + 1)
        entries = (image.log[LogIndex(index)] for index in indexes)
        return (entry for entry in entries if entry.kind is EntryKind.DATA)

    def file_bytes(self, key: ReplicaKey) -> int:
        """See `LogStore.file_bytes`. Counts the bytes of entries and rows."""
        image = self._images.get(key)
        if image is None:
            return 0
        log_bytes = sum(len(entry.payload) + ROW_OVERHEAD_BYTES for entry in image.log.values())
        state = image.state if image.state_file is None else image.state_file.rows
        return log_bytes + sum(len(row) + len(value) for row, value in state.items())


def _check_range(key: ReplicaKey, meta: ReplicaMeta, first: LogIndex, last: LogIndex) -> None:
    if not meta.position.index < first <= last <= meta.last_index:
        raise LogRangeError(
            key, f"the log has the entries {meta.position.index + 1}..{meta.last_index}, not {first}..{last}"
        )
