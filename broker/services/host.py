"""Define the node as the services see it. They import this module, never the node, which passes itself to them."""

from __future__ import annotations

from typing import Protocol

from raftmq.broker.base.limits import Limits
from raftmq.broker.base.request_error import RequestError
from raftmq.broker.base.supervisor import Supervisor
from raftmq.broker.cluster.damage_reports import ReportedDamage
from raftmq.broker.cluster.formation import Formation
from raftmq.broker.cluster.replication_health import ReplicationHealth
from raftmq.broker.cluster.runtime_config import RuntimeConfig
from raftmq.broker.cluster.standing import Standing
from raftmq.broker.partitions.host import PartitionHost
from raftmq.broker.replica.leadership_table import LeadershipTable
from raftmq.broker.replica.replica import Replica
from raftmq.fsm.node_lineage import Lineage
from raftmq.fsm.state_machine import StateMachine
from raftmq.storage.log_store import ReplicaKey
from raftmq.types import GroupId, NodeId, ReplicaId


class ServiceHost(PartitionHost, Protocol):
    """The node as its services see it."""

    limits: Limits
    leadership: LeadershipTable
    standing: Standing
    replication: ReplicationHealth
    reported_damage: ReportedDamage
    supervisor: Supervisor
    formation: Formation
    runtime_config: RuntimeConfig

    @property
    def node_id(self) -> NodeId:
        """Return this node's id, or 0 before it belongs to a cluster."""
        ...

    @property
    def cluster_id(self) -> str:
        """Return the cluster's id, or an empty text before the node belongs to one."""
        ...

    async def wait_revision(self, revision: int) -> None:
        """Wait until the local metadata includes `revision` (0: no wait). The caller's deadline bounds it."""
        ...

    def is_led(self, group_id: GroupId) -> bool:
        """Return whether the group has a leader, as far as this node can tell.

        This is for reports, not for routing: `leadership` keeps naming the last known leader until there is another one.
        """
        ...

    def is_connected(self, node_id: NodeId) -> bool:
        """Return whether this node's control channel to that node is up (True for itself)."""
        ...

    def unreachable_seconds(self, node_id: NodeId) -> float:
        """Return the time for which this node has not been connected to that node, 0 if it is."""
        ...

    def transfer_leadership(self, replica: Replica[StateMachine], target: ReplicaId) -> None:
        """Begin to transfer the leadership of a group that is led here."""
        ...

    def refusal_of_directory(self, uuid: str, lineage: Lineage, process: bytes) -> RequestError | None:
        """Return why the directory of a node with this identity is refused, or None if it is accepted."""
        ...

    def quarantined(self) -> dict[ReplicaKey, str]:
        """Return the damaged replicas here, with the reason."""
        ...

    def partition_replicas(self) -> list[Replica[StateMachine]]:
        """Return every serving partition replica here."""
        ...

    async def next_topology_change(self) -> None:
        """Wait for the next change of metadata or of the leadership table."""
        ...

    def topology_version(self) -> int:
        """Return the number of changes of metadata and leadership, so that a watcher can tell whether it missed one."""
        ...
