"""List the partitions that have lost their majority, and revive one from a single replica on an operator's order.

Nothing here happens by itself. A majority that is only unreachable still has every acknowledged record, and would be served again when
its brokers return. So a partition is recovered only if no majority of its replicas runs within the metadata leader's reach, none of
them follows a leader, and the operator accepts the loss in so many words.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import structlog
from raftmq.broker.base.request_error import RequestError
from raftmq.broker.cluster.membership_plan import has_healthy_majority
from raftmq.broker.cluster.unserved import NotServedReason
from raftmq.broker.partitions.partition import Partition
from raftmq.broker.services.call import Call
from raftmq.broker.services.cluster_health import ClusterHealth
from raftmq.broker.services.feature_level import require_level
from raftmq.broker.services.host import ServiceHost
from raftmq.broker.services.locator import PARTITIONS_PER_REQUEST_MAX, Locator, check_partitions
from raftmq.broker.services.metadata_leader import MetadataLeader, on_metadata_leader
from raftmq.broker.services.node_calls import NodeCalls
from raftmq.fsm.feature_levels import METADATA_LEVELS
from raftmq.fsm.metadata import Metadata
from raftmq.fsm.metadata_commands import Done, RecoverPartition
from raftmq.fsm.metadata_views import PartitionView, RecoveryView, ReplicaView, TopicView
from raftmq.proto import peer_pb2 as peer_pb
from raftmq.proto import queue_pb2 as pb
from raftmq.types import GroupId, NodeId

log = structlog.get_logger(__name__)

LOST_PARTITIONS_MAX: Final = 1000
"""Partitions without a majority in one answer. Each has a few hundred bytes."""
RECOVERIES_MAX: Final = 1000
"""Recoveries in one answer, the latest ones."""
TERM_GAP: Final = 1000
"""The new group's terms begin so far above the highest known one, since a lost replica may have led in a later term. Clients take a
leader with a lower epoch for an older one."""
_RUNNING: Final = (pb.SERVED, pb.STARTING)

Knowledge = Mapping[int, pb.ReplicaKnowledge]
"""The knowledge about a partition's replicas, by replica id."""


class PartitionRecoveryService:
    """Answers the RPCs about partitions without a majority."""

    def __init__(
        self,
        host: ServiceHost,
        locator: Locator[Partition],
        partitions: Mapping[GroupId, Partition],
        leader: MetadataLeader,
        calls: NodeCalls,
        health: ClusterHealth,
    ) -> None:
        self._host = host
        self._locator = locator
        self._partitions = partitions
        self.leader = leader
        self._calls = calls
        self._health = health

    @property
    def _metadata(self) -> Metadata:
        return self._host.metadata.state_machine

    # ------------------------------------------------------------------------------------------------ replicas here

    async def describe_replicas(
        self, request: peer_pb.DescribeReplicasRequest, call: Call
    ) -> peer_pb.DescribeReplicasResponse:
        """Return the positions of this node's replicas of the groups. A group without a replica here is left out."""
        check_partitions(len(request.group_ids))
        response = peer_pb.DescribeReplicasResponse()
        reasons = {one.key: one for one in self._host.standing.not_served()}
        for group_id in map(GroupId, request.group_ids):
            known = response.replicas.add(group_id=group_id).replica
            known.broker_id = self._host.node_id
            partition = self._partitions.get(group_id)
            if partition is not None and not partition.replica.is_closed:
                self._describe(known, partition)
                continue
            unserved = next((one for key, one in reasons.items() if key.group_id == group_id), None)
            if unserved is None:
                del response.replicas[-1]
                continue
            known.replica_id, known.reason = unserved.key.replica_id, unserved.message
            known.condition = _CONDITIONS.get(unserved.reason, pb.NOT_SERVED)
        return response

    def _describe(self, known: pb.ReplicaKnowledge, partition: Partition) -> None:
        replica = partition.replica
        core = replica.core
        known.replica_id, known.condition = replica.replica_id, pb.SERVED
        if core.log.snapshot is not None or core.last_index > core.log.durable_index:
            # a recovery would keep the file as it is, without the rest of the log that is described below
            known.condition = pb.STARTING
            known.reason = "it has data from a leader that is not on its disk yet"
        if core.applied_index < core.state_floor or not core.membership.member_ids:
            known.condition = pb.REBUILDING
            known.reason = "it has not got all data from a leader yet"
        known.term, known.last_index, known.commit_index = replica.term, core.last_index, core.commit_index
        known.last_term = core.log.last_term
        known.log_start_offset, known.high_watermark = partition.log_start_offset, partition.high_watermark
        known.log_end_offset = core.log.next_offset
        if core.leader_id:
            known.leader_broker_id = replica.node_of(core.leader_id)

    # ------------------------------------------------------------------------------------------------ all replicas

    @on_metadata_leader
    async def list_lost_partitions(
        self, request: pb.ListLostPartitionsRequest, call: Call
    ) -> pb.ListLostPartitionsResponse:
        """Return the partitions without a majority, and the knowledge about their replicas.

        Raises:
            RequestError: UNKNOWN_TOPIC, or any error of `MetadataLeader`.
        """
        topic = await self._locator.topic_by_name(request.topic, call.deadline) if request.topic else None
        metadata = self._metadata
        found = (metadata.partition(group_id) for group_id in await self._health.unled_groups(call))
        unled = [one for one in found if one is not None and (topic is None or one.topic_id == topic.topic_id)]
        known = await self._ask(unled, call)
        lost = [one for one in unled if not self._has_majority(one, known[one.group_id])]
        response = pb.ListLostPartitionsResponse(count=len(lost))
        for partition in lost[:LOST_PARTITIONS_MAX]:
            response.partitions.add(
                topic=self._name(partition.topic_id),
                partition=partition.partition,
                group_id=partition.group_id,
                replicas=known[partition.group_id].values(),
            )
        recoveries = [one for one in metadata.recoveries() if topic is None or one.topic_id == topic.topic_id]
        response.recoveries.extend(self._recovery(one) for one in recoveries[-RECOVERIES_MAX:])
        return response

    async def _ask(self, partitions: Sequence[PartitionView], call: Call) -> dict[int, Knowledge]:
        """Ask every connected broker for the positions of its replicas of these partitions."""
        by_node: dict[NodeId, list[int]] = {}
        for partition in partitions:
            for replica in _replicas(partition):
                node_id = NodeId(replica.node_id)
                if not replica.is_lost and self._host.is_connected(node_id):
                    by_node.setdefault(node_id, []).append(partition.group_id)
        answers: dict[tuple[int, int], pb.ReplicaKnowledge] = {}

        async def ask(node_id: NodeId, group_ids: list[int]) -> None:
            request = peer_pb.DescribeReplicasRequest(group_ids=group_ids)
            try:
                answer = await self._calls.ask(node_id, request, self.describe_replicas, self._health.soon(call))
            except RequestError:
                return
            answers.update({(one.group_id, one.replica.replica_id): one.replica for one in answer.replicas})

        chunks = (
            (node_id, group_ids[start : start + PARTITIONS_PER_REQUEST_MAX])
            for node_id, group_ids in by_node.items()
            for start in range(0, len(group_ids), PARTITIONS_PER_REQUEST_MAX)
        )
        await asyncio.gather(*(ask(node_id, group_ids) for node_id, group_ids in chunks))
        return {
            one.group_id: {
                replica.replica_id: answers.get((one.group_id, replica.replica_id)) or self._silent(replica)
                for replica in _replicas(one)
            }
            for one in partitions
        }

    def _silent(self, replica: ReplicaView) -> pb.ReplicaKnowledge:
        """Return the knowledge about a replica whose broker did not describe it."""
        known = pb.ReplicaKnowledge(broker_id=replica.node_id, replica_id=replica.replica_id)
        if replica.is_lost:
            known.condition, known.reason = pb.LOST, "its broker was removed, or its disk was replaced"
            return known
        known.reason = "its broker does not answer"
        known.unreachable_ms = int(self._host.unreachable_seconds(NodeId(replica.node_id)) * 1000)
        return known

    @staticmethod
    def _has_majority(partition: PartitionView, known: Knowledge) -> bool:
        return has_healthy_majority(
            partition, lambda replica: False, lambda replica: known[replica.replica_id].condition in _RUNNING
        )

    # ------------------------------------------------------------------------------------------------ recovery

    @on_metadata_leader
    async def recover_partition(self, request: pb.RecoverPartitionRequest, call: Call) -> pb.RecoverPartitionResponse:
        """Give a partition without a majority a new group that continues the data of one replica.

        The answer does not wait until the new group has a leader.

        Raises:
            RequestError: INVALID_ARGUMENT, FAILED_PRECONDITION, CONFLICT, UNKNOWN_TOPIC, UNKNOWN_PARTITION or UNSUPPORTED_VERSION (nothing changed), or any error
                of `MetadataLeader`.
        """
        metadata = self._metadata
        require_level(metadata, METADATA_LEVELS[RecoverPartition], "recovering a partition")
        await self._locator.wait_revision(request.metadata_revision, call.deadline)
        topic = await self._locator.topic_by_name(request.topic, call.deadline)
        partition = self._partition(topic, request)
        if not request.unsafe:
            raise RequestError(
                pb.INVALID_ARGUMENT,
                "recovering a partition from one replica may lose acknowledged records: say that you accept that (--unsafe, unsafe=True)",
            )
        known = (await self._ask([partition], call))[partition.group_id]
        kept = _kept(f"{topic.name}/{partition.partition}", partition, known, request.keep_broker_id)
        await self._require_lost(f"{topic.name}/{partition.partition}", partition, known, call)
        highest = max(one.term for one in known.values())
        command = RecoverPartition(
            group_id=partition.group_id,
            replica_id=kept.replica_id,
            term=max(highest, self._host.leadership.get(GroupId(partition.group_id)).term) + TERM_GAP,
            log_end_offset=kept.log_end_offset,
            known_end_offset=max(one.log_end_offset for one in known.values() if not _is_covered(one, kept)),
            expected_revision=partition.revision,  # as it was when the replicas were asked
        )
        if request.dry_run:
            return pb.RecoverPartitionResponse(
                metadata_revision=metadata.revision,
                recovery=_planned(topic.name, partition, kept, command),
                replicas=known.values(),
            )
        done = await self.leader.execute(command, Done, call.deadline)
        log.warning(
            "partition_recovered", topic=topic.name, partition=partition.partition, group_id=partition.group_id,
            peer_id=kept.broker_id, offset=kept.log_end_offset,
        )  # fmt: skip
        made = metadata.recovery_from(partition.group_id, kept.replica_id)
        recovery = self._recovery(made) if made is not None else _planned(topic.name, partition, kept, command)
        return pb.RecoverPartitionResponse(metadata_revision=done.revision, recovery=recovery, replicas=known.values())

    def _partition(self, topic: TopicView, request: pb.RecoverPartitionRequest) -> PartitionView:
        number = request.partition
        partition = self._metadata.partition(topic.group_ids[number]) if number < len(topic.group_ids) else None
        if partition is None:
            raise RequestError(
                pb.UNKNOWN_PARTITION, f"topic {topic.name} has {len(topic.group_ids)} partitions, none is {number}"
            )
        if request.group_id not in (0, partition.group_id):
            raise RequestError(
                pb.FAILED_PRECONDITION,
                f"partition {topic.name}/{number} is no longer served by group {request.group_id}: it was recovered in the meantime, or "
                "the topic was created again. Look again (raftmq cluster recover)",
            )
        return partition

    async def _require_lost(self, name: str, partition: PartitionView, known: Knowledge, call: Call) -> None:
        """Raise FAILED_PRECONDITION if the partition has a leader, and CONFLICT while it can elect one."""
        follower = next((one for one in known.values() if one.leader_broker_id), None)
        if follower is not None:
            raise RequestError(
                pb.FAILED_PRECONDITION,
                f"partition {name} has a leader on broker {follower.leader_broker_id}, says broker {follower.broker_id}: it has a majority, "
                "and needs no recovery",
            )
        if self._has_majority(partition, known):
            running = _listed(one.broker_id for one in known.values() if one.condition in _RUNNING)
            raise RequestError(
                pb.CONFLICT,
                f"a majority of the replicas of partition {name} runs, on {running}: wait until they elect a leader",
                retry_after_ms=1000,
            )
        if GroupId(partition.group_id) not in await self._health.unled_groups(call):
            raise RequestError(
                pb.FAILED_PRECONDITION, f"partition {name} has a leader: it has a majority, and needs no recovery"
            )

    # ------------------------------------------------------------------------------------------------ messages

    def _name(self, topic_id: int) -> str:
        topic = self._metadata.topic(topic_id)
        return topic.name if topic is not None else "?"

    def _recovery(self, recovery: RecoveryView) -> pb.PartitionRecovery:
        return pb.PartitionRecovery(
            topic=self._name(recovery.topic_id),
            partition=recovery.partition,
            kept_broker_id=recovery.node_id,
            log_end_offset=recovery.log_end_offset,
            known_end_offset=recovery.known_end_offset,
            other_broker_ids=recovery.other_node_ids,
            recovered_at_ms=recovery.recovered_at_ms,
            leader_epoch=recovery.term,
        )


_CONDITIONS: Final = {
    NotServedReason.OPENING: pb.STARTING,
    NotServedReason.QUARANTINED: pb.QUARANTINED,
}


def _replicas(partition: PartitionView) -> tuple[ReplicaView, ...]:
    return partition.replicas + partition.retiring


def _kept(name: str, partition: PartitionView, known: Knowledge, broker_id: int) -> pb.ReplicaKnowledge:
    """Return the replica to keep. Raises FAILED_PRECONDITION unless it can be."""
    held = [one for one in known.values() if one.broker_id == broker_id]
    kept = next((one for one in held if one.condition == pb.SERVED), held[-1] if held else None)
    others = _listed(one.broker_id for one in known.values() if one.condition == pb.SERVED)
    hint = f"name another one ({others})" if others else "start one of its brokers first"
    if kept is None:
        raise RequestError(
            pb.FAILED_PRECONDITION, f"broker {broker_id} has no replica of partition {name} that could be kept: {hint}"
        )
    if kept.condition == pb.SERVED:
        return kept
    if kept.condition == pb.UNREACHABLE:
        reason = f"broker {broker_id} does not answer: start it, or {hint}"
    elif kept.condition == pb.STARTING:
        reason = f"the replica of partition {name} on broker {broker_id} cannot be kept yet ({kept.reason}): try again in a moment"
    else:
        reason = f"the replica of partition {name} on broker {broker_id} cannot be kept ({kept.reason}): {hint}"
    raise RequestError(pb.FAILED_PRECONDITION, reason)


def _is_covered(other: pb.ReplicaKnowledge, kept: pb.ReplicaKnowledge) -> bool:
    """Return whether the kept log certainly has every acknowledged record of another one. Without the terms of both last entries nobody knows.

    Raft elects by this order (thesis 3.6.1). Scenario with five replicas: A leads term 1, is cut off, and appends up to offset 200. B, C, D and
    E go on in term 2 and acknowledge up to 150. B covers A, although A has the higher end: nobody acknowledged A's last records.
    """
    if other is kept or not other.last_term or not kept.last_term:
        return False
    return (other.last_term, other.last_index) <= (kept.last_term, kept.last_index)


def _planned(
    topic: str, partition: PartitionView, kept: pb.ReplicaKnowledge, command: RecoverPartition
) -> pb.PartitionRecovery:
    return pb.PartitionRecovery(
        topic=topic,
        partition=partition.partition,
        kept_broker_id=kept.broker_id,
        log_end_offset=command.log_end_offset,
        known_end_offset=max(command.known_end_offset, command.log_end_offset),
        other_broker_ids=sorted({one.node_id for one in _replicas(partition)} - {kept.broker_id}),
        leader_epoch=command.term,
    )


def _listed(broker_ids: Iterable[int]) -> str:
    return ", ".join(f"broker {broker_id}" for broker_id in sorted(set(broker_ids)))
