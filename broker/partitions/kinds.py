"""Define the kinds of topics: the state machine of a partition, and the object that serves it.

All kinds have the same log and membership. Only the derived state differs, and only the state machine interprets it. This
version offers the kinds of `KINDS`, as soon as the cluster is at the feature level of the kind (`fsm.topic_kinds`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Generic, TypeVar, cast

from raftmq.broker.base.request_error import RequestError
from raftmq.broker.partitions.host import PartitionHost
from raftmq.broker.partitions.log import PartitionLog
from raftmq.broker.partitions.partition import Partition
from raftmq.broker.partitions.queue.partition import PartitionQueue
from raftmq.broker.replica.replica import Replica
from raftmq.fsm import topic_kinds
from raftmq.fsm.log_partition import LogPartition
from raftmq.fsm.metadata import Metadata
from raftmq.fsm.metadata_views import PartitionView, TopicView
from raftmq.fsm.queue.partition import QueuePartition
from raftmq.fsm.state_machine import StateMachine
from raftmq.fsm.topic_config import suggestion
from raftmq.proto import queue_pb2 as pb
from raftmq.storage.state_store import StateStore

PartitionT = TypeVar("PartitionT", bound=Partition, covariant=True)

OnDamage = Callable[[Replica[StateMachine], Exception], None]
"""Called when a row of a replica failed its check. The callee makes the replica silent."""


@dataclass(frozen=True, slots=True)
class TopicKind(Generic[PartitionT]):
    """The classes behind the partitions of one kind of topic."""

    name: str
    """The kind's name in metadata, of `topic_kinds.TOPIC_KINDS`."""
    new_state_machine: Callable[[], StateMachine]
    """Create the empty state machine of a replica that is about to be opened."""
    partition_type: type[PartitionT]
    """The class of the objects that `serve` creates."""
    serve: Callable[[Replica[StateMachine], PartitionHost, StateStore, OnDamage], PartitionT]
    """Create the object that serves a replica with such a state machine."""

    def require(self, topic: TopicView) -> None:
        """Raise RequestError TOPIC_KIND_MISMATCH unless the topic is of this kind."""
        if topic.kind != self.name:
            raise RequestError(
                pb.TOPIC_KIND_MISMATCH,
                f"topic {topic.name} is of kind {topic.kind!r}, and this call is for topics of kind {self.name!r}: "
                "use the clients of its kind, or name another topic",
            )


def _serve_log(
    replica: Replica[StateMachine], host: PartitionHost, store: StateStore, on_damage: OnDamage
) -> PartitionLog:
    assert isinstance(replica.state_machine, LogPartition)
    return PartitionLog(cast("Replica[LogPartition]", replica), host, store, on_damage)


def _serve_queue(
    replica: Replica[StateMachine], host: PartitionHost, store: StateStore, on_damage: OnDamage
) -> PartitionQueue:
    assert isinstance(replica.state_machine, QueuePartition)
    return PartitionQueue(cast("Replica[QueuePartition]", replica), host, store, on_damage)


QUEUE: Final = TopicKind(topic_kinds.QUEUE, QueuePartition, PartitionQueue, _serve_queue)
LOG: Final = TopicKind(topic_kinds.LOG, LogPartition, PartitionLog, _serve_log)

KINDS: Final[Mapping[str, TopicKind[Partition]]] = {LOG.name: LOG, QUEUE.name: QUEUE}
"""The kinds that this version serves, by name."""


def require_offered(name: str) -> None:
    """Raise RequestError INVALID_ARGUMENT unless topics of this kind may be created."""
    if name not in KINDS:
        raise RequestError(pb.INVALID_ARGUMENT, f"there is no topic kind {name[:60]!r}{suggestion(name[:60], KINDS)}")


def kind_of(metadata: Metadata, partition: PartitionView) -> TopicKind[Partition]:
    """Return the kind of a partition's topic.

    Raises:
        LookupError: metadata does not have the topic, or this version does not know its kind.
    """
    topic = metadata.topic(partition.topic_id)
    if topic is None:
        raise LookupError(f"metadata has no topic {partition.topic_id} for group {partition.group_id}")
    return KINDS[topic.kind]
