"""Report this node's own health, and the state of the partitions that it leads. This module decides nothing.

`cluster_health` asks every node, so that one answer shows the whole cluster.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from itertools import islice

from raftmq.broker.base.request_error import RequestError, expired
from raftmq.broker.cluster.replication_health import copied_bytes
from raftmq.broker.cluster.unserved import NotServedReason
from raftmq.broker.partitions.partition import Partition
from raftmq.broker.replica.replica import Replica
from raftmq.broker.services.call import Call
from raftmq.broker.services.host import ServiceHost
from raftmq.broker.services.locator import Locator, check_partitions
from raftmq.fsm.state_machine import StateMachine
from raftmq.proto import peer_pb2 as peer_pb
from raftmq.proto import queue_pb2 as pb
from raftmq.raft.ready import Role
from raftmq.storage.log_store import ReplicaKey
from raftmq.types import METADATA_GROUP_ID, GroupId

_REPORTED_MAX = 1000
"""Replicas in each list of a node's description."""
_WARNING_CHARACTERS_MAX = 500
"""The longest warning. A reason may contain a text of the operating system or of a library."""


class HealthService:
    """Answers `DescribePartitions` and `DescribeBroker`."""

    def __init__(self, host: ServiceHost, locator: Locator[Partition]) -> None:
        self._host = host
        self._locator = locator

    # ------------------------------------------------------------------------------------------------ partitions

    async def describe_partitions(
        self, request: peer_pb.DescribePartitionsRequest, call: Call
    ) -> peer_pb.DescribePartitionsResponse:
        """Return the state of each partition led here. Every other one has an error."""
        check_partitions(len(request.partitions))
        await self._locator.wait_revision(request.metadata_revision, call.deadline)
        states: list[pb.PartitionState] = []
        for part in request.partitions:
            state = pb.PartitionState(topic_id=part.topic_id, partition=part.partition)
            try:
                partition = await self._locator.locate_confirmed(part.topic_id, part.partition, call.deadline)
                partition.replica.require_leader()
                async with asyncio.timeout_at(call.deadline):
                    size_bytes = await partition.file_bytes()
                partition.replica.require_leader()  # it may have lost the leadership while a thread looked
                self._describe(state, partition, size_bytes)
            except RequestError as error:
                state.error.CopyFrom(error.detail)
            except TimeoutError:
                state.error.CopyFrom(expired().detail)
            states.append(state)
        return peer_pb.DescribePartitionsResponse(partitions=states)

    def _describe(self, state: pb.PartitionState, partition: Partition, size_bytes: int) -> None:
        replica = partition.replica
        state.leader_epoch = replica.term
        state.in_sync_brokers.extend(
            sorted(replica.node_of(voter) for voter in self._host.replication.in_sync(replica))
        )
        state.log_start_offset, state.high_watermark = partition.log_start_offset, partition.high_watermark
        state.size_bytes = size_bytes
        wanted = self._host.metadata.state_machine.partition(replica.group_id)
        state.copied_bytes = 0 if wanted is None else copied_bytes(replica, wanted, size_bytes)

    # ------------------------------------------------------------------------------------------------ the node

    async def describe_node(self, request: peer_pb.DescribeBrokerRequest, call: Call) -> peer_pb.DescribeBrokerResponse:
        """Return the problems of this node, and the groups that it leads."""
        host = self._host
        replicas: list[Replica[StateMachine]] = [host.metadata, *host.partition_replicas()]
        quarantined = (key.group_id for key in host.quarantined() if key.group_id != METADATA_GROUP_ID)
        return peer_pb.DescribeBrokerResponse(
            health=pb.BrokerHealth(
                not_ready=[f"{one.reason}: {one.message}" for one in host.standing.not_ready_reasons()],
                under_replicated=self.names(host.replication.under_replicated()),
                not_served=self.names(host.standing.missing_replicas()),
                quarantined=self.names(quarantined),
                warnings=[
                    one[:_WARNING_CHARACTERS_MAX]
                    for one in host.standing.warnings()[: host.limits.partitions_named_max]
                ],
            ),
            led_group_ids=[
                replica.group_id for replica in replicas if replica.role is Role.LEADER and not replica.is_closed
            ],
            metadata_voters_behind=host.replication.metadata_voters_behind(),
            not_served=_reports(
                (one.key, f"{one.reason}: {one.message}")
                for one in host.standing.not_served()
                if one.reason is not NotServedReason.OPENING  # it makes progress: nobody must act
            ),
            without_progress=_reports(host.replication.without_progress.items()),
        )

    def names(self, group_ids: Iterable[GroupId]) -> pb.PartitionNames:
        """Return the number of these partitions, and the names of the first."""
        machine = self._host.metadata.state_machine
        known = [partition for group_id in group_ids if (partition := machine.partition(group_id)) is not None]
        named = [(topic.name, one.partition) for one in known if (topic := machine.topic(one.topic_id)) is not None]
        first = sorted(named)[: self._host.limits.partitions_named_max]
        return pb.PartitionNames(
            count=len(named), first=[pb.PartitionName(topic=topic, partition=number) for topic, number in first]
        )


def _reports(reasons: Iterable[tuple[ReplicaKey, str]]) -> list[peer_pb.ReplicaReport]:
    return [
        peer_pb.ReplicaReport(group_id=key.group_id, replica_id=key.replica_id, reason=reason[:_WARNING_CHARACTERS_MAX])
        for key, reason in islice(reasons, _REPORTED_MAX)
    ]
