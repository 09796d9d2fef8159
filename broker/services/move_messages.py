"""Convert planned and running moves of replicas to protocol messages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from raftmq.broker.base.request_error import RequestError
from raftmq.broker.cluster.balance_plan import Change, Reason
from raftmq.broker.cluster.layout import barred_nodes, retry_at_ms
from raftmq.broker.cluster.stuck_replicas import StuckReplica
from raftmq.fsm.metadata import Metadata
from raftmq.fsm.metadata_nodes import DRAINING
from raftmq.fsm.metadata_views import NodeView, PartitionView
from raftmq.proto import queue_pb2 as pb

MOVES_MAX: Final = 1000
"""Moves in an answer."""
NAMED_MAX: Final = 100
"""Partitions named in an answer: enough to see the topics concerned."""
_REASONS: Final = {
    Reason.DRAIN: pb.DRAIN,
    Reason.SURPLUS: pb.REPLICATION_FACTOR,
    Reason.SPREAD: pb.SPREAD,
    Reason.REPLICAS: pb.EVEN_REPLICAS,
    Reason.LEADERS: pb.EVEN_LEADERS,
    Reason.BYTES: pb.EVEN_BYTES,
}


def existing_node(metadata: Metadata, node_id: int) -> NodeView:
    """Return a broker of the cluster. Raises UNKNOWN_BROKER for one that it does not have, or not any more."""
    node = metadata.node(node_id)
    if node is None:
        raise RequestError(pb.UNKNOWN_BROKER, f"the cluster has no broker {node_id} (raftmq cluster status lists them)")
    if node.state == "removed":
        raise RequestError(pb.UNKNOWN_BROKER, f"broker {node_id} was removed from the cluster: use another broker")
    return node


def topic_name(metadata: Metadata, partition: PartitionView) -> str:
    """Return the name of a partition's topic."""
    topic = metadata.topic(partition.topic_id)
    return topic.name if topic is not None else "?"


def planned_moves(metadata: Metadata, changes: Iterable[Change]) -> list[pb.PartitionMove]:
    """Return the first changes of a plan as messages."""
    moves: list[pb.PartitionMove] = []
    for change in changes:
        partition = metadata.partition(change.group_id)
        if partition is not None:
            moves.append(planned_move(metadata, partition, change.node_ids, _REASONS[change.reason]))
        if len(moves) == MOVES_MAX:
            break
    return moves


def planned_move(
    metadata: Metadata, partition: PartitionView, node_ids: Sequence[int], reason: pb.MoveReason
) -> pb.PartitionMove:
    """Return one change of a partition's replicas as a message."""
    return pb.PartitionMove(
        topic=topic_name(metadata, partition),
        partition=partition.partition,
        from_broker_ids=[replica.node_id for replica in partition.replicas],
        to_broker_ids=node_ids,
        reason=reason,
    )


def is_replica_move(metadata: Metadata, change: Change) -> bool:
    """Return whether a change moves replicas. Otherwise it only prefers another leader."""
    partition = metadata.partition(change.group_id)
    return partition is not None and {replica.node_id for replica in partition.replicas} != set(change.node_ids)


def running_move(metadata: Metadata, partition: PartitionView) -> pb.PartitionMove:
    """Return a move under way as a message."""
    leaving_seats = {gone.seat for gone in partition.retiring}
    stayed = [
        replica.node_id
        for replica in partition.replicas
        if not replica.is_newcomer and replica.seat not in leaving_seats
    ]
    return pb.PartitionMove(
        topic=topic_name(metadata, partition),
        partition=partition.partition,
        from_broker_ids=[*stayed, *(gone.node_id for gone in partition.retiring)],
        to_broker_ids=[replica.node_id for replica in partition.replicas],
        reason=_reason_of_running(metadata, partition),
    )


def given_up_moves(metadata: Metadata, now_ms: int) -> list[pb.GivenUpMove]:
    """Return the moves that were given up and are not planned again for now."""
    moves: list[pb.GivenUpMove] = []
    for partition in metadata.given_up_partitions():
        if partition.given_up is not None and barred_nodes(partition, now_ms) and len(moves) < MOVES_MAX:
            moves.append(
                pb.GivenUpMove(
                    topic=topic_name(metadata, partition),
                    partition=partition.partition,
                    to_broker_ids=partition.given_up.node_ids,
                    reason=partition.given_up.reason,
                    at_ms=partition.given_up.at_ms,
                    retry_at_ms=retry_at_ms(partition.given_up),
                    count=partition.given_up.count,
                )
            )
    return moves


def stuck_messages(metadata: Metadata, stuck: Iterable[StuckReplica]) -> list[pb.StuckReplica]:
    """Return replicas that cannot come up as messages."""
    return [
        pb.StuckReplica(
            topic=topic_name(metadata, one.partition),
            partition=one.partition.partition,
            broker_id=one.node_id,
            reason=one.reason,
            advice=one.advice,
        )
        for one in stuck
    ]


def _reason_of_running(metadata: Metadata, partition: PartitionView) -> pb.MoveReason:
    """Return why a partition moves, as far as metadata shows."""
    states = [node.state for gone in partition.retiring if (node := metadata.node(gone.node_id)) is not None]
    if DRAINING in states:
        return pb.DRAIN
    if not partition.retiring or len(partition.retiring) > len(partition.replicas):
        return pb.REPLICATION_FACTOR
    return pb.EVEN_REPLICAS if metadata.balancing.may_move_replicas else pb.REQUESTED


def partition_names(metadata: Metadata, group_ids: Iterable[int]) -> list[pb.PartitionName]:
    """Return the names of the first of these partitions."""
    found = (metadata.partition(group_id) for group_id in group_ids)
    named = [
        pb.PartitionName(topic=topic_name(metadata, partition), partition=partition.partition)
        for partition in found
        if partition is not None
    ]
    return named[:NAMED_MAX]
