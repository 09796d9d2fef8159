"""Move a partition, transfer its leadership, or change a topic's number of replicas, on an operator's order.

Everything that can be refused is refused before proposing, with a sentence that names the remedy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace

from raftmq.broker.base.request_error import RequestError
from raftmq.broker.cluster.balance_plan import Change, Reason
from raftmq.broker.cluster.layout import available_nodes, count_replicas, describe_layout, refusal_of_move
from raftmq.broker.cluster.replacement_plan import WantedPartition, plan_replacements
from raftmq.broker.partitions.partition import Partition
from raftmq.broker.replica.commands import refused
from raftmq.broker.replica.replica import Replica
from raftmq.broker.services.call import Call
from raftmq.broker.services.feature_level import require_level
from raftmq.broker.services.host import ServiceHost
from raftmq.broker.services.locator import Locator
from raftmq.broker.services.metadata_leader import MetadataLeader, on_metadata_leader
from raftmq.broker.services.move_messages import (
    MOVES_MAX,
    existing_node,
    planned_move,
    planned_moves,
)
from raftmq.broker.services.node_calls import NodeCalls
from raftmq.fsm.feature_levels import NEWCOMER_LEVEL, PIN_LEVEL
from raftmq.fsm.metadata import Metadata
from raftmq.fsm.metadata_commands import Done, SetReplicas, SetReplicationFactor
from raftmq.fsm.metadata_nodes import ACTIVE, DRAINING
from raftmq.fsm.metadata_topics import replication_factor_refusal
from raftmq.fsm.metadata_views import NodeView, PartitionView, TopicView
from raftmq.fsm.state_machine import StateMachine
from raftmq.proto import queue_pb2 as pb
from raftmq.types import NO_NODE, GroupId, NodeId, ReplicaId


class ReplicaPlacementService:
    """Answers the RPCs that place the replicas and the leader of a partition."""

    def __init__(
        self,
        host: ServiceHost,
        locator: Locator[Partition],
        partitions: Mapping[GroupId, Partition],
        leader: MetadataLeader,
        calls: NodeCalls,
    ) -> None:
        self._host = host
        self._locator = locator
        self._partitions = partitions
        self.leader = leader
        self._calls = calls

    @property
    def _metadata(self) -> Metadata:
        return self._host.metadata.state_machine

    # ------------------------------------------------------------------------------------------------ moves

    @on_metadata_leader
    async def move_partition(self, request: pb.MovePartitionRequest, call: Call) -> pb.MovePartitionResponse:
        """Set the replicas of a partition, and pin them there. The first named broker is the preferred leader. The answer does not wait for the
        move. With `unpin`, only end the pin.

        Raises:
            RequestError: UNKNOWN_TOPIC, UNKNOWN_PARTITION, UNKNOWN_BROKER, INVALID_ARGUMENT, INVALID_REPLICATION_FACTOR, FAILED_PRECONDITION,
                TOO_MANY_PARTITIONS or UNSUPPORTED_VERSION. CONFLICT while the partition moves. Nothing changed. Or any error of `MetadataLeader`.
        """
        require_level(self._metadata, NEWCOMER_LEVEL, "moving a partition")
        topic, partition = await self._partition(request.topic, request.partition, request.metadata_revision, call)
        present = tuple(replica.node_id for replica in partition.replicas)
        node_ids = present if request.unpin else tuple(request.broker_ids)
        if request.unpin and request.broker_ids:
            raise RequestError(pb.INVALID_ARGUMENT, "a move pins the partition: name brokers, or end its pin, not both")
        if not request.unpin:
            self._check_targets(topic, partition, node_ids)
        is_pinned = not request.unpin and self._metadata.feature_level >= PIN_LEVEL
        move = planned_move(self._metadata, partition, node_ids, pb.REQUESTED)
        if request.dry_run or (node_ids == present and is_pinned == partition.is_pinned):
            return pb.MovePartitionResponse(
                metadata_revision=self._metadata.revision, move=move, had_no_pin=not partition.is_pinned
            )
        command = SetReplicas(partition.group_id, node_ids, partition.revision, is_pinned)
        done = await self.leader.execute(command, Done, call.deadline)
        return pb.MovePartitionResponse(metadata_revision=done.revision, move=move)

    def _check_targets(self, topic: TopicView, partition: PartitionView, node_ids: tuple[int, ...]) -> None:
        metadata, name = self._metadata, f"{topic.name}/{partition.partition}"
        if len(set(node_ids)) != len(node_ids):
            raise RequestError(
                pb.INVALID_ARGUMENT, "a broker is named twice: a partition has one replica on each broker"
            )
        nodes = [existing_node(metadata, node_id) for node_id in node_ids]
        if len(node_ids) != topic.replication_factor:
            raise RequestError(
                pb.INVALID_REPLICATION_FACTOR,
                f"topic {topic.name} has replication factor {topic.replication_factor}, and the number of named brokers is "
                f"{len(node_ids)}: name as many, or change the factor first (raftmq topic alter {topic.name} --replication-factor {len(node_ids)})",
            )
        held = {replica.node_id for replica in partition.replicas}
        for node in nodes:
            _check_not_draining(node)  # not even one that still has a replica: the pin would contradict the order
            if node.node_id not in held:
                self._check_taker(node)
        leader = self._host.leadership.get(GroupId(partition.group_id)).node_id
        is_led = self._host.is_led(GroupId(partition.group_id))
        refusal = refusal_of_move(metadata, partition, node_ids, leader if is_led else NO_NODE, self._is_connected)
        if refusal is not None:
            raise RequestError(
                pb.CONFLICT,
                f"partition {name} {refusal}: wait until it is whole, then repeat the call (if its majority is lost: raftmq cluster recover)",
                retry_after_ms=1000,
            )

    def _check_taker(self, node: NodeView) -> None:
        """Raise unless a broker can be given a replica."""
        metadata, node_id = self._metadata, node.node_id
        if not self._is_connected(node_id):
            raise RequestError(
                pb.FAILED_PRECONDITION, f"broker {node_id} is unreachable: start it first, or name another one"
            )
        if node_id not in available_nodes(metadata, self._is_connected, self._is_led):
            raise RequestError(
                pb.FAILED_PRECONDITION,
                f"broker {node_id} rebuilds replicas that it lost: wait until that is done, or name another one",
            )
        takes = node.partitions_max or self._host.limits.partitions_max
        if metadata.replica_count_of_node(node_id) >= takes:
            raise RequestError(
                pb.TOO_MANY_PARTITIONS, f"broker {node_id} has all {takes} replicas that it takes: name another one"
            )

    def _is_connected(self, node_id: int) -> bool:
        return self._host.is_connected(NodeId(node_id))

    def _is_led(self, group_id: int) -> bool:
        return self._host.is_led(GroupId(group_id))

    # ------------------------------------------------------------------------------------------------ replication factor

    @on_metadata_leader
    async def set_replication_factor(
        self, request: pb.SetReplicationFactorRequest, call: Call
    ) -> pb.SetReplicationFactorResponse:
        """Set the number of replicas of each partition of a topic. The controller adds and removes them afterwards.

        Raises:
            RequestError: UNKNOWN_TOPIC, INVALID_REPLICATION_FACTOR or UNSUPPORTED_VERSION (nothing changed), or any error of `MetadataLeader`.
        """
        metadata = self._metadata
        require_level(metadata, NEWCOMER_LEVEL, "another replication factor")
        await self._locator.wait_revision(request.metadata_revision, call.deadline)
        topic = await self._locator.topic_by_name(request.topic, call.deadline)
        refusal = replication_factor_refusal(metadata.nodes(), request.replication_factor)
        if refusal is not None:
            raise refused(refusal)
        changes = await self._changes(topic, request.replication_factor)
        revision = metadata.revision
        if not request.dry_run:
            command = SetReplicationFactor(topic.topic_id, request.replication_factor)
            revision = (await self.leader.execute(command, Done, call.deadline)).revision
        return pb.SetReplicationFactorResponse(
            metadata_revision=revision, moves=planned_moves(metadata, changes[:MOVES_MAX]), move_count=len(changes)
        )

    async def _changes(self, topic: TopicView, replication_factor: int) -> Sequence[Change]:
        """Return the changes that another replication factor causes, as far as they can be made now."""
        metadata = self._metadata
        found = (metadata.partition(group_id) for group_id in topic.group_ids)
        partitions = [partition for partition in found if partition is not None]
        available = available_nodes(metadata, self._is_connected, self._is_led)
        layout = describe_layout(metadata, self._host.limits.partitions_max, available, self._host.now_ms())
        growth = plan_replacements(
            [WantedPartition(partition, replication_factor) for partition in partitions],
            metadata.nodes(),
            count_replicas(metadata),
            layout.replicas_max,
            self._is_connected,
            lambda group_id: self._host.leadership.get(GroupId(group_id)).node_id,
            len(partitions),
            len(partitions),
        )
        changes = [Change(one.group_id, one.node_ids, Reason.SURPLUS) for one in growth.commands]
        shrinking = frozenset(one.group_id for one in partitions if len(one.replicas) > replication_factor)
        if shrinking:
            shrunk = layout.with_replication_factor(shrinking, replication_factor)
            # in a thread, because a plan for many partitions takes a while
            made = await self._host.loop.run_in_executor(None, lambda: shrunk.plan(is_automatic=False))
            changes += [change for change in made.changes if change.group_id in shrinking]
        return changes

    # ------------------------------------------------------------------------------------------------ leadership

    async def transfer_leader(self, request: pb.TransferLeaderRequest, call: Call) -> pb.TransferLeaderResponse:
        """Transfer the leadership of a partition to the given broker, or to its preferred leader. The partition's leader does it.

        Raises:
            RequestError: UNKNOWN_TOPIC, UNKNOWN_PARTITION, UNKNOWN_BROKER, FAILED_PRECONDITION, NOT_READY if the replica is behind, NO_LEADER.
                Nothing changed. REQUEST_TIMED_OUT if the new leader was not seen in time: the transfer may still happen.
        """
        call = replace(call, deadline=call.within(request.timeout_ms, self._host.loop.time()))
        _, partition = await self._partition(request.topic, request.partition, request.metadata_revision, call)
        group_id = GroupId(partition.group_id)
        here = self._partitions.get(group_id)
        if here is not None and here.replica.is_leader:
            return await self._transfer(request, partition, here.replica, call.deadline)
        leader = self._host.leadership.get(group_id).node_id if self._host.is_led(group_id) else NO_NODE
        if call.is_forwarded or leader in (NO_NODE, self._host.node_id):
            raise RequestError(
                pb.NO_LEADER,
                f"partition {request.topic}/{request.partition} has no leader at the moment",
                retry_after_ms=200,
            )
        return await self._calls.ask(leader, request, self.transfer_leader, call)

    async def _transfer(
        self,
        request: pb.TransferLeaderRequest,
        partition: PartitionView,
        replica: Replica[StateMachine],
        deadline: float,
    ) -> pb.TransferLeaderResponse:
        host = self._host
        preferred = partition.replicas[0].node_id if partition.replicas else host.node_id
        node_id = NodeId(request.broker_id or preferred)
        if node_id != host.node_id:
            host.transfer_leadership(replica, self._heir(request, replica, node_id))
        try:
            async with asyncio.timeout_at(deadline):
                while (seen := host.leadership.get(replica.group_id)).node_id != node_id:
                    await host.next_topology_change()
        except TimeoutError:
            raise RequestError(
                pb.REQUEST_TIMED_OUT,
                f"broker {node_id} was not seen to lead partition {request.topic}/{request.partition} in time: look at its leader "
                "(raftmq partition list), then try again",
            ) from None
        return pb.TransferLeaderResponse(leader_broker_id=seen.node_id, leader_epoch=seen.term)

    def _heir(self, request: pb.TransferLeaderRequest, replica: Replica[StateMachine], node_id: NodeId) -> ReplicaId:
        """Return the replica on the given broker. Raises unless it can lead."""
        name = f"{request.topic}/{request.partition}"
        node = existing_node(self._metadata, node_id)
        voters = replica.core.membership.voters
        target = next((voter for voter in voters if replica.node_of(voter) == node_id), None)
        if target is None:
            holders = ", ".join(str(one) for one in sorted(replica.node_of(voter) for voter in voters))
            raise RequestError(
                pb.FAILED_PRECONDITION,
                f"partition {name} has no voting replica on broker {node_id}, but on {holders}: move it there first "
                f"(raftmq partition move)",
            )
        if node.state != ACTIVE:
            raise RequestError(
                pb.FAILED_PRECONDITION,
                f"broker {node_id} is being drained and takes no leaderships: name another one, or end the draining first "
                f"(raftmq cluster undrain {node_id})",
            )
        if not self._is_connected(node_id):
            raise RequestError(
                pb.FAILED_PRECONDITION, f"broker {node_id} is unreachable: start it first, or name another one"
            )
        if target not in self._host.replication.in_sync(replica):
            raise RequestError(
                pb.NOT_READY,
                f"the replica of partition {name} on broker {node_id} is behind: wait until it has caught up",
                retry_after_ms=500,
            )
        return target

    async def _partition(
        self, topic_name: str, number: int, revision: int, call: Call
    ) -> tuple[TopicView, PartitionView]:
        await self._locator.wait_revision(revision, call.deadline)
        topic = await self._locator.topic_by_name(topic_name, call.deadline)
        partition = self._metadata.partition(topic.group_ids[number]) if number < len(topic.group_ids) else None
        if partition is None:
            raise RequestError(
                pb.UNKNOWN_PARTITION, f"topic {topic.name} has {len(topic.group_ids)} partitions, none is {number}"
            )
        return topic, partition


def _check_not_draining(node: NodeView) -> None:
    if node.state == DRAINING:
        raise RequestError(
            pb.FAILED_PRECONDITION,
            f"broker {node.node_id} is being drained and gets no replicas: name another one, or end the draining first "
            f"(raftmq cluster undrain {node.node_id})",
        )
