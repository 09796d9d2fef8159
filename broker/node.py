"""One broker process: puts storage, engine, transport and services together and carries a node through its life.

Life: open the registry → form, join or continue → catch up with metadata → serve partitions → hand over and stop.
The node decides nothing about the protocol; it wires parts, and every step that must be durable before the next says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import Future

import structlog
from raftmq.broker.base.config import BrokerConfig, split_address
from raftmq.broker.base.gc_pauses import GcPauses
from raftmq.broker.base.limits import Limits, Timing, within_this_process
from raftmq.broker.base.readiness import (
    STARTING,
    NotReady,
    Reason,
)
from raftmq.broker.base.request_error import RequestError
from raftmq.broker.base.supervisor import Supervisor, Work, is_fatal
from raftmq.broker.cluster.bootstrap import ClusterBootstrap, NodeAddresses
from raftmq.broker.cluster.clock_watch import ClockWatch
from raftmq.broker.cluster.disk_watch import DiskWatch
from raftmq.broker.cluster.housekeeping import Housekeeping
from raftmq.broker.cluster.leadership_drain import drain_leadership
from raftmq.broker.cluster.metadata_replica import MetadataReplica
from raftmq.broker.cluster.other_clusters import OtherClusters
from raftmq.broker.cluster.peer_boots import PeerBoots, lineage_of
from raftmq.broker.cluster.peer_directory import PeerDirectory
from raftmq.broker.cluster.reconciler import Reconciler
from raftmq.broker.cluster.replica_files import refuse_lost_registry, refuse_stale_directory
from raftmq.broker.cluster.replica_manager import ReplicaManager
from raftmq.broker.cluster.scrubber import Scrubber
from raftmq.broker.cluster.space_return import SpaceReturn
from raftmq.broker.cluster.standing import Standing
from raftmq.broker.cluster.unserved import NotServed, NotServedReason
from raftmq.broker.environment import NodeEnvironment
from raftmq.broker.partitions.kinds import Partition, TopicKind
from raftmq.broker.peers.codec import FrameError, FrameType
from raftmq.broker.peers.protocol import Channel, Hello
from raftmq.broker.peers.transport import PeerTransport
from raftmq.broker.replica.engine import Engine
from raftmq.broker.replica.replica import Replica
from raftmq.broker.services.call import Call
from raftmq.broker.shutdown import Shutdown
from raftmq.errors import InvariantError, UnsupportedDataError
from raftmq.fsm.feature_levels import FEATURE_LEVEL
from raftmq.fsm.metadata import Metadata
from raftmq.fsm.node_lineage import Lineage
from raftmq.fsm.state_machine import StateMachine
from raftmq.methods import REPORT_DAMAGE
from raftmq.proto import queue_pb2 as pb
from raftmq.storage.errors import DamagedReplicaError
from raftmq.storage.lmdb_log_store import replica_file_count
from raftmq.storage.log_store import ReplicaKey
from raftmq.storage.registry import STALE_DIRECTORY_ADVICE
from raftmq.storage.writer_threads import Completion
from raftmq.types import METADATA_GROUP_ID, NO_NODE, GroupId, NodeId, ReplicaId

log = structlog.get_logger(__name__)

_REPORT_TIMEOUT_SECONDS = 10.0
_HAND_OVER_SECONDS_MAX = 5.0
_GRPC_GRACE_SECONDS = 2.0
_PORTS_SECONDS_MAX = 5.0
"""Closing a port takes no longer, or something hangs: most of the time is for writes under way."""


class Node:
    """See the module. Implements `ServiceHost`, `ReconcilerHost`, `EngineOwner` and `PeerHandler`."""

    def __init__(self, config: BrokerConfig, version: str, parts: NodeEnvironment | None = None) -> None:
        self.config = config
        self._parts = parts = parts or NodeEnvironment(config)
        self.version = version
        self.limits: Limits = within_this_process(
            config.limits(), config.map_bytes, replica_file_count(config.data_dir)
        )
        self.timing: Timing = config.timing()
        self.loop = asyncio.get_running_loop()
        self.supervisor = Supervisor(self.loop, self.on_fatal)
        disk = parts.disk_reserve()
        disk.prepare_opening()
        self.registry = parts.registry()
        self.store = parts.store(disk)
        refuse_lost_registry(self.store, self.registry)
        refuse_stale_directory(self.registry)
        self._readers = parts.readers(self.limits)
        self._random = parts.random()
        self.writers = parts.writers(self.store, self._on_writes_done, self.on_fatal)
        self.transport = PeerTransport(self.loop, self, self.limits, self.timing, self._random.random)
        self.engine = Engine(
            self.loop,
            self,
            self.store,
            self._readers,
            self.transport,
            self.writers,
            parts.clock(),
            self._random,
            self._random.random,
            self.limits,
            self.timing,
            spools=parts.snapshot_spools(self.limits, disk),
        )
        self._partitions: dict[GroupId, Partition] = {}
        self.partitions: Mapping[GroupId, Partition] = self._partitions
        self.replicas = ReplicaManager(
            self.loop,
            self.engine,
            self.store,
            self.writers,
            self.registry,
            self.supervisor,
            self._in_background,
            self._on_serving,
            self._on_replica_changed,
        )
        self._metadata = MetadataReplica(
            self.engine, self.store, self.registry, self.replicas, self._on_metadata_changed
        )
        self.leadership = self.engine.leadership
        publisher = self.engine.publisher
        self.other_clusters = OtherClusters(self.loop.time)
        self._boots = PeerBoots(self.registry, self._metadata, self._in_background, self.limits)
        self._peers = PeerDirectory(
            self.registry,
            self._metadata,
            self.transport,
            publisher,
            self._in_background,
            self.limits.groups_ahead_max,
            self._boots,
            self.other_clusters,
        )
        publisher.may_lead = self._peers.may_lead
        self.engine.cluster_level = self._metadata.feature_level
        self.disk_watch = DiskWatch(disk, self.engine, config.data_dir, self.supervisor)
        self.clock_watch = ClockWatch(self.engine, self.is_connected)
        self.watchdog = parts.watchdog(self.loop, self.timing.stall_seconds)
        self.gc_pauses = GcPauses()
        self.standing = Standing(
            config,
            self.registry,
            self.engine,
            self.replicas,
            self._metadata,
            self.supervisor,
            self.watchdog,
            self.clock_watch,
            self.other_clusters,
        )
        self.grpc = parts.grpc_server(self)
        self.reconciler = Reconciler(self, config.metadata_voters)
        self._housekeeping = Housekeeping(
            self.engine,
            self.store,
            self._readers.upkeep,
            self.replicas,
            self._metadata,
            self.partitions,
            self.reconciler.retained_from_index,
            self.timing,
            self.supervisor,
        )
        self._space_return = SpaceReturn(
            self.engine, self.store, self._readers.upkeep, self.replicas, disk.is_short, self.timing, self.supervisor
        )
        self.scrubber = Scrubber(
            self.engine, self.store, self._readers.upkeep, self.registry, self.replicas, self.limits, self.timing
        )
        self.http = parts.http_server(self)
        self.client_address = ""
        self.peer_address = ""
        self.http_address = ""
        self._silenced = asyncio.Event()
        self._port_closing: asyncio.Task[None] | None = None
        self._entering: asyncio.Task[None] | None = None
        """The start under way, or done."""
        self._stopped = asyncio.Event()
        self._metadata_changed = asyncio.Event()
        self._topology_version = 0
        self._topology_change: asyncio.Future[None] | None = None

    # ------------------------------------------------------------------------------------------------ life

    async def start(self) -> None:
        """Bind every port, form or join or continue a cluster, and serve. Returns when the node is ready.

        A node that falls silent never is: it waits for its end, and `/readyz` says why.
        """
        entering = self._entering = self.loop.create_task(self._start())
        silenced = self.loop.create_task(self._silenced.wait())
        try:
            await asyncio.wait((entering, silenced), return_when=asyncio.FIRST_COMPLETED)
            if self.standing.silence is None:
                entering.result()
                return
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
        host, port = split_address(self.config.peer_listen)
        self.peer_address = self._advertised(host, await self.transport.listen(host, port))
        host, _ = split_address(self.config.listen)
        self.client_address = self._advertised(host, await self.grpc.start(self.config.listen))
        host, port = split_address(self.config.http_listen)
        self.http_address = self._advertised(host, await self.http.start(host, port))
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
        await self._enter_cluster()
        await self._catch_up()
        self._metadata_changed.set()
        self.supervisor.spawn(Work.METADATA_FOLLOWER, self._follow_metadata)
        self.supervisor.spawn(Work.RECONCILER, self.reconciler.run)
        self.supervisor.spawn(Work.COORDINATOR, self.grpc.coordinator.run)
        self.supervisor.spawn(Work.HOUSEKEEPING, self._housekeeping.run)
        self.supervisor.spawn(Work.SPACE_RETURN, self._space_return.run)
        self.supervisor.spawn(Work.SCRUBBER, self.scrubber.run)
        while any(one.reason in STARTING for one in self.not_ready_reasons()):
            await self.next_topology_change()
        log.info("broker_ready", node_id=self.node_id, cluster_id=self.cluster_id, address=self.client_address)

    async def _enter_cluster(self) -> None:
        forming = self.standing.bootstrap = ClusterBootstrap(
            self.config,
            self.version,
            NodeAddresses(self.client_address, self.peer_address, self.http_address),
            self.registry,
            self.store,
            self.engine,
            self.replicas,
            self._metadata,
            self._peers,
            self._parts.open_channel,
            self._parts.new_uuid,
            self._on_stale_directory,
        )
        if self.registry.cluster_id:
            await forming.check_seeds()
            await forming.resume()
            self._check_standing()
            self.supervisor.spawn(Work.ANNOUNCEMENT, forming.announce)
        elif self.config.bootstrap:
            await forming.bootstrap()
        else:
            await forming.join()

    async def _catch_up(self) -> None:
        """Metadata first: no partition is started before a quorum confirmed, in this boot, what this replica knows."""
        replica = self._metadata.require()
        while True:
            try:
                await replica.read_index()
                break
            except RequestError:
                with self.supervisor.step(Work.METADATA_FOLLOWER):
                    self._peers.refresh()  # replayed or received meanwhile: the leader may have moved
                await asyncio.sleep(self.timing.metadata_tick_seconds)
        self.standing.is_caught_up = True

    async def wait_stopped(self) -> None:
        """Until `stop` is done, or has failed."""
        await self._stopped.wait()

    async def stop(self) -> None:
        """Not ready → hand leaderships over → finish requests → close, within the shutdown time.

        Whatever it raises, it is over: the process must end.
        """
        if self.standing.is_stopping:
            return
        self.standing.is_stopping = True
        try:
            await self._stop()
        finally:
            self._stopped.set()

    async def _stop(self) -> None:
        log.info("broker_stopping", node_id=self.node_id)
        end = Shutdown(self.loop, self.timing.shutdown_seconds)
        seconds_max = min(_HAND_OVER_SECONDS_MAX, end.seconds_left / 2)
        handing_over = drain_leadership(self.engine, self.is_connected, self._peers.is_any_connected, seconds_max)
        await end.phase("hand_over", handing_over, 2 * seconds_max)
        self.supervisor.cancel()
        bringing_up = self.replicas.close()
        await self._close_ports(end)
        self.engine.close()
        if bringing_up:  # they were told to end, and hold what the writers shall close
            await end.phase("replicas", asyncio.wait(bringing_up), end.seconds_left / 2)
        is_idle = await end.phase("writers", self.loop.run_in_executor(None, self.writers.close))
        # the registry's writes among what waits there: a quarantine must be remembered
        is_idle &= await end.phase("readers", self.loop.run_in_executor(None, self._readers.shutdown))
        if is_idle and await end.phase("files", self.loop.run_in_executor(None, self._close_files)):
            self.registry.close(is_clean=end.is_clean)
        self.watchdog.stop()
        self.gc_pauses.stop()
        if end.overdue:
            # a thread that hangs would keep the process; and what it still does must not count as an orderly end
            log.critical(
                "broker_exits", reason=f"not over in time: {', '.join(end.overdue)}", path=str(self.config.data_dir)
            )
            self._parts.end_process()
        if end.failure is not None:
            raise end.failure

    async def _close_ports(self, end: Shutdown) -> None:
        seconds_max = min(_PORTS_SECONDS_MAX, end.seconds_left / 4)
        if self._port_closing is not None:
            await end.phase("ports", self._port_closing, seconds_max)
        else:
            grace_seconds = min(_GRPC_GRACE_SECONDS, seconds_max / 2)
            await end.phase("grpc", self.grpc.stop(grace_seconds=grace_seconds), seconds_max)
            await end.phase("peers", self.transport.close(), seconds_max)
        await end.phase("http", self.http.stop(), seconds_max)

    def _close_files(self) -> None:
        for key in self.store.open_replicas():
            self.store.close(key)

    def _in_background(self, write: Callable[..., object], *arguments: object) -> Future[object]:
        """A short write of the registry, off the loop. A commit of its that fails ends the process like any other."""
        written = self._readers.upkeep.submit(write, *arguments)
        written.add_done_callback(self._on_written)
        return written

    def _on_written(self, done: Future[object]) -> None:
        error = done.exception()
        if error is None:
            return
        if is_fatal(error) or isinstance(error, InvariantError):  # who this node is contradicts what it remembers
            self.on_fatal(error)
        else:
            self.loop.call_soon_threadsafe(self.supervisor.record_failure, Work.REGISTRY, error)

    def _advertised(self, host: str, port: int) -> str:
        name = self.config.advertise or host
        return f"[{name}]:{port}" if ":" in name else f"{name}:{port}"

    # ------------------------------------------------------------------------------------------------ metadata and replicas

    def _on_metadata_changed(self) -> None:
        self._check_standing()
        self._metadata_changed.set()
        self._bump_topology()

    def _check_standing(self) -> None:
        """Fall silent when committed metadata shows that this node must not take part: its data is older, or its program."""
        replica = self._metadata.replica
        if replica is None:
            return
        stale = self._boots.own_contradiction()
        me = replica.state_machine.node(self.node_id)
        if stale is not None and me is not None and len(replica.state_machine.nodes()) == 1:
            # Nobody but the replica beside it told a lone broker: so node.mdb is older than the replicas, not the directory.
            log.warning("registry_older_than_replicas", node_id=self.node_id, reason=stale)
            self.registry.adopt_boot(me.boot, me.boot_mark)
        elif stale is not None:
            self._on_stale_directory(f"metadata knows a later process of this node: {stale}")
        elif replica.state_machine.feature_level > FEATURE_LEVEL:
            text = f"the cluster is at feature level {replica.state_machine.feature_level}, and this version knows {FEATURE_LEVEL}"
            self._fall_silent(NotReady(Reason.UNSUPPORTED_FORMAT, f"{text}: start a newer version of the broker"))

    def _on_stale_directory(self, reason: str) -> None:
        if self.standing.silence is None:
            self._in_background(self.registry.refuse, reason)
            self._fall_silent(NotReady(Reason.STALE_DIRECTORY, f"{reason}: {STALE_DIRECTORY_ADVICE}"))

    def _fall_silent(self, why: NotReady) -> None:
        """Take no part in the cluster any more: no vote, no acknowledgement, no answer. Only health and metrics are served.

        The process stays, so that an orchestrator does not start it again and again, and `/readyz` says what to do.
        """
        if self.standing.silence is not None or self.standing.is_stopping:
            return
        self.standing.silence = why
        log.critical("broker_silenced", node_id=self.node_id, error_code=why.reason.value, reason=why.message)
        self.transport.shut()  # first: the engine may be in the middle of a pass
        self.engine.close()
        self._partitions.clear()
        self.supervisor.cancel()
        self.replicas.close()
        if self._entering is not None:
            self._entering.cancel()  # it may be about to open a replica
        self._port_closing = self.loop.create_task(self._close_silent_ports())
        self._silenced.set()
        self._bump_topology()

    async def _close_silent_ports(self) -> None:
        await self.transport.close()
        await self.grpc.stop(grace_seconds=0.0)

    async def _follow_metadata(self) -> None:
        """React to each change of metadata: peers' addresses, then this node's replicas."""
        while True:
            await self._metadata_changed.wait()
            self._metadata_changed.clear()
            self._peers.refresh()
            self.replicas.reconcile(self._metadata.require().state_machine, self.node_id)
            self._bump_topology()

    def _on_serving(self, replica: Replica[StateMachine], kind: TopicKind) -> None:
        self._partitions[replica.group_id] = kind.serve(replica, self, self.store, self.engine.break_replica)
        self._bump_topology()

    def _on_replica_changed(self, group_id: GroupId) -> None:
        partition = self._partitions.get(group_id)
        if partition is not None and partition.replica.is_closed:
            del self._partitions[group_id]
        self._bump_topology()

    # ------------------------------------------------------------------------------------------------ ServiceHost

    @property
    def node_id(self) -> NodeId:
        """See `ServiceHost`."""
        return self.registry.node_id if self.registry.cluster_id else NO_NODE

    async def report_damage(self, address: str, request: pb.ReportDamageRequest) -> None:
        """See `ReconcilerHost`."""
        await self.grpc.forwarder.forward(address, REPORT_DAMAGE, request, _REPORT_TIMEOUT_SECONDS)

    async def report_replicas(self, request: pb.ReportReplicasRequest) -> None:
        """See `ReconcilerHost`."""
        await self.grpc.nodes.report_replicas(request, Call(self.loop.time() + _REPORT_TIMEOUT_SECONDS))

    def refusal_of_directory(self, uuid: str, lineage: Lineage) -> RequestError | None:
        """See `ServiceHost`."""
        mine = lineage_of(self.registry)
        if uuid == self.registry.uuid:
            if lineage == mine:
                return None
            return RequestError(pb.STALE_DIRECTORY, f"this node runs as boot {mine.boot} of the same data directory")
        stale = self._boots.contradiction(uuid, lineage)
        if stale is not None:
            return RequestError(pb.STALE_DIRECTORY, f"the data directory is not the newest one of this node: {stale}")
        node = self.metadata.state_machine.node_by_uuid(uuid)
        rivalry = self.transport.rivalry(NodeId(node.node_id), uuid, lineage.current) if node is not None else None
        return RequestError(pb.NOT_READY, rivalry, retry_after_ms=1000) if rivalry is not None else None

    def record_damage(self, key: ReplicaKey) -> None:
        """See `ServiceHost`."""
        self.reconciler.damage.record(key)

    @property
    def node_uuid(self) -> str:
        """See `ReconcilerHost`."""
        return self.registry.uuid

    def quarantined(self) -> dict[ReplicaKey, str]:
        """See `ReconcilerHost`."""
        return self.registry.quarantined() if self.replicas.broken else {}

    def in_sync(self, replica: Replica[StateMachine]) -> frozenset[ReplicaId]:
        """See `ServiceHost`."""
        return self.reconciler.in_sync(replica)

    def under_replicated(self) -> list[GroupId]:
        """See `ServiceHost`."""
        return self.reconciler.under_replicated()

    def metadata_voters_behind(self) -> list[NodeId]:
        """See `ServiceHost`."""
        return self.reconciler.metadata_voters_behind()

    @property
    def cluster_id(self) -> str:
        """See `ServiceHost`."""
        return self.registry.cluster_id

    @property
    def metadata(self) -> Replica[Metadata]:
        """See `ServiceHost`."""
        return self._metadata.require_filled()

    def partition_replicas(self) -> list[Replica[StateMachine]]:
        """See `ServiceHost`."""
        return [partition.replica for partition in self.partitions.values()]

    async def wait_revision(self, revision: int) -> None:
        """See `ServiceHost`."""
        replica = self._metadata.require()
        while replica.state_machine.applied_index < revision:
            await asyncio.shield(replica.wait_progress())

    def now_ms(self) -> int:
        """See `ServiceHost`."""
        return self.engine.now_ms()

    @property
    def is_clock_trusted(self) -> bool:
        """See `ServiceHost`."""
        return self.engine.clocks.is_trusted

    def is_led(self, group_id: GroupId) -> bool:
        """See `ServiceHost`."""
        return self.engine.publisher.is_led(group_id)

    def not_served(self) -> list[NotServed]:
        """See `MetricsHost`."""
        return self.standing.not_served()

    def missing_replicas(self) -> list[GroupId]:
        """See `ServiceHost`."""
        return [one.key.group_id for one in self.not_served() if one.reason is not NotServedReason.QUARANTINED]

    def record_failure(self, work: Work, error: BaseException) -> None:
        """See `ServiceHost`."""
        self.supervisor.record_failure(work, error)

    def not_ready_reasons(self) -> list[NotReady]:
        """See `ServiceHost`."""
        return self.standing.not_ready_reasons()

    def warnings(self) -> list[str]:
        """See `HttpHost`."""
        return self.standing.warnings()

    def is_connected(self, node_id: NodeId) -> bool:
        """See `ServiceHost`."""
        return node_id == self.node_id or self.transport.is_connected(node_id)

    def topology_version(self) -> int:
        """See `ServiceHost`."""
        return self._topology_version

    async def next_topology_change(self) -> None:
        """See `ServiceHost`."""
        if self._topology_change is None:
            self._topology_change = self.loop.create_future()
        await asyncio.shield(self._topology_change)

    def _bump_topology(self) -> None:
        self._topology_version += 1
        if self._topology_change is not None:
            change, self._topology_change = self._topology_change, None
            if not change.done():
                change.set_result(None)

    # ------------------------------------------------------------------------------------------------ EngineOwner

    def on_leadership_row(self, group_id: GroupId) -> None:
        """See `EngineOwner`."""
        self._bump_topology()

    def on_replica_broken(self, replica: Replica[StateMachine], error: Exception) -> None:
        """See `EngineOwner`."""
        if replica.group_id == METADATA_GROUP_ID and isinstance(error, UnsupportedDataError):
            self._fall_silent(NotReady(Reason.UNSUPPORTED_FORMAT, str(error)))
            return
        if replica.group_id == METADATA_GROUP_ID:
            # nothing here works without it, and a start is how it is opened again
            if isinstance(error, DamagedReplicaError | InvariantError):
                self.registry.quarantine(replica.key, str(error))
            self.on_fatal(error)
        else:
            self.replicas.on_broken(replica, error)

    def on_fatal(self, error: BaseException) -> None:
        """See `EngineOwner`: nothing after this may be believed, so nothing after this is done."""
        log.critical("broker_exits", reason=repr(error), path=str(self.config.data_dir))
        self._parts.end_process()

    def client_address_of(self, node_id: NodeId) -> str:
        """See `EngineOwner`."""
        return self.client_address if node_id == self.node_id else self._peers.client_address_of(node_id)

    def _on_writes_done(self, completions: list[Completion]) -> None:
        self.loop.call_soon_threadsafe(self.engine.on_completions, completions)

    # ------------------------------------------------------------------------------------------------ PeerHandler

    def hello(self, target: NodeId, channel: Channel) -> Hello:
        """See `PeerHandler`."""
        return self._peers.hello(target, channel, self.peer_address)

    def refusal(self, hello: Hello) -> str | None:
        """See `PeerHandler`."""
        return self._peers.refusal(hello)

    def contradiction(self, hello: Hello) -> str | None:
        """See `PeerHandler`."""
        return self._peers.contradiction(hello)

    def remember(self, hello: Hello) -> asyncio.Future[object] | None:
        """See `PeerHandler`."""
        return self._boots.remember(hello)

    def on_other_cluster(self, address: str, said: str) -> None:
        """See `PeerHandler`."""
        self.other_clusters.note(address, said)

    def on_stale(self, node_id: NodeId, reason: str) -> None:
        """See `PeerHandler`."""
        self._on_stale_directory(f"node {node_id} says: {reason}")

    def on_frame(self, node_id: NodeId, frame_type: FrameType, body: memoryview) -> None:
        """See `PeerHandler`."""
        try:
            self.engine.on_frame(node_id, frame_type, body)
        except FrameError:
            raise
        except Exception as error:  # noqa: BLE001 -- as if the frame had been lost: the connection is all groups'
            self.supervisor.record_failure(Work.PEERS, error)

    def on_peer_up(self, node_id: NodeId) -> None:
        """See `PeerHandler`."""
        log.info("peer_connected", peer_id=node_id)
        self.engine.on_peer_up(node_id)

    def on_peer_down(self, node_id: NodeId) -> None:
        """See `PeerHandler`."""
        log.info("peer_disconnected", peer_id=node_id)
        self.engine.on_peer_down(node_id)

    def on_peer_refused(self, node_id: NodeId) -> None:
        """See `PeerHandler`."""
        self.engine.campaigns.on_peer_refused(node_id)

    def on_snapshots_lost(self, node_id: NodeId) -> None:
        """See `PeerHandler`."""
        self.engine.on_snapshots_lost(node_id)
