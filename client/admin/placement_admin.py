"""Moves of replicas and leaderships: `Admin` offers these functions as methods.

The metadata leader plans and makes the moves in the background. An answer means that the wish is recorded, and not that the moves are over.
"""

from __future__ import annotations

from collections.abc import Iterable

from raftmq.client.admin.move_descriptions import (
    BalancingSettings,
    BrokerDrain,
    LeaderTransfer,
    MovesDescription,
    PartitionMove,
    RebalancePlan,
    ReplicationChange,
    read_drain,
    read_move,
    read_moves,
    read_moves_description,
    read_rebalance,
)
from raftmq.client.base.arguments import LONG_MAX, check_flag, check_not_negative, check_positive, check_whole
from raftmq.client.base.texts import check_text
from raftmq.client.connection.resolver import Resolver
from raftmq.errors import InvalidArgumentError
from raftmq.methods import (
    DESCRIBE_MOVES,
    DRAIN_BROKER,
    MOVE_PARTITION,
    REBALANCE,
    SET_BALANCING,
    SET_REPLICATION_FACTOR,
    TRANSFER_LEADER,
)
from raftmq.proto import queue_pb2 as pb


async def drain_broker(
    resolver: Resolver, broker_id: int, timeout_seconds: float, *, is_ended: bool = False, dry_run: bool = False
) -> BrokerDrain:
    """Begin the draining of a broker, or end it."""
    _check_count(broker_id=broker_id)
    check_flag(dry_run=dry_run)
    request = pb.DrainBrokerRequest(broker_id=broker_id, is_ended=is_ended, dry_run=dry_run)
    response = await resolver.call_any(DRAIN_BROKER, request, timeout_seconds, is_read=dry_run)
    resolver.record_revision(response.metadata_revision)
    return read_drain(broker_id, response)


async def rebalance(resolver: Resolver, timeout_seconds: float, *, dry_run: bool, leaders_only: bool) -> RebalancePlan:
    """Give the brokers equal shares."""
    check_flag(dry_run=dry_run, leaders_only=leaders_only)
    request = pb.RebalanceRequest(dry_run=dry_run, leaders_only=leaders_only)
    response = await resolver.call_any(REBALANCE, request, timeout_seconds, is_read=dry_run)
    resolver.record_revision(response.metadata_revision)
    return read_rebalance(response)


async def move_partition(
    resolver: Resolver, topic: str, partition: int, broker_ids: Iterable[int], timeout_seconds: float, *, dry_run: bool
) -> PartitionMove:
    """Move a partition to other brokers."""
    _check_partition(topic, partition)
    check_flag(dry_run=dry_run)
    request = pb.MovePartitionRequest(
        topic=topic,
        partition=partition,
        broker_ids=_checked_brokers(broker_ids),
        dry_run=dry_run,
        metadata_revision=resolver.metadata_revision,
    )
    response = await resolver.call_any(MOVE_PARTITION, request, timeout_seconds, is_read=dry_run)
    resolver.record_revision(response.metadata_revision)
    return read_move(response.move)


async def unpin_partition(resolver: Resolver, topic: str, partition: int, timeout_seconds: float) -> bool:
    """Let automatic balancing move a partition again. Return whether it was pinned."""
    _check_partition(topic, partition)
    request = pb.MovePartitionRequest(
        topic=topic, partition=partition, unpin=True, metadata_revision=resolver.metadata_revision
    )
    response = await resolver.call_any(MOVE_PARTITION, request, timeout_seconds)
    resolver.record_revision(response.metadata_revision)
    return not response.had_no_pin


async def transfer_leader(
    resolver: Resolver,
    topic: str,
    partition: int,
    broker_id: int | None,
    timeout_seconds: float,
    broker_timeout_ms: int,
) -> LeaderTransfer:
    """Transfer the leadership of a partition."""
    _check_partition(topic, partition)
    if broker_id is not None:
        _check_count(broker_id=broker_id)
    request = pb.TransferLeaderRequest(
        topic=topic,
        partition=partition,
        broker_id=broker_id or 0,
        metadata_revision=resolver.metadata_revision,
        timeout_ms=broker_timeout_ms,
    )
    response = await resolver.call_any(TRANSFER_LEADER, request, timeout_seconds)
    return LeaderTransfer(topic, partition, response.leader_broker_id, response.leader_epoch)


async def set_replication_factor(
    resolver: Resolver, topic: str, replication_factor: int, timeout_seconds: float, *, dry_run: bool
) -> ReplicationChange:
    """Set the number of replicas of each partition of a topic."""
    _check_topic(topic)
    _check_count(replication_factor=replication_factor)
    check_flag(dry_run=dry_run)
    request = pb.SetReplicationFactorRequest(
        topic=topic,
        replication_factor=replication_factor,
        dry_run=dry_run,
        metadata_revision=resolver.metadata_revision,
    )
    response = await resolver.call_any(SET_REPLICATION_FACTOR, request, timeout_seconds, is_read=dry_run)
    resolver.record_revision(response.metadata_revision)
    return ReplicationChange(topic, replication_factor, response.move_count, read_moves(response.moves))


async def describe_moves(resolver: Resolver, timeout_seconds: float) -> MovesDescription:
    """Describe the moves under way."""
    request = pb.DescribeMovesRequest()
    response = await resolver.call_any(DESCRIBE_MOVES, request, timeout_seconds, is_read=True)
    resolver.record_revision(response.metadata_revision)
    return read_moves_description(response)


async def set_balancing(
    resolver: Resolver,
    timeout_seconds: float,
    *,
    auto_balance: bool | None,
    moves_max: int | None,
    bytes_per_second: int | None,
) -> BalancingSettings:
    """Change the settings of the cluster for moves."""
    if auto_balance is None and moves_max is None and bytes_per_second is None:
        raise InvalidArgumentError("give at least one of auto_balance, moves_max and bytes_per_second")
    request = pb.SetBalancingRequest()
    if auto_balance is not None:
        check_flag(auto_balance=auto_balance)
        request.auto_balance = auto_balance
    if moves_max is not None:
        _check_count(moves_max=moves_max)
        request.moves_max = moves_max
    if bytes_per_second is not None:
        check_whole(LONG_MAX, bytes_per_second=bytes_per_second)
        check_not_negative(bytes_per_second=bytes_per_second)
        request.bytes_per_second = bytes_per_second
    response = await resolver.call_any(SET_BALANCING, request, timeout_seconds)
    resolver.record_revision(response.metadata_revision)
    return BalancingSettings(response.auto_balance, response.moves_max, response.bytes_per_second)


def _check_count(**arguments: int) -> None:
    check_whole(**arguments)
    check_positive(**arguments)


def _check_topic(topic: object) -> None:
    if not isinstance(topic, str):
        raise TypeError(f"topic must be a string, not {topic!r}")
    check_text(topic, "topic")


def _check_partition(topic: str, partition: int) -> None:
    _check_topic(topic)
    check_whole(partition=partition)
    check_not_negative(partition=partition)


def _checked_brokers(broker_ids: Iterable[int]) -> list[int]:
    """Return the brokers of a partition. Raises `InvalidArgumentError` or `TypeError`."""
    given: object = broker_ids
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise TypeError(f"broker_ids must be a sequence of broker ids, such as [1, 2, 3], not {given!r}")
    wanted = list(broker_ids)
    for broker_id in wanted:
        _check_count(**{"an id in broker_ids": broker_id})
    if not wanted:
        raise InvalidArgumentError("broker_ids must name at least one broker, not []")
    if len(set(wanted)) < len(wanted):
        raise InvalidArgumentError(f"broker_ids must name each broker once, not {wanted!r}")
    return wanted
