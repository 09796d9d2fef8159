"""Clients of one event loop share their connections, and none is affected when another one closes."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Iterator

import pytest
from raftmq.client.admin.admin import Admin
from raftmq.client.connection import shared_channel, transport
from raftmq.client.connection.transport import GrpcConnection
from raftmq.client.consumer.consumer import Consumer
from raftmq.client.producer.producer import Producer
from raftmq.errors import BrokenConnectionError
from raftmq.methods import DESCRIBE_CLUSTER
from raftmq.proto import queue_pb2 as pb

from tests.support.client.fake_broker import FakeCluster


def left_open() -> set[tuple[asyncio.AbstractEventLoop, str]]:
    """Return the loops and addresses of the channels that are open in this process. Tests of other modules may have left some."""
    return set(shared_channel._channels)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Collect the addresses of channels as they are opened."""
    addresses: list[str] = []
    before = left_open()
    open_channel = transport.open_channel

    def noted(address: str):
        addresses.append(address)
        return open_channel(address)

    monkeypatch.setattr(transport, "open_channel", noted)
    yield addresses
    assert left_open() <= before


async def test_clients_of_every_kind_have_one_connection_to_each_broker(
    cluster: FakeCluster, opened: list[str]
) -> None:
    cluster.create_topic("t", 2)
    servers = cluster.bootstrap_servers
    producers = [Producer(bootstrap_servers=servers) for _ in range(10)]
    consumers = [Consumer("t", bootstrap_servers=servers, auto_offset_reset="earliest") for _ in range(3)]
    admin = Admin(bootstrap_servers=servers)
    clients: list[Producer | Consumer | Admin] = [*producers, *consumers, admin]
    await asyncio.gather(*(client.start() for client in clients))
    await asyncio.gather(*(p.send_and_wait("t", b"x", partition=n % 2) for n, p in enumerate(producers)))
    for consumer in consumers:
        assert (await anext(consumer)).value == b"x"
    assert sorted(opened) == sorted(set(servers.split(",")))
    await asyncio.gather(*(client.close() for client in clients))


async def test_closing_a_client_does_not_affect_others(cluster: FakeCluster, opened: list[str]) -> None:
    cluster.create_topic("t")
    servers = cluster.bootstrap_servers
    async with Producer(bootstrap_servers=servers) as staying:
        open_delivery = await staying.send("t", b"x")
        for _ in range(3):
            async with Admin(bootstrap_servers=servers) as admin, Producer(bootstrap_servers=servers) as going:
                await admin.list_topics()
                await going.send_and_wait("t", b"x")
        await open_delivery
        assert (await staying.send_and_wait("t", b"x")).offset == 4
        metrics = staying.metrics()
        assert (metrics.retries_total, metrics.errors_total) == (0, {})
    assert opened.count(cluster.brokers[1].address) == 1  # the leader's


async def test_the_last_client_closes_the_channel_and_the_next_opens_another(
    cluster: FakeCluster, opened: list[str]
) -> None:
    address = cluster.brokers[1].address
    first, second = GrpcConnection(address), GrpcConnection(address)
    await first.close()
    with pytest.raises(BrokenConnectionError, match="the connection is closed"):
        await first.call(DESCRIBE_CLUSTER, pb.DescribeClusterRequest(), 5)
    await second.call(DESCRIBE_CLUSTER, pb.DescribeClusterRequest(), 5)
    closing = asyncio.create_task(second.close())
    await closing
    third = GrpcConnection(address)
    await third.call(DESCRIBE_CLUSTER, pb.DescribeClusterRequest(), 5)
    await third.close()
    assert opened == [address, address]


async def test_an_unclosed_client_keeps_no_channel(cluster: FakeCluster, opened: list[str]) -> None:
    address = cluster.brokers[1].address
    forgotten, closed = GrpcConnection(address), GrpcConnection(address)
    await forgotten.call(DESCRIBE_CLUSTER, pb.DescribeClusterRequest(), 5)
    del forgotten
    gc.collect()
    await closed.close()
    assert (asyncio.get_running_loop(), address) not in left_open()


async def test_event_loops_do_not_share(cluster: FakeCluster, opened: list[str]) -> None:
    address = cluster.brokers[1].address

    async def call_and_close() -> None:
        connection = GrpcConnection(address)
        await connection.call(DESCRIBE_CLUSTER, pb.DescribeClusterRequest(), 5)
        await connection.close()

    mine = GrpcConnection(address)
    thread = threading.Thread(target=asyncio.run, args=(call_and_close(),))
    thread.start()
    await asyncio.to_thread(thread.join)
    await mine.call(DESCRIBE_CLUSTER, pb.DescribeClusterRequest(), 5)
    await mine.close()
    assert opened == [address, address]
