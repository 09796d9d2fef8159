"""Every method of the protocol has one row in the table, and no method is served without one."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import grpc.aio
import pytest
from google.rpc import status_pb2
from grpc_health.v1 import health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2_grpc
from raftmq import methods
from raftmq.broker.base.limits import Limits
from raftmq.broker.base.peer_methods import PEER_METHODS
from raftmq.broker.base.request_error import RequestError
from raftmq.broker.grpc_port import security
from raftmq.broker.grpc_port.admission import Slots
from raftmq.broker.grpc_port.methods import ROWS, AnsweredBy, Row, Services
from raftmq.broker.grpc_port.security import FREE, SecurityInterceptor, anyone
from raftmq.broker.grpc_port.server import GrpcServer
from raftmq.broker.services.data_tokens import DataTokens
from raftmq.broker.services.formation import FormationService
from raftmq.broker.services.queue.admin import QueueAdminService
from raftmq.broker.services.queue.browse import PAGE_BYTES_MAX, QueueBrowseService
from raftmq.broker.services.queue.partitions import QueuePartitions
from raftmq.broker.services.queue.schedules import QueueScheduleService
from raftmq.call_metadata import STATUS_DETAILS_KEY
from raftmq.message_checks import MESSAGE_BYTES_MAX
from raftmq.methods import METHODS, UnaryMethod
from raftmq.proto import queue_pb2 as pb
from raftmq.types import METADATA_GROUP_ID, NodeId

from tests.support.broker.harness import Harness, running


def _code(error: grpc.aio.AioRpcError) -> int:
    """Return the protocol's code of a refusal."""
    (value,) = [value for key, value in error.trailing_metadata() if key == STATUS_DETAILS_KEY]
    detail = pb.ErrorDetail()
    assert status_pb2.Status.FromString(value).details[0].Unpack(detail)
    return detail.code


@contextlib.asynccontextmanager
async def _refusing_server(*handlers: tuple[str, str]) -> AsyncIterator[grpc.aio.Channel]:
    """Yield a server behind the security interceptor that has a handler for each (service, method)."""

    async def echo(request: bytes, context: object) -> bytes:
        return request

    server = grpc.aio.server(interceptors=(SecurityInterceptor(anyone),))
    for service, name in handlers:
        by_name = {name: grpc.unary_unary_rpc_method_handler(echo)}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, by_name),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield channel
    finally:
        await server.stop(0)


def _paths(add: Callable[[Any, Any], None]) -> set[str]:
    """Return the paths that generated code registers."""
    found: set[str] = set()

    class Server:
        def add_generic_rpc_handlers(self, handlers: object) -> None:
            return

        def add_registered_method_handlers(self, service: str, handlers: dict[str, object]) -> None:
            found.update(f"/{service}/{name}" for name in handlers)

    class Servicer:
        def __getattr__(self, name: str) -> None:
            return None

    add(Servicer(), Server())
    return found


def test_every_method_of_the_descriptor_has_exactly_one_row():
    described = [
        f"/{service.full_name}/{method.name}"
        for service in pb.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    ]
    assert sorted(row.method.path for row in ROWS) == sorted(described)


def test_the_constants_are_the_methods_of_the_descriptor():
    constants = {value for value in vars(methods).values() if isinstance(value, methods.Method)}
    assert constants == set(METHODS)


def test_a_response_type_that_is_not_the_method_s_is_refused():
    with pytest.raises(TypeError, match="returns PollResponse, not AppendResponse"):
        methods._unary(pb.PollRequest, pb.AppendResponse)


def test_long_calls_have_slots_of_their_own():
    own = {row.method.name: row.slots for row in ROWS if row.slots is not Slots.UNARY_CALLS}
    assert own == {
        "Poll": Slots.POLLS,
        "PollStream": Slots.QUEUE_STREAMS,
        "AppendStream": Slots.APPEND_STREAMS,
        "Watch": Slots.WATCHES,
        "WaitFinished": Slots.POLLS,
    }


def test_only_answers_with_records_are_bounded_by_the_smaller_of_request_and_limit():
    rows = {row.method: row for row in ROWS if row.answer_bytes_max is not None}
    assert set(rows) == {methods.POLL, methods.QUEUE_POLL, methods.BROWSE}
    queue_bytes_max = rows[methods.QUEUE_POLL].answer_bytes_max
    assert queue_bytes_max is not None
    assert queue_bytes_max(pb.QueuePollRequest(max_bytes=7), Limits()) == Limits().poll_bytes_max, "one always fits"
    row, browse = rows[methods.POLL], rows[methods.BROWSE]
    assert row.answer_bytes_max is not None
    limits = Limits()
    assert row.answer_bytes_max(pb.PollRequest(max_bytes=7), limits) == 7
    assert row.answer_bytes_max(pb.PollRequest(), limits) == limits.poll_bytes_max
    assert row.answer_bytes_max(pb.PollRequest(max_bytes=1 << 31), limits) == limits.poll_bytes_max
    assert browse.method is methods.BROWSE
    assert browse.answer_bytes_max is not None
    assert browse.answer_bytes_max(pb.BrowseRequest(), limits) == PAGE_BYTES_MAX
    assert browse.answer_bytes_max(pb.BrowseRequest(with_bodies=True), limits) > MESSAGE_BYTES_MAX


def test_only_health_and_reflection_need_no_right():
    added = (health_pb2_grpc.add_HealthServicer_to_server, reflection_pb2_grpc.add_ServerReflectionServicer_to_server)
    assert set().union(*map(_paths, added)) == FREE


async def test_a_method_of_an_unknown_service_is_refused():
    async with _refusing_server(("grpc.channelz.v1.Channelz", "GetServers")) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await channel.unary_unary("/grpc.channelz.v1.Channelz/GetServers")(b"")
        assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
        assert _code(refused.value) == pb.PERMISSION_DENIED
        with pytest.raises(grpc.aio.AioRpcError) as unknown:
            await channel.unary_unary("/nobody.Knows/This")(b"")
        assert unknown.value.code() is grpc.StatusCode.UNIMPLEMENTED  # there is no handler for it


async def test_a_method_of_the_protocol_without_a_row_is_refused(monkeypatch):
    async with _refusing_server(("raftmq.v1.Log", "Poll"), ("raftmq.v1.Log", "New")) as channel:
        assert await channel.unary_unary(methods.POLL.path)(b"x") == b"x"
        monkeypatch.delitem(security.RIGHTS, methods.POLL.path)
        for path in (methods.POLL.path, "/raftmq.v1.Log/New"):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await channel.unary_unary(path)(b"x")
            assert _code(refused.value) == pb.PERMISSION_DENIED


async def test_a_broker_does_not_serve_a_method_without_a_row(monkeypatch):
    rows = tuple(row for row in ROWS if row.method is not methods.LIST_TOPICS)
    monkeypatch.setattr("raftmq.broker.grpc_port.handlers.ROWS", rows)
    async with running() as node:
        server = GrpcServer(node, node.forwarder)
        port = await server.start("127.0.0.1:0")
        try:
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                with pytest.raises(grpc.aio.AioRpcError) as refused:
                    await channel.unary_unary(methods.LIST_TOPICS.path)(b"", timeout=5)
        finally:
            await server.stop(0)
    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_the_port_for_clients_has_no_methods_of_brokers():
    async with running() as node:
        server = GrpcServer(node, node.forwarder)
        port = await server.start("127.0.0.1:0")
        try:
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                for method in PEER_METHODS:
                    with pytest.raises(grpc.aio.AioRpcError) as refused:
                        await channel.unary_unary(method.path)(b"", timeout=5)
                    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
        finally:
            await server.stop(0)


def _services(node: Harness) -> Services:
    queues = QueuePartitions(node, node.partitions)
    return Services(
        node.log,
        node.offsets,
        node.topology,
        node.admin,
        node.nodes,
        FormationService(node),
        node.removal,
        node.feature_levels,
        node.balancing,
        node.placement,
        node.recovery,
        node.groups_service,
        node.health,
        DataTokens(node.loop),
        node.producer_ids,
        node.configuration,
        node.queues,
        QueueBrowseService(queues),
        QueueAdminService(queues),
        QueueScheduleService(queues),
    )


@pytest.mark.parametrize(
    "row", [row for row in ROWS if isinstance(row.method, UnaryMethod)], ids=lambda row: row.method.name
)
async def test_only_calls_for_the_metadata_leader_are_forwarded(row: Row):
    """The row names the node that answers. Here node 2 leads the metadata group."""
    async with running() as node:
        node.lose_leadership(METADATA_GROUP_ID, to=NodeId(2))
        with contextlib.suppress(RequestError, TimeoutError):
            async with asyncio.timeout(0.2):
                await row.service(_services(node))(row.method.request_type(), node.call(0.1))
        passed_on = [path for _, path, _ in node.forwarder.calls]
        assert passed_on == ([row.method.path] if row.answered_by is AnsweredBy.METADATA_LEADER else [])
