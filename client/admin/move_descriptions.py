"""Describe moves of replicas and leaderships: the values that `Admin` returns, and their conversion from the protocol."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

from raftmq.proto import queue_pb2 as pb
from raftmq.types import TopicPartition

MoveReason = Literal[
    "requested", "drain", "replication_factor", "spread", "even_replicas", "even_leaders", "even_bytes", "unknown"
]
"""The reason for a move. ``"unknown"`` is a reason of a newer broker."""
_REASONS: Final[dict[int, MoveReason]] = {
    pb.REQUESTED: "requested",
    pb.DRAIN: "drain",
    pb.REPLICATION_FACTOR: "replication_factor",
    pb.SPREAD: "spread",
    pb.EVEN_REPLICAS: "even_replicas",
    pb.EVEN_LEADERS: "even_leaders",
    pb.EVEN_BYTES: "even_bytes",
}


@dataclass(frozen=True, slots=True)
class PartitionMove:
    """A change of the brokers that hold a partition, planned or under way."""

    topic: str
    partition: int
    from_broker_ids: tuple[int, ...]
    """The first broker is the preferred leader."""
    to_broker_ids: tuple[int, ...]
    """The first broker will be the preferred leader."""
    reason: MoveReason
    size_bytes: int | None = None
    """Bytes to copy to each broker that gets a replica. None: not known."""
    copied_bytes: int = 0
    """Bytes that were copied so far. 0: none, or their number is not known."""


@dataclass(frozen=True, slots=True)
class BrokerDrain:
    """A broker at the beginning or end of its draining."""

    broker_id: int
    replica_count: int
    """The number of partition replicas that it holds."""
    leader_count: int
    """The number of partitions that it leads."""
    is_metadata_voter: bool
    moves: tuple[PartitionMove, ...]
    """The planned moves of a dry run, at most the first thousand."""
    without_place_count: int
    """The number of its replicas that no other broker can take now."""
    without_place: tuple[TopicPartition, ...]
    """The first partitions of these replicas."""
    metadata_revision: int
    """A description of the cluster with a lower revision is older than this answer."""
    was_active: bool = False
    """Whether the broker was not being drained before, so that the end of its draining changed nothing."""


@dataclass(frozen=True, slots=True)
class RebalancePlan:
    """The moves that give the brokers equal shares of replicas and leaderships."""

    replica_move_count: int
    """The number of partitions that get replicas on other brokers."""
    leader_move_count: int
    """The number of partitions that only get another preferred leader."""
    moves: tuple[PartitionMove, ...]
    """The planned moves, at most the first thousand."""
    without_place_count: int
    """The number of replicas that should move, and that no other broker can take now."""
    without_place: tuple[TopicPartition, ...]
    """The first partitions of these replicas."""
    pin_count: int = 0
    """The number of pinned partitions whose pins the rebalance ends."""


@dataclass(frozen=True, slots=True)
class LeaderTransfer:
    """The leader of a partition after a transfer."""

    topic: str
    partition: int
    leader_broker_id: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class ReplicationChange:
    """The moves that give each partition of a topic another number of replicas."""

    topic: str
    replication_factor: int
    move_count: int
    moves: tuple[PartitionMove, ...]
    """The planned moves, at most the first thousand."""


@dataclass(frozen=True, slots=True)
class BalancingSettings:
    """The settings of the cluster for moves."""

    auto_balance: bool
    """Whether the cluster moves replicas and leaderships by itself when brokers have unequal shares."""
    moves_max: int
    """The maximum number of partitions that move simultaneously."""
    bytes_per_second: int
    """The maximum rate at which each broker sends the data of moves. 0: unlimited."""


@dataclass(frozen=True, slots=True)
class GivenUpMove:
    """A move whose new replicas made no progress. The partition has its replicas of before again."""

    topic: str
    partition: int
    to_broker_ids: tuple[int, ...]
    """The brokers that were to get a replica."""
    reason: str
    at_ms: int
    """The time of the decision, in milliseconds since the epoch."""
    retry_at_ms: int
    """Before this time the cluster does not plan it again. `Admin.move_partition` may."""
    count: int
    """The number of moves to one of these brokers that were given up one after the other."""


@dataclass(frozen=True, slots=True)
class StuckReplica:
    """A wanted replica that cannot come up now."""

    topic: str
    partition: int
    broker_id: int | None
    """The broker that is to hold it. None: no broker can take it, or the partition has no leader."""
    reason: str
    advice: str
    """A sentence for the operator."""


@dataclass(frozen=True, slots=True)
class MovesDescription:
    """The moves of the cluster, and their settings."""

    settings: BalancingSettings
    moves: tuple[PartitionMove, ...]
    """The moves under way."""
    waiting_count: int
    """The number of planned moves that wait for their turn."""
    rebuilding_count: int
    """The number of partitions that rebuild a lost replica. These come before all moves."""
    without_place_count: int
    """The number of replicas that should move, and that no other broker can take now."""
    without_place: tuple[TopicPartition, ...]
    """The first partitions of these replicas."""
    metadata_revision: int
    """A description of the cluster with a lower revision is older than this answer."""
    given_up: tuple[GivenUpMove, ...] = ()
    """The moves that were given up, and that the cluster does not plan again for now."""
    stuck: tuple[StuckReplica, ...] = ()
    """The new replicas that cannot come up now, at most the first thousand."""
    stuck_count: int = 0
    """The number of all of them."""

    @property
    def is_idle(self) -> bool:
        """Return whether no partition moves and none waits for its turn."""
        return not self.moves and not self.waiting_count


def read_move(move: pb.PartitionMove) -> PartitionMove:
    """Convert a move."""
    return PartitionMove(
        topic=move.topic,
        partition=move.partition,
        from_broker_ids=tuple(move.from_broker_ids),
        to_broker_ids=tuple(move.to_broker_ids),
        reason=_REASONS.get(move.reason, "unknown"),
        size_bytes=move.bytes or None,
        copied_bytes=move.copied_bytes,
    )


def read_moves(moves: Iterable[pb.PartitionMove]) -> tuple[PartitionMove, ...]:
    """Convert moves, in the order of the answer."""
    return tuple(map(read_move, moves))


def read_drain(broker_id: int, response: pb.DrainBrokerResponse) -> BrokerDrain:
    """Convert the answer to a drain or to its end."""
    return BrokerDrain(
        broker_id=broker_id,
        replica_count=response.replica_count,
        leader_count=response.leader_count,
        is_metadata_voter=response.is_metadata_voter,
        moves=read_moves(response.moves),
        without_place_count=response.without_place_count,
        without_place=_partitions(response.without_place),
        metadata_revision=response.metadata_revision,
        was_active=response.was_active,
    )


def read_rebalance(response: pb.RebalanceResponse) -> RebalancePlan:
    """Convert the answer to a rebalance."""
    return RebalancePlan(
        replica_move_count=response.replica_move_count,
        leader_move_count=response.leader_move_count,
        moves=read_moves(response.moves),
        without_place_count=response.without_place_count,
        without_place=_partitions(response.without_place),
        pin_count=response.pin_count,
    )


def read_moves_description(response: pb.DescribeMovesResponse) -> MovesDescription:
    """Convert the description of the moves."""
    return MovesDescription(
        settings=BalancingSettings(response.auto_balance, response.moves_max, response.bytes_per_second),
        moves=read_moves(response.moves),
        waiting_count=response.waiting_count,
        rebuilding_count=response.rebuilding_count,
        without_place_count=response.without_place_count,
        without_place=_partitions(response.without_place),
        metadata_revision=response.metadata_revision,
        given_up=tuple(map(_read_given_up, response.given_up)),
        stuck=read_stuck(response.stuck),
        stuck_count=response.stuck_count,
    )


def read_stuck(replicas: Iterable[pb.StuckReplica]) -> tuple[StuckReplica, ...]:
    """Convert replicas that cannot come up."""
    return tuple(
        StuckReplica(one.topic, one.partition, one.broker_id or None, one.reason, one.advice) for one in replicas
    )


def _read_given_up(move: pb.GivenUpMove) -> GivenUpMove:
    return GivenUpMove(
        topic=move.topic,
        partition=move.partition,
        to_broker_ids=tuple(move.to_broker_ids),
        reason=move.reason,
        at_ms=move.at_ms,
        retry_at_ms=move.retry_at_ms,
        count=move.count,
    )


def _partitions(names: Iterable[pb.PartitionName]) -> tuple[TopicPartition, ...]:
    return tuple(TopicPartition(name.topic, name.partition) for name in names)
