"""What the engine needs of durable storage: one log with its derived state per replica, one transaction per update.

Two implementations, `LmdbLogStore` and `MemoryLogStore`, pass one conformance suite. Thread rules: what changes a
replica (`append_batch`, `install`, `delete_truncated`, `close`, ...) is called from one thread at a time (its writer);
reads may come from any thread. Reads need an open replica (`ReplicaClosedError`), and an index outside the durable log
is a `LogRangeError`: a trim can always come between a look and a read.
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
"""(key, value) of the state machine's table; None deletes the row. Keys have 1 to `STATE_KEY_BYTES_MAX` bytes."""

STATE_KEY_BYTES_MAX = 511
"""LMDB's limit. The state machine must keep to it: a longer key is an invariant violation, not a refusal."""


class ReplicaKey(NamedTuple):
    """Names one replica's storage on this node."""

    group_id: GroupId
    replica_id: ReplicaId


@dataclass(frozen=True, slots=True)
class Update:
    """Everything one transaction changes. All fields optional; frozen bytes only, never live state-machine objects."""

    hard_state: HardState | None = None
    entries: tuple[Entry, ...] = ()
    """Appended in order; the log's suffix from `entries[0].index` on is replaced. Never leaves a gap."""
    truncation: LogPosition | None = None
    """The log now starts after this point. Its rows are deleted later in bounded slices (`delete_truncated`).
    Invariant: never beyond the durable `state_index`."""
    state_rows: tuple[StateRow, ...] = ()
    state_index: LogIndex | None = None
    """The exact index `state_rows` (and `membership`) bring the derived state to. Set whenever state_rows is not empty."""
    membership: Membership | None = None
    """The configuration as of `state_index`, when it changed."""


class LogStore(Protocol):
    """One node's replicas. Every value read is checked (CRC32C); damage raises `DamagedReplicaError`."""

    def create(self, key: ReplicaKey, restored: RestoredState, rows: Iterable[tuple[bytes, bytes]]) -> None:
        """Make a new replica's file with that state and no entries; durable on return. `ReplicaExistsError` if it is there."""
        ...

    def open(self, key: ReplicaKey) -> RestoredState:
        """Open an existing replica and check it; raises `MissingReplicaError` or `DamagedReplicaError`."""
        ...

    def state_rows(self, key: ReplicaKey) -> ClosableRows:
        """All state rows in key order, from one read transaction, which ends with the last row or `close`."""
        ...

    def snapshot(self, key: ReplicaKey) -> tuple[LogIndex, Membership, ClosableRows]:
        """Durable `state_index`, the membership as of it, and the rows, all from ONE read transaction.

        For streaming a snapshot in a thread; the thread may change between calls. `close` ends the transaction. A
        stream whose replica is closed or replaced meanwhile raises `ReplicaClosedError`.
        """
        ...

    def append_batch(self, updates: Sequence[tuple[ReplicaKey, Update]]) -> None:
        """Make each update durable, one transaction a replica; on return all are on disk.

        Any error other than `StorageFullError` (raised with nothing of that replica's updates applied; replicas before
        it in the batch are done, those after it are not) must end the process.
        """
        ...

    def install(
        self, key: ReplicaKey, hard_state: HardState, meta: SnapshotMeta, rows: Iterable[tuple[bytes, bytes]]
    ) -> None:
        """Replace the whole log and state by a snapshot: a new file, written, synced, swapped by one atomic rename.

        The replica must be open and stays so. `StorageFullError`: it is as it was.
        """
        ...

    def entries(self, key: ReplicaKey, first: LogIndex, last: LogIndex, bytes_max: int) -> tuple[Entry, ...]:
        """Durable entries `first`..`last`, cut off before `bytes_max` payload bytes but at least one."""
        ...

    def header(self, key: ReplicaKey, index: LogIndex) -> EntryHeader:
        """One row's header (its CRC is checked too)."""
        ...

    def find_offset(self, key: ReplicaKey, offset: Offset) -> LogIndex | None:
        """Index of the DATA entry that holds `offset` (bisect over headers).

        None at or past the end of the log, and before its start: the caller knows both and tells them apart.
        """
        ...

    def find_time(self, key: ReplicaKey, append_time_ms: int) -> EntryHeader | None:
        """Header of the first DATA entry appended at or after that time; None when there is none."""
        ...

    def delete_truncated(self, key: ReplicaKey, rows_max: int) -> bool:
        """Delete up to `rows_max` rows behind the truncation point in one transaction; True when more are left."""
        ...

    def close(self, key: ReplicaKey) -> None:
        """Close the replica's file (no-op when it is not open)."""
        ...

    def retire(self, key: ReplicaKey) -> None:
        """Move the replica's file to `trash/` (closed first); `empty_trash` deletes it after a grace period."""
        ...

    def file_bytes(self, key: ReplicaKey) -> int:
        """Bytes of the volume that the replica's file takes: for metrics. Retention by size goes by the log's own counts."""
        ...
