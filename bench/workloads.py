"""Define the workloads, one for each row of the table of targets, over `Client`, so that every system does the same work.

Must not know any system. A client library is used through `Client` only.

Invariants: a workload ends only when all records it sent are acknowledged, or all records it waits for have come. Values are random, so
that compression helps no system. Times are `perf_counter` of this process, and start after connecting.
"""

import asyncio
import os
import statistics
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

PARTITIONS = 6
SENDERS = 100
PRODUCERS = 300
END_TO_END_PER_SECOND = 1000
VALUE_BYTES = 100
DISTINCT_VALUES = 1024
GROUP_TURNS = 3


class Client:
    """Use a client library on one cluster for one round. A subclass has the methods that its workloads need."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    async def create_topic(self, topic: str, partitions: int) -> None:
        """Create a topic with three replicas of each partition."""
        raise NotImplementedError

    async def delete_topic(self, topic: str) -> None:
        raise NotImplementedError

    async def send_many(self, topic: str, values: Sequence[bytes], count: int) -> float:
        """Send `count` records in the fastest way, repeating `values`. Return the seconds from start to last acknowledgement."""
        raise NotImplementedError

    async def send_one(self, topic: str, value: bytes) -> None:
        """Send a record and wait for its acknowledgement."""
        raise NotImplementedError

    def producer(self) -> "Client":
        """Return another client of the cluster, with its own producer. Only its `send_one` is called."""
        raise NotImplementedError

    async def read_all(self, topic: str, count: int) -> float:
        """Read a topic of `count` records from its beginning. Return the seconds from the first request to the last record."""
        raise NotImplementedError

    async def read_all_in_group(self, topic: str, count: int) -> float:
        """Read as `read_all`, as the only member of a consumer group with default commits. Time starts at its assignment."""
        raise NotImplementedError

    def receive(self, topic: str) -> AsyncGenerator[bytes, None]:
        """Yield the values of the topic's records as they come, from its beginning."""
        raise NotImplementedError

    async def create_queue(self, topic: str) -> None:
        """Create a work queue of one partition with three replicas."""
        raise NotImplementedError

    async def put(self, topic: str, values: Sequence[bytes]) -> None:
        """Enqueue messages together, and wait for their acknowledgement."""
        raise NotImplementedError

    async def put_at(self, topic: str, value: bytes, due: float) -> None:
        """Enqueue a message that is due at a time since the epoch."""
        raise NotImplementedError

    async def take(self, topic: str, count: int) -> Sequence["Taken"]:
        """Lease up to `count` messages, as soon as there is one."""
        raise NotImplementedError

    async def accept(self, topic: str, taken: Sequence["Taken"]) -> None:
        """Settle leased messages as done, and wait for the acknowledgement."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Taken:
    """A leased message of a queue."""

    value: bytes
    message: Any
    """The object of the system's client that settles it."""


@dataclass(frozen=True, slots=True)
class Scale:
    """Hold the number of records of each workload in a round."""

    produce_100b: int = 1_500_000
    produce_1kib: int = 300_000
    latency: int = 3000
    senders: int = 400
    """Number of records of each sender."""
    producers: int = 40
    """Number of records of each producer."""
    read_back: int = 1_500_000
    read_back_group: int = 1_500_000
    end_to_end: int = 5000
    queue_cycles: int = 200
    """Cycles of each worker."""
    queue_batches: int = 60
    """Batches of each worker."""
    queue_latency: int = 2000
    warm_up: int = 200
    """Records sent one at a time before the measurement, so that clients and brokers know the topic's leaders."""


FULL = Scale()
QUICK = Scale(
    produce_100b=5000,
    produce_1kib=500,
    latency=50,
    senders=3,
    producers=1,
    read_back=5000,
    read_back_group=5000,
    end_to_end=200,
    queue_cycles=2,
    queue_batches=1,
    queue_latency=50,
    warm_up=5,
)
"""The scale that proves that the code works, and that warms systems up. Its figures mean nothing."""


@dataclass(frozen=True, slots=True)
class Figure:
    """Describe one number that a workload gives."""

    name: str
    unit: str
    is_higher_better: bool
    target: float | None = None
    """The value that RaftMQ must reach, a minimum if `is_higher_better`, otherwise a maximum. None: for information."""

    def is_met(self, value: float) -> bool:
        return self.target is None or (value >= self.target if self.is_higher_better else value <= self.target)


@dataclass(frozen=True, slots=True)
class Workload:
    """Describe one row of the table."""

    name: str
    title: str
    figures: tuple[Figure, ...]
    run: Callable[[Client, str, Scale, float], Awaitable[dict[str, float]]]
    """(client, an empty topic, scale, share) → figure → value. `share` is the part of the bulk for a slow client."""
    is_queue: bool = False
    """Whether the topic is a queue."""


def random_values(size: int) -> list[bytes]:
    return [os.urandom(size) for _ in range(DISTINCT_VALUES)]


def percentiles(seconds: Sequence[float]) -> dict[str, float]:
    cuts = statistics.quantiles(seconds, n=100)
    return {"p50": cuts[49] * 1000, "p99": cuts[98] * 1000}


async def warm_up(client: Client, topic: str, scale: Scale) -> None:
    value = os.urandom(VALUE_BYTES)
    for _ in range(scale.warm_up):
        await client.send_one(topic, value)


async def produce_100b(client: Client, topic: str, scale: Scale, share: float) -> dict[str, float]:
    count = int(scale.produce_100b * share)
    await warm_up(client, topic, scale)
    return {"rate": count / await client.send_many(topic, random_values(VALUE_BYTES), count)}


async def produce_1kib(client: Client, topic: str, scale: Scale, share: float) -> dict[str, float]:
    count = int(scale.produce_1kib * share)
    await warm_up(client, topic, scale)
    return {"rate": count * 1024 / 1e6 / await client.send_many(topic, random_values(1024), count)}


async def latency(client: Client, topic: str, scale: Scale, share: float) -> dict[str, float]:
    value = os.urandom(VALUE_BYTES)
    await warm_up(client, topic, scale)
    times = []
    for _ in range(scale.latency):
        started = time.perf_counter()
        await client.send_one(topic, value)
        times.append(time.perf_counter() - started)
    return percentiles(times)


async def senders(client: Client, topic: str, scale: Scale, share: float) -> dict[str, float]:
    value = os.urandom(VALUE_BYTES)
    await warm_up(client, topic, scale)

    async def sender() -> None:
        for _ in range(scale.senders):
            await client.send_one(topic, value)

    started = time.perf_counter()
    await asyncio.gather(*(sender() for _ in range(SENDERS)))
    return {"rate": SENDERS * scale.senders / (time.perf_counter() - started)}


async def producers(client: Client, topic: str, scale: Scale, share: float) -> dict[str, float]:
    """Many producers with one record each: nothing of them can travel in one batch."""
    value = os.urandom(VALUE_BYTES)
    await warm_up(client, topic, scale)

    async with AsyncExitStack() as stack:
        others = [await stack.enter_async_context(client.producer()) for _ in range(PRODUCERS)]
        await asyncio.gather(*(other.send_one(topic, value) for other in others))

        async def send(other: Client) -> None:
            for _ in range(scale.producers):
                await other.send_one(topic, value)

        started = time.perf_counter()
        await asyncio.gather(*(send(other) for other in others))
        return {"rate": PRODUCERS * scale.producers / (time.perf_counter() - started)}


async def read_back(client: Client, topic: str, scale: Scale, share: float) -> dict[str, float]:
    count = int(scale.read_back * share)
    await warm_up(client, topic, scale)
    await client.send_many(topic, random_values(VALUE_BYTES), count - scale.warm_up)
    return {"rate": count / await client.read_all(topic, count)}


async def read_back_group(client: Client, topic: str, scale: Scale, share: float) -> dict[str, float]:
    """Read without and with a consumer group in turns, so that a noisy moment affects both. Compare the best of each."""
    count = int(scale.read_back_group * share)
    await warm_up(client, topic, scale)
    await client.send_many(topic, random_values(VALUE_BYTES), count - scale.warm_up)
    alone, in_group = [], []
    for _ in range(GROUP_TURNS):
        alone.append(await client.read_all(topic, count))
        in_group.append(await client.read_all_in_group(topic, count))
    return {"share": 100 * min(alone) / min(in_group)}


async def end_to_end(client: Client, topic: str, scale: Scale, share: float) -> dict[str, float]:
    """Send records that carry their time of sending. They do not wait for each other, so a slow one delays no other."""
    times: list[float] = []
    is_receiving = asyncio.Event()

    async def receive() -> None:
        async with aclosing(client.receive(topic)) as values:
            async for value in values:
                if is_receiving.is_set():
                    times.append(time.perf_counter() - float(value))
                is_receiving.set()
                if len(times) == scale.end_to_end:
                    return

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(receive())
        await client.send_one(topic, b"first")
        await is_receiving.wait()
        began = time.perf_counter()
        for number in range(scale.end_to_end):
            await asyncio.sleep(max(0.0, began + number / END_TO_END_PER_SECOND - time.perf_counter()))
            tasks.create_task(client.send_one(topic, b"%.9f" % time.perf_counter()))
    return percentiles(times)


def _latencies(p50: float, p99: float) -> tuple[Figure, ...]:
    return (Figure("p50", "ms", False, p50), Figure("p99", "ms", False, p99))


WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload(
            "produce_100b", "batched produce, 100 B", (Figure("rate", "records/s", True, 1_000_000),), produce_100b
        ),
        Workload("produce_1kib", "batched produce, 1 KiB", (Figure("rate", "MB/s", True, 150),), produce_1kib),
        Workload("latency", "one record at a time", _latencies(1.8, 6), latency),
        Workload("senders", "100 senders, one record each", (Figure("rate", "records/s", True, 20_000),), senders),
        Workload("producers", "300 producers, one record each", (Figure("rate", "records/s", True, 7_400),), producers),
        Workload("read_back", "read back", (Figure("rate", "records/s", True, 1_500_000),), read_back),
        Workload(
            "read_back_group",
            "read back through a group",
            (Figure("share", "% of the rate without a group", True, 90),),
            read_back_group,
        ),
        Workload("end_to_end", "produce to receive at 1,000/s", _latencies(3, 10), end_to_end),
    )
}
