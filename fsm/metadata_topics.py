"""Commands about topics: create, add partitions, alter configuration, delete.

All are pure functions over `MetadataTables`. A topic's configuration is stored as it was proposed. Whether a key is
known depends on the software's version, so a check here would make replicas of different versions differ. Proposers
check it with `topic_config`, and readers fall back to defaults.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec
from raftmq.fsm import codes
from raftmq.fsm.config_keys import is_topic_name
from raftmq.fsm.metadata_commands import (
    AddPartitions,
    AlterTopicConfig,
    CreateTopic,
    DeleteTopic,
    Done,
    PartitionPlan,
    Rejected,
    SetReplicationFactor,
    TopicCreated,
)
from raftmq.fsm.metadata_replicas import REPLICAS_PER_PARTITION_MAX, allocate_replicas, plan_refusal
from raftmq.fsm.metadata_tables import MetadataTables
from raftmq.fsm.metadata_views import NodeView, PartitionView, TopicView
from raftmq.fsm.topic_kinds import QUEUE

PARTITIONS_PER_TOPIC_MAX: Final = 10_000
"""Bounds the entry and the row of one topic. The proposer checks the capacity of the cluster."""


def create_topic(tables: MetadataTables, command: CreateTopic) -> TopicCreated | Rejected:
    """Create a topic and its partitions, each with a new group and new replicas."""
    if not is_topic_name(command.name):
        return Rejected(codes.INVALID_TOPIC_NAME, "a topic's name is 1 to 249 characters of a-z A-Z 0-9 . _ -")
    if tables.topic_by_name(command.name) is not None:
        return Rejected(codes.TOPIC_ALREADY_EXISTS, f"topic {command.name} exists")
    if not command.partitions:
        return Rejected(codes.INVALID_PARTITIONS, "a topic has at least one partition")
    refusal = _plans_refusal(tables, command.partitions, existing_count=0)
    if refusal is not None:
        return refusal
    topic_id = tables.cluster.next_topic_id
    tables.update_cluster(next_topic_id=topic_id + 1)
    tables.put_topic(
        TopicView(
            topic_id=topic_id,
            name=command.name,
            kind=command.kind,
            replication_factor=command.replication_factor,
            config=command.config,
            group_ids=_create_partitions(tables, topic_id, 0, command.partitions),
            revision=tables.index,
            schedule_partitions=len(command.partitions) if command.kind == QUEUE else 0,
        )
    )
    return TopicCreated(tables.cluster.revision, topic_id)


def add_partitions(tables: MetadataTables, command: AddPartitions) -> TopicCreated | Rejected:
    """Append partitions to a topic."""
    topic = tables.topic(command.topic_id)
    if topic is None:
        return Rejected(codes.UNKNOWN_TOPIC, f"there is no topic with id {command.topic_id}")
    count = len(topic.group_ids)
    if count != command.expected_count:
        return Rejected(codes.CONFLICT, f"topic {topic.name} has {count} partitions, not {command.expected_count}")
    if not command.partitions:
        return Rejected(codes.INVALID_PARTITIONS, "at least one partition must be added")
    refusal = _plans_refusal(tables, command.partitions, existing_count=count)
    if refusal is not None:
        return refusal
    added = _create_partitions(tables, topic.topic_id, count, command.partitions)
    tables.put_topic(msgspec.structs.replace(topic, group_ids=(*topic.group_ids, *added), revision=tables.index))
    return TopicCreated(tables.cluster.revision, topic.topic_id)


def alter_topic_config(tables: MetadataTables, command: AlterTopicConfig) -> Done | Rejected:
    """Set or remove configuration keys."""
    topic = tables.topic(command.topic_id)
    if topic is None:
        return Rejected(codes.UNKNOWN_TOPIC, f"there is no topic with id {command.topic_id}")
    merged: dict[str, str | None] = {**topic.config, **command.changes}
    config = {key: value for key, value in merged.items() if value is not None}
    if config != topic.config:
        tables.put_topic(msgspec.structs.replace(topic, config=config, revision=tables.index))
    return Done(tables.cluster.revision)


def set_replication_factor(tables: MetadataTables, command: SetReplicationFactor) -> Done | Rejected:
    """Set the number of replicas that a topic wants. Its partitions follow later."""
    topic = tables.topic(command.topic_id)
    if topic is None:
        return Rejected(codes.UNKNOWN_TOPIC, f"there is no topic with id {command.topic_id}")
    refusal = replication_factor_refusal(tables.nodes(), command.replication_factor)
    if refusal is not None:
        return refusal
    if command.replication_factor != topic.replication_factor:
        tables.put_topic(
            msgspec.structs.replace(topic, replication_factor=command.replication_factor, revision=tables.index)
        )
    return Done(tables.cluster.revision)


def replication_factor_refusal(nodes: Iterable[NodeView], replication_factor: int) -> Rejected | None:
    """Return why a topic cannot have so many replicas, or None."""
    if not 1 <= replication_factor <= REPLICAS_PER_PARTITION_MAX:
        return Rejected(
            codes.INVALID_REPLICATION_FACTOR, f"a partition has between 1 and {REPLICAS_PER_PARTITION_MAX} replicas"
        )
    count = sum(1 for node in nodes if node.state == "active")
    if replication_factor > count:
        return Rejected(
            codes.INVALID_REPLICATION_FACTOR,
            f"replication factor {replication_factor} needs as many active brokers, but there are {count}: ask for fewer replicas, "
            "or start more brokers",
        )
    return None


def delete_topic(tables: MetadataTables, command: DeleteTopic) -> Done | Rejected:
    """Delete a topic and its partitions. Their ids are never assigned again."""
    topic = tables.topic(command.topic_id)
    if topic is None:
        return Rejected(codes.UNKNOWN_TOPIC, f"there is no topic with id {command.topic_id}")
    tables.delete_topic(topic)
    return Done(tables.cluster.revision)


def _plans_refusal(tables: MetadataTables, plans: tuple[PartitionPlan, ...], *, existing_count: int) -> Rejected | None:
    if existing_count + len(plans) > PARTITIONS_PER_TOPIC_MAX:
        return Rejected(codes.TOO_MANY_PARTITIONS, f"a topic has at most {PARTITIONS_PER_TOPIC_MAX} partitions")
    # Plans repeat: a thousand partitions on three nodes have only six different plans.
    for node_ids in dict.fromkeys(plan.node_ids for plan in plans):
        refusal = plan_refusal(tables, node_ids)
        if refusal is not None:
            return refusal
    return None


def _create_partitions(
    tables: MetadataTables, topic_id: int, first_partition: int, plans: tuple[PartitionPlan, ...]
) -> tuple[int, ...]:
    first_group_id = tables.cluster.next_group_id
    next_replica_id = tables.cluster.next_replica_id
    for position, plan in enumerate(plans):
        replicas = allocate_replicas(plan.node_ids, next_replica_id)
        next_replica_id += len(replicas)
        tables.put_partition(
            PartitionView(
                topic_id=topic_id,
                partition=first_partition + position,
                group_id=first_group_id + position,
                creation_replicas=replicas,
                replicas=replicas,
                retiring=(),
                revision=tables.index,
            )
        )
    tables.update_cluster(next_group_id=first_group_id + len(plans), next_replica_id=next_replica_id)
    return tuple(range(first_group_id, first_group_id + len(plans)))
