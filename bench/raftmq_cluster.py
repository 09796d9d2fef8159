"""Provide RaftMQ as a system: three broker processes on loopback, used through its SDK.

The brokers run as installed: every record is fsynced on a majority before it is acknowledged.
"""

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import cycle, islice, repeat
from types import TracebackType
from typing import Self

import raftmq
from raftmq.testing import LocalCluster

from bench.queue_workloads import QUEUE_WORKLOADS
from bench.systems import System
from bench.workloads import WORKLOADS, Client, Taken

READ_RECORDS_MAX = 20_000


class _HasAll(raftmq.RebalanceListener):
    """Record the time at which a member has all partitions of its topic, before any fetch."""

    def __init__(self, count: int) -> None:
        self._count = count
        self.began: asyncio.Future[float] = asyncio.get_running_loop().create_future()

    async def on_assigned(self, partitions: frozenset[raftmq.TopicPartition]) -> None:
        assert len(partitions) == self._count, "one member gets everything together"
        self.began.set_result(time.perf_counter())


class _OneProducer(Client):
    def __init__(self, servers: str) -> None:
        self._producer = raftmq.Producer(bootstrap_servers=servers)

    async def __aenter__(self) -> Self:
        await self._producer.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._producer.close()

    async def send_one(self, topic: str, value: bytes) -> None:
        await self._producer.send_and_wait(topic, value=value)


class RaftmqClient(_OneProducer):
    def __init__(self, servers: str) -> None:
        super().__init__(servers)
        self._servers = servers
        self._admin = raftmq.Admin(bootstrap_servers=servers)
        self._queues: dict[str, raftmq.Queue[bytes]] = {}

    async def __aenter__(self) -> Self:
        await self._admin.start()
        return await super().__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for queue in self._queues.values():
            await queue.close()
        await super().__aexit__(kind, error, trace)
        await self._admin.close()

    async def create_topic(self, topic: str, partitions: int) -> None:
        await self._admin.create_topic(topic, partitions=partitions, replication_factor=3)

    async def create_queue(self, topic: str) -> None:
        await self._admin.create_topic(topic, replication_factor=3, kind="queue")
        queue = self._queues[topic] = raftmq.Queue[bytes](topic, bootstrap_servers=self._servers)
        await queue.start()

    async def put(self, topic: str, values: Sequence[bytes]) -> None:
        if len(values) == 1:
            await self._queues[topic].put(values[0])
        else:
            await self._queues[topic].put_many(values)

    async def put_at(self, topic: str, value: bytes, due: float) -> None:
        await self._queues[topic].put(value, not_before=datetime.fromtimestamp(due, UTC))

    async def take(self, topic: str, count: int) -> Sequence[Taken]:
        found = await self._queues[topic].get_many(max_messages=count)
        return [Taken(message.value, message) for message in found]

    async def accept(self, topic: str, taken: Sequence[Taken]) -> None:
        if len(taken) == 1:
            await taken[0].message.ack()
        else:
            await self._queues[topic].ack_many(one.message for one in taken)

    async def delete_topic(self, topic: str) -> None:
        queue = self._queues.pop(topic, None)
        if queue is not None:
            await queue.close()
        await self._admin.delete_topic(topic)

    async def send_many(self, topic: str, values: Sequence[bytes], count: int) -> float:
        started = time.perf_counter()
        await (await self._producer.send_many(topic, zip(repeat(None), islice(cycle(values), count), strict=False)))
        return time.perf_counter() - started

    def producer(self) -> Client:
        return _OneProducer(self._servers)

    async def read_all(self, topic: str, count: int) -> float:
        async with self._consumer(topic) as consumer:
            started = time.perf_counter()
            got = 0
            while got < count:
                for records in (await consumer.getmany(timeout_ms=1000, max_records=READ_RECORDS_MAX)).values():
                    got += len(records)
            return time.perf_counter() - started

    async def read_all_in_group(self, topic: str, count: int) -> float:
        group = f"bench-{uuid.uuid4()}"
        settings = {"bootstrap_servers": self._servers, "auto_offset_reset": "earliest", "group_id": group}
        async with raftmq.Consumer(**settings) as consumer:  # type: ignore[arg-type]
            partitions = len((await self._admin.describe_topic(topic)).partitions)
            is_there = _HasAll(partitions)
            consumer.subscribe([topic], listener=is_there)
            started = await is_there.began
            got = 0
            while got < count:
                for records in (await consumer.getmany(timeout_ms=1000, max_records=READ_RECORDS_MAX)).values():
                    got += len(records)
            return time.perf_counter() - started

    async def receive(self, topic: str) -> AsyncGenerator[bytes, None]:
        async with self._consumer(topic) as consumer:
            async for record in consumer:
                yield record.value or b""

    def _consumer(self, topic: str) -> raftmq.Consumer:
        return raftmq.Consumer(topic, bootstrap_servers=self._servers, auto_offset_reset="earliest")


@contextmanager
def raftmq_systems() -> Iterator[list[System]]:
    with LocalCluster(brokers=3) as cluster:
        servers = cluster.bootstrap_servers
        yield [
            System("RaftMQ", version("raftmq"), lambda: RaftmqClient(servers), frozenset(WORKLOADS | QUEUE_WORKLOADS))
        ]
