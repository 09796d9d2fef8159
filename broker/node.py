"""Run one broker: connect storage, engine, transport and services, and lead the node through its life.

Its life: open the registry → form, join or continue → catch up with metadata → serve partitions → transfer leaderships and stop. The node
decides nothing about the protocol. It connects parts, and orders the steps that must be durable one after another.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace

import structlog
from raftmq.broker.base.config import BrokerConfig, LoadedConfig
from raftmq.broker.base.gc_pauses import GcPauses
from raftmq.broker.base.limits import Limits, Timing, within_this_process
from raftmq.broker.base.readiness import (
    STARTING,
    NotReady,
    Reason,
)
from raftmq.broker.base.request_error import RequestError
from raftmq.broker.base.supervisor import Supervisor, Work
from raftmq.broker.cluster.bootstrap import ClusterBootstrap
from raftmq.broker.cluster.clock_watch import ClockWatch
from raftmq.broker.cluster.controller import Controller
from raftmq.broker.cluster.disk_watch import DiskWatch
from raftmq.broker.cluster.leadership_drain import drain_leadership
from raftmq.broker.cluster.metadata_replica import MetadataReplica
from raftmq.broker.cluster.peer_directory import PeerDirectory
from raftmq.broker.cluster.peer_events import PeerEvents
from raftmq.broker.cluster.peer_readiness import PeerReadiness
from raftmq.broker.cluster.reconciler import Reconciler
from raftmq.broker.cluster.replica_manager import ReplicaManager
from raftmq.broker.cluster.runtime_config import RuntimeConfig
from raftmq.broker.cluster.seeds import Seeds
from raftmq.broker.cluster.standing import Standing
from raftmq.broker.cluster.upkeep import Upkeep
from raftmq.broker.cluster.view import ClusterView
from raftmq.broker.environment import NodeEnvironment
from raftmq.broker.node_storage import NodeStorage
from raftmq.broker.partitions.kinds import TopicKind
from raftmq.broker.partitions.partition import Partition
from raftmq.broker.peer_port.answers import PeerAnswers
from raftmq.broker.peers.transport import PeerTransport
from raftmq.broker.ports import NodePorts
from raftmq.broker.replica.engine import Engine
from raftmq.broker.replica.replica import Replica
from raftmq.broker.services.damage_reporter import DamageReporter
from raftmq.broker.services.forwarder import PeerForwarder
from raftmq.broker.shutdown import Shutdown
from raftmq.errors import InvariantError, UnsupportedDataError
from raftmq.fsm.metadata_nodes import DRAINING
from raftmq.fsm.state_machine import StateMachine
from raftmq.proto import queue_pb2 as pb
from raftmq.storage.errors import DamagedReplicaError
from raftmq.storage.lmdb_log_store import replica_file_count
from raftmq.storage.registry import STALE_DIRECTORY_ADVICE
from raftmq.storage.writer_threads import Completion
from raftmq.types import METADATA_GROUP_ID, GroupId, NodeId

log = structlog.get_logger(__name__)

_LEADERSHIP_DRAIN_SECONDS_MAX = 5.0


class Node:
    """Connects the parts of one broker, and leads them through its life. Implements `EngineOwner` and `MetricsHost`."""

    def __init__(
        self,
        config: BrokerConfig,
        version: str,
        parts: NodeEnvironment | None = None,
        sources: Mapping[str, str] | None = None,
    ) -> None:
        """Take the configuration of the start. `sources` has the origins of its values, as `LoadedConfig` has them."""
        self.config = config
        self.runtime_config = RuntimeConfig(LoadedConfig(config, sources or {}), self._on_settings_changed)
        self.version = version
        self.loop = asyncio.get_running_loop()
        self._parts = parts = parts or NodeEnvironment(config)
        self._feature_level = parts.feature_level()
        self.limits: Limits = within_this_process(
            config.limits(), config.map_bytes, replica_file_count(config.data_dir)
        )
        self.timing: Timing = config.timing()
        self.supervisor = Supervisor(self.loop, self.on_fatal)
        self._storage = storage = NodeStorage(parts, self.limits, self.supervisor, self._on_writes_done, self.on_fatal)
        self.registry, self.store = storage.registry, storage.store
        rng = parts.random()
        self.transport = PeerTransport(self.loop, self.limits, self.timing, rng.random)
        self.engine = Engine(
            self.loop,
            self,
            self.store,
            storage.readers,
            self.transport,
            storage.writers,
            parts.clock(),
            rng,
            rng.random,
            self.limits,
            self.timing,
            spools=parts.snapshot_spools(self.limits, storage.disk),
        )
        self._partitions: dict[GroupId, Partition] = {}
        self.partitions: Mapping[GroupId, Partition] = self._partitions
        self._wire_cluster()
        self.watchdog = parts.watchdog(self.loop, self.timing.stall_seconds)
        self.gc_pauses = GcPauses()
        self.disk_watch = DiskWatch(
            storage.disk,
            self.engine,
            config.data_dir,
            self.supervisor,
            storage.readers.disk,
            self.store.end_copies,
        )
        self.clock_watch = ClockWatch(self.engine, self._peers.is_connected)
        self.standing = Standing(
            config,
            self.registry,
            self.engine,
            self.replicas,
            self._metadata,
            self._bootstrap,
            self.supervisor,
            self.watchdog,
            self.clock_watch,
            self._peers,
        )
        self.view = ClusterView(
            config,
            self.registry,
            self.engine,
            self.replicas,
            self._metadata,
            self._peers,
            self.partitions,
            self.standing,
            self.supervisor,
            self._bootstrap.formation,
            self.runtime_config,
        )
        forwarder = PeerForwarder(self.transport)
        self.grpc = parts.grpc_server(self.view, forwarder)
        self.transport.requests.answerer = PeerAnswers(self.view, self.grpc.services, self.grpc.metrics)
        self.data_port = parts.data_port(self.view, self.grpc)
        reporter = DamageReporter(self.view, forwarder, self.grpc.nodes)
        self.reconciler = Reconciler(self.view, reporter, config.metadata_voters)
        self.controller = Controller(self.view, PeerReadiness(self.loop, self.grpc.calls), self.grpc.sizes)
        self.upkeep = Upkeep(
            self.engine,
            self.store,
            self.registry,
            storage.readers.upkeep,
            self.replicas,
            self._metadata,
            self.partitions,
            self.reconciler.deletable_through_index,
            storage.disk.is_short,
            self.supervisor,
        )
        self.http = parts.http_server(self)
        self._ports = NodePorts(config, self.addresses, self.transport, self.grpc, self.data_port, self.http)
        self._silenced = asyncio.Event()
        self._entering: asyncio.Task[None] | None = None
        """The task of the start, running or done."""
        self._stopped = asyncio.Event()
        self._metadata_changed = asyncio.Event()

    def _wire_cluster(self) -> None:
        """Create the parts that know the cluster: metadata, this node's replicas, and its peers."""
        in_background, publisher = self._storage.in_background, self.engine.publisher
        self.replicas = ReplicaManager(
            self.loop,
            self.engine,
            self.store,
            self._storage.writers,
            self.registry,
            self.supervisor,
            in_background,
            self._on_serving,
            self._on_replica_changed,
        )
        self._metadata = MetadataReplica(
            self.engine, self.store, self.registry, self.replicas, self._on_metadata_changed
        )
        self._peers = PeerDirectory(
            self.registry, self._metadata, self.transport, publisher, in_background, self.limits
        )
        self.addresses, self.other_clusters = self._peers.own_addresses, self._peers.other_clusters
        publisher.may_lead = self._peers.may_lead
        self.engine.cluster_level = self._metadata.feature_level
        seeds = Seeds(
            self.config,
            self.version,
            self.addresses,
            self.registry,
            self.limits.partitions_max,
            self._feature_level,
            self.transport.visit,
        )
        seeds.on_met = self._peers.meet
        self._bootstrap = ClusterBootstrap(
            self.config,
            self.registry,
            self.store,
            self.replicas,
            self._metadata,
            self._peers,
            seeds,
            self._parts.new_uuid,
            self._on_stale_directory,
            self._on_removed,
            in_background,
            self.timing.mark_renewal_seconds,
        )
        self.transport.attach(PeerEvents(self.engine, self._peers, self.supervisor, self._on_stale_directory))

    # ------------------------------------------------------------------------------------------------ life

    async def start(self) -> None:
        """Bind every port, form or join or continue a cluster, and serve. Return when the node is ready.

        A node that falls silent never becomes ready: it waits for its end, and `/readyz` gives the reason.
        """
        entering = self._entering = self.loop.create_task(self._start())
        silenced = self.loop.create_task(self._silenced.wait())
        try:
            await asyncio.wait((entering, silenced), return_when=asyncio.FIRST_COMPLETED)
            if self.standing.silence is None:
                entering.result()
                return
            await self._stopped.wait()
        except UnsupportedDataError as error:  # a newer version wrote the metadata's file, or a row of its state
            self._fall_silent(NotReady(Reason.UNSUPPORTED_FORMAT, str(error)))
            await self._stopped.wait()
        except RequestError as error:
            if error.code == pb.STALE_DIRECTORY:
                self.registry.refuse(str(error))
            raise
        finally:
            for task in (entering, silenced):
                task.cancel()
            await asyncio.gather(entering, silenced, return_exceptions=True)

    async def _start(self) -> None:
        await self._ports.bind()
        if self.limits.partitions_max < self.config.partitions_max:
            log.warning(
                "partitions_limited", limit=self.limits.partitions_max, reason=self.limits.partitions_max_reason
            )
        if self.limits.client_connections_max < self.config.limits().client_connections_max:
            log.warning("connections_limited", limit=self.limits.client_connections_max)
        self.watchdog.start()
        self.gc_pauses.start()
        self.supervisor.spawn(Work.DISK_WATCH, self.disk_watch.run)
        self.supervisor.spawn(Work.CLOCK_WATCH, self.clock_watch.run)
        is_known = not await self._bootstrap.enter()
        self._follow_settings()
        if not is_known:
            self._check_standing()
        self.supervisor.spawn(Work.ANNOUNCEMENT, self._bootstrap.announce)
        await self._catch_up()
        self._metadata_changed.set()
        self.supervisor.spawn(Work.METADATA_FOLLOWER, self._follow_metadata)
        self.supervisor.spawn(Work.RECONCILER, self.reconciler.run)
        self.supervisor.spawn(Work.CONTROLLER, self.controller.run)
        self.supervisor.spawn(Work.COORDINATOR, self.grpc.coordinator.run)
        self.supervisor.spawn(Work.DEAD_LETTERS, self.grpc.dead_letters.run)
        self.upkeep.start()
        while any(one.reason in STARTING for one in self.standing.not_ready_reasons()):
            await self.view.next_topology_change()
        log.info(
            "broker_ready", broker_id=self.view.node_id, cluster_id=self.view.cluster_id, address=self.addresses.client
        )

    async def _catch_up(self) -> None:
        """Catch up with metadata. No partition is started before a quorum confirmed this node's metadata in this boot."""

        def refresh() -> None:
            with self.supervisor.step(Work.METADATA_FOLLOWER):
                self._peers.refresh()  # entries were replayed or received in the meantime, so the leader may have moved

        await self._metadata.wait_confirmed(refresh)
        self.standing.is_caught_up = True

    async def wait_stopped(self) -> None:
        """Wait until `stop` is done or has failed."""
        await self._stopped.wait()

    async def stop(self) -> None:
        """Stop in order: become unready, transfer leaderships, finish requests, close, all within the shutdown time.

        Even if it raises, the node has ended, and the process must end.
        """
        if self.standing.is_stopping:
            return
        self.standing.is_stopping = True
        try:
            await self._stop()
        finally:
            self._stopped.set()

    async def _stop(self) -> None:
        log.info("broker_stopping", broker_id=self.view.node_id)
        end = Shutdown(self.loop, self.timing.shutdown_seconds)
        seconds_max = min(_LEADERSHIP_DRAIN_SECONDS_MAX, end.seconds_left / 2)
        draining = drain_leadership(
            self.engine, self._peers.is_connected, self._peers.is_any_connected, seconds_max, self._is_emptied
        )
        await end.phase("leadership_drain", draining, 2 * seconds_max)
        self.supervisor.cancel()
        bringing_up = self.replicas.close()
        await self._ports.close(end)
        self.engine.close()
        if bringing_up:  # they were told to end, and use what the writers will close
            await end.phase("replicas", asyncio.wait(bringing_up), end.seconds_left / 2)
        await self._storage.close(end)
        self.watchdog.stop()
        self.gc_pauses.stop()
        end.finish(self.config.data_dir, self._parts.end_process)

    def _is_emptied(self, node_id: NodeId) -> bool:
        replica = self._metadata.replica
        node = replica.state_machine.node(node_id) if replica is not None else None
        return node is not None and node.state == DRAINING

    # ------------------------------------------------------------------------------------------------ metadata and replicas

    def _on_metadata_changed(self) -> None:
        self._check_standing()
        self._follow_settings()
        self._metadata_changed.set()
        self.view.on_topology_change()

    def _check_standing(self) -> None:
        """Fall silent if committed metadata shows that this node must not take part: its data, or its program, is older."""
        replica = self._metadata.replica
        if replica is None:
            return
        stale = self._peers.boots.own_contradiction()
        if stale is not None:
            self._on_stale_directory(f"metadata knows a later process of this broker: {stale}")
        elif replica.state_machine.feature_level > self._feature_level:
            text = f"the cluster is at feature level {replica.state_machine.feature_level}, and this version knows {self._feature_level}"
            self._fall_silent(NotReady(Reason.UNSUPPORTED_FORMAT, f"{text}: start a newer version of the broker"))

    def _follow_settings(self) -> None:
        """Adopt the run-time settings of this node's metadata, confirmed or not: an older value was right a moment ago."""
        if self._metadata.replica is not None:
            self.runtime_config.follow(self._metadata.replica.state_machine, self.view.node_id)

    def _on_settings_changed(self, before: BrokerConfig, now: BrokerConfig) -> None:
        if now.log_level != before.log_level:
            self._parts.set_log_level(now.log_level)
        if now.disk_reserve_bytes != before.disk_reserve_bytes:
            self._storage.disk.set_reserve(now.disk_reserve_bytes)
        if now.scrub_bytes_per_second != before.scrub_bytes_per_second:
            self.upkeep.scrubber.bytes_per_second = now.scrub_bytes_per_second
        if now.offsets_retention_seconds != before.offsets_retention_seconds:
            self.view.timing = replace(self.view.timing, offsets_retention_seconds=now.offsets_retention_seconds)

    def _on_stale_directory(self, reason: str) -> None:
        if self.standing.silence is None:
            self._storage.in_background(self.registry.refuse, reason)
            self._fall_silent(NotReady(Reason.STALE_DIRECTORY, f"{reason}: {STALE_DIRECTORY_ADVICE}"))

    def _on_removed(self) -> None:
        """Wake the feed of the topology, which ends its watches: this node learns of no later change."""
        self.view.on_topology_change()

    def _fall_silent(self, why: NotReady) -> None:
        """Stop taking part in the cluster: no vote, no acknowledgement, no answer. Only health and metrics are served.

        The process stays, so that an orchestrator does not restart it repeatedly, and `/readyz` names the remedy.
        """
        if self.standing.silence is not None:
            return
        self.standing.silence = why
        log.critical("broker_silenced", broker_id=self.view.node_id, error_code=why.reason.value, reason=why.message)
        self._ports.silence()  # first, because the engine may be in the middle of a pass
        self.engine.close()
        self._partitions.clear()
        self.supervisor.cancel()
        self.replicas.close()
        if self._entering is not None:
            self._entering.cancel()  # it may be about to open a replica
        self._silenced.set()
        self.view.on_topology_change()

    async def _follow_metadata(self) -> None:
        """React to each change of metadata: peers' addresses, then this node's replicas."""
        while True:
            await self._metadata_changed.wait()
            self._peers.refresh()
            self.replicas.reconcile(self._metadata.require().state_machine, self.view.node_id)
            self._metadata_changed.clear()  # only now: after a failure the next attempt must not wait for another change
            self.view.on_topology_change()

    def _on_serving(self, replica: Replica[StateMachine], kind: TopicKind[Partition]) -> None:
        self._partitions[replica.group_id] = kind.serve(replica, self.view, self.store, self.engine.break_replica)
        self.view.on_topology_change()

    def _on_replica_changed(self, group_id: GroupId) -> None:
        partition = self._partitions.get(group_id)
        if partition is not None and partition.replica.is_closed:
            del self._partitions[group_id]
        self.view.on_topology_change()

    # ------------------------------------------------------------------------------------------------ EngineOwner

    def on_leadership_row(self, group_id: GroupId) -> None:
        """See `EngineOwner`."""
        self.view.on_topology_change()

    def on_replica_broken(self, replica: Replica[StateMachine], error: Exception) -> None:
        """See `EngineOwner`."""
        if replica.group_id == METADATA_GROUP_ID and isinstance(error, UnsupportedDataError):
            self._fall_silent(NotReady(Reason.UNSUPPORTED_FORMAT, str(error)))
            return
        if replica.group_id == METADATA_GROUP_ID:
            # nothing works without the metadata replica, and it is opened again only by a start
            if isinstance(error, DamagedReplicaError | InvariantError):
                self.registry.quarantine(replica.key, str(error))
            self.on_fatal(error)
        else:
            self.replicas.on_broken(replica, error)

    def on_fatal(self, error: BaseException) -> None:
        """End the process: nothing can be trusted after a failed commit, so nothing more is done."""
        log.critical("broker_exits", reason=repr(error), path=str(self.config.data_dir))
        self._parts.end_process()

    def client_address_of(self, node_id: NodeId) -> str:
        """See `EngineOwner`."""
        return self._peers.client_address_of(node_id)

    def record_failure(self, work: Work, error: BaseException) -> None:
        """See `EngineOwner`."""
        self.supervisor.record_failure(work, error)

    def _on_writes_done(self, completions: list[Completion]) -> None:
        self.engine.on_completions(completions)
