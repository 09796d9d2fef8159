"""Plans other replicas for partitions that have fewer than their topic wants: pure, and made from metadata alone.

A removed node leaves its partitions short of a replica. A plan fills some of them up, so many at a time that rebuilding
leaves room for the work; whoever leads metadata next plans on from what metadata says then.

A lost replica stays listed as retiring until its successor votes (`Reconciler`). So metadata itself shows how many
partitions are being rebuilt, and nobody needs to remember it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from raftmq.fsm.metadata import Metadata
from raftmq.fsm.metadata_commands import SetReplicas
from raftmq.fsm.metadata_views import NodeView, PartitionView
from raftmq.fsm.placement import place_another


@dataclass(frozen=True, slots=True)
class WantedPartition:
    """A partition and the number of replicas that its topic wants."""

    view: PartitionView
    replication_factor: int

    @property
    def missing_count(self) -> int:
        """Replicas it is short of."""
        return max(0, self.replication_factor - len(self.view.replicas))


def wanted_partition(metadata: Metadata, partition: PartitionView) -> WantedPartition:
    """Return the partition with the number of replicas that metadata wants of it."""
    topic = metadata.topic(partition.topic_id)
    return WantedPartition(partition, topic.replication_factor if topic is not None else len(partition.replicas))


@dataclass(frozen=True, slots=True)
class ReplacementPlan:
    """What to propose now, and what cannot be helped."""

    commands: tuple[SetReplicas, ...] = ()
    without_node_count: int = 0
    """Partitions short of a replica that no node within reach can take."""
    is_whole: bool = False
    """No partition is short of anything: there is nothing to plan before metadata changes."""


def plan_replacements(
    partitions: Iterable[WantedPartition],
    nodes: Sequence[NodeView],
    replica_counts: Mapping[int, int],
    replicas_max: Mapping[int, int],
    is_connected: Callable[[int], bool],
    leader_of: Callable[[int], int],
    rebuilding_max: int,
) -> ReplacementPlan:
    """Fill up partitions, those with the fewest replicas first, while at most `rebuilding_max` are being rebuilt.

    A partition is left alone unless one of its replicas leads it, within reach: else a new one would have nobody to copy from, and
    one without any replica left would come back empty. One whose new replica is out
    of reach is not counted as being rebuilt: it makes no work, and must not hold up the others.

    Args:
        partitions: all of them.
        nodes: the registered nodes.
        replica_counts: how many replicas a node has, by node id.
        replicas_max: how many it takes.
        is_connected: whether the metadata leader reaches a node now.
        leader_of: the node that leads a group, as far as is known, by group id; 0: nobody.
        rebuilding_max: the limit.
    """
    wanted = [partition for partition in partitions if partition.missing_count or _has_lost(partition.view)]
    if not wanted:
        return ReplacementPlan(is_whole=True)
    led = [partition for partition in wanted if _is_led(partition.view, leader_of, is_connected)]
    room = rebuilding_max - sum(1 for partition in led if _is_being_rebuilt(partition, is_connected))
    candidates = [node for node in nodes if node.state == "active" and is_connected(node.node_id)]
    by_id = {node.node_id: node for node in nodes}
    counts = {node.node_id: replica_counts.get(node.node_id, 0) for node in nodes}
    commands: list[SetReplicas] = []
    without_node_count = 0
    short = [partition for partition in led if partition.missing_count]
    for partition in sorted(short, key=lambda one: (len(one.view.replicas), one.view.group_id)):
        added = _choose(partition, candidates, by_id, counts, replicas_max)
        without_node_count += len(added) < partition.missing_count
        if not added or len(commands) >= room:
            continue
        for node_id in added:
            counts[node_id] += 1
        node_ids = (*(replica.node_id for replica in partition.view.replicas), *added)
        commands.append(SetReplicas(partition.view.group_id, node_ids, partition.view.revision))
    return ReplacementPlan(tuple(commands), without_node_count)


def _has_lost(partition: PartitionView) -> bool:
    return any(replica.is_lost for replica in partition.retiring)


def _is_led(partition: PartitionView, leader_of: Callable[[int], int], is_connected: Callable[[int], bool]) -> bool:
    """A leader that was removed or is out of reach may still be the last one known."""
    leader = leader_of(partition.group_id)
    return any(replica.node_id == leader for replica in partition.replicas) and is_connected(leader)


def _is_being_rebuilt(partition: WantedPartition, is_connected: Callable[[int], bool]) -> bool:
    view = partition.view
    if partition.missing_count or not _has_lost(view):
        return False
    return all(is_connected(replica.node_id) for replica in view.replicas)


def _choose(
    partition: WantedPartition,
    candidates: Sequence[NodeView],
    by_id: Mapping[int, NodeView],
    counts: Mapping[int, int],
    replicas_max: Mapping[int, int],
) -> list[int]:
    """Nodes for the replicas that are missing: as many as can be had."""
    view = partition.view
    holders = [by_id[replica.node_id] for replica in view.replicas if replica.node_id in by_id]
    # an old replica that still votes keeps its node from taking another of the same group
    barred = {replica.node_id for replica in (*view.replicas, *view.retiring) if not replica.is_lost}
    added: list[int] = []
    for _ in range(partition.missing_count):
        free = [node for node in candidates if node.node_id not in barred]
        best = place_another(free, holders, counts, replicas_max)
        if best is None:
            break
        added.append(best.node_id)
        barred.add(best.node_id)
        holders.append(best)
    return added
