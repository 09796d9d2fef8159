"""The choice between data connections and gRPC, and the end of connections."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import AsyncIterator

import pytest
from raftmq import errors
from raftmq.client.base import settings
from raftmq.client.connection import data_port
from raftmq.client.connection.transport import GrpcConnection
from raftmq.client.consumer.consumer import Consumer
from raftmq.client.producer.dispatcher import Dispatcher
from raftmq.client.producer.producer import Producer
from raftmq.methods import POLL
from raftmq.proto import queue_pb2 as pb

from tests.support.client.fake_broker import FakeBroker, FakeCluster, abort, detail
from tests.support.client.fake_data_port import FakeDataPort

POLL_REQUEST = pb.PollRequest()


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with FakeCluster(brokers=1, has_data_ports=True) as running:
        running.create_topic("t")
        yield running


@pytest.fixture
def broker(cluster: FakeCluster) -> FakeBroker:
    return cluster.brokers[1]


async def does_not_know(broker: FakeBroker) -> None:
    broker.cluster.has_data_ports = False


async def offers_none(broker: FakeBroker) -> None:
    await broker.data_port.stop()
    broker.data_port.port = 0


async def refuses_the_call(broker: FakeBroker) -> None:
    async def refuse(request, context):
        await abort(context, detail(pb.THROTTLED))

    broker.open_data_connection = refuse


async def refuses_the_hello(broker: FakeBroker) -> None:
    broker.data_port.refusal = detail(pb.UNSUPPORTED_VERSION)


async def cannot_be_reached(broker: FakeBroker) -> None:
    await broker.data_port.stop()


async def does_not_answer(broker: FakeBroker) -> None:
    broker.data_port.is_silent = True


async def says_a_port_that_is_none(broker: FakeBroker) -> None:
    broker.data_port.port = 70_000


@pytest.mark.parametrize(
    ("make_unusable", "reason", "level"),
    [
        (does_not_know, "UNSUPPORTED_VERSION", logging.INFO),
        (offers_none, "not_offered", logging.INFO),
        (refuses_the_call, "THROTTLED", logging.WARNING),
        (refuses_the_hello, "UNSUPPORTED_VERSION", logging.WARNING),
        (cannot_be_reached, "ConnectionRefusedError", logging.WARNING),
        (does_not_answer, "TimeoutError", logging.WARNING),
        (says_a_port_that_is_none, "OverflowError", logging.WARNING),
    ],
)
async def test_without_a_data_connection_everything_goes_over_grpc(
    cluster: FakeCluster,
    broker: FakeBroker,
    caplog: pytest.LogCaptureFixture,
    monkeypatch,
    make_unusable,
    reason,
    level,
) -> None:
    monkeypatch.setattr(settings, "DATA_CONNECT_SECONDS", 0.2)
    caplog.set_level(logging.INFO, "raftmq")
    await make_unusable(broker)
    servers = cluster.bootstrap_servers
    async with (
        Producer(bootstrap_servers=servers) as producer,
        Consumer("t", bootstrap_servers=servers, auto_offset_reset="earliest") as consumer,
    ):
        for offset in range(3):
            assert (await producer.send_and_wait("t", b"x")).offset == offset
            assert (await anext(consumer)).offset == offset
        assert broker.streams == 1
        assert "Poll" in cluster.clusters_called
        opens = broker.data_opens
        assert opens in (1, 2)  # the producer's and the consumer's, unless one came after the other had failed
        await producer.send_and_wait("t", b"x")
        assert broker.data_opens == opens
        assert not producer.metrics().errors_total
    said = [record for record in caplog.records if "data_connection_unavailable" in record.getMessage()]
    assert [record.levelno for record in said] == [level]
    assert f"address={broker.address} error_code={reason} retry_seconds=60" in said[0].getMessage()


async def test_a_client_of_later_frames_asks_an_older_broker_over_grpc(
    cluster: FakeCluster, broker: FakeBroker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It would say HELLO for the broker's frames, and then send its own."""
    monkeypatch.setattr(data_port, "DATA_VERSION", broker.data_port.version + 2)
    monkeypatch.setattr(data_port, "DATA_VERSION_MIN", broker.data_port.version + 1)
    caplog.set_level(logging.INFO, "raftmq")
    connection = GrpcConnection(broker.address)
    await connection.call(POLL, POLL_REQUEST, 5)
    assert not broker.data_port.open_connections
    assert "Poll" in cluster.clusters_called
    assert "error_code=UNSUPPORTED_VERSION" in caplog.text
    await connection.close()


async def test_a_data_connection_is_tried_again_after_a_while(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "DATA_RETRY_SECONDS", 0.05)
    broker.data_port.refusal = detail(pb.THROTTLED)
    connection = GrpcConnection(broker.address)
    await connection.call(POLL, POLL_REQUEST, 5)
    broker.data_port.refusal = None
    async with asyncio.timeout(10):
        while not broker.data_port.open_connections:
            await connection.call(POLL, POLL_REQUEST, 5)
            await asyncio.sleep(0.01)
    assert broker.data_opens == 2
    await connection.close()


async def test_a_producer_goes_over_to_a_data_connection_that_can_be_had_again(
    cluster: FakeCluster, broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not wait for the attempt, and nothing is repeated."""
    monkeypatch.setattr(settings, "DATA_RETRY_SECONDS", 0.01)
    monkeypatch.setattr(settings, "DATA_CONNECT_SECONDS", 0.2)
    broker.data_port.is_silent = True
    async with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        for _ in range(5):
            await producer.send_and_wait("t", b"x")
        assert broker.streams == 1
        broker.data_port.is_silent = False
        offset = 4
        async with asyncio.timeout(10):
            while not any(connection.calls for connection in broker.data_port.connections):
                offset = (await producer.send_and_wait("t", b"x")).offset
        assert (await producer.send_and_wait("t", b"x")).offset == offset + 1
        assert broker.streams == 1
        assert (producer.metrics().errors_total, producer.metrics().retries_total) == ({}, 0)


async def test_after_a_restart_of_the_broker_a_data_connection_is_tried_immediately(
    cluster: FakeCluster, broker: FakeBroker
) -> None:
    """While it stopped it may have said that it has no data port."""
    cluster.has_data_ports = False
    async with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        await producer.send_and_wait("t", b"x")
        await broker.stop()
        cluster.has_data_ports = True
        await broker.start()
        async with asyncio.timeout(10):
            while not any(connection.calls for connection in broker.data_port.connections):
                await producer.send_and_wait("t", b"x")


async def test_callers_that_come_while_it_opens_share_the_attempt(broker: FakeBroker) -> None:
    connections = [GrpcConnection(broker.address) for _ in range(5)]
    first, *others = [asyncio.create_task(each.call(POLL, POLL_REQUEST, 5)) for each in connections]
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.gather(*others)
    assert first.cancelled()
    assert (broker.data_opens, len(broker.data_port.connections)) == (1, 1)
    await asyncio.gather(*(each.close() for each in connections))
    await broker.data_port.wait(lambda: not broker.data_port.open_connections)


async def test_a_broker_out_of_reach_is_the_calls_own_error() -> None:
    connection = GrpcConnection("127.0.0.1:1")
    with pytest.raises(errors.UnreachableError, match="connection refused"):
        await connection.call(POLL, POLL_REQUEST, 5)
    ends: list[errors.RaftMQError] = []
    connection.append_stream(lambda _: None, ends.append, lambda: None)
    async with asyncio.timeout(5):
        while not ends:
            await asyncio.sleep(0.01)
    assert (type(ends[0]), ends[0].outcome) == (errors.UnreachableError, errors.Outcome.NOT_APPLIED)
    await connection.close()


async def test_a_broker_of_another_cluster_gives_no_data_connection(cluster: FakeCluster, broker: FakeBroker) -> None:
    ours, strangers = GrpcConnection(broker.address), GrpcConnection(broker.address)
    ours.cluster_id, strangers.cluster_id = cluster.cluster_id, "another"
    await ours.call(POLL, POLL_REQUEST, 5)
    with pytest.raises(errors.UnreachableError, match="of another cluster"):
        await strangers.call(POLL, POLL_REQUEST, 5)
    assert len(broker.data_port.connections) == 1
    await asyncio.gather(ours.close(), strangers.close())


async def test_all_clients_of_an_event_loop_have_one_connection_for_appends_and_one_for_polls(
    cluster: FakeCluster, broker: FakeBroker
) -> None:
    servers = cluster.bootstrap_servers
    producers = [Producer(bootstrap_servers=servers) for _ in range(5)]
    consumers = [Consumer("t", bootstrap_servers=servers, auto_offset_reset="earliest") for _ in range(3)]
    clients: list[Producer | Consumer] = [*producers, *consumers]
    await asyncio.gather(*(client.start() for client in clients))
    await asyncio.gather(*(each.send_and_wait("t", b"x") for each in producers))
    for consumer in consumers:
        assert (await anext(consumer)).value == b"x"
    assert len(broker.data_port.open_connections) == 2
    await asyncio.gather(*(client.close() for client in clients[:-1]))
    assert len(broker.data_port.open_connections) == 1 + 1
    await clients[-1].close()
    await broker.data_port.wait(lambda: not broker.data_port.open_connections)
    assert len(broker.data_port.connections) == 2


async def test_a_connection_that_broke_is_opened_again(cluster: FakeCluster, broker: FakeBroker) -> None:
    async with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        for offset in range(3):
            assert (await producer.send_and_wait("t", b"x")).offset == offset
            broker.data_port.connections[-1].abort()
            await broker.data_port.wait(lambda: not broker.data_port.open_connections)
    assert len(broker.data_port.connections) == 3


async def test_a_client_that_closes_while_it_opens_leaves_nothing(broker: FakeBroker) -> None:
    broker.data_port.is_silent = True
    connection = GrpcConnection(broker.address)
    polling = asyncio.create_task(connection.call(POLL, POLL_REQUEST, 5))
    ends: list[errors.RaftMQError] = []
    connection.append_stream(lambda _: None, ends.append, lambda: None)
    await broker.data_port.wait(lambda: len(broker.data_port.open_connections) == 2)
    await connection.close()
    with pytest.raises(errors.BrokenConnectionError, match="the connection is closed"):
        await polling
    assert [type(end) for end in ends] == [errors.BrokenConnectionError]
    await broker.data_port.wait(lambda: not broker.data_port.open_connections)
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("raftmq-data")]


async def test_clients_that_were_forgotten_keep_no_data_connection(broker: FakeBroker) -> None:
    connection = GrpcConnection(broker.address)
    await connection.call(POLL, POLL_REQUEST, 5)
    del connection
    gc.collect()
    await broker.data_port.wait(lambda: not broker.data_port.open_connections)


def test_a_closed_event_loop_says_nothing(capfd: pytest.CaptureFixture[str], recwarn: pytest.WarningsRecorder) -> None:
    async def produce() -> FakeDataPort:
        async with FakeCluster(brokers=1, has_data_ports=True) as cluster:
            cluster.create_topic("t")
            async with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
                await producer.send_and_wait("t", b"x")
            return cluster.brokers[1].data_port

    for _ in range(3):
        assert len(asyncio.run(produce(), debug=True).connections) == 1
    gc.collect()
    assert "Event loop is closed" not in "".join(capfd.readouterr())
    assert not [warning for warning in recwarn if issubclass(warning.category, ResourceWarning)]


async def test_a_defect_in_taking_an_answer_ends_the_producer_and_not_silently(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise KeyError("a defect")

    async with Producer(bootstrap_servers=cluster.bootstrap_servers) as healthy:
        await healthy.send_and_wait("t", b"x")
        with monkeypatch.context() as patched:
            producer = Producer(bootstrap_servers=cluster.bootstrap_servers)
            await producer.start()
            patched.setattr(Dispatcher, "on_answer", fail)
            with pytest.raises(errors.ClosedInFlightError) as raised:
                await producer.send_and_wait("t", b"x")
            assert isinstance(raised.value.__cause__, KeyError)
            await producer.close()
        assert (await healthy.send_and_wait("t", b"x")).offset == 2
