"""Report this node's standing in its cluster: the reasons for not being ready, warnings, and replicas that are not served.

It decides nothing and changes nothing: the node writes the facts that only it knows, and all others read.
"""

from __future__ import annotations

from raftmq.broker.base.config import BrokerConfig
from raftmq.broker.base.readiness import STALL_REMEMBERED_SECONDS, NotReady, Reason
from raftmq.broker.base.supervisor import Supervisor
from raftmq.broker.base.watchdog import Watchdog
from raftmq.broker.cluster.bootstrap import ClusterBootstrap
from raftmq.broker.cluster.clock_watch import ClockWatch
from raftmq.broker.cluster.metadata_replica import MetadataReplica
from raftmq.broker.cluster.peer_directory import PeerDirectory
from raftmq.broker.cluster.replica_manager import ReplicaManager
from raftmq.broker.cluster.unserved import NotServed, NotServedReason
from raftmq.broker.replica.engine import Engine
from raftmq.storage.registry import Registry
from raftmq.types import NO_NODE, GroupId, NodeId


class Standing:
    """Gathers the reasons from the node's parts, at each request."""

    def __init__(
        self,
        config: BrokerConfig,
        registry: Registry,
        engine: Engine,
        replicas: ReplicaManager,
        metadata: MetadataReplica,
        bootstrap: ClusterBootstrap,
        supervisor: Supervisor,
        watchdog: Watchdog,
        clock_watch: ClockWatch,
        peers: PeerDirectory,
    ) -> None:
        self._config = config
        self._registry = registry
        self._engine = engine
        self._replicas = replicas
        self._metadata = metadata
        self._bootstrap = bootstrap
        self._supervisor = supervisor
        self._watchdog = watchdog
        self._clock_watch = clock_watch
        self._peers = peers
        self.silence: NotReady | None = None
        """The reason why this node takes no part in its cluster until it is restarted. The node writes it once."""
        self.is_caught_up = False
        """Whether a quorum confirmed the metadata in this boot. The node writes it once."""
        self.is_stopping = False
        """Whether the broker was told to stop. The node writes it once."""

    def not_ready_reasons(self) -> list[NotReady]:
        """Return the reasons why the node is not ready. Empty if it is ready."""
        reasons = []
        if self.is_stopping:
            reasons.append(NotReady(Reason.STOPPING, "the broker was told to stop and hands its leaderships over"))
        reasons += self._reasons_of_membership()
        if self._engine.write_refusal is not None:
            reasons.append(NotReady(Reason.DISK_RESERVE, str(self._engine.write_refusal)))
        if (wrong_clock := self._clock_watch.not_ready()) is not None:
            reasons.append(wrong_clock)
        lag = self._watchdog.lag_seconds_max(STALL_REMEMBERED_SECONDS)
        if lag > self._engine.timing.stall_seconds:
            text = f"the event loop stood still for {lag:.1f} s a moment ago: the machine is overloaded, or swaps"
            reasons.append(NotReady(Reason.LOOP_STALLED, text))
        return reasons

    def _reasons_of_membership(self) -> list[NotReady]:
        """Return the reasons why the node is not yet a reliable part of the cluster."""
        if self.silence is not None:
            return [self.silence]
        replica = self._metadata.replica
        if replica is None:
            seeds = ", ".join(self._config.join)
            text = f"waits to be admitted by a broker at {seeds}" if seeds else "is being formed"
            return [NotReady(Reason.JOINING, f"this broker belongs to no cluster yet and {text}{self._postponement()}")]
        if removal := self.removal():
            return [NotReady(Reason.REMOVED, removal)]
        reasons = []
        if not self.is_caught_up:
            text = "no majority of the metadata voters has confirmed yet what this broker knows" + self._missed_voters()
            reasons.append(NotReady(Reason.RECOVERING_METADATA, text + self._postponement()))
        elif count := self._replicas.starting_count(replica.state_machine, self._node_id()):
            what = "1 replica is" if count == 1 else f"{count} replicas are"
            reasons.append(NotReady(Reason.STARTING_REPLICAS, f"{what} not serving yet"))
        seconds = self._metadata.leaderless_seconds()
        if self.is_caught_up and seconds:
            text = f"no metadata leader for {seconds:.0f} s: start the brokers that are down, or look at the links between them"
            reasons.append(NotReady(Reason.NO_METADATA_LEADER, text))
        return reasons

    def removal(self) -> str:
        """Return why the cluster permanently refuses this data directory. Empty unless it does.

        The other brokers say so if this node was removed while it was down: then its own metadata will never contain the removal.
        """
        replica = self._metadata.replica
        if self._bootstrap.removal or replica is None:
            return self._bootstrap.removal
        if replica.state_machine.is_uuid_retired(self._registry.uuid):
            return "this data directory was removed from the cluster; start the broker on an empty one to join again"
        return ""

    def _missed_voters(self) -> str:
        """Return words about the metadata voters that are not connected, with the addresses at which they are looked for."""
        assert self._metadata.replica is not None
        machine = self._metadata.replica.state_machine
        voters = set(machine.metadata_voters)
        missed = [
            f"broker {node.node_id} at {node.peer_address}"
            for node in machine.nodes()
            if node.metadata_replica_id in voters and not self._peers.is_connected(NodeId(node.node_id))
        ]
        if not missed:
            return ": are enough of them running?"
        return (
            f": start those that are down, and name one with --join if they moved (not connected: {', '.join(missed)})"
        )

    def _postponement(self) -> str:
        said = self._bootstrap.seeds.postponement
        return f" ({said})" if said else ""

    def not_served(self) -> list[NotServed]:
        """Return the replicas that metadata wants here and that are not served, each with the reason."""
        if self._metadata.replica is None:
            return []
        return self._replicas.not_served(self._metadata.replica.state_machine, self._node_id())

    def _node_id(self) -> NodeId:
        return self._registry.node_id if self._registry.cluster_id else NO_NODE

    def missing_replicas(self) -> list[GroupId]:
        """Return the groups of which this node should serve a replica and does not, except damaged replicas."""
        return [one.key.group_id for one in self.not_served() if one.reason is not NotServedReason.QUARANTINED]

    def warnings(self) -> list[str]:
        """Return problems that do not make the node unready, because its other replicas are served."""
        said = [
            f"replica {one.key.replica_id} of group {one.key.group_id} is not served ({one.reason}): {one.message}"
            for one in sorted(self.not_served())
            if not one.is_starting
        ]
        said += [f"{work} fails, and is tried again: {error}" for work, error in self._supervisor.failing().items()]
        said += [
            f"broker {node_id} is not connected, and {text}. Start it on its newest data directory, or on an empty one with --join and "
            f"--broker-id {node_id}"
            for node_id, text in sorted(self._peers.refused_directories().items())
        ]
        said += [
            f"broker {node_id} is not connected: {text}"
            for node_id, text in sorted(self._peers.refused_versions().items())
        ]
        return said + [
            f"another cluster is at {address}: {answer}. If this cluster was formed twice, stop the newer one. If its metadata was recovered, "
            "see raftmq recover rejoin"
            for address, answer in sorted(self._peers.other_clusters.addresses().items())
        ]
