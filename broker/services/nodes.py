"""Answer requests between brokers: registration, reports of damaged replicas, reports of replicas that left their groups.

Changes run on the metadata leader. Invariant: no replica is given up as lost unless a healthy majority remains without it, or an
operator ordered it.
"""

from __future__ import annotations

import structlog
from raftmq.broker.base.log_throttle import LogThrottle
from raftmq.broker.base.request_error import RequestError
from raftmq.broker.cluster.membership_plan import has_healthy_majority
from raftmq.broker.cluster.replacement_plan import (
    further_replicas,
    moved_replicas,
    plan_elsewhere,
    wanted_partition,
)
from raftmq.broker.services.call import Call
from raftmq.broker.services.host import ServiceHost
from raftmq.broker.services.messages import node_message
from raftmq.broker.services.metadata_leader import MetadataLeader, on_metadata_leader
from raftmq.fsm.feature_levels import PIN_LEVEL
from raftmq.fsm.metadata import Metadata
from raftmq.fsm.metadata_commands import (
    AdmitReplica,
    Done,
    MetadataCommand,
    NodeRegistered,
    RegisterNode,
    RemoveReplica,
    ReplaceReplica,
    RevertReplicas,
    SetReplicas,
)
from raftmq.fsm.metadata_views import NodeView, PartitionView
from raftmq.fsm.node_lineage import Lineage
from raftmq.proto import peer_pb2 as peer_pb
from raftmq.proto import queue_pb2 as pb
from raftmq.storage.log_store import ReplicaKey
from raftmq.types import METADATA_GROUP_ID, GroupId, NodeId, ReplicaId

NODE_TEXT_CHARACTERS_MAX = 300
"""The longest address or label. A host name has at most 253 characters. Every node stores them permanently."""
REPORTED_REPLICAS_MAX = 2000
"""Replicas in one report. The next report has the rest."""
_NAMED_MAX = 5
"""Partitions named in a refusal: enough to see the topics concerned."""
_ADMISSION_SECONDS = 10.0
"""Time after an admission for which the broker id is not given to another data directory. A broker connects within it."""
_REASON_CHARACTERS_MAX = 200
"""The longest reason of a move that is given up. Metadata keeps it."""
log = structlog.get_logger(__name__)


class NodesService:
    """Answers the requests between brokers that change metadata."""

    def __init__(self, host: ServiceHost, leader: MetadataLeader) -> None:
        self._host = host
        self.leader = leader
        self.admitted_at: dict[int, float] = {}
        """Broker id → the loop time at which this node, as the metadata leader, last gave it to a data directory, or was about to. One entry for each broker at most."""
        self._stuck_throttle = LogThrottle()

    @property
    def _metadata(self) -> Metadata:
        return self._host.metadata.state_machine

    # ------------------------------------------------------------------------------------------------ registration

    async def register_node(self, request: peer_pb.RegisterBrokerRequest, call: Call) -> peer_pb.RegisterBrokerResponse:
        """Admit a node, update its addresses, or let it replace a node whose disk is lost."""
        self._check_registration(request)
        return await self._register_node(request, call)

    @on_metadata_leader
    async def _register_node(
        self, request: peer_pb.RegisterBrokerRequest, call: Call
    ) -> peer_pb.RegisterBrokerResponse:
        if self._metadata.node(self._host.node_id) is None:
            # This node forms the cluster and is not registered yet. A node that was admitted before would not learn its address,
            # would never reach it, and might be given its node id.
            raise RequestError(pb.NOT_FORMED, "this cluster is being formed", retry_after_ms=500)
        self._check_directory(request)
        if request.damaged_metadata_replica_id:
            await self._replace_metadata_replica(request, call)
        is_new = self._metadata.node_by_uuid(request.uuid) is None
        registered = await self.leader.execute(
            RegisterNode(
                uuid=request.uuid,
                node_id=request.broker_id,
                client_address=request.client_address,
                peer_address=request.peer_address,
                http_address=request.http_address,
                host=request.host,
                rack=request.rack,
                version=request.version,
                feature_level_max=request.feature_level_max,
                replaces_lost=self._takes_over(request),
                partitions_max=request.partitions_max,
                boot=request.boot,
                lineage=request.lineage,
            ),
            NodeRegistered,
            call.deadline,
        )
        metadata = self._metadata
        if is_new:
            self.admitted_at[registered.node_id] = self._host.loop.time()
        return peer_pb.RegisterBrokerResponse(
            cluster_id=self._host.cluster_id,
            broker_id=registered.node_id,
            metadata_replica_id=registered.metadata_replica_id,
            metadata_revision=registered.revision,
            brokers=[node_message(node) for node in metadata.nodes()],
            metadata_replicas=[
                peer_pb.MetadataReplica(replica_id=replica.replica_id, broker_id=replica.node_id)
                for replica in metadata.metadata_replicas
            ],
        )

    def _check_registration(self, request: peer_pb.RegisterBrokerRequest) -> None:
        mine = self._host.cluster_id
        if mine and request.cluster_id and request.cluster_id != mine:
            raise RequestError(
                pb.WRONG_CLUSTER,
                f"this is cluster {mine}, but the broker belongs to {request.cluster_id} (if this cluster was recovered from the metadata of "
                "that one, keep the broker's data directory, stop it, and run raftmq recover rejoin)",
            )
        if not request.client_address or not request.peer_address:
            raise RequestError(
                pb.INVALID_ARGUMENT, "a broker must register with its client address and its peer address"
            )
        texts = (request.client_address, request.peer_address, request.http_address, request.host, request.rack)
        if max(map(len, (*texts, request.version))) > NODE_TEXT_CHARACTERS_MAX:
            raise RequestError(
                pb.INVALID_ARGUMENT,
                f"a broker's addresses and labels may have at most {NODE_TEXT_CHARACTERS_MAX} characters",
            )

    def _check_directory(self, request: peer_pb.RegisterBrokerRequest) -> None:
        """Refuse a node whose data directory is a copy, before anything about it is recorded.

        Raises:
            RequestError: STALE_DIRECTORY. NOT_READY while another process of the node is connected.
        """
        if not request.boot:
            return
        lineage = Lineage(request.boot, request.lineage)
        if lineage.defect() is not None:
            return
        process = request.process_mark or lineage.current.mark
        refusal = self._host.refusal_of_directory(request.uuid, lineage, process)
        if refusal is not None:
            raise refusal

    def _takes_over(self, request: peer_pb.RegisterBrokerRequest) -> bool:
        """Return whether an unknown uuid claims the node id of another node, and may have it.

        The claim is the operator's, because a node requests an id only if it is configured. It means that the disk of the present holder
        is lost. All of its replicas are rebuilt, and that disk is refused permanently.

        Raises:
            RequestError: BROKER_ID_TAKEN if that node is alive. NOT_READY while partitions would lose their majority.
        """
        metadata = self._metadata
        holder = metadata.node(request.broker_id) if request.broker_id else None
        if holder is None or holder.state == "removed" or holder.uuid == request.uuid:
            return False
        if metadata.node_by_uuid(request.uuid) is not None or metadata.is_uuid_retired(request.uuid):
            return False  # a known node keeps its id, and a refused one stays refused
        if self._host.is_connected(NodeId(holder.node_id)):
            raise RequestError(
                pb.BROKER_ID_TAKEN,
                f"broker {holder.node_id} is running at {holder.client_address}; use another broker id",
            )
        self._check_absence(holder)
        if not request.replaces_lost:
            self._check_majorities_without(holder)
        # from now on, so that no other claim passes before this one is applied
        self.admitted_at[holder.node_id] = self._host.loop.time()
        return True

    def _check_absence(self, holder: NodeView) -> None:
        """Refuse for a moment to give a broker's id away: it may only be reconnecting, or have been admitted and not be connected yet."""
        seconds_min = self._host.timing.election_seconds(METADATA_GROUP_ID)
        admitted_at = self.admitted_at.get(holder.node_id)
        if admitted_at is not None and self._host.loop.time() - admitted_at < _ADMISSION_SECONDS:
            said = f"broker id {holder.node_id} was given to the broker at {holder.client_address} a moment ago"
        elif self._host.unreachable_seconds(NodeId(holder.node_id)) < seconds_min:
            said = f"broker {holder.node_id} at {holder.client_address} was connected until a moment ago"
        else:
            return
        raise RequestError(
            pb.NOT_READY,
            f"{said}: if it runs, use another broker id; otherwise wait",
            retry_after_ms=1000,
        )

    def _check_majorities_without(self, holder: NodeView) -> None:
        endangered = [
            partition
            for partition in self._metadata.partitions_of_node(holder.node_id)
            if not has_healthy_majority(
                partition,
                lambda replica: replica.node_id == holder.node_id,
                lambda replica: self._host.is_connected(NodeId(replica.node_id)),
            )
        ]
        if endangered:
            raise RequestError(
                pb.NOT_READY,
                f"broker {holder.node_id} has data on another disk, and without it {self._named(endangered)} would have no "
                "healthy majority now: wait for the other brokers, start it on its own data directory, or give that disk up "
                "with --replace-lost",
                retry_after_ms=1000,
            )

    def _named(self, partitions: list[PartitionView]) -> str:
        names = []
        for partition in partitions[:_NAMED_MAX]:
            topic = self._metadata.topic(partition.topic_id)
            names.append(f"{topic.name if topic is not None else '?'}/{partition.partition}")
        more = len(partitions) - len(names)
        return ", ".join(names) + (f" and {more} more" if more else "")

    async def _replace_metadata_replica(self, request: peer_pb.RegisterBrokerRequest, call: Call) -> None:
        """Replace a node's metadata replica. No majority is checked: a leader could not answer without one of the other voters."""
        node = self._metadata.node_by_uuid(request.uuid)
        damaged = request.damaged_metadata_replica_id
        if node is not None and node.metadata_replica_id == damaged and node.node_id != self._host.node_id:
            await self.leader.execute(ReplaceReplica(METADATA_GROUP_ID, damaged), Done, call.deadline)

    # ------------------------------------------------------------------------------------------------ reports

    async def report_damage(self, request: peer_pb.ReportDamageRequest, call: Call) -> peer_pb.ReportDamageResponse:
        """Record damaged replicas of groups that are led here. The reconciler handles them."""
        node = self._reporter(request.uuid, request.broker_id, len(request.replicas))
        for report in request.replicas:
            if self._metadata.replica_node(report.group_id, report.replica_id) == node.node_id:  # only its own replicas
                self._host.reported_damage.record(ReplicaKey(GroupId(report.group_id), ReplicaId(report.replica_id)))
        return peer_pb.ReportDamageResponse()

    async def report_replicas(
        self, request: peer_pb.ReportReplicasRequest, call: Call
    ) -> peer_pb.ReportReplicasResponse:
        """Act on another node's report, if this node leads the metadata group."""
        if not self._host.metadata.is_leader:
            raise self._host.metadata.not_leader()
        await self.record_replicas(request, call.deadline)
        return peer_pb.ReportReplicasResponse(metadata_revision=self._metadata.revision)

    async def record_replicas(self, request: peer_pb.ReportReplicasRequest, deadline: float) -> None:
        """Replace damaged replicas, forget retiring ones that have left their groups, count newcomers that vote, and relieve stuck ones."""
        count = len(request.damaged) + len(request.left) + len(request.joined) + len(request.stuck)
        node = self._reporter(request.uuid, request.broker_id, count)
        # as of the report's arrival: each of its own commands changes a partition
        left, joined, stuck = (
            list(filter(self._is_current, kind)) for kind in (request.left, request.joined, request.stuck)
        )
        changed = dict[int, int]()
        """The revision at which this report last changed each group's partition. No partition may have changed otherwise since it arrived."""

        async def change(command: MetadataCommand, group_id: int) -> None:
            changed[group_id] = (await self.leader.execute(command, Done, deadline)).revision

        def is_current(report: peer_pb.ReplicaReport) -> bool:
            own = changed.get(report.group_id)
            if own is None:
                return self._is_current(report)
            partition = self._metadata.partition(report.group_id)
            return partition is not None and partition.revision <= own

        for report in request.damaged:
            if self._may_speak_for(node, report) and self._metadata.replica_node(report.group_id, report.replica_id):
                await change(ReplaceReplica(report.group_id, report.replica_id), report.group_id)
        for report in filter(is_current, left):
            if self._may_speak_for(node, report) and self._is_retiring(report):
                await change(RemoveReplica(report.group_id, report.replica_id), report.group_id)
        for report in filter(is_current, joined):
            if self._may_speak_for(node, report) and self._is_newcomer(report):
                await change(AdmitReplica(report.group_id, report.replica_id), report.group_id)
        for report in filter(is_current, stuck):
            partition = self._metadata.partition(report.group_id)
            if partition is None or not self._may_speak_for(node, report):
                continue
            if report.replica_id in moved_replicas(partition):
                await self._give_up(partition, report, deadline)
            elif report.replica_id in further_replicas(self._metadata, partition):
                await self._place_elsewhere(partition, report, deadline)

    def _reporter(self, uuid: str, node_id: int, count: int) -> NodeView:
        node = self._metadata.node_by_uuid(uuid)
        if node is None or node.node_id != node_id:
            raise RequestError(pb.INVALID_ARGUMENT, f"the reporting uuid is not that of broker {node_id}")
        if count > REPORTED_REPLICAS_MAX:
            raise RequestError(pb.INVALID_ARGUMENT, f"a report may name at most {REPORTED_REPLICAS_MAX} replicas")
        return node

    def _is_current(self, report: peer_pb.ReplicaReport) -> bool:
        """Return whether a report is about the present wish for its partition.

        Scenario: a replica has left its group, and the report of that is late. The move is given up, the replica votes again, and begins to
        move elsewhere. The old report would have the files of a voter deleted.
        """
        partition = self._metadata.partition(report.group_id)
        return partition is not None and report.revision in (0, partition.revision)

    def _may_speak_for(self, node: NodeView, report: peer_pb.ReplicaReport) -> bool:
        """Return whether a node may report for a group. A late report is accepted if its sender still has a replica of the group."""
        partition = self._metadata.partition(report.group_id)
        return partition is not None and any(
            replica.node_id == node.node_id for replica in (*partition.replicas, *partition.retiring)
        )

    async def _give_up(self, partition: PartitionView, report: peer_pb.ReplicaReport, deadline: float) -> None:
        """Give up the move that was to bring this replica."""
        if self._metadata.feature_level < PIN_LEVEL:
            return
        reason = report.reason[:_REASON_CHARACTERS_MAX]
        await self.leader.execute(RevertReplicas(report.group_id, partition.revision, reason), Done, deadline)
        topic = self._topic_of(partition)
        log.warning(
            "move_given_up",
            topic=topic,
            partition=partition.partition,
            group_id=partition.group_id,
            reason=reason,
        )

    async def _place_elsewhere(self, partition: PartitionView, report: peer_pb.ReplicaReport, deadline: float) -> None:
        """Place a further replica on another broker. If there is none, the leader keeps trying, unless the topic wants fewer replicas again."""
        metadata, most = self._metadata, self._host.limits.partitions_max
        if len(partition.replicas) > wanted_partition(metadata, partition).replication_factor:
            kept = tuple(one.node_id for one in partition.replicas if one.replica_id != report.replica_id)
            await self.leader.execute(SetReplicas(partition.group_id, kept, partition.revision), Done, deadline)
            return
        nodes = metadata.nodes()
        command = plan_elsewhere(
            partition,
            report.replica_id,
            nodes,
            {node.node_id: metadata.replica_count_of_node(node.node_id) for node in nodes},
            {node.node_id: node.partitions_max or most for node in nodes},
            lambda node_id: self._host.is_connected(NodeId(node_id)),
        )
        topic, reason = self._topic_of(partition), report.reason[:_REASON_CHARACTERS_MAX]
        if command is not None:
            await self.leader.execute(command, Done, deadline)
            log.warning(
                "replica_placed_elsewhere",
                topic=topic,
                partition=partition.partition,
                group_id=partition.group_id,
                reason=reason,
            )
        elif self._stuck_throttle.is_due(report.replica_id):
            log.warning(
                "replica_stuck",
                topic=topic,
                partition=partition.partition,
                group_id=partition.group_id,
                reason=reason,
            )

    def _topic_of(self, partition: PartitionView) -> str:
        topic = self._metadata.topic(partition.topic_id)
        return topic.name if topic is not None else "?"

    def _is_retiring(self, report: peer_pb.ReplicaReport) -> bool:
        partition = self._metadata.partition(report.group_id)
        return partition is not None and any(r.replica_id == report.replica_id for r in partition.retiring)

    def _is_newcomer(self, report: peer_pb.ReplicaReport) -> bool:
        partition = self._metadata.partition(report.group_id)
        return partition is not None and any(
            replica.replica_id == report.replica_id and replica.is_newcomer for replica in partition.replicas
        )
