"""One broker process: puts storage, engine, transport and services together and carries a node through its life.

Life: open the registry → form, join or continue → catch up with metadata → serve partitions → drain and stop.
The node decides nothing about the protocol; it wires parts, and every step that must be durable before the next says so.
"""

from __future__ import annotations

import asyncio
import random
import uuid as uuid_module
from collections.abc import Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import cast

import grpc.aio
import structlog
from raftmq.broker.clock import WallClock
from raftmq.broker.config import BrokerConfig
from raftmq.broker.engine import Engine
from raftmq.broker.founding import born, unborn
from raftmq.broker.group import Group
from raftmq.broker.grpc_server import GrpcServer
from raftmq.broker.http_server import HttpServer
from raftmq.broker.limits import Limits, Timing
from raftmq.broker.local_replicas import LocalReplicas, create_replica, open_replica
from raftmq.broker.partition_log import PartitionLog
from raftmq.broker.peer_codec import WIRE_VERSION, FrameType
from raftmq.broker.peer_transport import Channel, Hello, PeerTransport
from raftmq.broker.reconciler import Reconciler
from raftmq.broker.request_error import RequestError
from raftmq.broker.services.call import Call
from raftmq.broker.watchdog import Watchdog
from raftmq.errors import InvariantError
from raftmq.fsm.log_partition import LogPartition
from raftmq.fsm.metadata import Metadata
from raftmq.fsm.metadata_commands import InitializeCluster, MetadataCommand, RegisterNode, Rejected, encode_command
from raftmq.fsm.state_machine import StateMachine
from raftmq.proto import queue_pb2 as pb
from raftmq.proto import queue_pb2_grpc as pb_grpc
from raftmq.raft.core import RestoredState
from raftmq.raft.entry import Entry, EntryKind, Proposal
from raftmq.raft.membership import Membership
from raftmq.raft.ready import Role
from raftmq.storage.disk_space import DiskReserve
from raftmq.storage.errors import (
    CommitFailedError,
    DamagedReplicaError,
    MissingReplicaError,
    ReplicaStorageError,
    StorageFullError,
    StorageUnavailableError,
)
from raftmq.storage.lmdb_log_store import LmdbLogStore
from raftmq.storage.log_store import ReplicaKey
from raftmq.storage.registry import Registry
from raftmq.storage.writer_threads import Completion, WriterThreads
from raftmq.types import METADATA_GROUP_ID, NO_NODE, GroupId, NodeId, ReplicaId, Term

log = structlog.get_logger(__name__)

FEATURE_LEVEL = 1
_READER_THREADS = 4
"""Cold reads, snapshots and registry writes: enough that one slow disk read does not hold the others up."""
_FIRST_REPLICA = ReplicaId(1)
"""The metadata replica of the node that forms the cluster."""
_JOIN_RETRY_SECONDS = 0.5
_DISK_CHECK_SECONDS = 1.0
_REPORT_TIMEOUT_SECONDS = 10.0


class Node:
    """See the module. Implements `ServiceHost`, `EngineOwner` and `PeerHandler`."""

    def __init__(self, config: BrokerConfig, version: str) -> None:
        self.config = config
        self.version = version
        self.limits: Limits = config.limits()
        self.timing: Timing = config.timing()
        self.loop = asyncio.get_running_loop()
        self.disk = DiskReserve(config.data_dir, reserve_bytes=config.disk_reserve_bytes)
        self.disk.prepare_opening()
        self.registry = Registry(config.data_dir / "node.mdb")
        self.store = LmdbLogStore(config.data_dir, map_bytes=config.map_bytes)
        self._readers = ThreadPoolExecutor(_READER_THREADS, thread_name_prefix="raftmq-reader")
        self._random = random.Random()
        self.engine = Engine(
            self.loop,
            self,
            self.store,
            self._readers,
            WallClock(),
            self._random,
            self._random.random,
            self.limits,
            self.timing,
        )
        self.engine.on_leadership_row = self._on_leadership_row
        self.engine.may_lead = self._may_lead
        self.writers = WriterThreads(
            self.store,
            thread_count=config.writer_threads,
            on_done=self._on_writes_done,
            on_error=self._on_write_error,
        )
        self.transport = PeerTransport(self.loop, self, self.limits, self.timing, self._random.random)
        self.replicas = LocalReplicas(
            self.loop, self.engine, self.store, self.writers, self.registry, self._on_serving, self._on_retired
        )
        self._partitions: dict[GroupId, PartitionLog] = {}
        self.partitions: Mapping[GroupId, PartitionLog] = self._partitions
        self.watchdog = Watchdog(self.loop, self.timing.stall_seconds)
        self.grpc = GrpcServer(self)
        self.reconciler = Reconciler(self, config.metadata_voters)
        self.http = HttpServer(self)
        self.client_address = ""
        self.peer_address = ""
        self.http_address = ""
        self._node_id = NodeId(self.registry.node_id)
        self._addresses: dict[NodeId, str] = {}
        self._metadata_group: Group[Metadata] | None = None
        self._is_caught_up = False
        self._is_stopping = False
        self._stopped = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._metadata_changed = asyncio.Event()
        self._topology_version = 0
        self._topology_change: asyncio.Future[None] | None = None
        self.exit_code = 0

    # ------------------------------------------------------------------------------------------------ life

    async def start(self) -> None:
        """Bind every port, form or join or continue a cluster, and serve. Returns when the node is ready."""
        host, port = _split(self.config.peer_listen)
        self.peer_address = self._advertised(host, await self.transport.listen(host, port))
        host, port = _split(self.config.listen)
        self.client_address = self._advertised(host, await self.grpc.start(self.config.listen))
        host, port = _split(self.config.http_listen)
        self.http_address = self._advertised(host, await self.http.start(host, port))
        self.watchdog.start()
        self._spawn(self._watch_disk())
        if self.registry.cluster_id:
            await self._continue()
        elif self.config.bootstrap:
            await self._bootstrap()
        else:
            await self._join()
        await self._catch_up()
        self._metadata_changed.set()
        self._spawn(self._follow_metadata())
        self._spawn(self.reconciler.run())
        self._spawn(self._tend_partitions())
        while self.not_ready_reasons():
            await self.next_topology_change()
        log.info("broker_ready", node_id=self.node_id, cluster_id=self.cluster_id, address=self.client_address)

    async def wait_stopped(self) -> None:
        """Until `stop` is done."""
        await self._stopped.wait()

    async def stop(self) -> None:
        """Not ready → hand leaderships over → finish requests → close, within the shutdown time."""
        if self._is_stopping:
            return
        self._is_stopping = True
        log.info("broker_stopping", node_id=self.node_id)
        await self._hand_over()
        for task in self._tasks:
            task.cancel()
        await self.grpc.stop(grace_seconds=2.0)
        self.engine.close()
        await self.transport.close()
        await self.http.stop()
        await self.loop.run_in_executor(None, self.writers.close)
        for key in self.store.open_replicas():
            self.store.close(key)
        self.registry.close(is_clean=True)
        self.watchdog.stop()
        self._readers.shutdown(wait=False)
        self._stopped.set()

    def _spawn(self, coroutine: Coroutine[None, None, None]) -> None:
        task = self.loop.create_task(coroutine)
        task.add_done_callback(self._on_task_done)
        self._tasks.append(task)

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("background_task_failed", reason=repr(error), exc_info=error)
            self.on_fatal(error)

    def _advertised(self, host: str, port: int) -> str:
        name = self.config.advertise or host
        return f"[{name}]:{port}" if ":" in name else f"{name}:{port}"

    # ------------------------------------------------------------------------------------------------ forming

    async def _bootstrap(self) -> None:
        """Form a cluster of one. Identity is durable first, then the replica, then it may speak."""
        node_uuid = uuid_module.uuid4().hex
        cluster_id = uuid_module.uuid4().hex
        key = ReplicaKey(METADATA_GROUP_ID, _FIRST_REPLICA)
        if not self.registry.uuid:
            self.registry.set_identity(uuid=node_uuid, node_id=self.config.node_id or 1)
        await self._create_metadata_replica(key, born(Membership((_FIRST_REPLICA,))))
        self.registry.set_cluster(cluster_id)
        self._node_id = NodeId(self.registry.node_id)
        await self._start_metadata(key)
        group = self._require_metadata()
        group.core.campaign()
        self.engine.mark_dirty(group)
        while not group.is_leader:
            await group.wait_progress()
        await self._initialize_cluster()
        result = await self._propose_metadata(self._registration())
        if isinstance(result, Rejected):
            raise RequestError(pb.INTERNAL, f"the first node could not register: {result.message}")
        log.info("cluster_formed", cluster_id=cluster_id, node_id=self.node_id)

    async def _initialize_cluster(self) -> None:
        command = InitializeCluster(self.registry.cluster_id, FEATURE_LEVEL, self.registry.uuid)
        result = await self._propose_metadata(command)
        if isinstance(result, Rejected):
            raise RequestError(pb.INTERNAL, f"the cluster could not be formed: {result.message}")

    async def _join(self) -> None:
        """Register with a seed, then start a metadata replica that waits for its first snapshot."""
        if not self.config.join:
            raise RequestError(
                pb.NOT_FORMED,
                "this data directory belongs to no cluster: start with --bootstrap to form one or --join HOST:PORT",
            )
        if not self.registry.uuid:
            self.registry.set_identity(uuid=uuid_module.uuid4().hex, node_id=self.config.node_id)
        answer = await self._register_with_seeds(self.config.join)
        self.registry.set_identity(uuid=self.registry.uuid, node_id=answer.node_id)
        await self._start_as_learner(answer)
        log.info("cluster_joined", cluster_id=answer.cluster_id, node_id=answer.node_id)

    async def _start_as_learner(self, answer: pb.RegisterNodeResponse) -> None:
        """Create the metadata replica that the cluster has given this node; it waits for its first snapshot."""
        key = ReplicaKey(METADATA_GROUP_ID, ReplicaId(answer.metadata_replica_id))
        if not self.registry.has_replica(key):
            await self._create_metadata_replica(key, unborn())
        self.registry.set_cluster(answer.cluster_id)
        self._node_id = NodeId(answer.node_id)
        self._learn_addresses({NodeId(n.node_id): n.peer_address for n in answer.nodes})
        await self._start_metadata(key)
        self._require_metadata().learned_nodes.update(
            {ReplicaId(r.replica_id): NodeId(r.node_id) for r in answer.metadata_replicas}
        )

    async def _continue(self) -> None:
        """A restart: identity and replicas are on disk; addresses may have changed."""
        self._node_id = NodeId(self.registry.node_id)
        self._learn_addresses(self.registry.peer_addresses())
        live = [key for key in self.registry.live_replicas() if key.group_id == METADATA_GROUP_ID]
        quarantined = self.registry.quarantined()
        sound = [key for key in live if key not in quarantined]
        if sound:
            try:
                await self._start_metadata(sound[-1])
            except (DamagedReplicaError, MissingReplicaError, InvariantError) as error:
                await self._replace_metadata_replica(sound[-1], str(error))
        else:
            await self._replace_metadata_replica(live[-1], quarantined[live[-1]])
        self._spawn(self._announce())

    async def _replace_metadata_replica(self, damaged: ReplicaKey, reason: str) -> None:
        """The metadata replica is of no use: its peers give this node another one, which catches up from them."""
        self.registry.quarantine(damaged, reason)
        log.error("replica_quarantined", group_id=damaged.group_id, replica_id=damaged.replica_id, reason=reason)
        seeds = tuple(dict.fromkeys((*self.registry.seeds, *self.config.join)))
        if not seeds:
            raise RequestError(
                pb.REPLICA_QUARANTINED,
                f"the metadata replica in {self.config.data_dir} cannot be used ({reason}) and no other broker is known "
                "that could replace it: name one with --join, or restore the directory",
            )
        answer = await self._register_with_seeds(seeds, damaged_metadata_replica=damaged.replica_id)
        await self._start_as_learner(answer)
        # the cluster has given it up: nobody will ever ask for it again
        await self.replicas.on_writer(damaged, lambda: self.store.retire(damaged))
        self.registry.retire_replica(damaged)

    async def _announce(self) -> None:
        """Tell the cluster this boot's addresses; through the peers known from the last boot, or the seeds."""
        while True:
            me = self._require_metadata().machine.node(self.node_id)
            if me is not None and (me.client_address, me.peer_address, me.http_address, me.version) == (
                self.client_address, self.peer_address, self.http_address, self.version,
            ):  # fmt: skip
                return
            try:
                await self._announce_once()
            except RequestError as error:  # leadership moved, or whoever was asked could not say yes: try again
                log.info("announcement_postponed", reason=str(error))
            await asyncio.sleep(_JOIN_RETRY_SECONDS)

    async def _announce_once(self) -> None:
        group = self._require_metadata()
        if group.is_leader:
            if not group.machine.cluster_id and group.replica_id == _FIRST_REPLICA:
                await self._initialize_cluster()  # a crash came between the replica's creation and this
            await self._propose_metadata(self._registration())
            return
        known = [n.client_address for n in group.machine.nodes() if n.node_id != self.node_id and n.state != "removed"]
        seeds = dict.fromkeys((*known, *self.config.join))  # those known may all have moved
        if seeds:
            await self._register_once(tuple(seeds))

    async def _create_metadata_replica(self, key: ReplicaKey, state: RestoredState) -> None:
        await self.replicas.on_writer(key, lambda: create_replica(self.store, self.registry, key, state))

    async def _start_metadata(self, key: ReplicaKey) -> None:
        machine = Metadata()
        self.registry.mark_open([key])
        restored = await self.replicas.on_writer(key, lambda: open_replica(self.store, self.registry, key, machine))

        def node_of(replica_id: ReplicaId) -> NodeId:
            return NodeId(machine.replica_node(METADATA_GROUP_ID, replica_id) or 0)

        if self.engine.node_id == NO_NODE:
            self.engine.start(self._node_id, self.transport, self.writers)
        group = self.engine.add_group(key, restored, machine, node_of)
        self._metadata_group = cast("Group[Metadata]", group)
        group.on_applied = self._on_metadata_applied
        group.on_restored = self._on_metadata_restored
        self._refresh_peers()

    async def _register_with_seeds(
        self, seeds: tuple[str, ...], damaged_metadata_replica: int = 0
    ) -> pb.RegisterNodeResponse:
        while True:
            answer = await self._register_once(seeds, damaged_metadata_replica)
            if answer is not None:
                return answer
            await asyncio.sleep(_JOIN_RETRY_SECONDS)

    async def _register_once(
        self, seeds: tuple[str, ...], damaged_metadata_replica: int = 0
    ) -> pb.RegisterNodeResponse | None:
        me = self._registration()
        request = pb.RegisterNodeRequest(
            uuid=me.uuid,
            node_id=me.node_id,
            client_address=me.client_address,
            peer_address=me.peer_address,
            http_address=me.http_address,
            host=me.host,
            rack=me.rack,
            version=me.version,
            feature_level_max=me.feature_level_max,
            cluster_id=self.registry.cluster_id,
            damaged_metadata_replica_id=damaged_metadata_replica,
            replaces_lost=self.config.replace_lost,
        )
        for seed in seeds:
            async with grpc.aio.insecure_channel(seed) as channel:
                stub = pb_grpc.AdminStub(channel)  # type: ignore[no-untyped-call]
                try:
                    answer = await stub.RegisterNode(request, timeout=5.0)
                except grpc.aio.AioRpcError as error:
                    if error.code() in (
                        grpc.StatusCode.INVALID_ARGUMENT,
                        grpc.StatusCode.ALREADY_EXISTS,
                        grpc.StatusCode.PERMISSION_DENIED,
                        grpc.StatusCode.FAILED_PRECONDITION,
                    ):
                        raise RequestError(
                            pb.INVALID_ARGUMENT, f"{seed} refused this node: {error.details()}"
                        ) from error
                    log.info("seed_unavailable", address=seed, reason=error.details())
                else:
                    return cast("pb.RegisterNodeResponse", answer)
        return None

    def _registration(self) -> RegisterNode:
        return RegisterNode(
            uuid=self.registry.uuid,
            node_id=self.registry.node_id,
            client_address=self.client_address,
            peer_address=self.peer_address,
            http_address=self.http_address,
            host=self.config.host_label(),
            rack=self.config.rack,
            version=self.version,
            feature_level_max=FEATURE_LEVEL,
        )

    # ------------------------------------------------------------------------------------------------ metadata

    def _require_metadata(self) -> Group[Metadata]:
        if self._metadata_group is None:
            raise RequestError(pb.NOT_FORMED, "this node belongs to no cluster yet", retry_after_ms=500)
        return self._metadata_group

    async def _propose_metadata(self, command: MetadataCommand) -> object:
        group = self._require_metadata()
        _, future = group.propose([Proposal(EntryKind.COMMAND, encode_command(command))])
        return (await future)[0]

    async def _catch_up(self) -> None:
        """Metadata first: no partition is started before a quorum confirmed, in this boot, what this replica knows."""
        group = self._require_metadata()
        while True:
            try:
                await group.read_index()
                break
            except RequestError:
                self._refresh_peers()  # replayed or received meanwhile: the leader may have moved
                await asyncio.sleep(self.timing.metadata_tick_seconds)
        self._is_caught_up = True

    def _on_metadata_applied(self, entry: Entry, result: object) -> None:
        if entry.kind is EntryKind.COMMAND:
            self._metadata_changed.set()
            self._bump_topology()

    def _on_metadata_restored(self) -> None:
        self._metadata_changed.set()
        self._bump_topology()

    async def _follow_metadata(self) -> None:
        """React to each change of metadata: peers' addresses, then this node's replicas."""
        while True:
            await self._metadata_changed.wait()
            self._metadata_changed.clear()
            self._refresh_peers()
            try:
                await self.replicas.reconcile(self._require_metadata().machine, self.node_id)
            except (StorageFullError, StorageUnavailableError) as error:
                log.error("replica_waits_for_space", reason=str(error))
                self.loop.call_later(_DISK_CHECK_SECONDS, self._metadata_changed.set)
            self._bump_topology()

    def _refresh_peers(self) -> None:
        group = self._metadata_group
        if group is None:
            return
        nodes = [n for n in group.machine.nodes() if n.state in ("active", "draining")]
        if nodes:
            self._learn_addresses({NodeId(n.node_id): n.peer_address for n in nodes})
            seeds = [n.client_address for n in nodes if n.node_id != self._node_id]
            self._readers.submit(self.registry.set_seeds, seeds)

    def _learn_addresses(self, addresses: dict[NodeId, str]) -> None:
        addresses = {node_id: address for node_id, address in addresses.items() if node_id != self._node_id}
        if addresses == self._addresses:
            return
        self._addresses = addresses
        self.engine.peers = tuple(addresses)
        self.transport.set_peers(addresses)
        self._readers.submit(self.registry.set_peer_addresses, dict(addresses))

    # ------------------------------------------------------------------------------------------------ partitions

    def _on_serving(self, group: Group[LogPartition]) -> None:
        self._partitions[group.group_id] = PartitionLog(group, self, self.store, self._on_damage)
        self._bump_topology()

    def _on_retired(self, group_id: GroupId) -> None:
        self._partitions.pop(group_id, None)
        self._bump_topology()

    async def _tend_partitions(self) -> None:
        """Retention and truncation of every partition here, a slice at a time so that the loop turns in between."""
        while True:
            await asyncio.sleep(self.timing.retention_check_seconds)
            for partition in list(self.partitions.values()):
                try:
                    await self._tend(partition)
                except DamagedReplicaError as error:
                    self._on_damage(partition.group, error)
                except CommitFailedError:
                    raise
                except (RequestError, ReplicaStorageError) as error:  # closed, full or trimmed meanwhile
                    log.info("retention_postponed", group_id=partition.group.group_id, reason=str(error))
                await asyncio.sleep(0)
            self._forget_deleted_groups()
            await self._trim_metadata()
            await self.loop.run_in_executor(self._readers, self.store.empty_trash, TRASH_GRACE_SECONDS)

    async def _tend(self, partition: PartitionLog) -> None:
        await partition.enforce_retention()
        index = await partition.truncation_index()
        group = partition.group
        spared = self.reconciler.spared_index(group)
        if index is not None and spared is not None:
            index = min(index, spared)
        if index is not None and not group.is_closed:
            self.engine.flush_state(group)
            self.engine.truncate(group, index)
            await self.replicas.on_writer(group.key, lambda: self.store.compact_if_sparse(group.key))

    def _forget_deleted_groups(self) -> None:
        """A node that held no replica of a deleted partition is not told: it would remember the leader for ever."""
        machine = self._require_metadata().machine
        for group_id in self.engine.leadership.groups():
            # an id not given out yet is a group that this node has not heard of: its leader was quicker
            is_given_out = machine.is_replica_retired(group_id, _FIRST_REPLICA)
            if group_id != METADATA_GROUP_ID and is_given_out and machine.partition(group_id) is None:
                self.engine.leadership.forget(group_id)

    async def _trim_metadata(self) -> None:
        """Metadata's log is only needed by members that are behind: keep a tail, the rest is in the state."""
        group = self._metadata_group
        if group is None:
            return
        core = group.core
        index = group.durable_state_index - METADATA_TAIL_ENTRIES
        if core.role is Role.LEADER:
            matches = [match for match in core.match_indexes().values() if match]
            # a member that is away for very long gets a snapshot: it must not make the log grow for ever
            index = max(min([index, *matches]), index - METADATA_LOG_ENTRIES_MAX)
        if index > group.log_start.index + METADATA_TAIL_ENTRIES:
            self.engine.truncate(cast("Group[StateMachine]", group), type(core.commit_index)(index))

    # ------------------------------------------------------------------------------------------------ stopping

    async def _hand_over(self) -> None:
        """Give every led group to its furthest peer, so that nobody waits for an election."""
        deadline = self.loop.time() + min(5.0, self.timing.shutdown_seconds)
        while self.loop.time() < deadline:
            led = [
                group
                for group in self.engine.groups.values()
                if group.core.role is Role.LEADER and len(group.core.membership.voters) > 1
            ]
            if not led:
                return
            for group in led:
                voters = group.core.membership.voters
                matches = {
                    replica: match
                    for replica, match in group.core.match_indexes().items()
                    if replica in voters and replica != group.replica_id
                    and self.is_connected(group.node_of_replica(replica))
                }  # fmt: skip
                if matches:
                    group.core.transfer_leader(max(matches, key=lambda replica: matches[replica]))
                    self.engine.mark_dirty(group)
            if not any(self.is_connected(node_id) for node_id in self._addresses):
                return
            await asyncio.sleep(0.05)

    # ------------------------------------------------------------------------------------------------ disk

    async def _watch_disk(self) -> None:
        await self.loop.run_in_executor(None, self.disk.create_ballast)
        while True:
            has_room = await self.loop.run_in_executor(None, self.disk.has_room, self.engine.inbound_bytes)
            if has_room and self.engine.write_refusal is not None:
                await self.loop.run_in_executor(None, self.disk.create_ballast)
                log.info("disk_space_recovered", path=str(self.config.data_dir))
                self.engine.write_refusal = None
            elif not has_room and self.engine.write_refusal is None:
                log.error("disk_reserve_reached", path=str(self.config.data_dir))
                await self.loop.run_in_executor(None, self.disk.release_ballast)  # for votes, hard state and trims
                self.engine.write_refusal = RequestError(
                    pb.DISK_FULL,
                    f"node {self.node_id} has less free disk space than its reserve; free some or add disks",
                    retry_after_ms=1000,
                )
            await asyncio.sleep(_DISK_CHECK_SECONDS)

    # ------------------------------------------------------------------------------------------------ ServiceHost

    @property
    def node_id(self) -> NodeId:
        """See `ServiceHost`."""
        return self._node_id

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
        group = self._require_metadata()
        if group.machine.applied_index < group.core.state_floor or not group.machine.cluster_id:
            raise RequestError(
                pb.NOT_READY, "this node has not received the cluster's metadata yet", retry_after_ms=200
            )
        return group

    def log_partition(self, group_id: GroupId) -> Group[LogPartition] | None:
        """See `ServiceHost`."""
        partition = self.partitions.get(group_id)
        return partition.group if partition is not None else None

    def partition_groups(self) -> list[Group[LogPartition]]:
        """See `ServiceHost`."""
        return [partition.group for partition in self.partitions.values()]

    def leader_hint(self, group_id: GroupId) -> tuple[NodeId, str, Term]:
        """See `ServiceHost`."""
        return self.engine.leader_hint(group_id)

    async def wait_revision(self, revision: int) -> None:
        """See `ServiceHost`."""
        group = self._require_metadata()
        while group.machine.applied_index < revision:
            await asyncio.shield(group.wait_progress())

    def now_ms(self) -> int:
        """See `ServiceHost`."""
        return self.engine.now_ms()

    def not_ready_reasons(self) -> list[str]:
        """See `ServiceHost`."""
        reasons = []
        if self._is_stopping:
            reasons.append("stopping")
        if self._metadata_group is None:
            reasons.append("not part of a cluster yet")
        elif not self._is_caught_up:
            reasons.append("metadata not confirmed in this boot")
        else:
            machine = self._metadata_group.machine
            missing = [
                partition.group_id
                for partition in machine.partitions_of_node(self.node_id)
                if partition.group_id not in self.partitions and GroupId(partition.group_id) not in self.replicas.broken
            ]
            if missing:
                reasons.append(f"{len(missing)} replicas not serving yet")
        return reasons

    def is_connected(self, node_id: NodeId) -> bool:
        """See `ServiceHost`."""
        return node_id == self._node_id or self.transport.is_connected(node_id)

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

    def _on_leadership_row(self, group_id: GroupId) -> None:
        self._bump_topology()

    # ------------------------------------------------------------------------------------------------ EngineOwner

    def on_leadership(self, group: Group[StateMachine]) -> None:
        """See `EngineOwner`."""

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
            self._readers.submit(self.registry.quarantine, group.key, str(error))
        self._bump_topology()

    def _on_damage(self, group: Group[LogPartition], error: Exception) -> None:
        self.engine.break_group(group, error)

    def on_fatal(self, error: BaseException) -> None:
        """See `EngineOwner`: nothing after this may be believed, so nothing after this is done."""
        log.critical("broker_exits", reason=repr(error), path=str(self.config.data_dir))
        fatal_exit()

    def client_address_of(self, node_id: NodeId) -> str:
        """Where clients reach a node; empty when unknown."""
        if node_id == self._node_id:
            return self.client_address
        group = self._metadata_group
        node = group.machine.node(node_id) if group is not None else None
        return node.client_address if node is not None else ""

    def _on_writes_done(self, completions: list[Completion]) -> None:
        self.loop.call_soon_threadsafe(self.engine.on_completions, completions)

    def _on_write_error(self, error: BaseException) -> None:
        self.on_fatal(error)

    # ------------------------------------------------------------------------------------------------ PeerHandler

    def hello(self, target: NodeId, channel: Channel) -> Hello:
        """See `PeerHandler`."""
        return Hello(
            WIRE_VERSION, self.cluster_id, self.node_id, self.registry.uuid, target, channel, self.registry.boot
        )

    def refusal(self, hello: Hello) -> str | None:
        """See `PeerHandler`."""
        if not self.cluster_id:
            return "this node belongs to no cluster yet"
        if hello.cluster_id != self.cluster_id:
            return f"this node belongs to cluster {self.cluster_id}, not {hello.cluster_id}"
        if hello.target_node_id != self.node_id:
            return f"this is node {self.node_id}, not {hello.target_node_id}"
        group = self._metadata_group
        known = group.machine.node(NodeId(hello.node_id)) if group is not None else None
        if known is not None and known.uuid != hello.uuid:
            return f"node {hello.node_id} has another identity here: its disk was replaced or its id is taken"
        if known is not None and known.state == "removed":
            return f"node {hello.node_id} was removed from the cluster"
        return None

    def on_frame(self, node_id: NodeId, frame_type: FrameType, body: memoryview) -> None:
        """See `PeerHandler`."""
        self.engine.on_frame(node_id, frame_type, body)

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
        self.engine.on_peer_refused(node_id)

    def _may_lead(self, group_id: GroupId, node_id: NodeId) -> bool:
        group = self._metadata_group
        if group is None or group_id == METADATA_GROUP_ID:
            return True
        partition = group.machine.partition(group_id)
        return partition is None or any(r.node_id == node_id for r in partition.replicas + partition.retiring)


METADATA_TAIL_ENTRIES = 1000
"""Metadata entries kept behind the durable state, so that a node away for a moment needs no snapshot."""

METADATA_LOG_ENTRIES_MAX = 50_000
"""Metadata entries kept for a member that is away."""


TRASH_GRACE_SECONDS = 600.0
"""How long a retired replica's file is kept: time to notice a mistake."""


def fatal_exit() -> None:
    """End the process at once: no clean-up may run after a failed commit."""
    import os
    import sys

    sys.stderr.flush()
    os._exit(70)


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)
