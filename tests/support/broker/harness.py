"""Run services in tests on one node in memory, with real cores, state machines and the in-memory store.

Commits are synchronous unless `hold_commits`: then proposals stay uncommitted until `release_commits`. There are no sockets, no
threads, and no wall clock.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TypeVar, cast

from raftmq.batch_header import seal
from raftmq.broker.base.config import BrokerConfig, LoadedConfig
from raftmq.broker.base.limits import Limits, Timing
from raftmq.broker.base.readiness import NotReady, Reason
from raftmq.broker.base.request_error import RequestError
from raftmq.broker.base.supervisor import Supervisor, Work
from raftmq.broker.cluster.damage_reports import ReportedDamage
from raftmq.broker.cluster.runtime_config import RuntimeConfig
from raftmq.broker.cluster.unserved import NotServed
from raftmq.broker.consumer_groups.assignor_process import InlinePlanRunner
from raftmq.broker.consumer_groups.coordinator import GroupCoordinator
from raftmq.broker.consumer_groups.partition_leaders import PartitionLeaders
from raftmq.broker.consumer_groups.service import GroupsService
from raftmq.broker.partitions.kinds import LOG, kind_of
from raftmq.broker.partitions.log import PartitionLog
from raftmq.broker.partitions.partition import Partition
from raftmq.broker.replica.initial_state import founder_state
from raftmq.broker.replica.leadership_table import LeadershipTable
from raftmq.broker.replica.recent_entries import RecentEntriesBudget
from raftmq.broker.replica.replica import Replica
from raftmq.broker.replica.replica_log import ReplicaLog
from raftmq.broker.services.admin import AdminService
from raftmq.broker.services.balancing import BalancingService
from raftmq.broker.services.call import Call
from raftmq.broker.services.cluster_health import ClusterHealth
from raftmq.broker.services.committed_offsets import OffsetsService
from raftmq.broker.services.configuration import ConfigurationService
from raftmq.broker.services.feature_level import FeatureLevelService
from raftmq.broker.services.health import HealthService
from raftmq.broker.services.locator import Locator
from raftmq.broker.services.log import LogService
from raftmq.broker.services.metadata_leader import MetadataLeader
from raftmq.broker.services.node_calls import NodeCalls
from raftmq.broker.services.node_removal import NodeRemovalService
from raftmq.broker.services.nodes import NodesService
from raftmq.broker.services.partition_recovery import PartitionRecoveryService
from raftmq.broker.services.partition_sizes import PartitionSizes
from raftmq.broker.services.producer_ids import ProducerIds
from raftmq.broker.services.queue.service import QueueService
from raftmq.broker.services.replica_placement import ReplicaPlacementService
from raftmq.broker.services.topology import TopologyService
from raftmq.fsm.metadata import Metadata
from raftmq.fsm.metadata_commands import InitializeCluster, RegisterNode, encode_command
from raftmq.fsm.node_lineage import Lineage
from raftmq.fsm.row_reads import RowsFound, RowsNeeded
from raftmq.fsm.state_machine import DiskBackedMachine, StateMachine
from raftmq.proto import peer_pb2 as peer_pb
from raftmq.proto import queue_pb2 as pb
from raftmq.raft.core import RaftCore
from raftmq.raft.entry import Entry, EntryKind, Proposal
from raftmq.raft.hard_state import HardState
from raftmq.raft.membership import Membership
from raftmq.raft.ready import AppendWork, Role
from raftmq.raft.settings import RaftSettings
from raftmq.storage.log_store import ReplicaKey, Update
from raftmq.storage.memory_log_store import MemoryLogStore
from raftmq.types import METADATA_GROUP_ID, GroupId, NodeId, ReplicaId, Term

T = TypeVar("T")

NODE_ID = NodeId(1)
CLUSTER_ID = "cluster-of-tests"
PRODUCER = 7


class StrictSupervisor(Supervisor):
    """Raises failures, so that no test hides them."""

    def __init__(self) -> None:
        super().__init__(asyncio.get_running_loop(), self._raise)

    @staticmethod
    def _raise(error: BaseException) -> None:
        raise error

    def record_failure(self, work: Work, error: BaseException) -> None:
        raise error


class FakeForwarder:
    """Stands for another node: records requests and returns the answers that a test sets."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, str, object]] = []
        self.answer: object = RequestError(pb.NO_LEADER, "there is no other node")

    async def forward(self, node_id, method, request, call):
        self.calls.append((int(node_id), method.path, request))
        if isinstance(self.answer, RequestError):
            raise self.answer
        return self.answer


class _Standing:
    """The answer of the harness about its node."""

    def __init__(self, harness: Harness) -> None:
        self._harness = harness

    def not_ready_reasons(self) -> list[NotReady]:
        return self._harness.reasons

    def removal(self) -> str:
        said = [one.message for one in self._harness.reasons if one.reason is Reason.REMOVED]
        return next(iter(said), "removed" if self._harness.known_metadata.is_uuid_retired("uuid-1") else "")

    def warnings(self) -> list[str]:
        return self._harness.said

    def missing_replicas(self) -> list[GroupId]:
        return self._harness.not_served

    def not_served(self) -> list[NotServed]:
        return []


class _MemberOfACluster:
    """Refuses to form another cluster."""

    is_waiting = False

    async def order(self) -> str:
        raise RequestError(pb.CLUSTER_ALREADY_FORMED, "this broker belongs to a cluster")

    def describe(self) -> peer_pb.DescribeFormationResponse:
        return peer_pb.DescribeFormationResponse(cluster_id=CLUSTER_ID)


class _Replication:
    """Every voter keeps up, and the partitions that the harness was told of are short of a replica."""

    def __init__(self, harness: Harness) -> None:
        self._harness = harness
        self.without_progress: dict[ReplicaKey, str] = {}

    def in_sync(self, replica: Replica[StateMachine]) -> frozenset[ReplicaId]:
        return frozenset(replica.core.membership.voters)

    def under_replicated(self) -> list[GroupId]:
        return self._harness.short

    def metadata_voters_behind(self) -> list[NodeId]:
        return []


class Harness:
    """`ServiceHost` and `ReplicaHost` of one node that is its whole cluster."""

    def __init__(self, limits: Limits | None = None, *, recent_bytes_max: int = 64 * 1024 * 1024) -> None:
        self.loop = asyncio.get_running_loop()
        self.limits = limits or Limits()
        self.timing = Timing()
        self.config = BrokerConfig(data_dir=Path("unused"))
        self.clock_ms = 1_700_000_000_000
        self.trusts_clock = True
        self.store = MemoryLogStore()
        self.recent_budget = RecentEntriesBudget(recent_bytes_max)
        self.partitions: dict[GroupId, Partition] = {}
        self.replicas: dict[GroupId, Replica[StateMachine]] = {}
        self.leadership = LeadershipTable(lambda group_id: None, lambda node_id: f"node-{node_id}:9400")
        self.standing = _Standing(self)
        self.replication = _Replication(self)
        self.reported_damage = ReportedDamage(self.loop.time)
        self.supervisor: Supervisor = StrictSupervisor()
        self.formation = _MemberOfACluster()
        self.hold_commits = False
        self.hold_leadership = False
        self.refusal: RequestError | None = None
        self.time_refusal: RequestError | None = None
        self.reasons: list[NotReady] = []
        self.directory_refusal: RequestError | None = None
        self.leaderless: set[GroupId] = set()
        """Groups whose leader crashed."""
        self._topology_version = 0
        self.reads_in_thread = 0
        self._held: list[tuple[Replica[StateMachine], AppendWork]] = []
        self._change: asyncio.Future[None] | None = None
        self._dirty: set[Replica[StateMachine]] = set()
        self.uncommitted = 0
        self.forwarder = FakeForwarder()
        locator: Locator[Partition] = Locator(self, self.partitions)
        leader = MetadataLeader(self, self.forwarder)
        self.producer_ids = ProducerIds(self, locator, leader)
        self.log = LogService(self, self.partitions, self.producer_ids)
        calls = NodeCalls(self, self.forwarder)
        self.health = HealthService(self, locator)
        cluster_health = ClusterHealth(self, calls, self.health)
        self.admin = AdminService(self, locator, leader, cluster_health)
        self.nodes = NodesService(self, leader)
        self.removal = NodeRemovalService(self, leader)
        self.feature_levels = FeatureLevelService(self, leader)
        sizes = PartitionSizes(self, calls, self.health)
        self.balancing = BalancingService(self, leader, calls, self.health, cluster_health, sizes)
        self.runtime_config = RuntimeConfig(LoadedConfig(self.config, {}), lambda before, now: None)
        self.configuration = ConfigurationService(self, locator, leader, calls)
        self.placement = ReplicaPlacementService(self, locator, self.partitions, leader, calls)
        self.recovery = PartitionRecoveryService(self, locator, self.partitions, leader, calls, cluster_health)
        self.transfers: list[tuple[GroupId, ReplicaId]] = []
        """Leaderships that were to be transferred."""
        self.connected: set[int] = set()
        self.topology = TopologyService(self)
        self.queues = QueueService(self, self.partitions)
        self.offsets = OffsetsService(self, Locator(self, self.partitions, LOG))
        self.coordinator = GroupCoordinator(self, InlinePlanRunner())
        self.groups_service = GroupsService(self, leader, self.coordinator, PartitionLeaders(self, calls, self.offsets))
        self.damaged: dict[ReplicaKey, str] = {}
        self.not_served: list[GroupId] = []
        self.said: list[str] = []
        self.short: list[GroupId] = []
        """Partitions led here that lack a replica."""

    # ---------------------------------------------------------------------------------------------------- life

    async def start(self) -> Harness:
        replica = self.add_replica(METADATA_GROUP_ID, ReplicaId(1), Metadata())
        replica.applier.listeners.append(self._on_metadata_applied)
        replica.core.campaign()
        self.pump(replica)
        await self._metadata(InitializeCluster(CLUSTER_ID, 1))
        await self.register(1, "uuid-1")
        return self

    async def register(
        self, node_id: int, uuid: str, host: str = "", *, replaces_lost: bool = False, feature_level_max: int = 1
    ) -> None:
        await self._metadata(
            RegisterNode(
                uuid=uuid, node_id=node_id, client_address=f"node-{node_id}:9400", peer_address=f"node-{node_id}:9401",
                http_address="", host=host or f"host-{node_id}", rack="", version="1", feature_level_max=feature_level_max,
                replaces_lost=replaces_lost,
            )
        )  # fmt: skip

    async def _metadata(self, command) -> object:
        _, applied = self.metadata.propose([Proposal(EntryKind.COMMAND, encode_command(command))])
        return (await applied)[0]

    def close(self) -> None:
        self.coordinator.close()
        for replica in self.replicas.values():
            replica.close()

    def add_replica(self, group_id: GroupId, replica_id: ReplicaId, machine: StateMachine) -> Replica[StateMachine]:
        key = ReplicaKey(group_id, replica_id)
        founder = founder_state(Membership((replica_id,)))
        if isinstance(machine, DiskBackedMachine):
            self.store.create_with_state_file(key, founder)
        else:
            self.store.create(key, founder, ())
        restored = self.store.open(key)
        log = ReplicaLog(key, self.store, self.loop, self.in_thread, self.recent_budget)
        core = RaftCore(replica_id, restored, log, random.Random(1), RaftSettings())
        replica = Replica(key, core, restored, machine, log, self, lambda _replica_id: NODE_ID)
        self.replicas[group_id] = replica
        return replica

    def _on_metadata_applied(self, entry: Entry, result: object) -> None:
        self.bump()
        machine = self.metadata.state_machine
        for partition in machine.partitions_of_node(NODE_ID):
            group_id = GroupId(partition.group_id)
            if group_id not in self.replicas:
                kind = kind_of(machine, partition)
                replica_id = ReplicaId(partition.replicas[0].replica_id)
                replica = self.add_replica(group_id, replica_id, kind.new_state_machine())
                self.partitions[group_id] = kind.serve(replica, self, self.store, self._on_damage)
                if not self.hold_leadership:
                    self.campaign(group_id)
        for group_id in [g for g in self.partitions if machine.partition(g) is None]:
            self.replicas.pop(group_id).close()
            del self.partitions[group_id]

    def _on_damage(self, replica: Replica[StateMachine], error: Exception) -> None:
        self.damaged[replica.key] = str(error)

    def campaign(self, group_id: GroupId) -> None:
        replica = self.replicas[group_id]
        replica.core.campaign()
        self.mark_dirty(replica)

    def lose_leadership(self, group_id: GroupId, to: NodeId | None = None) -> None:
        """Make the group's leader here step down. `to` leads in term 9, as far as this node knows."""
        replica = self.replicas[group_id]
        replica.core.step_down()
        self.pump(replica)
        self.leadership.forget(group_id)
        if to is not None:
            self.leadership.claim(group_id, Term(9), to)
        self.bump()

    # ---------------------------------------------------------------------------------------------------- the pump

    def mark_dirty(self, replica: Replica[StateMachine]) -> None:
        if replica not in self._dirty:
            self._dirty.add(replica)
            self.loop.call_soon(self.pump, replica)

    def pump(self, replica: Replica[StateMachine]) -> None:
        self._dirty.discard(replica)
        core = replica.core
        for proposer in replica.proposers:
            proposer()
        while not replica.is_closed and core.has_ready(with_append=True):
            ready = core.ready(with_append=True)
            if ready.append is not None:
                if ready.append.entries:
                    replica.log.append(ready.append.entries)
                if self.hold_commits:
                    self._held.append((replica, ready.append))
                else:
                    self._commit(replica, ready.append)
            if ready.apply:
                replica.apply(ready.apply)
            if ready.role_change is not None:
                if ready.role_change.role is Role.LEADER:
                    self.leadership.claim(replica.group_id, ready.role_change.term, NODE_ID)
                replica.on_role_change(ready.role_change)
                self.bump()
            for read in ready.reads:
                replica.reads.on_confirmed(read.request_id, read.read_index)
            for request_id in ready.failed_reads:
                replica.reads.on_failed(request_id)

    def _commit(self, replica: Replica[StateMachine], work: AppendWork) -> None:
        core = replica.core
        hard_state = HardState(core.term, core.vote, core.commit_index)
        self.store.append_batch([(replica.key, Update(hard_state=hard_state, entries=work.entries))])
        core.append_done(work.token)

    def release_commits(self) -> None:
        """Make everything that is held durable, in order."""
        self.hold_commits = False
        held, self._held = self._held, []
        for replica, work in held:
            self._commit(replica, work)
            self.mark_dirty(replica)

    # ---------------------------------------------------------------------------------------------------- ReplicaHost

    def pace_moves(self, bytes_per_second: int) -> None:
        """See `ReconcilerHost`."""

    def is_copy_waiting(self, replica: Replica[StateMachine]) -> bool:
        """See `ReconcilerHost`."""
        return False

    def now_ms(self) -> int:
        return self.clock_ms

    @property
    def is_clock_trusted(self) -> bool:
        return self.trusts_clock

    def look_for_suspension(self) -> None: ...

    def reserve_uncommitted(self, size: int) -> bool:
        if self.uncommitted + size > self.limits.uncommitted_bytes_max:
            return False
        self.uncommitted += size
        return True

    def feature_level(self) -> int:
        return self.known_metadata.feature_level

    def release_uncommitted(self, size: int) -> None:
        self.uncommitted -= size

    def refusal_of_writes(self, replica: Replica[StateMachine]) -> RequestError | None:
        return self.refusal

    def refusal_of_time(self) -> RequestError | None:
        return self.time_refusal

    async def in_thread(self, function: Callable[..., T], *arguments: object) -> T:
        self.reads_in_thread += 1
        await asyncio.sleep(0)
        return function(*arguments)

    def read_rows(
        self, replica: Replica[StateMachine], needed: RowsNeeded, on_found: Callable[[RowsFound], None]
    ) -> None:
        found = self.store.read_rows(replica.key, needed.ranges)
        self.loop.call_soon(on_found, found)

    async def in_write_back(self, function: Callable[..., T], *arguments: object) -> T:
        await asyncio.sleep(0)
        return function(*arguments)

    def median_ms(self) -> int | None:
        return self.clock_ms

    is_clock_agreed = True

    def boottime_ns(self) -> int:
        return self.clock_ms * 1_000_000

    def draw_seed(self) -> int:
        return 1

    def on_leadership_row(self, group_id: GroupId) -> None:
        self.bump()

    # ---------------------------------------------------------------------------------------------------- ServiceHost

    @property
    def node_id(self) -> NodeId:
        return NODE_ID

    @property
    def cluster_id(self) -> str:
        return CLUSTER_ID

    @property
    def metadata(self) -> Replica[Metadata]:
        return cast("Replica[Metadata]", self.replicas[METADATA_GROUP_ID])

    @property
    def known_metadata(self) -> Metadata:
        return cast("Metadata", self.replicas[METADATA_GROUP_ID].state_machine)

    async def wait_revision(self, revision: int) -> None:
        while self.metadata.state_machine.applied_index < revision:
            await asyncio.shield(self.metadata.wait_progress())

    def is_led(self, group_id: GroupId) -> bool:
        return group_id not in self.leaderless and self.leadership.get(group_id).node_id != 0

    def refusal_of_directory(self, uuid: str, lineage: Lineage, process: bytes) -> RequestError | None:
        return self.directory_refusal

    def is_connected(self, node_id: NodeId) -> bool:
        return node_id == NODE_ID or node_id in self.connected

    def unreachable_seconds(self, node_id: NodeId) -> float:
        return 0.0 if self.is_connected(node_id) else 7.5

    def transfer_leadership(self, replica: Replica[StateMachine], target: ReplicaId) -> None:
        self.transfers.append((replica.group_id, target))

    def quarantined(self) -> dict[ReplicaKey, str]:
        return self.damaged

    def partition_replicas(self) -> list[Replica[StateMachine]]:
        return [partition.replica for partition in self.partitions.values()]

    async def next_topology_change(self) -> None:
        if self._change is None:
            self._change = self.loop.create_future()
        await asyncio.shield(self._change)

    def topology_version(self) -> int:
        return self._topology_version

    def bump(self) -> None:
        self._topology_version += 1
        if self._change is not None:
            change, self._change = self._change, None
            change.set_result(None)

    # ---------------------------------------------------------------------------------------------------- shorthands

    def call(self, seconds: float = 10.0, *, is_forwarded: bool = False) -> Call:
        return Call(self.loop.time() + seconds, is_forwarded=is_forwarded)

    async def topic(self, name: str = "flights", partitions: int = 1, kind: str = "", **config: str) -> pb.Topic:
        request = pb.CreateTopicRequest(
            name=name,
            partitions=partitions,
            kind=kind,
            config={key.replace("_", "."): value for key, value in config.items()},
        )
        return (await self.admin.create_topic(request, self.call())).topic

    def partition(self, topic: pb.Topic, number: int = 0) -> PartitionLog:
        found = self.partitions[GroupId(topic.partitions[number].group_id)]
        assert isinstance(found, PartitionLog)
        return found

    async def append(self, topic: pb.Topic, *batches: bytes, seconds: float = 10.0) -> pb.PartitionAppendResult:
        request = append_request(topic, *batches)
        return (await self.log.append(request, self.call(seconds))).partitions[0]


@contextlib.asynccontextmanager
async def running(limits: Limits | None = None, *, recent_bytes_max: int = 64 * 1024 * 1024) -> AsyncIterator[Harness]:
    """Yield a node that serves, and close it afterwards."""
    harness = await Harness(limits, recent_bytes_max=recent_bytes_max).start()
    try:
        yield harness
    finally:
        harness.close()


def append_request(topic: pb.Topic, *batches: bytes, correlation_id: int = 0) -> pb.AppendRequest:
    part = pb.PartitionAppend(topic_id=topic.topic_id, partition=0, batches=batches)
    return pb.AppendRequest(correlation_id=correlation_id, partitions=[part])


def poll_request(topic: pb.Topic, offset: int, **options: int) -> pb.PollRequest:
    part = pb.PartitionPoll(topic_id=topic.topic_id, partition=0, offset=offset, max_bytes=1 << 20)
    return pb.PollRequest(partitions=[part], max_bytes=1 << 20, **options)


def batch(
    count: int = 1,
    *,
    sequence: int = 0,
    producer: int = PRODUCER,
    epoch: int = 0,
    body: bytes = b"opaque",
    latest_ms: int = 2,
) -> bytes:
    """Return a batch as brokers see it, without valid contents."""
    return seal(
        body, record_count=count, raw_body_bytes=len(body), base_timestamp_ms=1, max_timestamp_ms=latest_ms,
        producer_id=producer, producer_epoch=epoch, first_sequence=sequence,
    )  # fmt: skip
