# ruff: noqa: N802 - the names of gRPC's servicer methods
"""The moves of a fake cluster: planned by simple rules, and one finished after each description."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from raftmq.proto import queue_pb2 as pb

if TYPE_CHECKING:
    from tests.support.client.fake_broker import FakeCluster, FakePartition, FakeTopic

MOVE_BYTES = 4096


@dataclass
class FakeMoves:
    """The moves of a fake cluster, and the settings for them."""

    auto_balance: bool = True
    moves_max: int = 2
    bytes_per_second: int = 0
    planned: list[pb.PartitionMove] = field(default_factory=list)
    """The moves that are not finished. The first `moves_max` are under way."""
    balance: list[pb.PartitionMove] = field(default_factory=list)
    """The plan of the next rebalance."""
    without_place: list[pb.PartitionName] = field(default_factory=list)
    given_up: list[pb.GivenUpMove] = field(default_factory=list)
    stuck: list[pb.StuckReplica] = field(default_factory=list)
    rebuilding_count: int = 0
    draining: set[int] = field(default_factory=set)
    is_frozen: bool = False
    """Whether no move is ever finished."""
    unreachable: set[int] = field(default_factory=set)
    """Brokers that count as not connected."""
    leaderless_count: int = 0
    """Number of partitions without a leader."""
    keeps_vote: bool = False
    """Whether a drained broker keeps its vote on metadata."""
    is_losing: bool = False
    """Whether moves end without an effect."""
    gives_up: bool = False
    """Whether moves are given up."""
    rebuilding_first: int = 0
    """Number of descriptions during which nothing moves, because a lost replica is rebuilt."""
    plans_nothing: bool = False
    """Whether no move is planned, because each partition must be rebuilt first."""
    unplanned_first: int = 0
    """Number of descriptions before the first move is planned."""
    idle_leaders: int = 0
    """Number of descriptions of the cluster in which broker 1 leads nothing, as after a restart."""
    late_brokers: int = 0
    """Number of descriptions of the cluster by a broker that has not learnt of the latest changes."""
    behind: int = 0
    """Number of states of partitions in which only the leader is in sync."""
    refusal: int = 0
    """The error code with which descriptions are refused."""
    descriptions: int = 0
    """Number of DescribeMoves calls."""

    def under_way(self) -> list[pb.PartitionMove]:
        """Return the moves under way, the first one half finished."""
        moves = self.planned[: self.moves_max]
        for number, move in enumerate(moves):
            move.copied_bytes = 0 if number else move.bytes // 2
        return moves

    def finish_one(self, cluster: FakeCluster) -> None:
        """Finish the first move."""
        if self.is_frozen or not self.planned:
            return
        move = self.planned.pop(0)
        if self.is_losing:
            return
        if self.gives_up:
            given_up = pb.GivenUpMove(topic=move.topic, partition=move.partition, to_broker_ids=move.to_broker_ids)
            given_up.reason, given_up.at_ms = "the new replica makes no progress", self.descriptions
            self.given_up.append(given_up)
            cluster.topics[move.topic].partitions[move.partition].ordered = []
            return
        cluster.topics[move.topic].partitions[move.partition].move_to(list(move.to_broker_ids))
        cluster.changed()


class FakeMovesService:
    """The methods of Admin that drain, balance and move. A mixin of `FakeBroker`."""

    cluster: FakeCluster

    async def _known(self, name: str, context) -> FakeTopic:
        raise NotImplementedError

    async def refuse(self, context, code: int) -> None:
        raise NotImplementedError

    async def DrainBroker(self, request, context):
        cluster, moves = self.cluster, self.cluster.moves
        if request.broker_id not in cluster.brokers:
            await self.refuse(context, pb.UNKNOWN_BROKER)
        plan = [] if request.is_ended else list(self._moves_away(request.broker_id))
        held = [partition for _, _, partition in self._partitions() if request.broker_id in partition.replicas]
        response = pb.DrainBrokerResponse(
            metadata_revision=cluster.revision,
            replica_count=len(held),
            leader_count=sum(partition.leader == request.broker_id for partition in held),
            is_metadata_voter=request.broker_id not in moves.draining,
            without_place_count=len(held) - len(plan),
            moves=plan if request.dry_run else [],
            was_active=request.broker_id not in moves.draining,
        )
        if request.is_ended:
            moves.draining.discard(request.broker_id)
            moves.planned = [move for move in moves.planned if move.reason != pb.DRAIN]
        elif not request.dry_run:
            moves.draining.add(request.broker_id)
            moves.planned += plan
        return response

    def _partitions(self) -> Iterator[tuple[FakeTopic, int, FakePartition]]:
        for topic in self.cluster.topics.values():
            for number, partition in enumerate(topic.partitions):
                yield topic, number, partition

    def _moves_away(self, broker_id: int) -> Iterator[pb.PartitionMove]:
        unusable = self.cluster.moves.draining | {broker_id}
        for topic, number, partition in self._partitions():
            if broker_id in partition.replicas:
                free = sorted(self.cluster.brokers.keys() - unusable - set(partition.replicas))
                if free:
                    wanted = [free[0] if one == broker_id else one for one in partition.replicas]
                    yield self._move(topic, number, wanted, pb.DRAIN)

    def _move(self, topic: FakeTopic, number: int, wanted: list[int], reason: int) -> pb.PartitionMove:
        return pb.PartitionMove(
            topic=topic.name,
            partition=number,
            from_broker_ids=topic.partitions[number].replicas,
            to_broker_ids=wanted,
            reason=pb.MoveReason.ValueType(reason),
            bytes=MOVE_BYTES,
        )

    async def Rebalance(self, request, context):
        moves = self.cluster.moves
        plan = [move for move in moves.balance if not request.leaders_only or move.reason == pb.EVEN_LEADERS]
        pinned = [one for _, _, one in self._partitions() if one.is_pinned and not request.leaders_only]
        if not request.dry_run:
            for partition in pinned:
                partition.is_pinned = False
            moves.planned += plan
            moves.balance = []
        leaders = sum(move.reason == pb.EVEN_LEADERS for move in plan)
        return pb.RebalanceResponse(
            metadata_revision=self.cluster.revision,
            replica_move_count=len(plan) - leaders,
            leader_move_count=leaders,
            moves=plan,
            without_place_count=len(moves.without_place),
            without_place=moves.without_place,
            pin_count=len(pinned),
        )

    async def MovePartition(self, request, context):
        topic = await self._known_partition(request, context)
        partition = topic.partitions[request.partition]
        had_no_pin = not partition.is_pinned
        if not request.dry_run:
            partition.is_pinned = not request.unpin
            self.cluster.changed()
        if request.unpin:
            return pb.MovePartitionResponse(metadata_revision=self.cluster.revision, had_no_pin=had_no_pin)
        if not set(request.broker_ids) <= self.cluster.brokers.keys():
            await self.refuse(context, pb.UNKNOWN_BROKER)
        move = self._move(topic, request.partition, list(request.broker_ids), pb.REQUESTED)
        if not request.dry_run:
            partition.ordered = list(request.broker_ids)
            self.cluster.moves.planned.insert(0, move)
        return pb.MovePartitionResponse(metadata_revision=self.cluster.revision, move=move)

    async def _known_partition(self, request, context) -> FakeTopic:
        topic = await self._known(request.topic, context)
        if request.partition >= len(topic.partitions):
            await self.refuse(context, pb.UNKNOWN_PARTITION)
        return topic

    async def TransferLeader(self, request, context):
        topic = await self._known_partition(request, context)
        partition = topic.partitions[request.partition]
        if request.broker_id and request.broker_id not in partition.replicas:
            await self.refuse(context, pb.INVALID_ARGUMENT)
        self.cluster.move_leader(topic.name, request.partition, request.broker_id or partition.replicas[0])
        return pb.TransferLeaderResponse(leader_broker_id=partition.leader, leader_epoch=partition.leader_epoch)

    async def SetReplicationFactor(self, request, context):
        topic = await self._known(request.topic, context)
        wanted = request.replication_factor
        if wanted > len(self.cluster.brokers):
            await self.refuse(context, pb.INVALID_REPLICATION_FACTOR)
        plan = [
            self._move(topic, number, self._resized(partition.replicas, wanted), pb.REPLICATION_FACTOR)
            for number, partition in enumerate(topic.partitions)
            if len(partition.replicas) != wanted
        ]
        if not request.dry_run:
            topic.replication_factor = wanted
            self.cluster.moves.planned += plan
        return pb.SetReplicationFactorResponse(
            metadata_revision=self.cluster.revision, moves=plan, move_count=len(plan)
        )

    def _resized(self, replicas: list[int], count: int) -> list[int]:
        return [*replicas, *sorted(self.cluster.brokers.keys() - set(replicas))][:count]

    async def DescribeMoves(self, request, context):
        moves = self.cluster.moves
        if moves.refusal:
            await self.refuse(context, moves.refusal)
        moves.descriptions += 1
        if moves.descriptions <= moves.unplanned_first:
            return pb.DescribeMovesResponse(metadata_revision=self.cluster.revision)
        if moves.descriptions <= moves.rebuilding_first:
            return pb.DescribeMovesResponse(metadata_revision=self.cluster.revision, rebuilding_count=1)
        under_way = moves.under_way()
        response = pb.DescribeMovesResponse(
            metadata_revision=self.cluster.revision,
            auto_balance=moves.auto_balance,
            moves_max=moves.moves_max,
            bytes_per_second=moves.bytes_per_second,
            moves=under_way,
            waiting_count=0 if moves.plans_nothing else len(moves.planned) - len(under_way),
            rebuilding_count=moves.rebuilding_count,
            without_place=moves.without_place,
            without_place_count=len(moves.without_place),
            given_up=moves.given_up,
            stuck=moves.stuck,
            stuck_count=len(moves.stuck),
        )
        moves.finish_one(self.cluster)
        async with self.cluster.queue_changed:
            self.cluster.queue_changed.notify_all()
        return response

    async def ForgetProducerNames(self, request, context):
        names = self.cluster.names
        found = [name for name in sorted(names) if name.startswith(request.prefix)]
        shown = [pb.ProducerNameView(name=name, epoch=names[name][1], unused_ms=1500) for name in found]
        for name in () if request.dry_run else found:
            del names[name]
        return pb.ForgetProducerNamesResponse(
            metadata_revision=self.cluster.revision,
            forgotten_count=len(found),
            left_count=len(names),
            limit=100_000,
            names=shown[: request.names_max],
        )

    async def SetBalancing(self, request, context):
        moves = self.cluster.moves
        for name in ("auto_balance", "moves_max", "bytes_per_second"):
            if request.HasField(name):
                setattr(moves, name, getattr(request, name))
        return pb.SetBalancingResponse(
            metadata_revision=self.cluster.revision,
            auto_balance=moves.auto_balance,
            moves_max=moves.moves_max,
            bytes_per_second=moves.bytes_per_second,
        )
