"""Tell which new replicas cannot come up, with the reason and advice for the operator. The functions are pure and decide nothing.

A new replica belongs to a move, to a repair, or to a replication factor that was raised. One that is being copied, or waits for its turn, is not
stuck.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Final

from raftmq.broker.cluster.replacement_plan import wanted_partition
from raftmq.fsm.metadata import Metadata
from raftmq.fsm.metadata_nodes import ACTIVE, DRAINING
from raftmq.fsm.metadata_views import NodeView, PartitionView
from raftmq.storage.log_store import ReplicaKey
from raftmq.types import GroupId, ReplicaId

_REASONS_NAMED_MAX: Final = 5
"""Brokers whose reasons are given for a replica that has no place."""


@dataclass(frozen=True, slots=True)
class StuckReplica:
    """A wanted replica that cannot come up now."""

    partition: PartitionView
    node_id: int
    """The broker that is to hold it; 0 if none can take it."""
    reason: str
    advice: str


@dataclass(frozen=True, slots=True)
class Evidence:
    """The knowledge of the brokers at one moment."""

    is_connected: Callable[[int], bool]
    leader_of: Callable[[int], int]
    """Returns the node that leads a group, or 0."""
    replicas_max: int
    """The number of replicas that a node accepts that does not state one."""
    not_ready: Mapping[int, str] = field(default_factory=dict[int, str])
    """The reason why a node is not ready. Nodes that are ready, or were not asked, are absent."""
    not_served: Mapping[ReplicaKey, str] = field(default_factory=dict[ReplicaKey, str])
    """The reason why its node does not serve a replica."""
    without_progress: Mapping[ReplicaKey, str] = field(default_factory=dict[ReplicaKey, str])
    """The new replicas that have made no progress for long, according to the leaders of their groups."""


def unfinished_partitions(metadata: Metadata) -> list[PartitionView]:
    """Return the partitions that move, are rebuilt, or have fewer replicas than their topic wants."""
    short = (
        partition
        for topic in metadata.topics()
        for group_id in topic.group_ids
        if (partition := metadata.partition(group_id)) is not None
        and len(partition.replicas) < topic.replication_factor
    )
    found = {partition.group_id: partition for partition in chain(metadata.unsettled_partitions(), short)}
    return [found[group_id] for group_id in sorted(found)]


def new_replicas(partition: PartitionView) -> list[ReplicaKey]:
    """Return the wanted replicas that may not vote yet."""
    leaving = {gone.seat for gone in partition.retiring}
    return [
        ReplicaKey(GroupId(partition.group_id), ReplicaId(replica.replica_id))
        for replica in partition.replicas
        if replica.is_newcomer or replica.seat in leaving
    ]


def stuck_replicas(metadata: Metadata, evidence: Evidence) -> Iterator[StuckReplica]:
    """Yield the replicas that cannot come up now, by group."""
    for partition in unfinished_partitions(metadata):
        missing_count = wanted_partition(metadata, partition).missing_count
        new = new_replicas(partition)
        if not new and not missing_count:
            continue  # it only loses a replica
        if not partition.replicas:
            yield StuckReplica(
                partition,
                0,
                "the partition has lost all its replicas, so there is none to copy from",
                "copy the records of the topic's other partitions, then delete the topic and create it again",
            )
            continue
        leader = evidence.leader_of(partition.group_id)
        if not leader or not evidence.is_connected(leader):
            yield StuckReplica(
                partition,
                0,
                "no replica leads the partition now, so there is none to copy from",
                "wait some seconds for an election. If it stays so, start the brokers of its other replicas, or see "
                "raftmq cluster recover if they are lost",
            )
            continue
        node_of = {replica.replica_id: replica.node_id for replica in partition.replicas}
        for key in new:
            found = _why_stuck(key, node_of[key.replica_id], evidence)
            if found is not None:
                yield StuckReplica(partition, node_of[key.replica_id], *found)
        obstacle = _why_without_place(metadata, partition, evidence) if missing_count else ""
        if obstacle:
            topic = metadata.topic(partition.topic_id)
            name = topic.name if topic is not None else "?"
            factor = len(partition.replicas)
            lower = f", or lower the replication factor: raftmq topic alter {name} --replication-factor {factor}"
            yield StuckReplica(partition, 0, obstacle, f"start or add a broker{lower if factor else ''}")


def _why_stuck(key: ReplicaKey, node_id: int, evidence: Evidence) -> tuple[str, str] | None:
    """Return the reason why a replica does not come up on its broker, and the advice. None: nothing is known to hold it up."""
    if not evidence.is_connected(node_id):
        return (
            f"broker {node_id} is not connected",
            f"start broker {node_id}, or if it is gone for good: raftmq cluster remove {node_id} --force",
        )
    look = f"see the log and /readyz of broker {node_id}"
    if key in evidence.not_served:
        return f"broker {node_id} does not serve it: {evidence.not_served[key]}", look
    if node_id in evidence.not_ready:
        return f"broker {node_id} is not ready: {evidence.not_ready[node_id]}", look
    if key in evidence.without_progress:
        return evidence.without_progress[key], f"{look}, and the network between it and the partition's leader"
    return None


def _why_without_place(metadata: Metadata, partition: PartitionView, evidence: Evidence) -> str:
    """Return why no broker can take another replica. Empty if one can, and the replica only waits for its turn.

    A broker whose old replica of this partition is being removed can take one afterwards, so it counts as one that can.
    """
    holders = {replica.node_id for replica in partition.replicas if not replica.is_lost}
    others = [node for node in metadata.nodes() if node.node_id not in holders and node.state in (ACTIVE, DRAINING)]
    reasons = [_why_not(node, metadata.replica_count_of_node(node.node_id), evidence) for node in others]
    if "" in reasons:
        return ""
    if not reasons:
        return "every broker holds a replica of the partition already"
    more = ", …" if len(reasons) > _REASONS_NAMED_MAX else ""
    return f"no other broker can take it: {', '.join(reasons[:_REASONS_NAMED_MAX])}{more}"


def _why_not(node: NodeView, replica_count: int, evidence: Evidence) -> str:
    if not evidence.is_connected(node.node_id):
        return f"broker {node.node_id} is not connected"
    if node.state == DRAINING:
        return f"broker {node.node_id} is being drained"
    most = node.partitions_max or evidence.replicas_max
    return f"broker {node.node_id} accepts no more than {most} replicas" if replica_count >= most else ""
