"""The interface of storage for replicas whose derived state has a file of its own, beside that of their log.

A queue has millions of rows, and its state is written back in large transactions. In the log's file acknowledgements would wait for
them. So such a replica has two files with a writer each:

- The file of the log is as in `log_store`, except that its table `state` stays empty. It is changed on the replica's writer.
- The state file is changed by `write_state`, `evacuate` and `delete_rows`, which one thread at a time calls: the state's writer.
  `install`, `close` and `retire` change both files, on the replica's writer, and wait for the state's writer.

A message is a row of the state machine, and its body is in the entry that brought it. So that a long-delayed message does not keep the
log from being truncated, bodies are copied into the state file (*evacuated*), in the order of their sequences. Two kinds of rows are known
here by their keys: the *location* of a message, which exists as long as the message, and its *body*.

Invariants, as of the state file's `state_index`:

- The body of a message whose sequence is at most `evacuated_through` is in the state file, and goes with its location.
- The body of any other message is in the log, which starts before its entry.
- The log starts at or before `state_index`, and at or after `position`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, Protocol

from raftmq.raft.core import RestoredState
from raftmq.raft.entry import LogPosition
from raftmq.raft.hard_state import HardState
from raftmq.raft.membership import Membership
from raftmq.raft.messages import SnapshotMeta
from raftmq.storage.log_store import LogStore, ReplicaKey, StateRow
from raftmq.storage.row_stream import ClosableRows, KeyRange, Row
from raftmq.types import LogIndex

LOCATION_TAG: Final = 0x20
"""First byte of the key of a location: generation (u32be) and sequence (u64be) follow."""
BODY_TAG: Final = 0x40
"""First byte of the key of a body: the sequence (u64be) follows. Only the store writes these rows."""
EVACUATED_BODIES_MAX: Final = 4_096
EVACUATED_BYTES_MAX: Final = 1024 * 1024
"""Bounds of one `evacuate`, the second unless there is only one body. Write-backs wait for it, and nothing else does."""

LOCATION_KEY: Final = struct.Struct(">BIQ")
BODY_KEY: Final = struct.Struct(">BQ")
_BODY_PREFIX: Final = bytes([BODY_TAG])

BoundedRange = tuple[bytes, bytes, int]
"""Rows in key order, from a first key (inclusive) to an end key (exclusive), at most so many. `fsm.row_reads.RowRange` is one."""

LocatedBody = tuple[bytes, bytes]
"""The key of a message's location, and the message's body."""


class FilePart(Enum):
    """The files of a replica. Each is maintained on its own writer."""

    LOG = "log"
    """Every replica has it. It exists exactly as long as the replica."""
    STATE = "state"


def location_key(generation: int, sequence: int) -> bytes:
    """Return the key of a message's location."""
    return LOCATION_KEY.pack(LOCATION_TAG, generation, sequence)


def body_key(sequence: int) -> bytes:
    """Return the key of a message's body."""
    return BODY_KEY.pack(BODY_TAG, sequence)


def is_location(key: bytes) -> bool:
    """Return whether the row under this key is the location of a message."""
    return len(key) == LOCATION_KEY.size and key[0] == LOCATION_TAG


def is_body(key: bytes) -> bool:
    """Return whether the row under this key is the body of a message."""
    return key[:1] == _BODY_PREFIX


def sequence_of(key: bytes) -> int:
    """Return the sequence at the end of the key of a location or a body."""
    return int.from_bytes(key[-8:], "big")


@dataclass(frozen=True, slots=True)
class StateWrite:
    """A write-back: the changes of the derived state since the last one, in frozen bytes."""

    state_index: LogIndex
    """The exact index to which the rows and the membership bring the state."""
    rows: tuple[StateRow, ...] = ()
    """In any order, each key once. The deletion of a location deletes the message's body, too."""
    membership: Membership | None = None
    """The configuration as of `state_index`, if it changed."""


class StateCopy(Protocol):
    """The durable state of a replica as of one transaction, in a file of its own. It stays as it is when the replica changes or ends."""

    @property
    def position(self) -> LogPosition:
        """The point after which the log started before the copy was made, so the log has everything that the copy lacks."""
        ...

    @property
    def state_index(self) -> LogIndex:
        """The entry that the rows include."""
        ...

    @property
    def membership(self) -> Membership:
        """The membership as of `state_index`."""
        ...

    @property
    def file_bytes(self) -> int:
        """Bytes of the volume that the copy takes."""
        ...

    def rows_from(self, first_key: bytes) -> ClosableRows:
        """Return the rows from this key on, in key order. Any thread may call it. The rows raise `ReplicaClosedError` after `close`."""
        ...

    def close(self) -> None:
        """Delete the copy. Safe to call again."""
        ...


class StagedState(Protocol):
    """The state that an arriving snapshot brings, in a file of its own that replaces the replica's. One thread at a time uses it."""

    def put(self, rows: Sequence[Row]) -> None:
        """Write rows in one transaction: so many that they are in memory. Bodies that come with the log are left out.

        Raises `StorageFullError` or `StorageUnavailableError`, after which the snapshot must be given up.
        """
        ...

    def finish(self) -> None:
        """Bring all rows to disk, so that the installation need not wait for them. Raises as `put`."""
        ...

    def rows(self, ranges: Sequence[KeyRange]) -> Iterator[Row]:
        """Read rows back. Raises `StorageUnavailableError` if the disk returns other bytes than were written."""
        ...

    def close(self) -> None:
        """Delete the file, unless it was installed. This happens automatically when nothing refers to the object any more."""
        ...


class StateStore(LogStore, Protocol):
    """A `LogStore` whose replicas may have a state file. Its methods raise `ReplicaClosedError` for a replica that has none open.

    `open` answers with the state file's `state_index` and membership. `install` and `install_staged` replace both files: first the
    state file, which is the point of no return, then the log. If the process ends between the two, `open` repeats the second step.
    """

    def create_with_state_file(self, key: ReplicaKey, restored: RestoredState) -> None:
        """Create a new replica with two files and no rows, durable on return. Raises `ReplicaExistsError`."""
        ...

    def has_state_file(self, key: ReplicaKey) -> bool:
        """Return whether this open replica has a state file."""
        ...

    def write_state(self, key: ReplicaKey, write: StateWrite) -> None:
        """Make a write-back durable in one transaction. After `StorageFullError` nothing was applied."""
        ...

    def evacuate(self, key: ReplicaKey, bodies: Sequence[LocatedBody], after: int) -> bool:
        """Copy the next bodies into the state file, and move `evacuated_through` to the last of them, in one transaction.

        They are the bodies of all locations of one generation after `evacuated_through`, in order, as far as the caller wants. Those of
        messages that were finished in the meantime are skipped. Earlier generations are dead: their messages need no body.

        Args:
            key: The replica.
            bodies: The bodies with their locations.
            after: `evacuated_through` before the bodies were read.

        Return False, and write nothing, if `evacuated_through` has changed: a snapshot has replaced the file, which may need other bodies.
        """
        ...

    def delete_rows(self, key: ReplicaKey, rows: KeyRange, rows_max: int) -> bool:
        """Delete the first rows of a range, with the bodies of deleted locations, in one transaction. Return True if more may be left.

        For rows that the state machine does not see any more: those of earlier generations.
        """
        ...

    def read_rows(self, key: ReplicaKey, ranges: Sequence[BoundedRange]) -> list[list[Row]]:
        """Return the rows of each range, from one read transaction. Any thread may call it. The rows must fit in memory."""
        ...

    def resident_rows(self, key: ReplicaKey, ranges: Sequence[KeyRange]) -> ClosableRows:
        """Return the rows of these ranges, in their order, from one read transaction, as `state_rows` returns all rows."""
        ...

    def read_body(self, key: ReplicaKey, sequence: int) -> bytes | None:
        """Return an evacuated body, or None if there is none of this sequence."""
        ...

    def evacuated_through(self, key: ReplicaKey) -> int:
        """Return the last sequence up to which bodies were evacuated. It is below the log's first offset if none was."""
        ...

    def first_location(self, key: ReplicaKey, after_sequence: int) -> int | None:
        """Return the lowest sequence after this one that has a location, in any generation, or None.

        With `evacuated_through` it limits the truncation of the log: the entry that holds it must stay.
        """
        ...

    def state_bytes(self, key: ReplicaKey) -> int:
        """Return the bytes that `copy_state` would write."""
        ...

    def copy_state(self, key: ReplicaKey) -> StateCopy:
        """Copy the state file. Any thread may call it. A call that grows its map waits until it has ended.

        Raises:
            ReplicaClosedError: The replica has no open state file, or was closed in the meantime.
            StorageFullError: The volume has no room, or the replica got another state in the meantime.
            StorageUnavailableError: The file cannot be copied, for whatever reason. The snapshot can still be read from the file itself.
        """
        ...

    def stage(self, key: ReplicaKey, position: LogPosition) -> StagedState:
        """Begin a new state file for a snapshot whose log starts after `position`. The replica is unchanged. Any thread may call it.

        Raises `StorageFullError` or `StorageUnavailableError`.
        """
        ...

    def install_staged(self, key: ReplicaKey, hard_state: HardState, meta: SnapshotMeta, staged: StagedState) -> None:
        """Install a snapshot as `install` does, with all rows in `staged`. Only meta rows are written, and two files renamed.

        After `StorageFullError` the replica and `staged` are unchanged.
        """
        ...
