"""One broker process: puts storage, engine, transport and services together and carries a node through its life.

Life: open the registry → form, join or continue → catch up with metadata → serve partitions → hand over and stop.
The node decides nothing about the protocol; it wires parts, and every step that must be durable before the next says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future

import structlog
from raftmq.broker.config import BrokerConfig, split_address
from raftmq.broker.disk_watch import CHECK_SECONDS, DiskWatch
from raftmq.broker.engine import Engine
from raftmq.broker.forming import Forming, NodeAddresses
from raftmq.broker.gc_pauses import GcPauses
from raftmq.broker.group import Group
from raftmq.broker.hand_over import hand_over
from raftmq.broker.housekeeping import Housekeeping
from raftmq.broker.limits import Limits, Timing, within_this_process
from raftmq.broker.local_replicas import LocalReplicas, refuse_lost_registry
from raftmq.broker.log_pace import LogPace
from raftmq.broker.metadata_replica import MetadataReplica
from raftmq.broker.node_parts import NodeParts
from raftmq.broker.partition_log import PartitionLog
from raftmq.broker.peer_codec import FrameType
from raftmq.broker.peer_directory import PeerDirectory
from raftmq.broker.peer_protocol import Channel, Hello
from raftmq.broker.peer_transport import PeerTransport
from raftmq.broker.readiness import (
    METADATA_LEADERLESS_ELECTIONS,
    STALL_REMEMBERED_SECONDS,
    STARTING,
    NotReady,
    Reason,
)
from raftmq.broker.reconciler import Reconciler
from raftmq.broker.request_error import RequestError
from raftmq.broker.services.call import Call
from raftmq.errors import InvariantError
from raftmq.fsm.log_partition import LogPartition
from raftmq.fsm.metadata import Metadata
from raftmq.fsm.state_machine import StateMachine
from raftmq.proto import queue_pb2 as pb
from raftmq.storage.errors import DamagedReplicaError, StorageFullError, StorageUnavailableError
from raftmq.storage.log_store import ReplicaKey
from raftmq.storage.writer_threads import Completion
from raftmq.types import METADATA_GROUP_ID, NO_NODE, GroupId, NodeId, Term

log = structlog.get_logger(__name__)

_REPORT_TIMEOUT_SECONDS = 10.0
_HAND_OVER_SECONDS_MAX = 5.0
_GRPC_GRACE_SECONDS = 2.0


class Node:
    """See the module. Implements `ServiceHost`, `ReconcilerHost`, `EngineOwner` and `PeerHandler`."""

    def __init__(self, config: BrokerConfig, version: str, parts: NodeParts | None = None) -> None:
        self.config = config
        self._parts = parts = parts or NodeParts(config)
        self.version = version
        self.limits: Limits = within_this_process(config.limits())
        self.timing: Timing = config.timing()
        self.loop = asyncio.get_running_loop()
        disk = parts.disk_reserve()
        disk.prepare_opening()
        self.registry = parts.registry()
        self.store = parts.store(disk)
        refuse_lost_registry(self.store, self.registry)
        self._readers = parts.readers()
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
        )
        self._partitions: dict[GroupId, PartitionLog] = {}
        self.partitions: Mapping[GroupId, PartitionLog] = self._partitions
        self.replicas = LocalReplicas(
            self.loop, self.engine, self.store, self.writers, self.registry, self._on_serving, self._on_retired
        )
        self._metadata = MetadataReplica(
            self.engine, self.store, self.registry, self.replicas, self._on_metadata_changed
        )
        publisher = self.engine.publisher
        self._peers = PeerDirectory(self.registry, self._metadata, self.transport, publisher, self._in_background)
        publisher.may_lead = self._peers.may_lead
        self.disk_watch = DiskWatch(disk, self.engine, config.data_dir)
        self.watchdog = parts.watchdog(self.loop, self.timing.stall_seconds)
        self.gc_pauses = GcPauses()
        self.grpc = parts.grpc_server(self)
        self.reconciler = Reconciler(self, config.metadata_voters)
        self._housekeeping = Housekeeping(
            self.engine,
            self.store,
            self._readers,
            self.replicas,
            self._metadata,
            self.partitions,
            self.reconciler.spared_index,
            self.timing,
        )
        self.http = parts.http_server(self)
        self.client_address = ""
        self.peer_address = ""
        self.http_address = ""
        self._forming: Forming | None = None
        """None until the ports are bound."""
        self._space_pace = LogPace()
        self._is_caught_up = False
        self._is_stopping = False
        self._stopped = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._metadata_changed = asyncio.Event()
        self._topology_version = 0
        self._topology_change: asyncio.Future[None] | None = None

    # ------------------------------------------------------------------------------------------------ life

    async def start(self) -> None:
        """Bind every port, form or join or continue a cluster, and serve. Returns when the node is ready."""
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
        self.watchdog.start()
        self.gc_pauses.start()
        self._spawn(self.disk_watch.run())
        await self._enter_cluster()
        await self._catch_up()
        self._metadata_changed.set()
        self._spawn(self._follow_metadata())
        self._spawn(self.reconciler.run())
        self._spawn(self.grpc.coordinator.run())
        self._spawn(self._housekeeping.run())
        while any(one.reason in STARTING for one in self.not_ready_reasons()):
            await self.next_topology_change()
        log.info("broker_ready", node_id=self.node_id, cluster_id=self.cluster_id, address=self.client_address)

    async def _enter_cluster(self) -> None:
        forming = self._forming = Forming(
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
        )
        if self.registry.cluster_id:
            await forming.check_seeds()
            await forming.resume()
            self._spawn(forming.announce())
        elif self.config.bootstrap:
            await forming.bootstrap()
        else:
            await forming.join()

    async def _catch_up(self) -> None:
        """Metadata first: no partition is started before a quorum confirmed, in this boot, what this replica knows."""
        group = self._metadata.require()
        while True:
            try:
                await group.read_index()
                break
            except RequestError:
                self._peers.refresh()  # replayed or received meanwhile: the leader may have moved
                await asyncio.sleep(self.timing.metadata_tick_seconds)
        self._is_caught_up = True

    async def wait_stopped(self) -> None:
        """Until `stop` is done, or has failed."""
        await self._stopped.wait()

    async def stop(self) -> None:
        """Not ready → hand leaderships over → finish requests → close, within the shutdown time.

        Whatever it raises, it is over: the process must end.
        """
        if self._is_stopping:
            return
        self._is_stopping = True
        try:
            await self._stop()
        finally:
            self._stopped.set()

    async def _stop(self) -> None:
        log.info("broker_stopping", node_id=self.node_id)
        seconds_max = min(_HAND_OVER_SECONDS_MAX, self.timing.shutdown_seconds)
        await hand_over(self.engine, self.is_connected, self._peers.is_any_connected, seconds_max)
        for task in self._tasks:
            task.cancel()
        await self.grpc.stop(grace_seconds=_GRPC_GRACE_SECONDS)
        self.engine.close()
        await self.transport.close()
        await self.http.stop()
        await self.loop.run_in_executor(None, self.writers.close)
        # the registry's writes among what waits there: a quarantine must be remembered
        await self.loop.run_in_executor(None, self._readers.shutdown)
        for key in self.store.open_replicas():
            self.store.close(key)
        self.registry.close(is_clean=True)
        self.watchdog.stop()
        self.gc_pauses.stop()

    def _spawn(self, coroutine: Coroutine[None, None, None]) -> None:
        task = self.loop.create_task(coroutine)
        task.add_done_callback(self._on_task_done)
        self._tasks.append(task)

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("background_task_failed", reason=repr(error), exc_info=error)
            self.on_fatal(error)

    def _in_background(self, write: Callable[..., object], *arguments: object) -> None:
        """A short write of the registry, off the loop. A commit of its that fails ends the process like any other."""
        self._readers.submit(write, *arguments).add_done_callback(self._on_written)

    def _on_written(self, done: Future[object]) -> None:
        if (error := done.exception()) is not None:
            self.on_fatal(error)

    def _advertised(self, host: str, port: int) -> str:
        name = self.config.advertise or host
        return f"[{name}]:{port}" if ":" in name else f"{name}:{port}"

    # ------------------------------------------------------------------------------------------------ metadata and replicas

    def _on_metadata_changed(self) -> None:
        self._metadata_changed.set()
        self._bump_topology()

    async def _follow_metadata(self) -> None:
        """React to each change of metadata: peers' addresses, then this node's replicas."""
        while True:
            await self._metadata_changed.wait()
            self._metadata_changed.clear()
            self._peers.refresh()
            try:
                await self.replicas.reconcile(self._metadata.require().machine, self.node_id)
            except (StorageFullError, StorageUnavailableError) as error:
                if self._space_pace.is_due(str(error)):
                    log.error("replica_waits_for_space", reason=str(error))
                self.loop.call_later(CHECK_SECONDS, self._metadata_changed.set)
            self._bump_topology()

    def _on_serving(self, group: Group[LogPartition]) -> None:
        self._partitions[group.group_id] = PartitionLog(group, self, self.store, self.engine.break_group)
        self._bump_topology()

    def _on_retired(self, group_id: GroupId) -> None:
        self._partitions.pop(group_id, None)
        self._bump_topology()

    # ------------------------------------------------------------------------------------------------ ServiceHost

    @property
    def node_id(self) -> NodeId:
        """See `ServiceHost`."""
        return self.registry.node_id if self.registry.cluster_id else NO_NODE

    async def report_damage(self, address: str, request: pb.ReportDamageRequest) -> None:
        """See `ReconcilerHost`."""
        path = "/raftmq.v1.Admin/ReportDamage"
        await self.grpc.forwarder.forward(address, path, request, pb.ReportDamageResponse, _REPORT_TIMEOUT_SECONDS)

    async def report_replicas(self, request: pb.ReportReplicasRequest) -> None:
        """See `ReconcilerHost`."""
        await self.grpc.nodes.report_replicas(request, Call(self.loop.time() + _REPORT_TIMEOUT_SECONDS))

    def note_damage(self, key: ReplicaKey) -> None:
        """See `ServiceHost`."""
        self.reconciler.note_damage(key)

    @property
    def node_uuid(self) -> str:
        """See `ReconcilerHost`."""
        return self.registry.uuid

    def quarantined(self) -> dict[ReplicaKey, str]:
        """See `ReconcilerHost`."""
        return self.registry.quarantined() if self.replicas.broken else {}

    @property
    def cluster_id(self) -> str:
        """See `ServiceHost`."""
        return self.registry.cluster_id

    @property
    def metadata(self) -> Group[Metadata]:
        """See `ServiceHost`."""
        return self._metadata.require_filled()

    def partition_groups(self) -> list[Group[LogPartition]]:
        """See `ServiceHost`."""
        return [partition.group for partition in self.partitions.values()]

    def leader_hint(self, group_id: GroupId) -> tuple[NodeId, str, Term]:
        """See `ServiceHost`."""
        return self.engine.leader_hint(group_id)

    async def wait_revision(self, revision: int) -> None:
        """See `ServiceHost`."""
        group = self._metadata.require()
        while group.machine.applied_index < revision:
            await asyncio.shield(group.wait_progress())

    def now_ms(self) -> int:
        """See `ServiceHost`."""
        return self.engine.now_ms()

    def is_led(self, group_id: GroupId) -> bool:
        """See `ServiceHost`."""
        return self.engine.publisher.is_led(group_id)

    def missing_replicas(self) -> list[GroupId]:
        """See `MetricsHost`."""
        if self._metadata.group is None:
            return []
        wanted = (GroupId(view.group_id) for view in self._metadata.group.machine.partitions_of_node(self.node_id))
        return [
            group_id for group_id in wanted if group_id not in self.partitions and group_id not in self.replicas.broken
        ]

    def not_ready_reasons(self) -> list[NotReady]:
        """See `ServiceHost`."""
        reasons = []
        if self._is_stopping:
            reasons.append(NotReady(Reason.STOPPING, "the broker was told to stop and hands its leaderships over"))
        reasons += self._reasons_of_standing()
        if self.engine.write_refusal is not None:
            reasons.append(NotReady(Reason.DISK_RESERVE, str(self.engine.write_refusal)))
        lag = self.watchdog.lag_seconds_max(STALL_REMEMBERED_SECONDS)
        if lag > self.timing.stall_seconds:
            text = f"the event loop stood still for {lag:.1f} s a moment ago: the machine is overloaded, or swaps"
            reasons.append(NotReady(Reason.LOOP_STALLED, text))
        return reasons

    def _reasons_of_standing(self) -> list[NotReady]:
        """What keeps the node from being a part of the cluster that can be relied upon."""
        group = self._metadata.group
        if group is None:
            seeds = ", ".join(self.config.join)
            text = f"waits to be admitted by a broker at {seeds}" if seeds else "is being formed"
            return [NotReady(Reason.JOINING, f"this broker belongs to no cluster yet and {text}")]
        removal = self._forming.removal if self._forming is not None else ""
        if not removal and group.machine.is_uuid_retired(self.registry.uuid):
            removal = "this data directory was removed from the cluster; start the broker on an empty one to join again"
        if removal:
            return [NotReady(Reason.REMOVED, removal)]
        reasons = []
        if not self._is_caught_up:
            text = "no majority of the metadata voters has confirmed yet what this broker knows: are enough of them running?"
            reasons.append(NotReady(Reason.RECOVERING_METADATA, text))
        elif missing := self.missing_replicas():
            reasons.append(NotReady(Reason.STARTING_REPLICAS, f"{len(missing)} replicas are not serving yet"))
        seconds = self.loop.time() - (group.leaderless_since or self.loop.time())
        if self._is_caught_up and (
            seconds > METADATA_LEADERLESS_ELECTIONS * self.timing.election_seconds(METADATA_GROUP_ID)
        ):
            text = f"no metadata leader for {seconds:.0f} s: start the brokers that are down, or look at the links between them"
            reasons.append(NotReady(Reason.NO_METADATA_LEADER, text))
        return reasons

    def warnings(self) -> list[str]:
        """See `HttpHost`. A damaged replica is rebuilt by its peers, and what this node has of others is served meanwhile."""
        return [
            f"replica {key.replica_id} of group {key.group_id} is quarantined and waits to be replaced: {reason}"
            for key, reason in sorted(self.quarantined().items())
        ]

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

    def on_replica_broken(self, group: Group[StateMachine], error: Exception) -> None:
        """See `EngineOwner`."""
        self._partitions.pop(group.group_id, None)
        self.replicas.broken[group.group_id] = str(error)
        # a defect of this program says nothing about the data: such a replica is silent until the next start only
        is_suspect = isinstance(error, DamagedReplicaError | InvariantError)
        if group.group_id == METADATA_GROUP_ID:
            if is_suspect:
                self.registry.quarantine(group.key, str(error))
            self.on_fatal(error)
        if is_suspect:
            self._in_background(self.registry.quarantine, group.key, str(error))
        self._bump_topology()

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

    def on_frame(self, node_id: NodeId, frame_type: FrameType, body: memoryview) -> None:
        """See `PeerHandler`."""
        self.engine.on_frame(node_id, frame_type, body)

    def on_peer_up(self, node_id: NodeId) -> None:
        """See `PeerHandler`."""
        log.info("peer_connected", peer_id=node_id)
        self.engine.publisher.on_peer_up(node_id)
        self.engine.campaigns.on_peer_up(node_id)

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
