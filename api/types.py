"""Types for ids, positions and the plain values of users.

Imports nothing of RaftMQ. Every kind of number has its own type, so that an offset cannot be passed as an index.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, NamedTuple, NewType

import msgspec

if TYPE_CHECKING:
    # Type checkers provide this module, with the defaults of PEP 696, which the running program does not need.
    from typing_extensions import TypeVar

    KeyT_co = TypeVar("KeyT_co", covariant=True, default=bytes)
    ValueT_co = TypeVar("ValueT_co", covariant=True, default=bytes)
    KeyT_contra = TypeVar("KeyT_contra", contravariant=True, default="BytesLike")
    ValueT_contra = TypeVar("ValueT_contra", contravariant=True, default="BytesLike")
    QueueValueT = TypeVar("QueueValueT", default=bytes)
else:
    from typing import TypeVar

    KeyT_co = TypeVar("KeyT_co", covariant=True)
    ValueT_co = TypeVar("ValueT_co", covariant=True)
    KeyT_contra = TypeVar("KeyT_contra", contravariant=True)
    ValueT_contra = TypeVar("ValueT_contra", contravariant=True)
    QueueValueT = TypeVar("QueueValueT")

BytesLike = bytes | bytearray | memoryview
"""The types that a producer without serializers accepts."""

GroupId = NewType("GroupId", int)
"""The id of a Raft group. 0 is the metadata group, and every partition has its own. Never reused."""
ReplicaId = NewType("ReplicaId", int)
"""The id of a replica of a group, allocated once by the metadata group (from 1) and never reused."""
NodeId = NewType("NodeId", int)
"""One broker process (from 1)."""
Term = NewType("Term", int)
"""A Raft term, called a partition's ``leader_epoch`` outside the broker."""
LogIndex = NewType("LogIndex", int)
"""A position in a Raft log. Counts entries, inclusive."""
Offset = NewType("Offset", int)
"""A position in a partition. Counts records, dense from 0."""
TopicId = NewType("TopicId", int)
"""The id of a topic's incarnation: a topic that is deleted and created again has a new one."""

METADATA_GROUP_ID = GroupId(0)
NO_REPLICA = ReplicaId(0)
NO_NODE = NodeId(0)


class TopicPartition(NamedTuple):
    """A topic's name and a partition number (from 0)."""

    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class RecordMetadata:
    """The position of an acknowledged record."""

    topic: str
    partition: int
    offset: int
    """The record's offset. -1: the record was written before, and the broker no longer remembers where."""
    timestamp: int
    """The record's timestamp in milliseconds since the epoch."""

    @property
    def topic_partition(self) -> TopicPartition:
        """Return the partition of the record."""
        return TopicPartition(self.topic, self.partition)


class Record(msgspec.Struct, Generic[KeyT_co, ValueT_co], frozen=True, gc=False):
    """A record as a consumer returns it: ``Record`` has bytes, ``Record[str, Order]`` has the results of deserializers.

    A struct that the garbage collector does not track: a consumer creates a million per second, each in a third of a named tuple's time.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int
    """Milliseconds since the epoch, as the producer set it."""
    key: KeyT_co | None
    value: ValueT_co | None
    """None is a tombstone, ``b""`` an empty value."""
    headers: tuple[tuple[str, bytes], ...] = ()


class QueueRecord(Record[KeyT_co, ValueT_co], frozen=True, gc=False):
    """A message of a queue topic, as a worker passes it to a handler.

    As a `Record` its offset is the message's sequence, and its timestamp the time at which it was enqueued.
    """

    tenant: str = ""
    """Empty: the root."""
    id: str | None = None
    """The producer's name for it, or None."""
    priority: int = 0
