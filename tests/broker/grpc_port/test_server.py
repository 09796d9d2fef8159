"""The gRPC adapter works over a real socket: statuses, details, rights, health, reflection, limits."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import socket

import grpc
import grpc.aio
import pytest
from google.rpc import status_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from raftmq.broker.base.readiness import NotReady, Reason
from raftmq.broker.base.request_error import RequestError
from raftmq.broker.base.statuses import STATUS_OF_CODE, status_details
from raftmq.broker.grpc_port.server import GrpcServer
from raftmq.broker.services.call import Principal, Right
from raftmq.call_metadata import CLUSTER_KEY, STATUS_DETAILS_KEY
from raftmq.proto import queue_pb2 as pb
from raftmq.proto import queue_pb2_grpc as pb_grpc

from tests.support.broker.harness import append_request, batch, poll_request, running


@contextlib.asynccontextmanager
async def serving(**options):
    async with running() as node:
        server = GrpcServer(node, node.forwarder, **options)
        port = await server.start("127.0.0.1:0")
        try:
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                yield node, server, channel, f"127.0.0.1:{port}"
        finally:
            await server.stop(0.1)


def _detail(error: grpc.aio.AioRpcError) -> pb.ErrorDetail:
    (value,) = [value for key, value in error.trailing_metadata() if key == STATUS_DETAILS_KEY]
    status = status_pb2.Status.FromString(value)
    assert status.code == error.code().value[0]
    assert status.message == error.details()
    detail = pb.ErrorDetail()
    assert status.details[0].Unpack(detail)
    return detail


def test_every_error_code_has_a_status():
    codes = {code for code in pb.ErrorCode.values() if code != pb.OK}
    assert set(STATUS_OF_CODE) == codes
    assert grpc.StatusCode.OK not in STATUS_OF_CODE.values()


def test_a_joining_node_stops_only_after_permanent_refusals():
    final = {
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.ALREADY_EXISTS,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.FAILED_PRECONDITION,
    }
    for code in (pb.NOT_LEADER, pb.NO_LEADER, pb.NOT_READY, pb.NOT_FORMED, pb.LEADERSHIP_LOST, pb.REQUEST_TIMED_OUT):
        assert STATUS_OF_CODE[code] not in final
    for code in (pb.WRONG_CLUSTER, pb.BROKER_ID_TAKEN, pb.BROKER_REMOVED, pb.UNSUPPORTED_VERSION):
        assert STATUS_OF_CODE[code] in final


def test_a_long_message_fits_into_headers():
    assert len(status_details(RequestError(pb.INTERNAL, "x" * 100_000))) < 3000


async def test_a_topic_is_created_written_and_read_over_the_wire():
    async with serving() as (node, _, channel, _address):
        admin, queue = pb_grpc.AdminStub(channel), pb_grpc.LogStub(channel)
        topic = (await admin.CreateTopic(pb.CreateTopicRequest(name="flights"), timeout=5)).topic
        data = batch(3)
        answer = await queue.Append(append_request(topic, data, correlation_id=4), timeout=5)
        assert answer.correlation_id == 4
        assert list(answer.partitions[0].base_offsets) == [0]
        stream = queue.AppendStream()
        for number in range(3):
            await stream.write(append_request(topic, batch(1, sequence=3 + number), correlation_id=number))
        await stream.done_writing()
        answers = {a.correlation_id: list(a.partitions[0].base_offsets) async for a in stream}
        assert answers == {0: [3], 1: [4], 2: [5]}
        polled = await queue.Poll(poll_request(topic, 0, max_wait_ms=1000), timeout=5)
        assert polled.partitions[0].batches[0] == data
        assert polled.partitions[0].high_watermark == 6
        assert node.partition(topic).high_watermark == 6


async def test_the_topology_is_watched_over_the_wire():
    async with serving() as (node, server, channel, _address):
        watch = pb_grpc.TopologyStub(channel).Watch(pb.WatchRequest())
        assert (await watch.read()).is_full
        await node.topic("new")
        assert [t.name for t in (await watch.read()).topics] == ["new"]
        await server.stop(1)
        assert await watch.read() is grpc.aio.EOF


async def test_a_refusal_is_a_status_with_a_detail():
    async with serving() as (_, _server, channel, _address):
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await pb_grpc.AdminStub(channel).DescribeTopic(pb.DescribeTopicRequest(name="none"), timeout=5)
        assert raised.value.code() is grpc.StatusCode.NOT_FOUND
        detail = _detail(raised.value)
        assert detail.code == pb.UNKNOWN_TOPIC
        assert not detail.retriable
        watch = pb_grpc.TopologyStub(channel).Watch(pb.WatchRequest(cluster_id="another"))
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await watch.read()
        assert _detail(raised.value).code == pb.WRONG_CLUSTER


async def test_a_call_for_another_cluster_is_refused_and_changes_nothing():
    """Addresses are reused, and topic ids are small numbers that two clusters have in common."""
    async with serving() as (node, _server, channel, _address):
        topic = await node.topic("t")
        stub, another = pb_grpc.LogStub(channel), ((CLUSTER_KEY, "another"),)

        async def streamed(number, metadata):
            stream = stub.AppendStream(metadata=metadata)
            await stream.write(append_request(topic, batch(sequence=number)))
            return await stream.read()

        async def unary(number, metadata):
            return await stub.Append(append_request(topic, batch(sequence=number)), timeout=5, metadata=metadata)

        for send in (unary, streamed):
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await send(0, another)
            assert _detail(raised.value).code == pb.WRONG_CLUSTER
            assert _detail(raised.value).outcome == pb.NOT_APPLIED
        mine = ((CLUSTER_KEY, node.cluster_id),)
        for number, (send, metadata) in enumerate(((unary, ()), (unary, mine), (streamed, ()), (streamed, mine))):
            answer = await send(number, metadata)
            assert list(answer.partitions[0].base_offsets) == [number]


async def test_a_defect_is_reported_and_logged_and_the_broker_continues(capsys):
    async with serving() as (_, server, channel, _address):

        async def broken(revision, call):
            raise ZeroDivisionError("secret")

        server.admin._refresh = broken
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await pb_grpc.AdminStub(channel).ListTopics(pb.ListTopicsRequest(), timeout=60)
        assert raised.value.code() is grpc.StatusCode.INTERNAL
        detail = _detail(raised.value)
        assert detail.code == pb.INTERNAL
        assert "secret" not in detail.message
        error_id = detail.message.rpartition("=")[2]
        logged = capsys.readouterr()
        assert error_id in logged.out + logged.err
        await pb_grpc.AdminStub(channel).DescribeCluster(pb.DescribeClusterRequest(), timeout=5)


async def test_an_undecodable_message_does_not_reach_a_service():
    async with serving() as (_, _server, channel, _address):
        call = channel.unary_unary("/raftmq.v1.Log/Append")
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await call(b"\xff" * 100, timeout=5)
        assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert _detail(raised.value).code == pb.INVALID_ARGUMENT
        await pb_grpc.AdminStub(channel).DescribeCluster(pb.DescribeClusterRequest(), timeout=5)


async def test_a_message_above_the_limit_is_refused_unread():
    async with serving() as (node, _server, channel, _address):
        topic = await node.topic()
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await pb_grpc.LogStub(channel).Append(append_request(topic, b"x" * (5 << 20)), timeout=5)
        assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_a_principal_without_the_right_is_refused_on_calls_and_streams():
    reader = Principal("reader", frozenset({Right.CONSUME, Right.DESCRIBE}))

    def authenticate(metadata):
        if metadata.get("key") != "sesame":
            raise RequestError(pb.PERMISSION_DENIED, "unknown key")
        return reader

    async with serving(authenticate=authenticate) as (node, _server, channel, _address):
        topic = await node.topic()
        queue = pb_grpc.LogStub(channel)
        key = (("key", "sesame"),)
        await queue.Poll(poll_request(topic, 0), timeout=5, metadata=key)
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await queue.Append(append_request(topic, batch(1)), timeout=5, metadata=key)
        assert raised.value.code() is grpc.StatusCode.PERMISSION_DENIED
        assert "produce" in _detail(raised.value).message
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await queue.Poll(poll_request(topic, 0), timeout=5)
        assert _detail(raised.value).message == "unknown key"
        stream = queue.AppendStream(metadata=key)
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await stream.read()
        assert raised.value.code() is grpc.StatusCode.PERMISSION_DENIED
        assert node.partition(topic).high_watermark == 0


async def test_only_loopback_is_served_unless_allowed():
    async with running() as node:
        server = GrpcServer(node, node.forwarder)
        with pytest.raises(RequestError) as raised:
            await server.start("0.0.0.0:0")
        assert raised.value.code == pb.INVALID_ARGUMENT
        node.config = dataclasses.replace(node.config, allow_insecure_remote=True)
        assert await server.start("0.0.0.0:0") > 0
        await server.stop(0)


async def test_a_port_in_use_is_an_os_error():
    async with serving() as (node, _server, _channel, address):
        second = GrpcServer(node, node.forwarder)
        with pytest.raises(OSError, match="cannot listen"):
            await second.start(address)
        await second.stop(0)


async def test_health_follows_readiness_and_reflection_names_the_services(monkeypatch):
    monkeypatch.setattr("raftmq.broker.grpc_port.server._HEALTH_SECONDS", 0.01)
    async with serving() as (node, _server, channel, _address):
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service="raftmq.v1.Log"))
        while (await watch.read()).status != health_pb2.HealthCheckResponse.SERVING:
            pass
        node.reasons = [NotReady(Reason.STOPPING, "stopping")]
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        call = stub.ServerReflectionInfo()
        await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        names = {service.name for service in (await call.read()).list_services_response.service}
        assert {"raftmq.v1.Log", "raftmq.v1.Admin", "raftmq.v1.Topology", "grpc.health.v1.Health"} <= names
        call.cancel()


async def test_stop_does_not_wait_for_parked_polls():
    async with serving() as (node, server, channel, _address):
        topic = await node.topic()
        call = asyncio.ensure_future(_poll(channel, topic))
        while not server.log.parked_polls:
            await asyncio.sleep(0)
        await asyncio.wait_for(server.stop(30), 5)
        assert not (await call).partitions


async def test_stop_ends_open_append_streams_after_their_last_answer():
    async with serving() as (node, server, channel, _address):
        topic = await node.topic()
        stream = pb_grpc.LogStub(channel).AppendStream()
        await stream.write(append_request(topic, batch(1), correlation_id=1))
        assert (await stream.read()).correlation_id == 1
        await asyncio.wait_for(server.stop(30), 5)
        assert await stream.read() is grpc.aio.EOF


async def test_a_client_that_disconnects_in_the_middle_leaves_nothing_behind():
    async with serving() as (node, _server, channel, _address):
        topic = await node.topic()
        node.hold_commits = True
        before = len(asyncio.all_tasks())
        stream = pb_grpc.LogStub(channel).AppendStream()
        await stream.write(append_request(topic, batch(1), correlation_id=1))
        watch = pb_grpc.TopologyStub(channel).Watch(pb.WatchRequest())
        assert (await watch.read()).is_full
        core = node.partition(topic).replica.core
        while core.last_index == core.commit_index:
            await asyncio.sleep(0)
        assert len(asyncio.all_tasks()) > before
        stream.cancel()
        watch.cancel()
        node.release_commits()

        async def is_quiet():
            while len(asyncio.all_tasks()) > before + 1:
                await asyncio.sleep(0)

        await asyncio.wait_for(is_quiet(), 5)
        assert node.topology.watchers == 0


async def _poll(channel, topic):
    return await pb_grpc.LogStub(channel).Poll(poll_request(topic, 0, max_wait_ms=60_000), timeout=60)


async def test_a_server_whose_start_was_cancelled_is_stopped():
    """Otherwise it accepts calls until the process ends, and writes them to memory that was freed with grpcio's cancelled requests."""
    started = asyncio.Event()

    class Starting(GrpcServer):
        async def _start_server(self, server: grpc.aio.Server) -> None:
            await super()._start_server(server)
            started.set()
            await asyncio.get_running_loop().create_future()

    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    async with running() as node:
        server = Starting(node, node.forwarder)
        start = asyncio.ensure_future(server.start(f"127.0.0.1:{port}"))
        await started.wait()
        (await asyncio.open_connection("127.0.0.1", port))[1].close()
        start.cancel()
        await asyncio.wait((start,))
        await server.stop(0)
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)
