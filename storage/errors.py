"""What durable storage can refuse, as types the shell reacts to. Internal: services translate them for clients.

None of these may be retried blindly: each says in its docstring what was applied and what its receiver must do.
"""

from __future__ import annotations

from raftmq.errors import UnsupportedDataError
from raftmq.types import GroupId, ReplicaId


class ReplicaStorageError(Exception):
    """The root: something about one replica's storage. `group_id` and `replica_id` name it, `what` says what."""

    def __init__(self, key: tuple[GroupId, ReplicaId], what: str) -> None:
        self.group_id, self.replica_id = key
        self.what = what
        super().__init__(f"replica {self.replica_id} of group {self.group_id}: {what}")


class DamagedReplicaError(ReplicaStorageError):
    """A value does not match its checksum, or the file contradicts itself. Nothing was applied.

    The replica must fall silent at once (no votes, no serving) and be replaced from its peers: cutting damage off
    could drop acknowledged entries (FAST '18, protocol-aware recovery).
    """


class MissingReplicaError(ReplicaStorageError):
    """There is no file for this replica. Never start empty in its place: that is a new replica under an old name."""


class ReplicaExistsError(ReplicaStorageError):
    """`create` found a file, and left it as it is."""


class ReplicaClosedError(ReplicaStorageError):
    """The replica is not open, or was closed or replaced while a row stream was being read. Nothing was applied."""


class LogRangeError(ReplicaStorageError):
    """The index asked for is not in the durable log: truncated at either end since the caller looked. Not damage."""


class UnsupportedFormatError(ReplicaStorageError, UnsupportedDataError):
    """The file was written by a version with another format. Not damage: upgrade (or go back) and open it again."""


class StorageFullError(ReplicaStorageError):
    """No room for this write: map or volume full. Nothing of it was applied; the replica is as before."""


class CommitFailedError(ReplicaStorageError):
    """A transaction failed in a way that leaves its durable outcome unknown. The process must end at once and never
    retry: after a failed fsync Linux marks the pages clean, so a second one «succeeds» (fsyncgate).
    """


class StorageUnavailableError(ReplicaStorageError):
    """The operating system refused (descriptors, memory, reader slots). Not damage; nothing was applied."""


class RegistryError(Exception):
    """The registry cannot be used: damaged, of another format, or already in use by another process.

    Without it a node does not know who it is: it must not start, or must end (a commit is never retried).
    """
