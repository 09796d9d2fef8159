"""Drain brokers, ask for a rebalancing, and describe what the controller moves, on an operator's order.

Everything that can be refused is refused before proposing, with a sentence that names the remedy. A dry run plans as the controller does,
and changes nothing.
"""

from __future__ import annotations

import asyncio

import structlog
from raftmq.broker.base.request_error import RequestError
from raftmq.broker.cluster.balance_plan import BalancePlan
from raftmq.broker.cluster.layout import Layout, available_nodes, describe_layout
from raftmq.broker.cluster.replacement_plan import wanted_partition
from raftmq.broker.replica.commands import refused
from raftmq.broker.services.call import Call
from raftmq.broker.services.cluster_health import ClusterHealth
from raftmq.broker.services.feature_level import require_level
from raftmq.broker.services.health import HealthService
from raftmq.broker.services.host import ServiceHost
from raftmq.broker.services.locator import PARTITIONS_PER_REQUEST_MAX
from raftmq.broker.services.metadata_leader import MetadataLeader, on_metadata_leader
from raftmq.broker.services.move_messages import (
    MOVES_MAX,
    existing_node,
    given_up_moves,
    is_replica_move,
    partition_names,
    planned_moves,
    running_move,
    stuck_messages,
)
from raftmq.broker.services.node_calls import NodeCalls
from raftmq.broker.services.partition_sizes import PartitionSizes
from raftmq.fsm.consumer_groups import PartitionId
from raftmq.fsm.feature_levels import NEWCOMER_LEVEL
from raftmq.fsm.metadata import Metadata
from raftmq.fsm.metadata_balancing import REBALANCE_LEADERS, REBALANCE_REPLICAS, balancing_refusal
from raftmq.fsm.metadata_commands import Done, SetBalancing, SetNodeState
from raftmq.fsm.metadata_nodes import ACTIVE, DRAINING, drain_refusal
from raftmq.fsm.metadata_views import PartitionView
from raftmq.proto import peer_pb2 as peer_pb
from raftmq.proto import queue_pb2 as pb
from raftmq.types import NO_NODE, GroupId, NodeId

log = structlog.get_logger(__name__)


class BalancingService:
    """Answers the RPCs about draining and balancing."""

    def __init__(
        self,
        host: ServiceHost,
        leader: MetadataLeader,
        calls: NodeCalls,
        health: HealthService,
        cluster_health: ClusterHealth,
        sizes: PartitionSizes,
    ) -> None:
        self._host = host
        self.leader = leader
        self._calls = calls
        self._health = health
        self._cluster_health = cluster_health
        self._partition_sizes = sizes
        self._wishes = asyncio.Lock()

    @property
    def _metadata(self) -> Metadata:
        return self._host.metadata.state_machine

    # ------------------------------------------------------------------------------------------------ draining

    @on_metadata_leader
    async def drain_node(self, request: pb.DrainBrokerRequest, call: Call) -> pb.DrainBrokerResponse:
        """Begin or end the draining of a node. The controller then moves its replicas.

        Raises:
            RequestError: UNKNOWN_BROKER, BROKER_IN_USE or UNSUPPORTED_VERSION (nothing changed), or any error of `MetadataLeader`.
        """
        metadata = self._metadata
        require_level(metadata, NEWCOMER_LEVEL, "draining a broker")
        node = existing_node(metadata, request.broker_id)
        refusal = drain_refusal(metadata.nodes(), metadata.topics(), node.node_id)
        if refusal is not None and not request.is_ended and node.state == ACTIVE:
            raise RequestError(pb.BROKER_IN_USE, refusal.message)
        made = BalancePlan(())
        if not request.is_ended:
            made = await self._made(self._layout().with_draining(node.node_id), is_automatic=False)
        revision = metadata.revision
        if not request.dry_run:
            state = ACTIVE if request.is_ended else DRAINING
            revision = (await self.leader.execute(SetNodeState(node.node_id, state), Done, call.deadline)).revision
            if node.state != state == DRAINING:
                log.info("broker_draining", peer_id=node.node_id)
            elif node.state != state:
                log.info("broker_drain_ended", peer_id=node.node_id)
        held = metadata.partitions_of_node(node.node_id)
        leaders = (self._host.leadership.get(GroupId(partition.group_id)).node_id for partition in held)
        return pb.DrainBrokerResponse(
            metadata_revision=revision,
            replica_count=len(held),
            leader_count=sum(1 for leader in leaders if leader == node.node_id),
            is_metadata_voter=node.metadata_replica_id in self._host.metadata.core.membership.voters,
            moves=planned_moves(metadata, made.changes) if request.dry_run else (),
            without_place_count=len(made.without_place),
            without_place=partition_names(metadata, made.without_place),
            was_active=node.state == ACTIVE,
        )

    # ------------------------------------------------------------------------------------------------ balancing

    @on_metadata_leader
    async def rebalance(self, request: pb.RebalanceRequest, call: Call) -> pb.RebalanceResponse:
        """Ask for one rebalancing. The wish is replicated, so a later metadata leader goes on with it. If replicas may move, all pins end.

        Raises:
            RequestError: UNSUPPORTED_VERSION (nothing changed), or any error of `MetadataLeader`.
        """
        metadata = self._metadata
        require_level(metadata, NEWCOMER_LEVEL, "rebalancing")
        sizes = None if request.leaders_only else await self._partition_sizes.sizes()
        layout, pins = self._layout(sizes), 0
        if not request.leaders_only:
            pins = sum(partition.is_pinned for partition in layout.partitions)
            layout = layout.without_pins()
        made = await self._made(layout, is_automatic=True, leaders_only=request.leaders_only)
        moves = sum(is_replica_move(metadata, change) for change in made.changes)
        response = pb.RebalanceResponse(
            metadata_revision=metadata.revision,
            replica_move_count=moves,
            leader_move_count=len(made.changes) - moves,
            moves=planned_moves(metadata, made.changes),
            without_place_count=len(made.without_place),
            without_place=partition_names(metadata, made.without_place),
            pin_count=pins,
        )
        if not request.dry_run:
            response.metadata_revision = await self._wish(call, leaders_only=request.leaders_only)
        return response

    async def _wish(self, call: Call, *, leaders_only: bool) -> int:
        """Record the wish for a rebalancing, and return the revision. A larger wish in force stays as it is: repeating it would end new pins.

        Wishes are recorded one after the other. Otherwise one for leaderships would not see, and replace, a larger one that is in the log.
        """
        async with self._wishes:
            if leaders_only and self._metadata.balancing.rebalance == REBALANCE_REPLICAS:
                # an entry that changes nothing: afterwards it is known whether the end of the larger wish was in the log before it
                revision = (await self.leader.execute(SetBalancing(), Done, call.deadline)).revision
                if self._metadata.balancing.rebalance == REBALANCE_REPLICAS:
                    return revision
            wish = SetBalancing(rebalance=REBALANCE_LEADERS if leaders_only else REBALANCE_REPLICAS)
            return (await self.leader.execute(wish, Done, call.deadline)).revision

    @on_metadata_leader
    async def set_balancing(self, request: pb.SetBalancingRequest, call: Call) -> pb.SetBalancingResponse:
        """Change how replicas are moved. A field that is not set keeps its value.

        Raises:
            RequestError: INVALID_ARGUMENT or UNSUPPORTED_VERSION (nothing changed), or any error of `MetadataLeader`.
        """
        require_level(self._metadata, NEWCOMER_LEVEL, "changing how replicas are moved")
        command = SetBalancing(
            auto_balance=request.auto_balance if request.HasField("auto_balance") else None,
            moves_max=request.moves_max if request.HasField("moves_max") else None,
            bytes_per_second=request.bytes_per_second if request.HasField("bytes_per_second") else None,
        )
        refusal = balancing_refusal(command)
        if refusal is not None:
            raise refused(refusal)
        done = await self.leader.execute(command, Done, call.deadline)
        balancing = self._metadata.balancing
        return pb.SetBalancingResponse(
            metadata_revision=done.revision,
            auto_balance=balancing.auto_balance,
            moves_max=balancing.moves_max,
            bytes_per_second=balancing.bytes_per_second,
        )

    # ------------------------------------------------------------------------------------------------ description

    @on_metadata_leader
    async def describe_moves(self, request: pb.DescribeMovesRequest, call: Call) -> pb.DescribeMovesResponse:
        """Return the moves under way with their sizes and copied bytes, the number of those that wait, and replicas that cannot come up.

        A further replica that no broker can take, or that no leader can add, is one of these. It does not wait for its turn.
        """
        metadata, balancing = self._metadata, self._metadata.balancing
        made = await self._made(
            self._layout(), is_automatic=balancing.may_move_leaders, leaders_only=not balancing.may_move_replicas
        )
        unsettled = metadata.unsettled_partitions()
        moving = [one for one in unsettled if not any(gone.is_lost for gone in one.retiring)]
        sizes, stuck = await asyncio.gather(self._sizes(moving, call), self._cluster_health.stuck_replicas(call))
        blocked = {one.partition.group_id for one in stuck if one.node_id == NO_NODE}
        moves = [running_move(metadata, partition) for partition in moving]
        for partition, move in zip(moving, moves, strict=True):
            move.bytes, move.copied_bytes = sizes.get((partition.topic_id, partition.partition), (0, 0))
        return pb.DescribeMovesResponse(
            metadata_revision=metadata.revision,
            auto_balance=balancing.auto_balance,
            moves_max=balancing.moves_max,
            bytes_per_second=balancing.bytes_per_second,
            moves=moves,
            waiting_count=len(made.changes) + len(self._growing().difference(blocked)),
            rebuilding_count=len(unsettled) - len(moving),
            without_place=partition_names(metadata, made.without_place),
            without_place_count=len(made.without_place),
            given_up=given_up_moves(metadata, self._host.now_ms()),
            stuck=stuck_messages(metadata, stuck[:MOVES_MAX]),
            stuck_count=len(stuck),
        )

    def _growing(self) -> set[int]:
        """Return the groups of partitions whose topic wants more replicas, and that wait for them. Those that are rebuilt count as such."""
        metadata = self._metadata
        partitions = (metadata.partition(group_id) for topic in metadata.topics() for group_id in topic.group_ids)
        return {
            one.group_id
            for one in partitions
            if one is not None
            and wanted_partition(metadata, one).missing_count
            and not any(gone.is_lost for gone in one.retiring)
        }

    async def _sizes(self, partitions: list[PartitionView], call: Call) -> dict[PartitionId, tuple[int, int]]:
        """Return the size of each partition whose leader answers, and the bytes that are copied."""
        parts = [(one.topic_id, one.partition) for one in partitions[:PARTITIONS_PER_REQUEST_MAX]]
        by_node, _ = self._calls.by_leader(parts)
        sizes: dict[PartitionId, tuple[int, int]] = {}

        async def ask(node_id: NodeId, led: list[PartitionId]) -> None:
            request = peer_pb.DescribePartitionsRequest()
            request.partitions.extend(pb.PartitionId(topic_id=part[0], partition=part[1]) for part in led)
            try:
                answer = await self._calls.ask(node_id, request, self._health.describe_partitions, call)
            except RequestError:
                return
            sizes.update(
                ((one.topic_id, one.partition), (one.size_bytes, one.copied_bytes)) for one in answer.partitions
            )

        await asyncio.gather(*(ask(node_id, led) for node_id, led in by_node.items()))
        return sizes

    # ------------------------------------------------------------------------------------------------ plans

    def _layout(self, sizes: dict[int, int] | None = None) -> Layout:
        """Describe the layout. A broker that joined a moment ago may be given replicas: the controller only waits a little."""
        available = available_nodes(
            self._metadata,
            lambda node_id: self._host.is_connected(NodeId(node_id)),
            lambda group_id: self._host.is_led(GroupId(group_id)),
        )
        return describe_layout(self._metadata, self._host.limits.partitions_max, available, self._host.now_ms(), sizes)

    async def _made(self, layout: Layout, *, is_automatic: bool, leaders_only: bool = False) -> BalancePlan:
        """Plan in a thread, because a plan for many partitions takes a while."""

        def plan() -> BalancePlan:
            return layout.plan(is_automatic=is_automatic, leaders_only=leaders_only)

        return await self._host.loop.run_in_executor(None, plan)
