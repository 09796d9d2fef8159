"""The errors of durable storage, as types to which the shell reacts. Internal: services translate them for clients.

None of these may be retried blindly. Each docstring says whether anything was applied and how the receiver must react.
"""

from __future__ import annotations

from raftmq.errors import UnsupportedDataError
from raftmq.types import GroupId, ReplicaId


class ReplicaStorageError(Exception):
    """The root: a problem with one replica's storage. `group_id` and `replica_id` name the replica, `what` describes the problem."""

    def __init__(self, key: tuple[GroupId, ReplicaId], what: str) -> None:
        self.group_id, self.replica_id = key
        self.what = what
        super().__init__(f"replica {self.replica_id} of group {self.group_id}: {what}")


class DamagedReplicaError(ReplicaStorageError):
    """A value does not match its checksum, or the file contradicts itself. Nothing was applied.

    The replica must fall silent immediately (it does not vote or serve) and be replaced from its peers. Cutting the damage
    off could drop acknowledged entries (FAST '18, protocol-aware recovery).
    """


class MissingReplicaError(ReplicaStorageError):
    """The replica has no file. Never start an empty one in its place: that would be a new replica under an old name."""


class ReplicaExistsError(ReplicaStorageError):
    """`create` found a file and left it unchanged."""


class ReplicaClosedError(ReplicaStorageError):
    """The replica is not open, or was closed or replaced while a row stream was being read. Nothing was applied."""


class LogRangeError(ReplicaStorageError):
    """The requested index is not in the durable log: the log was truncated at either end since the caller looked. Not damage."""


class UnsupportedFormatError(ReplicaStorageError, UnsupportedDataError):
    """The file was written by a version with another format. Not damage: install that version and open the file again."""


class StorageFullError(ReplicaStorageError):
    """The map or the volume has no room for this write. Nothing of it was applied, and the replica is unchanged."""


class CommitFailedError(ReplicaStorageError):
    """A transaction failed, and whether it is durable is unknown. The process must end immediately and never retry.

    After a failed fsync Linux marks the pages clean, so that a second fsync "succeeds" (fsyncgate).
    """


class StorageUnavailableError(ReplicaStorageError):
    """The operating system refused a resource (descriptors, memory, reader slots) or a new file. Not damage. Nothing was applied."""


class RegistryError(Exception):
    """The registry cannot be used: damaged, of another format, or in a directory that is in use.

    Without the registry a node does not know its identity: it must not start, or must end. A commit is never retried.
    """


class RegistryUnavailableError(RegistryError):
    """The operating system refused descriptors, memory or space. Nothing says that the registry is damaged: a later start may succeed."""


class DirectoryInUseError(RegistryError):
    """Another process uses the data directory: a broker, or `raftmq doctor`. Nothing was read or changed."""
