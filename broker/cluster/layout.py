"""Describe the layout of the cluster for a plan: its brokers, its partitions, and which brokers may be given replicas.

The controller and the dry runs of the services plan with the same description. The functions are pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

import msgspec
from raftmq.broker.cluster.balance_plan import BalancePlan, PlacedPartition, plan_balance
from raftmq.broker.cluster.membership_plan import has_healthy_majority
from raftmq.broker.cluster.replacement_plan import wanted_partition
from raftmq.fsm.metadata import Metadata
from raftmq.fsm.metadata_nodes import ACTIVE, DRAINING
from raftmq.fsm.metadata_replicas import with_replicas
from raftmq.fsm.metadata_views import GivenUpMove, NodeView, PartitionView

GIVEN_UP_SECONDS: Final = 600
"""The time for which a move that was given up once is not planned again. Each further time in a row doubles it."""
GIVEN_UP_SECONDS_MAX: Final = 6 * 3600
"""The longest such time, so that a broker that was repaired is used again within a working day."""


def retry_at_ms(given_up: GivenUpMove) -> int:
    """Return the time from which on a move that was given up may be planned again, in milliseconds since the epoch."""
    doubled = GIVEN_UP_SECONDS << min(given_up.count - 1, 16)
    return given_up.at_ms + 1000 * min(doubled, GIVEN_UP_SECONDS_MAX)


def barred_nodes(partition: PartitionView, now_ms: int) -> frozenset[int]:
    """Return the nodes that must not be given a replica of the partition now, because a move to them was given up lately."""
    given_up = partition.given_up
    if given_up is None or now_ms >= retry_at_ms(given_up):
        return frozenset()
    return frozenset(given_up.node_ids)


def next_retry_ms(metadata: Metadata, now_ms: int) -> int | None:
    """Return the next time at which a move that was given up may be planned again, or None if there is none."""
    times = [retry_at_ms(one.given_up) for one in metadata.given_up_partitions() if one.given_up is not None]
    return min((time for time in times if time > now_ms), default=None)


@dataclass(frozen=True, slots=True)
class Layout:
    """The layout at one metadata version."""

    nodes: tuple[NodeView, ...]
    partitions: tuple[PlacedPartition, ...]
    replicas_max: Mapping[int, int]
    is_available: Mapping[int, bool]

    def plan(self, *, is_automatic: bool, leaders_only: bool = False) -> BalancePlan:
        """Return the changes that bring the layout nearer to the wishes."""
        return plan_balance(
            self.nodes,
            self.partitions,
            self.replicas_max,
            self.is_available,
            is_automatic=is_automatic,
            leaders_only=leaders_only,
        )

    def with_draining(self, node_id: int) -> Layout:
        """Return the layout as if the node were drained."""
        nodes = tuple(
            msgspec.structs.replace(node, state=DRAINING) if node.node_id == node_id else node for node in self.nodes
        )
        return replace(self, nodes=nodes)

    def without_pins(self) -> Layout:
        """Return the layout as if no partition were pinned."""
        return replace(self, partitions=tuple(replace(one, is_pinned=False) for one in self.partitions))

    def with_replication_factor(self, group_ids: frozenset[int], replication_factor: int) -> Layout:
        """Return the layout as if the topic of these groups wanted another number of replicas."""
        partitions = tuple(
            replace(one, replication_factor=replication_factor) if one.group_id in group_ids else one
            for one in self.partitions
        )
        return replace(self, partitions=partitions)


SIZE_UNIT: Final = 64 << 20
"""Sizes of partitions are rounded down to multiples of this, because exact ones would change every plan."""


def describe_layout(
    metadata: Metadata,
    replicas_max: int,
    available: frozenset[int],
    now_ms: int,
    sizes: Mapping[int, int] | None = None,
) -> Layout:
    """Describe the layout. A partition that moves, or lacks a replica, must stay as it is.

    Args:
        metadata: The metadata.
        replicas_max: The number of replicas that a node accepts that does not state one.
        available: The nodes that may be given replicas and leaderships.
        now_ms: The time in milliseconds since the epoch.
        sizes: The bytes of a replica of each partition, by group. None: they are not known, and bytes are not evened.
    """
    known = sizes or {}
    nodes = metadata.nodes()
    partitions = tuple(
        PlacedPartition(
            group_id,
            tuple(replica.node_id for replica in partition.replicas),
            topic.replication_factor,
            is_fixed=partition.is_unsettled or len(partition.replicas) < topic.replication_factor,
            is_pinned=partition.is_pinned,
            barred=barred_nodes(partition, now_ms),
            size_bytes=known.get(group_id, 0) // SIZE_UNIT * SIZE_UNIT,
        )
        for topic in metadata.topics()
        for group_id in topic.group_ids
        if (partition := metadata.partition(group_id)) is not None and partition.replicas
    )
    return Layout(
        nodes,
        partitions,
        {node.node_id: node.partitions_max or replicas_max for node in nodes},
        {node.node_id: node.node_id in available for node in nodes},
    )


def available_nodes(
    metadata: Metadata, is_stable: Callable[[int], bool], is_led: Callable[[int], bool]
) -> frozenset[int]:
    """Return the nodes that may be given replicas and leaderships: active, stable, and not rebuilding replicas that they lost.

    Replicas of groups without a leader are not rebuilt. Scenario: a disk was given up although partitions lost their majority with it. The
    broker would get nothing, and the drain of another one would wait for it, until these partitions are recovered or deleted.
    """
    rebuilding = {
        replica.node_id
        for partition in metadata.unsettled_partitions()
        if is_led(partition.group_id)
        for replica in partition.replicas
        if any(gone.is_lost and gone.seat == replica.seat for gone in partition.retiring)
    }
    return frozenset(
        node.node_id
        for node in metadata.nodes()
        if node.state == ACTIVE and node.node_id not in rebuilding and is_stable(node.node_id)
    )


def moving_partitions(metadata: Metadata, is_connected: Callable[[int], bool], is_led: Callable[[int], bool]) -> int:
    """Return the number of partitions that move or are rebuilt.

    One whose new replica is unreachable does not count: it causes no work and must not delay the others. Neither does one without a
    leader. Scenario: a broker that held the only replicas of some partitions is removed. These partitions would hold up every drain
    until their topics are deleted.
    """
    return sum(
        1
        for partition in metadata.unsettled_partitions()
        if is_led(partition.group_id) and all(is_connected(replica.node_id) for replica in partition.replicas)
    )


def refusal_of_move(
    metadata: Metadata,
    partition: PartitionView,
    node_ids: tuple[int, ...],
    leader: int,
    is_connected: Callable[[int], bool],
) -> str | None:
    """Return why the partition's replicas must not be changed now, or None: a healthy majority is needed throughout the change.

    Args:
        metadata: The metadata.
        partition: The partition.
        node_ids: The new desired replicas by node id.
        leader: The node that leads the partition now, or 0.
        is_connected: Returns whether a node is reachable.
    """
    if partition.is_unsettled:
        return "is being moved or rebuilt already"
    if len(partition.replicas) < wanted_partition(metadata, partition).replication_factor:
        return "lacks a replica, which is rebuilt first"
    if not any(replica.node_id == leader for replica in partition.replicas) or not is_connected(leader):
        return "has no leader at the moment"
    replica_id = 1 + max(replica.replica_id for replica in partition.replicas)
    moved = with_replicas(partition, node_ids, replica_id)
    if not has_healthy_majority(moved, lambda _: False, lambda replica: is_connected(replica.node_id)):
        return "would have no healthy majority during the move, because brokers are unreachable"
    return None


def count_replicas(metadata: Metadata) -> Counter[int]:
    """Return the number of replicas of each node."""
    return Counter({node.node_id: metadata.replica_count_of_node(node.node_id) for node in metadata.nodes()})
