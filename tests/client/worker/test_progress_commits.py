"""The commits of a worker, on a real broker in memory."""

from __future__ import annotations

import asyncio

from raftmq import Record, Worker
from raftmq.proto import queue_pb2 as pb

from tests.support.broker.harness import Harness, running
from tests.support.client.broker_transport import ADDRESS, BrokerTransport, produce

WAIT_SECONDS = 20


async def until_committed(broker: Harness, topic: pb.Topic, number: int, offset: int) -> None:
    request = pb.FetchOffsetsRequest(group="g")
    request.partitions.add(topic_id=topic.topic_id, partition=number)
    async with asyncio.timeout(WAIT_SECONDS):
        while (await broker.offsets.fetch_offsets(request, broker.call())).partitions[0].offset < offset:
            await asyncio.sleep(0.01)


async def test_a_partition_without_a_leader_does_not_delay_the_commits_of_others() -> None:
    """They waited for it, and so did every later commit of theirs, for up to `request_timeout_ms`."""
    may_end = asyncio.Event()

    async def handle(record: Record) -> None:
        if record.partition == 1:
            await may_end.wait()

    async with running() as broker:
        coordinating = asyncio.create_task(broker.coordinator.run())
        topic = await broker.topic("t", partitions=2)
        worker = Worker(
            "t",
            "g",
            handle,
            bootstrap_servers=ADDRESS,
            transport=BrokerTransport(broker),
            auto_offset_reset="earliest",
            commit_interval_ms=20,
        )
        serving = asyncio.create_task(worker.serve())
        await produce(broker, topic, 0, 10)
        await until_committed(broker, topic, 0, 10)
        await produce(broker, topic, 1, 10)
        async with asyncio.timeout(WAIT_SECONDS):
            while (found := worker.metrics()) is None or found.handlers_running < 10:
                await asyncio.sleep(0.01)
        broker.lose_leadership(topic.partitions[1].group_id)
        may_end.set()
        for end in (20, 30):
            await produce(broker, topic, 0, 10, start=end - 10)
            await until_committed(broker, topic, 0, end)
        broker.campaign(topic.partitions[1].group_id)
        await until_committed(broker, topic, 1, 10)
        worker.stop()
        await serving
        coordinating.cancel()
        await asyncio.wait([coordinating])
