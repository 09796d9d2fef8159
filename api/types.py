"""The words of RaftMQ as types: ids, positions and the plain values users hold.

Imports nothing of RaftMQ. Every number has its own type, so that an offset cannot be passed where an index belongs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, NamedTuple, NewType

import msgspec

if TYPE_CHECKING:
    # Type checkers bring this module with them, and with it the defaults of PEP 696, which the running program has no use for.
    from typing_extensions import TypeVar

    KeyT_co = TypeVar("KeyT_co", covariant=True, default=bytes)
    ValueT_co = TypeVar("ValueT_co", covariant=True, default=bytes)
    KeyT_contra = TypeVar("KeyT_contra", contravariant=True, default="BytesLike")
    ValueT_contra = TypeVar("ValueT_contra", contravariant=True, default="BytesLike")
else:
    from typing import TypeVar

    KeyT_co = TypeVar("KeyT_co", covariant=True)
    ValueT_co = TypeVar("ValueT_co", covariant=True)
    KeyT_contra = TypeVar("KeyT_contra", contravariant=True)
    ValueT_contra = TypeVar("ValueT_contra", contravariant=True)

BytesLike = bytes | bytearray | memoryview
"""What a producer without serializers takes."""

GroupId = NewType("GroupId", int)
"""A Raft group; 0 is the metadata group, every partition has its own. Never reused."""
ReplicaId = NewType("ReplicaId", int)
"""A replica of a group, allocated once by the metadata group (from 1) and never reused."""
NodeId = NewType("NodeId", int)
"""One broker process (from 1)."""
Term = NewType("Term", int)
"""A Raft term; outside the broker it is a partition's ``leader_epoch``."""
LogIndex = NewType("LogIndex", int)
"""A position in a Raft log: counts entries, inclusive."""
Offset = NewType("Offset", int)
"""A position in a partition: counts records, dense from 0."""
TopicId = NewType("TopicId", int)
"""A topic's incarnation: a topic deleted and created again has a new one."""

METADATA_GROUP_ID = GroupId(0)
NO_REPLICA = ReplicaId(0)
NO_NODE = NodeId(0)


class TopicPartition(NamedTuple):
    """A topic's name and a partition number (from 0)."""

    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class RecordMetadata:
    """Where an acknowledged record is."""

    topic: str
    partition: int
    offset: int
    """The record's offset; -1 when the broker knows it was written before and no longer remembers where."""
    timestamp: int
    """The record's timestamp in milliseconds since the epoch."""

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition the record is in."""
        return TopicPartition(self.topic, self.partition)


class Record(msgspec.Struct, Generic[KeyT_co, ValueT_co], frozen=True, gc=False):
    """One record as a consumer sees it: ``Record`` has bytes, ``Record[str, Order]`` what deserializers made of them.

    A struct that the collector does not track: a consumer makes a million a second, a third of the time of a named tuple each.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int
    """Milliseconds since the epoch, as the producer set it."""
    key: KeyT_co | None
    value: ValueT_co | None
    """None is a tombstone; ``b""`` is an empty value."""
    headers: tuple[tuple[str, bytes], ...] = ()
