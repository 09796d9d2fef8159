"""Run the client port: create the services, and serve them over gRPC with limits, health and security.

This module decides nothing about data. Every call passes one interceptor that names its principal and checks its right. Every failure
becomes a status with an `ErrorDetail`. An unexpected exception becomes INTERNAL for its caller and a log event, and has no other effect.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from raftmq.broker.base.addresses import is_loopback, split_address
from raftmq.broker.base.config import BrokerConfig
from raftmq.broker.base.request_error import RequestError
from raftmq.broker.base.supervisor import Work
from raftmq.broker.consumer_groups.assignor_process import PlanRunner, ProcessPlanRunner
from raftmq.broker.consumer_groups.coordinator import GroupCoordinator
from raftmq.broker.consumer_groups.partition_leaders import PartitionLeaders
from raftmq.broker.consumer_groups.service import GroupsService
from raftmq.broker.grpc_port.admission_interceptor import AdmissionInterceptor
from raftmq.broker.grpc_port.client_connections import ClientConnections
from raftmq.broker.grpc_port.handlers import add_methods
from raftmq.broker.grpc_port.hardening import quiet_grpc, start_server
from raftmq.broker.grpc_port.methods import ROWS, Services
from raftmq.broker.grpc_port.security import Authenticate, SecurityInterceptor, abort, anyone
from raftmq.broker.partitions.kinds import LOG
from raftmq.broker.partitions.partition import Partition
from raftmq.broker.services.admin import AdminService
from raftmq.broker.services.balancing import BalancingService
from raftmq.broker.services.cluster_health import ClusterHealth
from raftmq.broker.services.committed_offsets import OffsetsService
from raftmq.broker.services.configuration import ConfigurationService
from raftmq.broker.services.data_tokens import DataTokens
from raftmq.broker.services.feature_level import FeatureLevelService
from raftmq.broker.services.formation import FormationService
from raftmq.broker.services.forwarder import Forwarder
from raftmq.broker.services.health import HealthService
from raftmq.broker.services.host import ServiceHost
from raftmq.broker.services.locator import Locator
from raftmq.broker.services.log import LogService
from raftmq.broker.services.metadata_leader import MetadataLeader
from raftmq.broker.services.node_calls import NodeCalls
from raftmq.broker.services.node_removal import NodeRemovalService
from raftmq.broker.services.nodes import NodesService
from raftmq.broker.services.partition_recovery import PartitionRecoveryService
from raftmq.broker.services.partition_sizes import PartitionSizes
from raftmq.broker.services.producer_ids import ProducerIds
from raftmq.broker.services.queue.admin import QueueAdminService
from raftmq.broker.services.queue.browse import QueueBrowseService
from raftmq.broker.services.queue.dead_letters import DeadLetterCopier
from raftmq.broker.services.queue.partitions import QueuePartitions
from raftmq.broker.services.queue.schedules import QueueScheduleService
from raftmq.broker.services.queue.service import QueueService
from raftmq.broker.services.replica_placement import ReplicaPlacementService
from raftmq.broker.services.request_metrics import RequestMetrics
from raftmq.broker.services.slow_requests import SlowRequests
from raftmq.broker.services.topology import TopologyService
from raftmq.proto import queue_pb2 as pb
from raftmq.types import GroupId

if TYPE_CHECKING:
    from raftmq.broker.base.tracing import Tracing

_HEALTH_SECONDS = 1.0
_SERVICE_NAMES = tuple(service.full_name for service in pb.DESCRIPTOR.services_by_name.values())


class GrpcHost(ServiceHost, Protocol):
    """The node as its gRPC server sees it."""

    config: BrokerConfig
    partitions: Mapping[GroupId, Partition]


class GrpcServer:
    """Runs one node's client port. It creates the services and shares them with other users, such as the metrics."""

    def __init__(
        self,
        host: GrpcHost,
        forwarder: Forwarder,
        metrics: RequestMetrics | None = None,
        *,
        authenticate: Authenticate = anyone,
        plans: PlanRunner | None = None,
        tracing: Tracing | None = None,
    ) -> None:
        self._host = host
        self.metrics = metrics or RequestMetrics(SlowRequests(host.timing.slow_request_seconds), tracing)
        if tracing is not None:
            tracing.broker_id = lambda: host.node_id
        locator: Locator[Partition] = Locator(host, host.partitions)
        leader = MetadataLeader(host, forwarder)
        producer_ids = ProducerIds(host, locator, leader)
        self.log = LogService(host, host.partitions, producer_ids, self.metrics)
        self.calls = calls = NodeCalls(host, forwarder)
        self.health = HealthService(host, locator)
        cluster_health = ClusterHealth(host, calls, self.health)
        self.admin = AdminService(host, locator, leader, cluster_health)
        self.nodes = NodesService(host, leader)
        self.removal = NodeRemovalService(host, leader)
        self.feature_level = FeatureLevelService(host, leader)
        self.sizes = PartitionSizes(host, calls, self.health)
        self.balancing = BalancingService(host, leader, calls, self.health, cluster_health, self.sizes)
        self.placement = ReplicaPlacementService(host, locator, host.partitions, leader, calls)
        self.recovery = PartitionRecoveryService(host, locator, host.partitions, leader, calls, cluster_health)
        self.topology = TopologyService(host)
        self.offsets = OffsetsService(host, Locator(host, host.partitions, LOG))
        self.coordinator = GroupCoordinator(host, plans or ProcessPlanRunner(host.timing.assignor_seconds_max))
        self.groups = GroupsService(host, leader, self.coordinator, PartitionLeaders(host, calls, self.offsets))
        self.data_tokens = DataTokens(host.loop)
        self.queue = QueueService(host, host.partitions, tracing)
        self.dead_letters = DeadLetterCopier(host, host.partitions, self.log, producer_ids, calls)
        queues = QueuePartitions(host, host.partitions, self.metrics)
        self.services = Services(
            self.log,
            self.offsets,
            self.topology,
            self.admin,
            self.nodes,
            FormationService(host),
            self.removal,
            self.feature_level,
            self.balancing,
            self.placement,
            self.recovery,
            self.groups,
            self.health,
            self.data_tokens,
            producer_ids,
            ConfigurationService(host, locator, leader, calls),
            self.queue,
            QueueBrowseService(queues),
            QueueAdminService(queues),
            QueueScheduleService(queues),
        )
        self.admission = AdmissionInterceptor(
            host.loop, host.limits, abort, {row.method.path: row for row in ROWS}, self._observe_refused
        )
        self.connections = ClientConnections(
            host.limits.client_connections_max, self.admission.callers, host.supervisor.record_failure
        )
        self._connections_task: asyncio.Task[None] | None = None
        self._authenticate = authenticate
        self._server: grpc.aio.Server | None = None
        self._health = health.aio.HealthServicer()  # pyright: ignore[reportAttributeAccessIssue]
        self._health_task: asyncio.Task[None] | None = None

    async def start(self, listen: str) -> int:
        """Listen on ``host:port`` and serve. Return the bound port.

        Raises:
            OSError: The address cannot be bound.
            RequestError: INVALID_ARGUMENT for an address other than loopback, unless the configuration explicitly allows it.
                Without credentials every client that can connect may do everything.
        """
        address, _ = split_address(listen)
        if not is_loopback(address) and not self._host.config.allow_insecure_remote:
            raise RequestError(
                pb.INVALID_ARGUMENT,
                f"{listen} is open to other machines, and there is no TLS and no credentials yet: listen on 127.0.0.1, "
                "or set allow_insecure_remote",
            )
        quiet_grpc()
        server = self._new_server((SecurityInterceptor(self._authenticate), self.admission))
        add_methods(server, self.services, self._host, self.metrics)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        reflection.enable_server_reflection((*_SERVICE_NAMES, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
        try:
            port = server.add_insecure_port(listen)
        except RuntimeError as error:
            raise OSError(f"cannot listen on {listen}: {error}") from error
        if port == 0:
            raise OSError(f"cannot listen on {listen}")
        self._server = server  # also if the start is cancelled: a server in grpcio's core ends only when it is stopped
        await self._start_server(server)
        self._connections_task = self._watch_connections(port)
        self._health_task = self._host.loop.create_task(self._report_health())
        return port

    async def stop(self, grace_seconds: float) -> None:
        """Accept no new calls, answer waiting ones, and close within the grace period."""
        self.coordinator.close()
        self.log.begin_shutdown()
        self.topology.begin_shutdown()
        if self._health_task is not None:
            self._health_task.cancel()
        if self._connections_task is not None:
            self._connections_task.cancel()
        if self._server is not None:
            await self._health.enter_graceful_shutdown()
            await self._server.stop(grace_seconds)

    def _observe_refused(self, path: str, error: RequestError) -> None:
        """Count a call that ended with an error, unless its handler did."""
        if not error.is_counted:
            service, _, method = path.lstrip("/").partition("/")
            is_ours = service.startswith("raftmq.")
            self.metrics.count(method if is_ours else f"{service}/{method}", pb.ErrorCode.Name(error.code))

    def _new_server(self, interceptors: Sequence[grpc.aio.ServerInterceptor]) -> grpc.aio.Server:
        """Create gRPC's server. The simulator replaces this."""
        return grpc.aio.server(
            interceptors=interceptors,
            options=self._options(),
            maximum_concurrent_rpcs=self._host.limits.concurrent_rpcs_max,
        )

    async def _start_server(self, server: grpc.aio.Server) -> None:
        await start_server(server, self._host.loop)

    def _watch_connections(self, port: int) -> asyncio.Task[None] | None:
        return self._host.loop.create_task(self.connections.run(port))

    def _options(self) -> Sequence[tuple[str, int]]:
        limits = self._host.limits
        return (
            ("grpc.max_receive_message_length", limits.grpc_message_bytes_max),
            ("grpc.max_send_message_length", -1),  # the topology of many partitions may exceed the limit of requests
            ("grpc.max_concurrent_streams", limits.concurrent_rpcs_max),
            ("grpc.max_allowed_incoming_connections", limits.client_connections_max),
            ("grpc.max_connection_idle_ms", int(limits.client_idle_seconds * 1000)),
            # If it is on, the window of a stream that is not read yet grows to megabytes. If it is off, the window is 64 KiB until
            # the stream's message is requested, and then the message's length.
            ("grpc.http2.bdp_probe", 0),
            # The number of arrived calls that are not accepted yet. In a burst of over a thousand, grpc's default cancels some.
            ("grpc.server.max_pending_requests", limits.concurrent_rpcs_max),
            ("grpc.server.max_pending_requests_hard_limit", limits.concurrent_rpcs_max),
            ("grpc.server_handshake_timeout_ms", int(limits.client_handshake_seconds * 1000)),
            # The SDK compresses batches. gRPC's own compression is off because its limit applies to the compressed size, and 4 MiB
            # may become 4 GiB. A compressed request arrives unchanged, and is refused as malformed.
            ("grpc.per_message_decompression", 0),
            ("grpc.so_reuseport", 0),  # two brokers on one port must be an error
            ("grpc.keepalive_time_ms", 20_000),
            ("grpc.keepalive_timeout_ms", 10_000),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
        )

    async def _report_health(self) -> None:
        """Keep gRPC health equal to readiness: overall, and for each service."""
        last: int | None = None
        while True:
            with self._host.supervisor.step(Work.HEALTH):
                last = await self._tell_health(last)
            await asyncio.sleep(_HEALTH_SECONDS)

    async def _tell_health(self, last: int | None) -> int:
        is_ready = not self._host.standing.not_ready_reasons()
        status = health_pb2.HealthCheckResponse.SERVING if is_ready else health_pb2.HealthCheckResponse.NOT_SERVING
        if status != last:
            for name in ("", *_SERVICE_NAMES):
                await self._health.set(name, status)
        return int(status)
