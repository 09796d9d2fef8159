"""Answer the questions of the services and the reconciler about this node and its cluster.

It decides nothing and starts nothing: it reads the node's parts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TypeVar

from raftmq.broker.base.config import BrokerConfig
from raftmq.broker.base.request_error import RequestError
from raftmq.broker.base.supervisor import Supervisor
from raftmq.broker.cluster.damage_reports import ReportedDamage
from raftmq.broker.cluster.formation import Formation
from raftmq.broker.cluster.metadata_replica import MetadataReplica
from raftmq.broker.cluster.peer_directory import PeerDirectory
from raftmq.broker.cluster.replica_manager import ReplicaManager
from raftmq.broker.cluster.replication_health import ReplicationHealth
from raftmq.broker.cluster.runtime_config import RuntimeConfig
from raftmq.broker.cluster.stability import Stability
from raftmq.broker.cluster.standing import Standing
from raftmq.broker.partitions.partition import Partition
from raftmq.broker.peers.clocks import Agreement
from raftmq.broker.replica.engine import Engine
from raftmq.broker.replica.replica import Replica
from raftmq.fsm.metadata import Metadata
from raftmq.fsm.node_lineage import Lineage
from raftmq.fsm.state_machine import StateMachine
from raftmq.storage.log_store import ReplicaKey
from raftmq.storage.registry import Registry
from raftmq.storage.registry_codec import ReplicaState
from raftmq.types import NO_NODE, GroupId, NodeId, ReplicaId

T = TypeVar("T")


class ClusterView:
    """The node and its cluster as the services see them. Implements `ServiceHost`, `GrpcHost`, `PartitionHost`, `ReconcilerHost` and `ControllerHost`."""

    def __init__(
        self,
        config: BrokerConfig,
        registry: Registry,
        engine: Engine,
        replicas: ReplicaManager,
        metadata: MetadataReplica,
        peers: PeerDirectory,
        partitions: Mapping[GroupId, Partition],
        standing: Standing,
        supervisor: Supervisor,
        formation: Formation,
        runtime_config: RuntimeConfig,
    ) -> None:
        self.config = config
        self.runtime_config = runtime_config
        self.formation = formation
        self.loop = engine.loop
        self.limits = engine.limits
        self.timing = engine.timing
        self.leadership = engine.leadership
        self.partitions = partitions
        self.standing = standing
        self.supervisor = supervisor
        self.reported_damage = ReportedDamage(engine.loop.time)
        self.stability = Stability(engine.loop.time, engine.timing.stable_seconds)
        self.replication = ReplicationHealth(self, self.reported_damage)
        self._registry = registry
        self._engine = engine
        self._replicas = replicas
        self._metadata = metadata
        self._peers = peers
        self._topology_version = 0
        self._topology_change: asyncio.Future[None] | None = None

    # ------------------------------------------------------------------------------------------------ identity

    @property
    def node_id(self) -> NodeId:
        """Return this node's id, or 0 before it belongs to a cluster."""
        return self._registry.node_id if self._registry.cluster_id else NO_NODE

    @property
    def node_uuid(self) -> str:
        """Return this node's identity."""
        return self._registry.uuid

    @property
    def cluster_id(self) -> str:
        """Return the cluster's id, or an empty text before the node belongs to one."""
        return self._registry.cluster_id

    # ------------------------------------------------------------------------------------------------ metadata

    @property
    def metadata(self) -> Replica[Metadata]:
        """Return this node's metadata replica. Raises RequestError NOT_FORMED or NOT_READY."""
        return self._metadata.require_filled()

    @property
    def known_metadata(self) -> Metadata:
        """See `PartitionHost`."""
        return self._metadata.require_known()

    async def wait_revision(self, revision: int) -> None:
        """Wait until the local metadata includes `revision`. The caller bounds the time."""
        replica = self._metadata.require()
        while replica.state_machine.applied_index < revision:
            await asyncio.shield(replica.wait_progress())

    # ------------------------------------------------------------------------------------------------ replicas here

    def partition_replicas(self) -> list[Replica[StateMachine]]:
        """Return every serving partition replica here."""
        return [partition.replica for partition in self.partitions.values()]

    def quarantined(self) -> dict[ReplicaKey, str]:
        """Return the damaged replicas here, with the reason."""
        broken = self._replicas.broken
        if not broken:
            return {}
        # of a retired one there is no file, so that its row says as durably that it must be replaced
        retired = {key: reason for key, reason in broken.items() if self._is_retired(key)}
        return self._registry.quarantined() | retired

    def _is_retired(self, key: ReplicaKey) -> bool:
        row = self._registry.replica(key)
        return row is not None and row.state is ReplicaState.RETIRED

    # ------------------------------------------------------------------------------------------------ other nodes

    def is_connected(self, node_id: NodeId) -> bool:
        """Return whether this node's control channel to that node is up (True for itself)."""
        return self._peers.is_connected(node_id)

    def process_of(self, node_id: NodeId) -> bytes | None:
        """Return the mark that distinguishes that node's process from an earlier one, or None while it is not connected."""
        return self._peers.process_of(node_id)

    def unreachable_seconds(self, node_id: NodeId) -> float:
        """Return the time for which this node has not been connected to that node, 0 if it is."""
        return 0.0 if self.is_connected(node_id) else self._engine.publisher.down_seconds(node_id)

    def is_led(self, group_id: GroupId) -> bool:
        """Return whether the group has a leader, as far as this node can tell."""
        return self._engine.publisher.is_led(group_id)

    def refusal_of_directory(self, uuid: str, lineage: Lineage, process: bytes) -> RequestError | None:
        """Return why the directory of a node with this identity is refused, or None if it is accepted."""
        return self._peers.refusal_of_directory(uuid, lineage, process)

    def transfer_leadership(self, replica: Replica[StateMachine], target: ReplicaId) -> None:
        """Begin to transfer the leadership of a group that is led here."""
        self._engine.guarded(replica, replica.core.transfer_leader, target)
        self._engine.mark_dirty(replica)

    def pace_moves(self, bytes_per_second: int) -> None:
        """Bound the bytes that this node sends to new replicas of planned moves. 0: unlimited."""
        self._engine.copy_pace.set_rate(bytes_per_second)

    def is_copy_waiting(self, replica: Replica[StateMachine]) -> bool:
        """Return whether a copy of the group, led here, waits for the rate of moves or for the end of other snapshots."""
        return self._engine.copy_pace.is_waiting(replica.group_id) or replica.outgoing_snapshots.is_waiting(
            self.loop.time()
        )

    def is_clock_right(self, node_id: NodeId) -> bool:
        """Return whether another node's clock is in the majority, as far as this node can tell."""
        standing = self._engine.clocks.look()
        if standing.agreement is Agreement.UNHEARD:
            return True
        return standing.agreement is not Agreement.DISPUTED and node_id in standing.majority

    # ------------------------------------------------------------------------------------------------ time

    def now_ms(self) -> int:
        """Return the majority's wall clock in milliseconds since the epoch."""
        return self._engine.now_ms()

    def median_ms(self) -> int | None:
        """Return the median of a quorum's wall clocks in milliseconds since the epoch, or None while too few are known."""
        return self._engine.clocks.median_ms()

    @property
    def is_clock_agreed(self) -> bool:
        """Return whether the wall clocks of a majority agree with the median."""
        return self._engine.clocks.is_agreed

    def boottime_ns(self) -> int:
        """Return a time that never jumps, and counts the time in which the machine was suspended."""
        return self._engine.clocks.boottime_ns()

    def draw_seed(self) -> int:
        """Return a random number of 64 bits."""
        return self._engine.draw_seed()

    async def in_write_back(self, function: Callable[..., T], *arguments: object) -> T:
        """Run a change of a state file on the thread that writes states back."""
        return await self._engine.in_write_back(function, *arguments)

    @property
    def is_clock_trusted(self) -> bool:
        """Return whether this node's clock agrees with the majority's."""
        return self._engine.clocks.is_trusted

    # ------------------------------------------------------------------------------------------------ changes

    def topology_version(self) -> int:
        """Return the number of changes of metadata and leadership so far."""
        return self._topology_version

    async def next_topology_change(self) -> None:
        """Wait for the next change of metadata or of the leadership table."""
        if self._topology_change is None:
            self._topology_change = self.loop.create_future()
        await asyncio.shield(self._topology_change)

    def on_topology_change(self) -> None:
        """Wake the callers that wait for a change of metadata, leadership or served replicas."""
        self._topology_version += 1
        if self._topology_change is not None:
            change, self._topology_change = self._topology_change, None
            if not change.done():
                change.set_result(None)
