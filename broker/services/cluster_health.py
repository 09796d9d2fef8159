"""Gather the health of the cluster for one request: each partition's state from its leader, and every node's own report.

A node's knowledge of a leader is only a hint, because the leader may have died a moment ago. Here a partition is led if a node answers
that it leads it. A node that does not answer within `Timing.describe_seconds` is unknown, never healthy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from raftmq.broker.base.readiness import Reason
from raftmq.broker.base.request_error import RequestError
from raftmq.broker.cluster.stuck_replicas import Evidence, StuckReplica, stuck_replicas, unfinished_partitions
from raftmq.broker.services.call import Call
from raftmq.broker.services.health import HealthService
from raftmq.broker.services.host import ServiceHost
from raftmq.broker.services.locator import PARTITIONS_PER_REQUEST_MAX
from raftmq.broker.services.move_messages import NAMED_MAX, stuck_messages
from raftmq.broker.services.node_calls import NodeCalls, failed_part
from raftmq.fsm.consumer_groups import PartitionId
from raftmq.fsm.metadata_views import TopicView
from raftmq.proto import peer_pb2 as peer_pb
from raftmq.proto import queue_pb2 as pb
from raftmq.storage.log_store import ReplicaKey
from raftmq.types import METADATA_GROUP_ID, NO_NODE, GroupId, NodeId, ReplicaId

_OTHERS_SHARE = 0.7
"""The part of the call's remaining time that is given to other nodes. The rest is for sending the answer."""


@dataclass(frozen=True, slots=True)
class GatheredHealth:
    """The nodes' reports."""

    cluster: pb.ClusterHealth
    nodes: dict[NodeId, pb.BrokerHealth]
    """The reports of the nodes that answered."""


class ClusterHealth:
    """Asks all nodes for their health and the states of their partitions."""

    def __init__(self, host: ServiceHost, calls: NodeCalls, health: HealthService) -> None:
        self._host = host
        self._calls = calls
        self._health = health

    # ------------------------------------------------------------------------------------------------ partitions

    async def partition_states(self, topic: TopicView, call: Call) -> list[pb.PartitionState]:
        """Return the state of each partition of a topic, in order. If a partition's leader does not answer, its state has an error."""
        call = self.soon(call)
        by_node, leaderless = self._calls.by_leader((topic.topic_id, number) for number in range(len(topic.group_ids)))
        found = {part: failed_part(pb.PartitionState(), part, error) for part, error in leaderless}

        async def ask(node_id: NodeId, parts: list[PartitionId]) -> None:
            request = peer_pb.DescribePartitionsRequest(metadata_revision=self._host.metadata.state_machine.revision)
            request.partitions.extend(pb.PartitionId(topic_id=part[0], partition=part[1]) for part in parts)
            here = self._health.describe_partitions
            try:
                answer = await self._calls.ask(node_id, request, here, call)
            except RequestError as error:
                found.update((part, failed_part(pb.PartitionState(), part, error)) for part in parts)
            else:
                found.update(((one.topic_id, one.partition), one) for one in answer.partitions)

        chunks = (
            (node_id, parts[start : start + PARTITIONS_PER_REQUEST_MAX])
            for node_id, parts in by_node.items()
            for start in range(0, len(parts), PARTITIONS_PER_REQUEST_MAX)
        )
        await asyncio.gather(*(ask(node_id, parts) for node_id, parts in chunks))
        return [found[part] for part in sorted(found)]

    # ------------------------------------------------------------------------------------------------ the cluster

    async def gather(self, call: Call) -> GatheredHealth:
        """Ask every connected node for its health."""
        call = self.soon(call)
        nodes = [NodeId(node.node_id) for node in self._host.metadata.state_machine.nodes()]
        connected = [node_id for node_id in nodes if self._host.is_connected(node_id)]
        answers = await asyncio.gather(*(self._ask_node(node_id, call) for node_id in connected))
        answered = {node: answer for node, answer in zip(connected, answers, strict=True) if answer is not None}
        led = {GroupId(group_id) for answer in answered.values() for group_id in answer.led_group_ids}
        behind = {node_id for answer in answered.values() for node_id in answer.metadata_voters_behind}
        leaderless, unknown = self._without_leader(led, set(answered))
        machine = self._host.metadata.state_machine
        stuck = list(stuck_replicas(machine, self._evidence(answered)))
        return GatheredHealth(
            pb.ClusterHealth(
                leaderless=self._health.names(leaderless),
                unknown=self._health.names(unknown),
                metadata_voters_behind=sorted(behind),
                is_metadata_led=METADATA_GROUP_ID in led,
                stuck=stuck_messages(machine, stuck[:NAMED_MAX]),
                stuck_count=len(stuck),
            ),
            {node_id: answer.health for node_id, answer in answered.items()},
        )

    async def stuck_replicas(self, call: Call) -> list[StuckReplica]:
        """Return the new replicas that cannot come up now. Only the brokers that are concerned are asked."""
        machine, call = self._host.metadata.state_machine, self.soon(call)
        concerned = {NodeId(one.node_id) for part in unfinished_partitions(machine) for one in part.replicas}
        connected = [node_id for node_id in sorted(concerned) if self._host.is_connected(node_id)]
        answers = await asyncio.gather(*(self._ask_node(node_id, call) for node_id in connected))
        answered = {node: answer for node, answer in zip(connected, answers, strict=True) if answer is not None}
        return list(stuck_replicas(machine, self._evidence(answered)))

    def _evidence(self, answered: Mapping[NodeId, peer_pb.DescribeBrokerResponse]) -> Evidence:
        def leader_of(group_id: int) -> int:
            group = GroupId(group_id)
            return self._host.leadership.get(group).node_id if self._host.is_led(group) else NO_NODE

        return Evidence(
            lambda node_id: self._host.is_connected(NodeId(node_id)),
            leader_of,
            self._host.limits.partitions_max,
            {node: reason for node, answer in answered.items() if (reason := _obstacle(answer.health.not_ready))},
            {_key(one): one.reason for answer in answered.values() for one in answer.not_served},
            {_key(one): one.reason for answer in answered.values() for one in answer.without_progress},
        )

    async def unled_groups(self, call: Call) -> list[GroupId]:
        """Ask every connected node, and return the partitions that none of them leads."""
        call = self.soon(call)
        nodes = [NodeId(node.node_id) for node in self._host.metadata.state_machine.nodes()]
        connected = [node_id for node_id in nodes if self._host.is_connected(node_id)]
        answers = await asyncio.gather(*(self._ask_node(node_id, call) for node_id in connected))
        led = {GroupId(group_id) for answer in answers if answer is not None for group_id in answer.led_group_ids}
        leaderless, unknown = self._without_leader(led, set())
        return sorted(leaderless + unknown)

    async def _ask_node(self, node_id: NodeId, call: Call) -> peer_pb.DescribeBrokerResponse | None:
        here = self._health.describe_node
        try:
            return await self._calls.ask(node_id, peer_pb.DescribeBrokerRequest(), here, call)
        except RequestError:
            return None

    def _without_leader(self, led: set[GroupId], answered: set[NodeId]) -> tuple[list[GroupId], list[GroupId]]:
        """Return the partitions that no answering node leads: those without a leader, and those whose known leader did not answer."""
        machine = self._host.metadata.state_machine
        leaderless: list[GroupId] = []
        unknown: list[GroupId] = []
        for topic in machine.topics():
            for group_id in map(GroupId, topic.group_ids):
                if group_id not in led:
                    believed = self._host.leadership.get(group_id).node_id
                    is_unknown = self._host.is_led(group_id) and believed not in answered
                    (unknown if is_unknown else leaderless).append(group_id)
        return leaderless, unknown

    def soon(self, call: Call) -> Call:
        """Return the call with a deadline for asking others."""
        now = self._host.loop.time()
        return replace(
            call, deadline=now + min(self._host.timing.describe_seconds, _OTHERS_SHARE * max(0.0, call.deadline - now))
        )


def _key(report: peer_pb.ReplicaReport) -> ReplicaKey:
    return ReplicaKey(GroupId(report.group_id), ReplicaId(report.replica_id))


def _obstacle(not_ready: Iterable[str]) -> str:
    """Return the first reason of a broker that may hold up a new replica. That the broker opens replicas does not: the new one is among them."""
    return next((reason for reason in not_ready if not reason.startswith(f"{Reason.STARTING_REPLICAS}:")), "")
