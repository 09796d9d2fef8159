"""The protocol's methods over the services: what every call is told (deadline, principal), counted and answered with.

Decides nothing about data. An error leaves as `RequestError`, and an unexpected exception as INTERNAL with a log event.
"""

# ruff: noqa: N802 -- servicers have the names of the protocol's methods

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar, cast

import grpc.aio
import structlog
from google.protobuf.message import Message
from raftmq.broker.base.request_error import RequestError, check_cluster
from raftmq.broker.consumer_groups.service import GroupsService
from raftmq.broker.grpc_port.security import Context, current_principal
from raftmq.broker.services.admin import AdminService
from raftmq.broker.services.call import CALL_SECONDS_MAX, DEFAULT_CALL_SECONDS, Call
from raftmq.broker.services.health import HealthService
from raftmq.broker.services.host import ServiceHost
from raftmq.broker.services.log import LogService
from raftmq.broker.services.node_removal import NodeRemovalService
from raftmq.broker.services.nodes import NodesService
from raftmq.broker.services.offsets import OffsetsService
from raftmq.broker.services.request_metrics import CANCELLED, OK, RequestMetrics
from raftmq.broker.services.topology import TopologyService
from raftmq.call_metadata import CLUSTER_KEY, FORWARDED_KEY
from raftmq.proto import queue_pb2 as pb
from raftmq.proto import queue_pb2_grpc as pb_grpc

log = structlog.get_logger(__name__)

RequestT = TypeVar("RequestT", bound=Message)
ResponseT = TypeVar("ResponseT", bound=Message)


def internal_error(method: str, failure: BaseException) -> RequestError:
    """The answer to a defect; its log event and the caller's message share an id."""
    error_id = uuid.uuid4().hex[:12]
    log.error("request_failed", method=method, error_id=error_id, exc_info=failure)
    error = RequestError(pb.INTERNAL, f"a defect of the broker; its log has it as error_id={error_id}")
    error.detail.outcome = pb.UNKNOWN_OUTCOME  # nobody knows how far it came
    return error


class _Adapter:
    """What all servicers do around a service's method. Errors leave it as RequestError: the guard ends the call with them."""

    def __init__(self, host: ServiceHost, metrics: RequestMetrics) -> None:
        self._host = host
        self._metrics = metrics

    def call(self, context: Context) -> Call:
        """Raises RequestError WRONG_CLUSTER when the caller means another cluster's broker."""
        remaining = cast("float | None", context.time_remaining())  # None without a deadline, whatever the stubs say
        seconds = DEFAULT_CALL_SECONDS if remaining is None else min(remaining, CALL_SECONDS_MAX)
        # the stubs say Metadata, gRPC gives a tuple of pairs, or None
        pairs = cast("Iterable[tuple[str, str | bytes]] | None", context.invocation_metadata())
        is_forwarded = False
        for key, value in pairs or ():
            if key == CLUSTER_KEY:
                check_cluster(self._host.cluster_id, str(value))
            elif key == FORWARDED_KEY:
                is_forwarded = True
        return Call(self._host.loop.time() + seconds, current_principal.get(), is_forwarded)

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


class _LogServicer(pb_grpc.LogServicer):
    def __init__(self, service: LogService, offsets: OffsetsService, adapter: _Adapter) -> None:
        self._service = service
        self._offsets = offsets
        self._adapter = adapter

    async def InitProducer(self, request: pb.InitProducerRequest, context: Context) -> pb.InitProducerResponse:
        return await self._adapter.unary("InitProducer", self._service.init_producer, request, context)

    async def FenceProducer(self, request: pb.FenceProducerRequest, context: Context) -> pb.FenceProducerResponse:
        return await self._adapter.unary("FenceProducer", self._service.fence_producer, request, context)

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

    async def CommitOffsets(self, request: pb.CommitOffsetsRequest, context: Context) -> pb.CommitOffsetsResponse:
        return await self._adapter.unary("CommitOffsets", self._offsets.commit_offsets, request, context)

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
        self,
        service: AdminService,
        nodes: NodesService,
        removal: NodeRemovalService,
        health: HealthService,
        adapter: _Adapter,
    ) -> None:
        self._service = service
        self._nodes = nodes
        self._removal = removal
        self._health = health
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

    async def DescribePartitions(
        self, request: pb.DescribePartitionsRequest, context: Context
    ) -> pb.DescribePartitionsResponse:
        return await self._adapter.unary("DescribePartitions", self._health.describe_partitions, request, context)

    async def DescribeNode(self, request: pb.DescribeNodeRequest, context: Context) -> pb.DescribeNodeResponse:
        return await self._adapter.unary("DescribeNode", self._health.describe_node, request, context)


@dataclass(frozen=True, slots=True)
class Services:
    """What the protocol's methods are made of."""

    queue: LogService
    offsets: OffsetsService
    topology: TopologyService
    admin: AdminService
    nodes: NodesService
    removal: NodeRemovalService
    groups: GroupsService
    health: HealthService


def add_services(server: grpc.aio.Server, services: Services, host: ServiceHost, metrics: RequestMetrics) -> None:
    """Have a server serve all methods of the protocol."""
    adapter = _Adapter(host, metrics)
    queue = _LogServicer(services.queue, services.offsets, adapter)
    topology = _TopologyServicer(services.topology, adapter)
    admin = _AdminServicer(services.admin, services.nodes, services.removal, services.health, adapter)
    groups = _GroupsServicer(services.groups, adapter)
    pb_grpc.add_LogServicer_to_server(queue, server)  # type: ignore[no-untyped-call]  # generated
    pb_grpc.add_TopologyServicer_to_server(topology, server)  # type: ignore[no-untyped-call]  # generated
    pb_grpc.add_AdminServicer_to_server(admin, server)  # type: ignore[no-untyped-call]  # generated
    pb_grpc.add_GroupsServicer_to_server(groups, server)  # type: ignore[no-untyped-call]  # generated
