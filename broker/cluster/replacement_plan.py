"""Plan new replicas for partitions that have fewer than their topic wants. The functions are pure and use only metadata.

A removed node leaves its partitions short of a replica. A plan gives some of them new ones, a bounded number at a time, so that rebuilding
leaves capacity for clients. The next metadata leader continues from the metadata.

A lost replica stays listed as retiring until its successor votes (`Reconciler`). So metadata itself shows the number of partitions that are
being rebuilt, and it need not be stored elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from raftmq.fsm.metadata import Metadata
from raftmq.fsm.metadata_commands import SetReplicas
from raftmq.fsm.metadata_views import NodeView, PartitionView
from raftmq.fsm.placement import place_another
from raftmq.types import ReplicaId


@dataclass(frozen=True, slots=True)
class WantedPartition:
    """A partition and the number of replicas that its topic wants."""

    view: PartitionView
    replication_factor: int

    @property
    def missing_count(self) -> int:
        """Return the number of missing replicas."""
        return max(0, self.replication_factor - len(self.view.replicas))


def wanted_partition(metadata: Metadata, partition: PartitionView) -> WantedPartition:
    """Return the partition with the number of replicas that its topic wants."""
    topic = metadata.topic(partition.topic_id)
    return WantedPartition(partition, topic.replication_factor if topic is not None else len(partition.replicas))


def moved_replicas(partition: PartitionView) -> frozenset[ReplicaId]:
    """Return the replicas that are new because the partition moves: each takes the seat of a replica that still votes until then."""
    leaving = {gone.seat for gone in partition.retiring if not gone.is_lost}
    lost = {gone.seat for gone in partition.retiring if gone.is_lost}
    return frozenset(
        ReplicaId(replica.replica_id)
        for replica in partition.replicas
        if replica.seat in leaving - lost and not replica.is_newcomer
    )


def further_replicas(metadata: Metadata, partition: PartitionView) -> frozenset[ReplicaId]:
    """Return the replicas that are new because the topic wants more of them than before.

    Every new replica that neither moves nor is a further one is in repair. So are all of a partition that was revived from one replica: it
    has lost the others.
    """
    if metadata.recovery(partition.group_id) is not None:
        return frozenset()
    lost = {gone.seat for gone in partition.retiring if gone.is_lost}
    return frozenset(
        ReplicaId(replica.replica_id)
        for replica in partition.replicas
        if replica.is_newcomer and replica.seat not in lost
    )


@dataclass(frozen=True, slots=True)
class ReplacementPlan:
    """The commands to propose now, and the partitions that cannot be helped."""

    commands: tuple[SetReplicas, ...] = ()
    without_node_count: int = 0
    """Partitions that lack a replica, and for which no reachable node has capacity."""
    is_whole: bool = False
    """Whether no partition lacks anything, so that nothing need be planned before metadata changes."""


def plan_replacements(
    partitions: Iterable[WantedPartition],
    nodes: Sequence[NodeView],
    replica_counts: Mapping[int, int],
    replicas_max: Mapping[int, int],
    is_connected: Callable[[int], bool],
    leader_of: Callable[[int], int],
    rebuilding_max: int,
    growing_max: int,
) -> ReplacementPlan:
    """Plan new replicas: first for partitions that lost one, then for those whose topic wants more, with the fewest replicas first.

    A partition is skipped unless a reachable replica leads it. Without a leader a new replica would have no source to copy from, and a partition
    without any replica would come back empty. A partition whose new replica is unreachable does not count as being rebuilt: it causes no
    work and must not delay the others.

    Args:
        partitions: All partitions, or at least those that lack a replica or are unsettled.
        nodes: The registered nodes.
        replica_counts: The number of replicas of each node, by node id.
        replicas_max: The maximum number of replicas of each node.
        is_connected: Returns whether the metadata leader reaches a node now.
        leader_of: Returns the known leader of a group, by group id, or 0 if there is none.
        rebuilding_max: The most partitions that rebuild a lost replica.
        growing_max: The most partitions that get a further replica. Those that rebuild one count too.
    """
    wanted = [partition for partition in partitions if partition.missing_count or partition.view.is_unsettled]
    if not wanted:
        return ReplacementPlan(is_whole=True)
    led = [partition for partition in wanted if _is_led(partition.view, leader_of, is_connected)]
    rebuilding = sum(1 for partition in led if _has_lost(partition.view) and _is_under_way(partition, is_connected))
    growing = sum(1 for partition in led if _has_newcomer(partition.view) and _is_under_way(partition, is_connected))
    under_way = rebuilding
    candidates = [node for node in nodes if node.state == "active" and is_connected(node.node_id)]
    by_id = {node.node_id: node for node in nodes}
    counts = {node.node_id: replica_counts.get(node.node_id, 0) for node in nodes}
    commands: list[SetReplicas] = []
    without_node_count = 0
    short = [partition for partition in led if partition.missing_count]
    for partition in sorted(short, key=_urgency):
        holders = [replica.node_id for replica in partition.view.replicas]
        added = _choose(partition.view, partition.missing_count, holders, candidates, by_id, counts, replicas_max)
        without_node_count += len(added) < partition.missing_count
        has_room = under_way < rebuilding_max if _has_lost(partition.view) else under_way + growing < growing_max
        if not added or not has_room:
            continue
        under_way += 1
        for node_id in added:
            counts[node_id] += 1
        node_ids = (*(replica.node_id for replica in partition.view.replicas), *added)
        commands.append(SetReplicas(partition.view.group_id, node_ids, partition.view.revision))
    return ReplacementPlan(tuple(commands), without_node_count)


def plan_elsewhere(
    partition: PartitionView,
    replica_id: int,
    nodes: Sequence[NodeView],
    replica_counts: Mapping[int, int],
    replicas_max: Mapping[int, int],
    is_connected: Callable[[int], bool],
) -> SetReplicas | None:
    """Plan another place for a further replica that makes no progress. Return None if no other reachable node has capacity.

    It keeps its position among the replicas. The arguments are those of `plan_replacements`.
    """
    stuck = next(replica for replica in partition.replicas if replica.replica_id == replica_id)
    candidates = [node for node in nodes if node.state == "active" and is_connected(node.node_id)]
    remaining = [replica.node_id for replica in partition.replicas if replica is not stuck]
    by_id = {node.node_id: node for node in nodes}
    found = _choose(partition, 1, remaining, candidates, by_id, replica_counts, replicas_max)
    if not found:
        return None
    node_ids = tuple(found[0] if replica is stuck else replica.node_id for replica in partition.replicas)
    return SetReplicas(partition.group_id, node_ids, partition.revision)


def _urgency(partition: WantedPartition) -> tuple[bool, int, int]:
    return not _has_lost(partition.view), len(partition.view.replicas), partition.view.group_id


def _has_newcomer(partition: PartitionView) -> bool:
    return not _has_lost(partition) and any(replica.is_newcomer for replica in partition.replicas)


def _has_lost(partition: PartitionView) -> bool:
    return any(replica.is_lost for replica in partition.retiring)


def _is_led(partition: PartitionView, leader_of: Callable[[int], int], is_connected: Callable[[int], bool]) -> bool:
    """Return whether one of the partition's replicas leads it and is reachable. The last known leader may have been removed.

    It may be one that is to leave, and even the only one: of a partition that was moving to nodes that were removed.
    """
    leader = leader_of(partition.group_id)
    holders = (*partition.replicas, *partition.retiring)
    return any(one.node_id == leader and not one.is_lost for one in holders) and is_connected(leader)


def _is_under_way(partition: WantedPartition, is_connected: Callable[[int], bool]) -> bool:
    return not partition.missing_count and all(is_connected(replica.node_id) for replica in partition.view.replicas)


def _choose(
    view: PartitionView,
    missing_count: int,
    holder_ids: Iterable[int],
    candidates: Sequence[NodeView],
    by_id: Mapping[int, NodeView],
    counts: Mapping[int, int],
    replicas_max: Mapping[int, int],
) -> list[int]:
    """Return nodes for the missing replicas, as many as there are. `holder_ids` are the nodes of those that stay."""
    holders = [by_id[node_id] for node_id in holder_ids if node_id in by_id]
    # an old replica that still votes prevents its node from hosting another one of the same group
    barred = {replica.node_id for replica in (*view.replicas, *view.retiring) if not replica.is_lost}
    added: list[int] = []
    for _ in range(missing_count):
        free = [node for node in candidates if node.node_id not in barred]
        best = place_another(free, holders, counts, replicas_max)
        if best is None:
            break
        added.append(best.node_id)
        barred.add(best.node_id)
        holders.append(best)
    return added
