"""The interface of durable storage for the engine: one log with its derived state per replica, one transaction per update.

Two implementations, `LmdbLogStore` and `MemoryLogStore`, pass the same conformance suite. Thread rules: the methods that
change a replica (`append_batch`, `install`, `delete_truncated`, `close` and so on) are called by one thread at a time, the
replica's writer. Any thread may read. A read of a replica that is not open raises `ReplicaClosedError`. A read of an index
outside the durable log raises `LogRangeError`. Any caller must expect it, since the log may be trimmed after the caller has
looked at its range.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from raftmq.raft.core import RestoredState
from raftmq.raft.entry import Entry, EntryHeader, LogPosition
from raftmq.raft.hard_state import HardState
from raftmq.raft.membership import Membership
from raftmq.raft.messages import SnapshotMeta
from raftmq.storage.row_stream import ClosableRows
from raftmq.types import GroupId, LogIndex, Offset, ReplicaId

StateRow = tuple[bytes, bytes | None]
"""(key, value) of the state machine's table. A value of None deletes the row. Keys have 1 to `STATE_KEY_BYTES_MAX` bytes."""

STATE_KEY_BYTES_MAX = 511
"""LMDB's limit. The state machine must respect it: a longer key violates an invariant."""


class ReplicaKey(NamedTuple):
    """Identifies one replica's storage on this node."""

    group_id: GroupId
    replica_id: ReplicaId


@dataclass(frozen=True, slots=True)
class Update:
    """The changes of one transaction. All fields are optional. They hold frozen bytes, never live objects of the state machine."""

    hard_state: HardState | None = None
    entries: tuple[Entry, ...] = ()
    """Appended in order. They replace the log's suffix from `entries[0].index` on, and never leave a gap."""
    truncation: LogPosition | None = None
    """The log now starts after this point. Its rows are deleted later in bounded slices (`delete_truncated`).
    Invariant: never beyond the durable `state_index`."""
    state_rows: tuple[StateRow, ...] = ()
    state_index: LogIndex | None = None
    """The exact index to which `state_rows` and `membership` bring the derived state. Set whenever `state_rows` is not empty."""
    membership: Membership | None = None
    """The configuration as of `state_index`, if it changed."""


class StoredSnapshot(NamedTuple):
    """The durable state of a replica, as it is sent to another one."""

    position: LogPosition
    """The point after which the log starts. It was read before the rows, or with them, so the log has everything that they lack."""
    state_index: LogIndex
    membership: Membership
    """The membership as of `state_index`."""
    rows: ClosableRows
    """All rows in key order, from the read transaction that gave `state_index`."""


class TimeSearch(NamedTuple):
    """The result of one step of a search by record timestamps."""

    header: EntryHeader | None
    """The batch that was found, or None."""
    is_complete: bool = True
    """Otherwise entries were read whose times were unknown, and more are left: the same call continues after them."""


class LogStore(Protocol):
    """The stored replicas of one node. Every value read is checked by its CRC32C, and damage raises `DamagedReplicaError`."""

    def create(self, key: ReplicaKey, restored: RestoredState, rows: Iterable[tuple[bytes, bytes]]) -> None:
        """Create a new replica's file with this state and no entries, durable on return.

        Raises `ReplicaExistsError`, or `StorageFullError` or `StorageUnavailableError`, after which there is no file.
        """
        ...

    def open(self, key: ReplicaKey) -> RestoredState:
        """Open an existing replica and check it. Raises `MissingReplicaError` or `DamagedReplicaError`."""
        ...

    def state_rows(self, key: ReplicaKey) -> ClosableRows:
        """Return all state rows in key order, from one read transaction, which ends after the last row or with `close`."""
        ...

    def snapshot(self, key: ReplicaKey) -> StoredSnapshot:
        """Return the durable `state_index`, the membership at that index and the state rows, all from ONE read transaction.

        A thread streams a snapshot from them. Another thread may continue between two calls. `close` ends the transaction.
        The rows raise `ReplicaClosedError` when the replica has been closed or replaced since.
        """
        ...

    def append_batch(self, updates: Sequence[tuple[ReplicaKey, Update]]) -> None:
        """Make all updates durable in one transaction per replica. On return all are on disk.

        `StorageFullError` or `DamagedReplicaError` names a replica of whose updates nothing was applied. Replicas before it in the
        batch are written, and replicas after it are not. Any other error must end the process.
        """
        ...

    def install(
        self, key: ReplicaKey, hard_state: HardState, meta: SnapshotMeta, rows: Iterable[tuple[bytes, bytes]]
    ) -> None:
        """Replace the whole log and state by a snapshot: write a new file, sync it and swap it in by one atomic rename.

        The replica must be open and stays open. After `StorageFullError` it is unchanged. After `StorageUnavailableError` it must be
        closed: the old file or the new one is under its name.
        """
        ...

    def entries(self, key: ReplicaKey, first: LogIndex, last: LogIndex, bytes_max: int) -> tuple[Entry, ...]:
        """Return the durable entries `first`..`last`, but stop before `bytes_max` payload bytes are exceeded. At least one is returned."""
        ...

    def header(self, key: ReplicaKey, index: LogIndex) -> EntryHeader:
        """Return the header of one entry. Its checksum is checked as well."""
        ...

    def find_offset(self, key: ReplicaKey, offset: Offset) -> LogIndex | None:
        """Return the index of the DATA entry that holds `offset`.

        None if the offset is before the start of the log, or at or after its end. The caller knows both bounds and can
        tell the two cases apart.
        """
        ...

    def find_time(self, key: ReplicaKey, append_time_ms: int) -> EntryHeader | None:
        """Return the header of the first DATA entry appended at or after this time, or None. `find_timestamp` searches records' own times."""
        ...

    def find_timestamp(self, key: ReplicaKey, timestamp_ms: int, first_offset: Offset) -> TimeSearch:
        """Find the first record batch whose latest record has this timestamp or a later one, by the batches' headers.

        Batches whose records all lie before `first_offset` are ignored. One call reads a bounded number of entries.
        """
        ...

    def delete_truncated(self, key: ReplicaKey, rows_max: int) -> bool:
        """Delete up to `rows_max` rows before the truncation point in one transaction. Return True if more are left."""
        ...

    def close(self, key: ReplicaKey) -> None:
        """Close the replica's file. Does nothing if it is not open."""
        ...

    def retire(self, key: ReplicaKey) -> None:
        """Close the replica's file and move it to `trash/`. `empty_trash` deletes it after a grace period."""
        ...

    def file_bytes(self, key: ReplicaKey) -> int:
        """Return the bytes of the volume that the replica's file occupies, for metrics. Retention by size uses the log's own counts."""
        ...
