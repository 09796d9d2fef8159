"""Give the leaderships of this node to the brokers that should lead: the preferred leaders, and anyone else while this node is drained.

Each node does it for the groups that it leads. A leadership moves only to a voter that keeps up, on a stable and ready broker whose clock is
right. The number of transfers in a round is bounded, and a group is not tried again for a while, so that a rolling restart is no storm.
After the loss of a broker, preferred leaders wait for a while: the elections of its groups go first.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

import structlog
from raftmq.broker.base.limits import Limits, Timing
from raftmq.broker.cluster.peer_readiness import PeerReadiness
from raftmq.broker.cluster.replication_health import ReplicationHealth, lagging_voters
from raftmq.broker.cluster.stability import Stability
from raftmq.broker.replica.replica import Replica
from raftmq.fsm.metadata import Metadata
from raftmq.fsm.metadata_nodes import ACTIVE, DRAINING
from raftmq.fsm.state_machine import StateMachine
from raftmq.raft.ready import Role
from raftmq.types import METADATA_GROUP_ID, NO_NODE, GroupId, NodeId, ReplicaId

log = structlog.get_logger(__name__)


class LeadersHost(Protocol):
    """The node as the placement of its leaderships sees it."""

    limits: Limits
    timing: Timing
    loop: asyncio.AbstractEventLoop
    replication: ReplicationHealth
    stability: Stability

    @property
    def node_id(self) -> NodeId:
        """Return this node's id, or 0 before it belongs to a cluster."""
        ...

    @property
    def metadata(self) -> Replica[Metadata]:
        """Return this node's metadata replica. Raises RequestError NOT_FORMED or NOT_READY."""
        ...

    def partition_replicas(self) -> list[Replica[StateMachine]]:
        """Return every serving partition replica here."""
        ...

    def is_connected(self, node_id: NodeId) -> bool:
        """Return whether this node's control channel to that node is up (True for itself)."""
        ...

    def is_clock_right(self, node_id: NodeId) -> bool:
        """Return whether another node's clock agrees with this one's and the majority's, as far as this node can tell."""
        ...

    def topology_version(self) -> int:
        """Return the number of changes of metadata and leadership."""
        ...

    def transfer_leadership(self, replica: Replica[StateMachine], target: ReplicaId) -> None:
        """Begin to transfer the leadership of a group that is led here."""
        ...


class LeaderPlacement:
    """Transfers leaderships of one node."""

    def __init__(self, host: LeadersHost, readiness: PeerReadiness) -> None:
        self._host = host
        self._readiness = readiness
        self._tried_at: dict[GroupId, float] = {}
        """Groups whose leadership was offered lately."""
        self._candidates: list[Replica[StateMachine]] = []
        """Groups led here that should be led elsewhere, as of `_topology_version`."""
        self._topology_version = -1

    async def round(self, metadata: Metadata) -> None:
        """Transfer a few leaderships that should be elsewhere."""
        host, now = self._host, self._host.loop.time()
        own = metadata.node(host.node_id)
        is_draining = own is not None and own.state == DRAINING
        self._tried_at = {
            group_id: at for group_id, at in self._tried_at.items() if now - at < host.timing.stable_seconds
        }
        room = host.limits.leader_transfers_max
        if is_draining:
            await self._offer_metadata(metadata)
        elif not metadata.balancing.may_move_leaders or not host.stability.is_calm:
            return
        self._find_candidates(metadata, is_draining=is_draining)
        for replica in self._candidates:
            if room <= 0:
                return
            if not replica.is_leader or replica.group_id in self._tried_at:
                continue
            target = self._heir(metadata, replica) if is_draining else self._preferred(metadata, replica)
            if target is not None and await self._offer(replica, target):
                room -= 1

    def _find_candidates(self, metadata: Metadata, *, is_draining: bool) -> None:
        """Look through the groups that are led here, if metadata or a leadership changed. A quiet node stays quiet."""
        version = self._host.topology_version()
        if version == self._topology_version:
            return
        self._topology_version, own = version, self._host.node_id
        self._candidates = [
            replica
            for replica in self._host.partition_replicas()
            if replica.core.role is Role.LEADER
            and (partition := metadata.partition(replica.group_id)) is not None
            and (is_draining or not partition.replicas or partition.replicas[0].node_id != own)
        ]

    def _preferred(self, metadata: Metadata, replica: Replica[StateMachine]) -> ReplicaId | None:
        """Return the preferred leader of a group that is led here, if it can lead."""
        partition = metadata.partition(replica.group_id)
        if partition is None or partition.is_unsettled or not partition.replicas:
            return None
        target = ReplicaId(partition.replicas[0].replica_id)
        return target if self._may_lead(metadata, replica, target) else None

    def _heir(self, metadata: Metadata, replica: Replica[StateMachine]) -> ReplicaId | None:
        """Return a replica that can lead instead of this draining node: the first one in the order of preference."""
        partition = metadata.partition(replica.group_id)
        ids = [ReplicaId(one.replica_id) for one in partition.replicas] if partition is not None else []
        return next((one for one in ids if self._may_lead(metadata, replica, one)), None)

    def _may_lead(self, metadata: Metadata, replica: Replica[StateMachine], target: ReplicaId) -> bool:
        host, node_id = self._host, replica.node_of(target)
        node = metadata.node(node_id)
        return (
            node is not None
            and node.state == ACTIVE
            and node_id not in (NO_NODE, host.node_id)
            and not replica.core.membership.is_joint
            and host.stability.is_stable(node_id)
            and host.is_clock_right(node_id)
            and target in host.replication.in_sync(replica)
        )

    async def _offer(self, replica: Replica[StateMachine], target: ReplicaId) -> bool:
        """Begin a transfer, if the target's broker says that it is ready."""
        self._tried_at[replica.group_id] = self._host.loop.time()
        if not await self._readiness.is_ready(replica.node_of(target)) or not replica.is_leader:
            return False
        self._host.transfer_leadership(replica, target)
        log.info("leadership_offered", group_id=replica.group_id, replica_id=target)
        return True

    async def _offer_metadata(self, metadata: Metadata) -> None:
        """Offer the leadership of the metadata group to a voter on a broker that stays."""
        replica = self._host.metadata
        if not replica.is_leader or METADATA_GROUP_ID in self._tried_at:
            return
        lagging = lagging_voters(replica)
        for voter in replica.core.membership.voters:
            if voter not in lagging and self._may_lead(metadata, replica, voter) and await self._offer(replica, voter):
                return
