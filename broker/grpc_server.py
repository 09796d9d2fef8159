"""The gRPC server: a thin adapter between the wire and the services, with one seam for security.

Decides nothing about data. Every call passes one interceptor that names its principal and checks its right; every failure
leaves as a status with an `ErrorDetail`; an unexpected exception is the caller's INTERNAL and a log event, never more.
"""

# ruff: noqa: N802 -- servicers have the names of the protocol's methods

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from typing import Protocol, TypeVar, cast

import grpc
import grpc.aio
import structlog
from google.protobuf.message import Message
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from raftmq.broker.assignor_process import PlanRunner, ProcessPlanRunner
from raftmq.broker.call_guard import POLL, CallGuard
from raftmq.broker.config import BrokerConfig, is_loopback, split_address
from raftmq.broker.group_coordinator import GroupCoordinator
from raftmq.broker.grpc_hardening import quiet_grpc, start_server
from raftmq.broker.partition_log import PartitionLog
from raftmq.broker.request_error import RequestError
from raftmq.broker.request_metrics import CANCELLED, OK, RequestMetrics
from raftmq.broker.service_host import ServiceHost
from raftmq.broker.services.admin import AdminService
from raftmq.broker.services.call import ANYONE, CALL_SECONDS_MAX, DEFAULT_CALL_SECONDS, Call, Principal, Right
from raftmq.broker.services.forwarder import FORWARDED_KEY, Forwarder, GrpcForwarder
from raftmq.broker.services.groups import GroupsService
from raftmq.broker.services.locator import Locator
from raftmq.broker.services.metadata_leader import MetadataLeader
from raftmq.broker.services.node_removal import NodeRemovalService
from raftmq.broker.services.nodes import NodesService
from raftmq.broker.services.offsets import OffsetsService
from raftmq.broker.services.partition_leaders import PartitionLeaders
from raftmq.broker.services.producer_ids import ProducerIds
from raftmq.broker.services.queue import QueueService
from raftmq.broker.services.statuses import STATUS_DETAILS_KEY, status_details, status_message, status_of
from raftmq.broker.services.topology import TopologyService
from raftmq.proto import queue_pb2 as pb
from raftmq.proto import queue_pb2_grpc as pb_grpc
from raftmq.types import GroupId

log = structlog.get_logger(__name__)

RequestT = TypeVar("RequestT", bound=Message)
ResponseT = TypeVar("ResponseT", bound=Message)
AnyRequest = TypeVar("AnyRequest")
AnyResponse = TypeVar("AnyResponse")
Context = grpc.aio.ServicerContext[Message, Message]

_HEALTH_SECONDS = 1.0
_SERVICE_NAMES = tuple(service.full_name for service in pb.DESCRIPTOR.services_by_name.values())

RIGHTS: Mapping[str, Right] = {
    "/raftmq.v1.Queue/InitProducer": Right.PRODUCE,
    "/raftmq.v1.Queue/Append": Right.PRODUCE,
    "/raftmq.v1.Queue/AppendStream": Right.PRODUCE,
    "/raftmq.v1.Queue/Poll": Right.CONSUME,
    "/raftmq.v1.Queue/ListOffsets": Right.CONSUME,
    "/raftmq.v1.Queue/DeleteRecords": Right.ADMIN,
    "/raftmq.v1.Queue/OpenPartitions": Right.CONSUME,
    "/raftmq.v1.Queue/Ack": Right.CONSUME,
    "/raftmq.v1.Queue/FetchOffsets": Right.CONSUME,
    "/raftmq.v1.Queue/WriteOffsets": Right.ADMIN,
    "/raftmq.v1.Groups/Heartbeat": Right.CONSUME,
    "/raftmq.v1.Groups/Leave": Right.CONSUME,
    "/raftmq.v1.Groups/List": Right.DESCRIBE,
    "/raftmq.v1.Groups/Describe": Right.DESCRIBE,
    "/raftmq.v1.Groups/ResetOffsets": Right.ADMIN,
    "/raftmq.v1.Groups/Delete": Right.ADMIN,
    "/raftmq.v1.Topology/Watch": Right.DESCRIBE,
    "/raftmq.v1.Admin/CreateTopic": Right.ADMIN,
    "/raftmq.v1.Admin/DeleteTopic": Right.ADMIN,
    "/raftmq.v1.Admin/ListTopics": Right.DESCRIBE,
    "/raftmq.v1.Admin/DescribeTopic": Right.DESCRIBE,
    "/raftmq.v1.Admin/AlterTopic": Right.ADMIN,
    "/raftmq.v1.Admin/AddPartitions": Right.ADMIN,
    "/raftmq.v1.Admin/DescribeCluster": Right.DESCRIBE,
    "/raftmq.v1.Admin/RemoveNode": Right.ADMIN,
    "/raftmq.v1.Admin/RegisterNode": Right.ADMIN,
    "/raftmq.v1.Admin/ReportDamage": Right.ADMIN,
    "/raftmq.v1.Admin/ReportReplicas": Right.ADMIN,
}
"""What each method needs. Methods that are not here (reflection, health) need nothing."""

_principal: ContextVar[Principal] = ContextVar("principal", default=ANYONE)


class GrpcHost(ServiceHost, Protocol):
    """The node as its gRPC server sees it."""

    config: BrokerConfig
    partitions: Mapping[GroupId, PartitionLog]


Authenticate = Callable[[Mapping[str, str | bytes]], Principal]
"""From a call's metadata to its principal. Raises RequestError PERMISSION_DENIED for one it does not know."""


def anyone(metadata: Mapping[str, str | bytes]) -> Principal:
    """The one principal there is without credentials."""
    return ANYONE


class SecurityInterceptor(grpc.aio.ServerInterceptor):
    """The security seam: names the principal and checks its right, before anything of the request is looked at."""

    def __init__(self, authenticate: Authenticate) -> None:
        self._authenticate = authenticate

    async def intercept_service(
        self,
        continuation: Callable[
            [grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[AnyRequest, AnyResponse] | None]
        ],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[AnyRequest, AnyResponse] | None:
        """See `grpc.aio.ServerInterceptor`."""
        handler = await continuation(handler_call_details)
        right = RIGHTS.get(handler_call_details.method)
        if right is None or handler is None:
            return handler
        try:
            principal = self._authenticate(dict(handler_call_details.invocation_metadata))
        except RequestError as error:
            return _refusing(handler, error)
        if right not in principal.rights:
            return _refusing(
                handler, RequestError(pb.PERMISSION_DENIED, f"{principal.name} has no right to {right.value}")
            )
        _principal.set(principal)
        return handler


def _refusing(
    handler: grpc.RpcMethodHandler[AnyRequest, AnyResponse], error: RequestError
) -> grpc.RpcMethodHandler[AnyRequest, AnyResponse]:
    """A handler of the same shape that only refuses."""

    async def refuse(request: object, context: Context) -> None:
        await _abort(context, error)

    async def refuse_stream(request: object, context: Context) -> AsyncIterator[None]:
        await _abort(context, error)
        yield None  # never reached: it makes this a generator

    makers = {
        (False, False): grpc.unary_unary_rpc_method_handler,
        (True, False): grpc.stream_unary_rpc_method_handler,
        (False, True): grpc.unary_stream_rpc_method_handler,
        (True, True): grpc.stream_stream_rpc_method_handler,
    }
    make = cast(
        "Callable[..., grpc.RpcMethodHandler[AnyRequest, AnyResponse]]",
        makers[handler.request_streaming, handler.response_streaming],
    )
    behaviour = refuse_stream if handler.response_streaming else refuse
    return make(behaviour, handler.request_deserializer, handler.response_serializer)


async def _abort(context: Context, error: RequestError) -> None:
    """End the call with the error's status; does not return."""
    await context.abort(status_of(error.code), status_message(error), ((STATUS_DETAILS_KEY, status_details(error)),))


def internal_error(method: str, failure: BaseException) -> RequestError:
    """The answer to a defect; its log event and the caller's message share an id."""
    error_id = uuid.uuid4().hex[:12]
    log.error("request_failed", method=method, error_id=error_id, exc_info=failure)
    error = RequestError(pb.INTERNAL, f"a defect of the broker; its log has it as error_id={error_id}")
    error.detail.outcome = pb.UNKNOWN_OUTCOME  # nobody knows how far it came
    return error


class _Adapter:
    """What all servicers do around a service's method. Errors leave it as RequestError: the guard ends the call with them."""

    def __init__(self, loop: asyncio.AbstractEventLoop, metrics: RequestMetrics) -> None:
        self._loop = loop
        self._metrics = metrics

    def call(self, context: Context) -> Call:
        remaining = cast("float | None", context.time_remaining())  # None without a deadline, whatever the stubs say
        seconds = DEFAULT_CALL_SECONDS if remaining is None else min(remaining, CALL_SECONDS_MAX)
        # the stubs say Metadata, gRPC gives a tuple of pairs, or None
        pairs = cast("Iterable[tuple[str, str | bytes]] | None", context.invocation_metadata())
        is_forwarded = pairs is not None and any(key == FORWARDED_KEY for key, _ in pairs)
        return Call(self._loop.time() + seconds, _principal.get(), is_forwarded)

    async def unary(
        self,
        method: str,
        answer: Callable[[RequestT, Call], Awaitable[ResponseT]],
        request: RequestT,
        context: Context,
    ) -> ResponseT:
        started = time.perf_counter()  # a loop's clock may stand still within one turn
        try:
            response = await answer(request, self.call(context))
        except RequestError as error:
            failure = error
        except asyncio.CancelledError:
            self._metrics.observe(method, CANCELLED, time.perf_counter() - started)
            raise
        except Exception as error:  # noqa: BLE001 -- the root of a call: a defect must not reach gRPC's own handling
            failure = internal_error(method, error)
        else:
            self._metrics.observe(method, OK, time.perf_counter() - started)
            return response
        self._metrics.observe(method, pb.ErrorCode.Name(failure.code), time.perf_counter() - started)
        failure.is_counted = True
        raise failure

    async def stream(
        self, method: str, answers: AsyncGenerator[ResponseT, None], context: Context
    ) -> AsyncIterator[ResponseT]:
        self._metrics.stream_started(method)
        try:
            async for answer in answers:
                yield answer
        except (RequestError, asyncio.CancelledError, GeneratorExit, grpc.aio.InternalError):
            raise
        except Exception as error:  # noqa: BLE001 -- as in `unary`
            raise internal_error(method, error) from None
        finally:
            self._metrics.stream_ended(method)
            await answers.aclose()


class _QueueServicer(pb_grpc.QueueServicer):
    def __init__(self, service: QueueService, offsets: OffsetsService, adapter: _Adapter) -> None:
        self._service = service
        self._offsets = offsets
        self._adapter = adapter

    async def InitProducer(self, request: pb.InitProducerRequest, context: Context) -> pb.InitProducerResponse:
        return await self._adapter.unary("InitProducer", self._service.init_producer, request, context)

    async def Append(self, request: pb.AppendRequest, context: Context) -> pb.AppendResponse:
        return await self._adapter.unary("Append", self._service.append, request, context)

    async def AppendStream(
        self, request_iterator: AsyncIterator[pb.AppendRequest], context: Context
    ) -> AsyncIterator[pb.AppendResponse]:
        answers = self._service.append_stream(request_iterator, self._adapter.call(context))
        async for answer in self._adapter.stream("AppendStream", answers, context):
            yield answer

    async def Poll(self, request: pb.PollRequest, context: Context) -> pb.PollResponse:
        return await self._adapter.unary("Poll", self._service.poll, request, context)

    async def ListOffsets(self, request: pb.ListOffsetsRequest, context: Context) -> pb.ListOffsetsResponse:
        return await self._adapter.unary("ListOffsets", self._service.list_offsets, request, context)

    async def DeleteRecords(self, request: pb.DeleteRecordsRequest, context: Context) -> pb.DeleteRecordsResponse:
        return await self._adapter.unary("DeleteRecords", self._service.delete_records, request, context)

    async def OpenPartitions(self, request: pb.OpenPartitionsRequest, context: Context) -> pb.OpenPartitionsResponse:
        return await self._adapter.unary("OpenPartitions", self._offsets.open_partitions, request, context)

    async def Ack(self, request: pb.AckRequest, context: Context) -> pb.AckResponse:
        return await self._adapter.unary("Ack", self._offsets.ack, request, context)

    async def FetchOffsets(self, request: pb.FetchOffsetsRequest, context: Context) -> pb.FetchOffsetsResponse:
        return await self._adapter.unary("FetchOffsets", self._offsets.fetch_offsets, request, context)

    async def WriteOffsets(self, request: pb.WriteOffsetsRequest, context: Context) -> pb.WriteOffsetsResponse:
        return await self._adapter.unary("WriteOffsets", self._offsets.write_offsets, request, context)


class _GroupsServicer(pb_grpc.GroupsServicer):
    def __init__(self, service: GroupsService, adapter: _Adapter) -> None:
        self._service = service
        self._adapter = adapter

    async def Heartbeat(self, request: pb.HeartbeatRequest, context: Context) -> pb.HeartbeatResponse:
        return await self._adapter.unary("Heartbeat", self._service.heartbeat, request, context)

    async def Leave(self, request: pb.LeaveRequest, context: Context) -> pb.LeaveResponse:
        return await self._adapter.unary("Leave", self._service.leave, request, context)

    async def List(self, request: pb.ListGroupsRequest, context: Context) -> pb.ListGroupsResponse:
        return await self._adapter.unary("List", self._service.list_groups, request, context)

    async def Describe(self, request: pb.DescribeGroupRequest, context: Context) -> pb.DescribeGroupResponse:
        return await self._adapter.unary("Describe", self._service.describe, request, context)

    async def ResetOffsets(self, request: pb.ResetOffsetsRequest, context: Context) -> pb.ResetOffsetsResponse:
        return await self._adapter.unary("ResetOffsets", self._service.reset_offsets, request, context)

    async def Delete(self, request: pb.DeleteGroupRequest, context: Context) -> pb.DeleteGroupResponse:
        return await self._adapter.unary("Delete", self._service.delete, request, context)


class _TopologyServicer(pb_grpc.TopologyServicer):
    def __init__(self, service: TopologyService, adapter: _Adapter) -> None:
        self._service = service
        self._adapter = adapter

    async def Watch(self, request: pb.WatchRequest, context: Context) -> AsyncIterator[pb.TopologyUpdate]:
        updates = self._service.watch(request, self._adapter.call(context))
        async for update in self._adapter.stream("Watch", updates, context):
            yield update


class _AdminServicer(pb_grpc.AdminServicer):
    def __init__(
        self, service: AdminService, nodes: NodesService, removal: NodeRemovalService, adapter: _Adapter
    ) -> None:
        self._service = service
        self._nodes = nodes
        self._removal = removal
        self._adapter = adapter

    async def CreateTopic(self, request: pb.CreateTopicRequest, context: Context) -> pb.CreateTopicResponse:
        return await self._adapter.unary("CreateTopic", self._service.create_topic, request, context)

    async def DeleteTopic(self, request: pb.DeleteTopicRequest, context: Context) -> pb.DeleteTopicResponse:
        return await self._adapter.unary("DeleteTopic", self._service.delete_topic, request, context)

    async def ListTopics(self, request: pb.ListTopicsRequest, context: Context) -> pb.ListTopicsResponse:
        return await self._adapter.unary("ListTopics", self._service.list_topics, request, context)

    async def DescribeTopic(self, request: pb.DescribeTopicRequest, context: Context) -> pb.DescribeTopicResponse:
        return await self._adapter.unary("DescribeTopic", self._service.describe_topic, request, context)

    async def AlterTopic(self, request: pb.AlterTopicRequest, context: Context) -> pb.AlterTopicResponse:
        return await self._adapter.unary("AlterTopic", self._service.alter_topic, request, context)

    async def AddPartitions(self, request: pb.AddPartitionsRequest, context: Context) -> pb.AddPartitionsResponse:
        return await self._adapter.unary("AddPartitions", self._service.add_partitions, request, context)

    async def DescribeCluster(self, request: pb.DescribeClusterRequest, context: Context) -> pb.DescribeClusterResponse:
        return await self._adapter.unary("DescribeCluster", self._service.describe_cluster, request, context)

    async def RemoveNode(self, request: pb.RemoveNodeRequest, context: Context) -> pb.RemoveNodeResponse:
        return await self._adapter.unary("RemoveNode", self._removal.remove_node, request, context)

    async def RegisterNode(self, request: pb.RegisterNodeRequest, context: Context) -> pb.RegisterNodeResponse:
        return await self._adapter.unary("RegisterNode", self._nodes.register_node, request, context)

    async def ReportDamage(self, request: pb.ReportDamageRequest, context: Context) -> pb.ReportDamageResponse:
        return await self._adapter.unary("ReportDamage", self._nodes.report_damage, request, context)

    async def ReportReplicas(self, request: pb.ReportReplicasRequest, context: Context) -> pb.ReportReplicasResponse:
        return await self._adapter.unary("ReportReplicas", self._nodes.report_replicas, request, context)


class GrpcServer:
    """One node's client port. The services are made here and shared with whoever adapts them otherwise."""

    def __init__(
        self,
        host: GrpcHost,
        metrics: RequestMetrics | None = None,
        *,
        authenticate: Authenticate = anyone,
        forwarder: Forwarder | None = None,
        plans: PlanRunner | None = None,
    ) -> None:
        self._host = host
        self.metrics = metrics or RequestMetrics()
        self.forwarder = forwarder or GrpcForwarder()
        locator = Locator(host, host.partitions)
        leader = MetadataLeader(host, self.forwarder)
        self.queue = QueueService(host, host.partitions, ProducerIds(host, leader), self.metrics)
        self.admin = AdminService(host, locator, leader)
        self.nodes = NodesService(host, leader)
        self.removal = NodeRemovalService(host, leader)
        self.topology = TopologyService(host)
        self.offsets = OffsetsService(host, locator, host.partitions)
        self.coordinator = GroupCoordinator(host, plans or ProcessPlanRunner(host.timing.assignor_seconds_max))
        self.groups = GroupsService(
            host, leader, self.coordinator, PartitionLeaders(host, self.forwarder, self.offsets)
        )
        self.guard = CallGuard(host.loop, host.limits, _abort, {POLL: self._poll_bytes_max}, self._observe_refused)
        self._authenticate = authenticate
        self._server: grpc.aio.Server | None = None
        self._health = health.aio.HealthServicer()  # pyright: ignore[reportAttributeAccessIssue]
        self._health_task: asyncio.Task[None] | None = None

    async def start(self, listen: str) -> int:
        """Listen on ``host:port`` and serve; returns the bound port.

        Raises:
            OSError: the address cannot be bound.
            RequestError: INVALID_ARGUMENT for an address other than loopback, unless the configuration allows it in so
                many words: there are no credentials yet, so whoever can connect may do everything.
        """
        address, _ = split_address(listen)
        if not is_loopback(address) and not self._host.config.allow_insecure_remote:
            raise RequestError(
                pb.INVALID_ARGUMENT,
                f"{listen} is open to others and there is no TLS and no credentials yet: listen on 127.0.0.1, "
                "or set allow_insecure_remote",
            )
        quiet_grpc()
        server = self._new_server((SecurityInterceptor(self._authenticate), self.guard))
        adapter = _Adapter(self._host.loop, self.metrics)
        pb_grpc.add_QueueServicer_to_server(_QueueServicer(self.queue, self.offsets, adapter), server)  # type: ignore[no-untyped-call]  # generated
        pb_grpc.add_TopologyServicer_to_server(_TopologyServicer(self.topology, adapter), server)  # type: ignore[no-untyped-call]  # generated
        pb_grpc.add_AdminServicer_to_server(_AdminServicer(self.admin, self.nodes, self.removal, adapter), server)  # type: ignore[no-untyped-call]  # generated
        pb_grpc.add_GroupsServicer_to_server(_GroupsServicer(self.groups, adapter), server)  # type: ignore[no-untyped-call]  # generated
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        reflection.enable_server_reflection((*_SERVICE_NAMES, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
        try:
            port = server.add_insecure_port(listen)
        except RuntimeError as error:
            raise OSError(f"cannot listen on {listen}: {error}") from error
        if port == 0:
            raise OSError(f"cannot listen on {listen}")
        await self._start_server(server)
        self._server = server
        self._health_task = self._host.loop.create_task(self._report_health())
        return port

    async def stop(self, grace_seconds: float) -> None:
        """Take no new calls, answer what waits, and close within the grace."""
        self.coordinator.close()
        self.queue.begin_shutdown()
        self.topology.begin_shutdown()
        if self._health_task is not None:
            self._health_task.cancel()
        if self._server is not None:
            await self._health.enter_graceful_shutdown()
            await self._server.stop(grace_seconds)
        await self.forwarder.close()

    def _observe_refused(self, path: str, error: RequestError) -> None:
        """A call ended with an error: count it unless its handler's adapter did."""
        if not error.is_counted:
            service, _, method = path.lstrip("/").partition("/")
            is_ours = service.startswith("raftmq.")
            self.metrics.count(method if is_ours else f"{service}/{method}", pb.ErrorCode.Name(error.code))

    def _new_server(self, interceptors: Sequence[grpc.aio.ServerInterceptor]) -> grpc.aio.Server:
        """The wire; the simulator has its own."""
        return grpc.aio.server(
            interceptors=interceptors,
            options=self._options(),
            maximum_concurrent_rpcs=self._host.limits.concurrent_rpcs_max,
        )

    async def _start_server(self, server: grpc.aio.Server) -> None:
        await start_server(server, self._host.loop)

    def _poll_bytes_max(self, request: pb.PollRequest) -> int:
        bytes_max = self._host.limits.poll_bytes_max
        return min(request.max_bytes or bytes_max, bytes_max)

    def _options(self) -> Sequence[tuple[str, int]]:
        limits = self._host.limits
        return (
            ("grpc.max_receive_message_length", limits.grpc_message_bytes_max),
            ("grpc.max_send_message_length", -1),  # the topology of many partitions may be larger than what we take in
            ("grpc.max_concurrent_streams", limits.concurrent_rpcs_max),
            ("grpc.max_allowed_incoming_connections", limits.client_connections_max),
            # With it the window of a stream that nobody reads yet grows to megabytes; without, it is 64 KiB until its
            # message is asked for, and then the message's length.
            ("grpc.http2.bdp_probe", 0),
            # Calls that came and are not taken yet: of a burst of more than a thousand grpc's default cancels some, unexplained.
            ("grpc.server.max_pending_requests", limits.concurrent_rpcs_max),
            ("grpc.server.max_pending_requests_hard_limit", limits.concurrent_rpcs_max),
            ("grpc.server_handshake_timeout_ms", int(limits.client_handshake_seconds * 1000)),
            # Batches are compressed by the SDK. gRPC's own compression is off: its limit is on the compressed size, and
            # 4 MiB may become 4 GiB. A compressed request comes as it is, and is refused as malformed.
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
            is_ready = not self._host.not_ready_reasons()
            status = health_pb2.HealthCheckResponse.SERVING if is_ready else health_pb2.HealthCheckResponse.NOT_SERVING
            if status != last:
                last = status
                for name in ("", *_SERVICE_NAMES):
                    await self._health.set(name, status)
            await asyncio.sleep(_HEALTH_SECONDS)
