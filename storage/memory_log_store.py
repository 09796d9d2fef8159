"""`LogStore` in memory, for tests and the simulator: the same answers, and a crash on demand.

An update counts as durable here when `LmdbLogStore` would have it on disk. With `hold_updates` an `append_batch` is durable
and visible only after `sync`. `crash` drops the held updates, as a power cut drops bytes that were not flushed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice

from raftmq.errors import invariant
from raftmq.raft.core import RestoredState
from raftmq.raft.entry import Entry, EntryHeader, EntryKind, fitting
from raftmq.raft.hard_state import HardState
from raftmq.raft.membership import Membership
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
from raftmq.storage.log_store import ReplicaKey, Update
from raftmq.storage.pending_write import meta_of_new_replica, meta_of_snapshot, plan_write
from raftmq.storage.replica_codec import ReplicaMeta
from raftmq.storage.row_stream import ClosableRows, Row, RowStream
from raftmq.types import LogIndex, Offset, Term

_STREAM_ROWS = 256


@dataclass(slots=True)
class _Image:
    """The durable content of one replica."""

    meta: ReplicaMeta
    log: dict[LogIndex, Entry] = field(default_factory=dict)
    """Rows before the truncation point stay until `delete_truncated`, as on disk."""
    state: dict[bytes, bytes] = field(default_factory=dict)
    damage: str = ""


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
            meta.membership,
            meta.state_index,
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
        write = plan_write(image.meta, updates)
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
        self._images[key] = _Image(meta_of_snapshot(image.meta, hard_state, meta), state=dict(rows))
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

    # ------------------------------------------------------------------------------------------------------ reads

    def state_rows(self, key: ReplicaKey) -> ClosableRows:
        """See `LogStore.state_rows`."""
        return self.snapshot(key)[2]

    def snapshot(self, key: ReplicaKey) -> tuple[LogIndex, Membership, ClosableRows]:
        """See `LogStore.snapshot`."""
        image = self._image(key)
        opening = self._open[key]
        rows = iter(sorted(image.state.items()))

        def fetch() -> list[Row]:
            if self._open.get(key) is not opening:
                raise ReplicaClosedError(key, "closed or replaced while its rows were read")
            return list(islice(rows, _STREAM_ROWS))

        return image.meta.state_index, image.meta.membership, RowStream(fetch, lambda: None)

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

    def _live_data(self, key: ReplicaKey) -> Iterable[Entry]:
        image = self._image(key)
        indexes = range(image.meta.position.index + 1, image.meta.last_index + 1)
        entries = (image.log[LogIndex(index)] for index in indexes)
        return (entry for entry in entries if entry.kind is EntryKind.DATA)

    def file_bytes(self, key: ReplicaKey) -> int:
        """See `LogStore.file_bytes`. Counts the bytes of entries and state rows."""
        image = self._images.get(key)
        if image is None:
            return 0
        log_bytes = sum(len(entry.payload) + ROW_OVERHEAD_BYTES for entry in image.log.values())
        return log_bytes + sum(len(row) + len(value) for row, value in image.state.items())


def _check_range(key: ReplicaKey, meta: ReplicaMeta, first: LogIndex, last: LogIndex) -> None:
    if not meta.position.index < first <= last <= meta.last_index:
        raise LogRangeError(
            key, f"the log has the entries {meta.position.index + 1}..{meta.last_index}, not {first}..{last}"
        )
