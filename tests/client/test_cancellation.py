"""Ctrl-C at any moment: the caller sees only its cancellation, whatever the client and its connections are doing.

Every test cancels the caller's task after a number of passes of the event loop, over a transport without sockets. So every possible point is
covered.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator

import pytest
from raftmq import errors
from raftmq.client.admin.admin import Admin
from raftmq.client.codec.batch import encode_body
from raftmq.client.consumer.consumer import Consumer
from raftmq.client.producer.producer import Producer

from tests.support.client.fake_broker import FakeCluster
from tests.support.client.memory_transport import MemoryTransport

POINTS = 160


class Scene:
    def __init__(self) -> None:
        self.cluster = FakeCluster(brokers=2)
        topic = self.cluster.create_topic("t", partitions=2)
        topic.partitions[0].append(encode_body([b"first"], None, 1).seal(), 1)
        self.transport = MemoryTransport(self.cluster)

    @property
    def settings(self) -> dict[str, object]:
        return {"bootstrap_servers": self.transport.addresses, "transport": self.transport}


async def produce(scene: Scene) -> None:
    """Produce as the demo does: one task sends chunks, and others in its group await them."""
    async with Producer(**scene.settings, buffer_memory=128 * 1024, max_batch_size=8 * 1024) as producer:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(3):
                delivery = await producer.send_many("t", [(None, bytes(900))] * 40)
                tasks.create_task(follow(delivery))
        await producer.send_and_wait("t", b"single", partition=1)
        await producer.flush()


async def follow(delivery: Awaitable[object]) -> None:
    await delivery


async def consume(scene: Scene) -> None:
    async with Consumer("t", **scene.settings, auto_offset_reset="earliest", fetch_max_wait_ms=5) as consumer:
        await consumer.getmany(timeout_ms=5)
        await consumer.seek_to_beginning()
        async for _ in consumer:
            break


async def administrate(scene: Scene) -> None:
    async with Admin(**scene.settings) as admin:
        await admin.create_topic("u", partitions=2)
        await admin.describe_cluster()
        await admin.delete_topic("u")


@contextlib.contextmanager
def no_noise() -> Iterator[None]:
    """Check that nothing reaches the event loop's exception handler, and that no task of the SDK survives the block."""
    loop = asyncio.get_running_loop()
    heard: list[dict[str, object]] = []
    loop.set_exception_handler(lambda _, context: heard.append(context))
    yield
    assert heard == []
    assert [task for task in asyncio.all_tasks() if task.get_name().startswith("raftmq")] == []


@pytest.mark.parametrize("is_cut", [False, True], ids=["connected", "cut off"])
@pytest.mark.parametrize("work", [produce, consume, administrate])
async def test_cancelling_at_any_point_raises_only_cancelled_error(
    work: Callable[[Scene], Awaitable[None]], is_cut: bool
):
    for point in range(POINTS):
        with no_noise():
            scene = Scene()
            task = asyncio.ensure_future(work(scene))
            for _ in range(point):
                await asyncio.sleep(0)
            if is_cut:
                for address in scene.transport.brokers:
                    scene.transport.cut(address)
                for _ in range(point % 4):
                    await asyncio.sleep(0)
            for _ in range(2):  # the second one, because closing does not wait for unavailable brokers
                task.cancel()
                for _ in range(7):
                    await asyncio.sleep(0)
            async with asyncio.timeout(10):
                await asyncio.wait([task])
            assert task.cancelled() or task.exception() is None, (point, task)
    assert is_cut or not task.cancelled(), "the last point is after the end: none was left out"


async def test_close_writes_accepted_records_after_one_ctrl_c():
    """The first cancellation ends the caller's work. Records accepted before are still written by `close`."""
    for point in range(20, POINTS, 5):
        with no_noise():
            scene = Scene()
            task = asyncio.ensure_future(produce(scene))
            for _ in range(point):
                await asyncio.sleep(0)
            task.cancel()
            async with asyncio.timeout(10):
                await asyncio.wait([task])
            assert task.cancelled() or task.exception() is None
            written = [p.end for p in scene.cluster.topics["t"].partitions]
            assert (sum(written) - 1) % 40 in (0, 1), "whole chunks, and maybe the single record"


async def test_close_during_the_start_ends_the_start():
    scene = Scene()
    for address in scene.transport.brokers:
        scene.transport.cut(address)
    with no_noise():
        producer = Producer(**scene.settings)
        starting = asyncio.ensure_future(producer.start())
        for _ in range(5):
            await asyncio.sleep(0)
        await producer.close()
        with pytest.raises(errors.ClosedClientError):
            async with asyncio.timeout(5):
                await starting
