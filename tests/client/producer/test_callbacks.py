"""Callbacks of deliveries: the context and time of their calls, and the effect of their failures."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import AsyncIterator

import pytest
from raftmq import errors
from raftmq.client.producer.batch import BulkDelivery, Delivery
from raftmq.client.producer.producer import Producer
from raftmq.proto import queue_pb2 as pb

from tests.support.client.cancelling import passes
from tests.support.client.fake_broker import FakeCluster, detail
from tests.support.client.memory_transport import MemoryTransport

REQUEST_ID: contextvars.ContextVar[str] = contextvars.ContextVar("request_id", default="")


@pytest.fixture
def cluster() -> FakeCluster:
    cluster = FakeCluster(brokers=1)
    cluster.create_topic("t", partitions=2)
    return cluster


@pytest.fixture
async def producer(cluster: FakeCluster) -> AsyncIterator[Producer]:
    transport = MemoryTransport(cluster)
    async with Producer(bootstrap_servers=transport.addresses, transport=transport) as running:
        yield running


async def test_callbacks_run_in_order_and_before_waiters_resume(producer: Producer):
    seen: list[object] = []
    deliveries = [await producer.send("t", b"%d" % n, partition=0) for n in range(3)]
    for delivery in deliveries:
        delivery.add_done_callback(lambda done: seen.append(done.result().offset))
    assert seen == []
    await deliveries[0]
    assert seen == [0, 1, 2]
    assert not any(delivery._batch._callbacks for delivery in deliveries)


async def test_flush_and_close_return_after_the_callbacks(cluster: FakeCluster):
    transport = MemoryTransport(cluster)
    seen: list[str] = []
    async with Producer(bootstrap_servers=transport.addresses, transport=transport) as producer:
        (await producer.send("t", b"a")).add_done_callback(lambda _: seen.append("flushed"))
        await producer.flush()
        assert seen == ["flushed"]
        (await producer.send("t", b"b")).add_done_callback(lambda _: seen.append("closed"))
    assert seen == ["flushed", "closed"]


async def test_a_callback_is_never_called_by_the_code_that_adds_it(producer: Producer):
    delivery = await producer.send("t", b"x")
    await delivery
    seen: list[Delivery] = []
    delivery.add_done_callback(seen.append)
    assert delivery.done()
    assert seen == [], "known already, and still not on the caller's stack"
    await producer.flush()
    assert seen == [delivery]


async def test_a_failing_callback_is_only_logged(producer: Producer, caplog: pytest.LogCaptureFixture):
    seen: list[str] = []

    def fail(_: Delivery) -> None:
        raise ValueError("the program's own mistake")

    def cancel(_: Delivery) -> None:
        raise asyncio.CancelledError

    delivery = await producer.send("t", b"x")
    delivery.add_done_callback(fail)
    delivery.add_done_callback(cancel)
    delivery.add_done_callback(lambda _: seen.append("next"))
    with caplog.at_level(logging.ERROR, logger="raftmq"):
        assert (await delivery).offset == 0
    assert seen == ["next"]
    assert [record.message for record in caplog.records] == ["delivery_callback_failed"] * 2
    assert "the program's own mistake" in caplog.text
    assert (await producer.send_and_wait("t", b"y")).offset >= 0


async def test_a_callback_runs_in_the_context_of_the_code_that_added_it(producer: Producer):
    seen: list[str] = []
    delivery = await producer.send("t", b"x")

    async def request(name: str) -> None:
        REQUEST_ID.set(name)
        delivery.add_done_callback(lambda _: seen.append(REQUEST_ID.get()))

    await asyncio.gather(request("one"), request("two"))
    await delivery
    assert seen == ["one", "two"]
    assert REQUEST_ID.get() == ""


async def test_flush_does_not_raise_a_failure_that_a_callback_got(cluster: FakeCluster, producer: Producer):
    cluster.append_hook = lambda *_: detail(pb.RECORD_TOO_LARGE)
    seen: list[str] = []

    def on_done(delivery: Delivery) -> None:
        with pytest.raises(errors.RecordTooLargeError) as raised:
            delivery.result()
        seen.append(raised.value.outcome.name)

    (await producer.send("t", b"x")).add_done_callback(on_done)
    await producer.flush()
    assert seen == ["NOT_APPLIED"]


async def test_callbacks_are_called_when_close_gives_up(cluster: FakeCluster):
    cluster.append_hook = lambda *_: "swallow"
    transport = MemoryTransport(cluster)
    producer = Producer(bootstrap_servers=transport.addresses, transport=transport)
    await producer.start()
    seen: list[Delivery] = []
    delivery = await producer.send("t", b"x")
    delivery.add_done_callback(seen.append)
    closing = asyncio.create_task(producer.close())
    await passes(10)
    closing.cancel()
    await asyncio.wait([closing])
    assert closing.cancelled()
    assert seen == [delivery]
    with pytest.raises(errors.ClosedInFlightError):
        delivery.result()


async def test_a_callback_of_many_records_is_called_once_when_all_are_done(cluster: FakeCluster, producer: Producer):
    cluster.append_gate.clear()
    delivery = await producer.send_many("t", [(b"%d" % n, bytes(1000)) for n in range(2000)])
    seen: list[BulkDelivery] = []
    delivery.add_done_callback(seen.append)
    await passes(10)
    assert seen == []
    cluster.append_gate.set()
    await delivery
    await passes(1)
    assert seen == [delivery]
    delivery.add_done_callback(seen.append)
    assert seen == [delivery]
    await passes(1)
    assert seen == [delivery, delivery]


async def test_a_callback_of_no_records_is_called(producer: Producer):
    delivery = await producer.send_many("t", [])
    seen: list[BulkDelivery] = []
    delivery.add_done_callback(seen.append)
    assert seen == []
    await passes(1)
    assert seen == [delivery]
    assert await delivery == []
