"""Define the kinds of topics: the state machine of a partition, and the object that serves it.

All kinds have the same log, membership and file layout. Only the rows of the derived state differ, and only the state machine
interprets them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, cast

from raftmq.broker.partitions.host import PartitionHost
from raftmq.broker.partitions.log import PartitionLog
from raftmq.broker.replica.replica import Replica
from raftmq.fsm.log_partition import LogPartition
from raftmq.fsm.metadata import Metadata
from raftmq.fsm.metadata_views import PartitionView
from raftmq.fsm.state_machine import StateMachine
from raftmq.storage.log_store import LogStore

Partition = PartitionLog
"""A served partition of any kind. It is the union of all kinds' classes, so mypy reports every place that must distinguish them."""

OnDamage = Callable[[Replica[StateMachine], Exception], None]
"""Called when a row of a replica failed its check. The callee makes the replica silent."""


@dataclass(frozen=True, slots=True)
class TopicKind:
    """The classes behind the partitions of one kind of topic."""

    new_state_machine: Callable[[], StateMachine]
    """Create the empty state machine of a replica that is about to be opened."""
    serve: Callable[[Replica[StateMachine], PartitionHost, LogStore, OnDamage], Partition]
    """Create the object that serves a replica with such a state machine."""


def _serve_log(
    replica: Replica[StateMachine], host: PartitionHost, store: LogStore, on_damage: OnDamage
) -> PartitionLog:
    assert isinstance(replica.state_machine, LogPartition)
    return PartitionLog(cast("Replica[LogPartition]", replica), host, store, on_damage)


KINDS: Final[Mapping[str, TopicKind]] = {"log": TopicKind(LogPartition, _serve_log)}
"""Kinds by their name in metadata. The names are those of `fsm.metadata_topics.TOPIC_KINDS`."""


def kind_of(metadata: Metadata, partition: PartitionView) -> TopicKind:
    """Return the kind of a partition's topic.

    Raises:
        LookupError: metadata does not have the topic, or this version does not know its kind.
    """
    topic = metadata.topic(partition.topic_id)
    if topic is None:
        raise LookupError(f"metadata has no topic {partition.topic_id} for group {partition.group_id}")
    return KINDS[topic.kind]
