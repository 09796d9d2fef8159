"""Loops that never have to wait yield to the event loop: sends into a buffer with space, and reads of buffered records."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from itertools import count
from typing import Any

import pytest
from raftmq.client.base import loop_budget, settings
from raftmq.client.consumer.consumer import Consumer
from raftmq.client.producer.producer import Producer
from raftmq.types import TopicPartition

from tests.support.client.fake_broker import FakeCluster
from tests.support.client.memory_transport import MemoryTransport

LOOKS = 20
COUNT = LOOKS * settings.LOOP_LOOK_CALLS


@pytest.fixture(autouse=True)
def slow_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let more time pass between two looks at the clock than calls may occupy the loop."""
    times = count(0, settings.LOOP_HOLD_SECONDS * 1.5)
    monkeypatch.setattr(loop_budget, "monotonic", lambda: next(times))


@pytest.fixture
async def transport() -> MemoryTransport:
    cluster = FakeCluster()
    cluster.create_topic("t", 3)
    return MemoryTransport(cluster)


@pytest.fixture
async def producer(transport: MemoryTransport) -> AsyncIterator[Producer]:
    async with Producer(bootstrap_servers=transport.addresses, transport=transport) as producer:
        yield producer


async def turns_during(work: Awaitable[object]) -> int:
    """Return how often another task runs until `work` is done, which the current task runs."""
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    task = asyncio.create_task(other())
    await work
    found = turns
    task.cancel()
    return found


async def sends(producer: Producer, numbers: Iterator[int] | range) -> None:
    for number in numbers:
        await producer.send("t", b"%d" % number, partition=0)


async def test_a_loop_of_sends_lets_other_tasks_run(producer: Producer) -> None:
    assert await turns_during(sends(producer, range(COUNT))) >= LOOKS - 2


async def test_sends_of_many_tasks_keep_their_order(producer: Producer, transport: MemoryTransport) -> None:
    deliveries = await asyncio.gather(*(producer.send("t", b"x", partition=0) for _ in range(COUNT)))
    await producer.flush()
    assert [delivery.result().offset for delivery in deliveries] == list(range(COUNT))


async def test_a_send_cancelled_while_it_yields_accepts_nothing(producer: Producer) -> None:
    taken = 0

    async def send_on() -> None:
        nonlocal taken
        while True:
            await producer.send("t", b"x", partition=0)
            taken += 1

    task = asyncio.create_task(send_on())
    while not taken:
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    await producer.flush()
    assert (await producer.send_and_wait("t", b"last", partition=0)).offset == taken


async def test_send_many_lets_other_tasks_run_without_filling_a_batch(producer: Producer) -> None:
    pairs = [(b"%d" % number, b"x" * 1000) for number in range(1000)]  # 1 MB in three partitions
    before = producer.metrics().batches_total
    assert await turns_during(producer.send_many("t", pairs)) >= 3
    assert before == 0


async def written(producer: Producer) -> None:
    await producer.send_many("t", [(None, b"%d" % number) for number in range(COUNT)], partition=0)
    await producer.flush()


@pytest.fixture
async def consumer(producer: Producer, transport: MemoryTransport) -> AsyncIterator[Consumer]:
    await written(producer)
    settings: dict[str, Any] = {"bootstrap_servers": transport.addresses, "transport": transport}
    async with Consumer(auto_offset_reset="earliest", **settings) as consumer:
        consumer.assign([TopicPartition("t", 0)])
        assert (await anext(consumer)).offset == 0  # the others came with it
        await consumer.seek(TopicPartition("t", 0), 0)
        assert (await anext(consumer)).offset == 0
        yield consumer


async def read_one_by_one(consumer: Consumer) -> None:
    for offset in range(1, COUNT):
        assert (await anext(consumer)).offset == offset


async def read_by_polls(consumer: Consumer) -> None:
    expected = 1
    while expected < COUNT:
        for records in (await consumer.getmany(max_records=settings.LOOP_LOOK_CALLS)).values():
            assert [record.offset for record in records] == list(range(expected, expected + len(records)))
            expected += len(records)


@pytest.mark.parametrize("read", [read_one_by_one, read_by_polls])
async def test_a_loop_over_buffered_records_lets_other_tasks_run(
    consumer: Consumer, read: Callable[[Consumer], Awaitable[None]]
) -> None:
    assert await turns_during(read(consumer)) >= LOOKS - 3
