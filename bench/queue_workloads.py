"""Define the workloads on queues, over `Client`: put, lease and accept. A cycle is all three of one message.

Must not know any system. Invariant: a workload ends only when every message that it put is accepted.
"""

import asyncio
import math
import os
import random
import time
from collections.abc import Awaitable, Callable

from bench.workloads import VALUE_BYTES, Client, Figure, Scale, Workload, percentiles

WORKERS = 100
BATCH = 100
BATCH_WORKERS = 8
HANDLER_PER_SECOND = 100
HANDLERS = 10
"""One alone would fall behind where an acceptance takes more than 10 ms."""
DUE_MS = (200, 1500)


async def queue_cycles(client: Client, topic: str, scale: Scale, share: float) -> dict[str, float]:
    value = os.urandom(VALUE_BYTES)

    async def worker(count: int) -> None:
        for _ in range(count):
            await client.put(topic, [value])
            await client.accept(topic, await client.take(topic, 1))

    await asyncio.gather(*(worker(1) for _ in range(WORKERS)))
    started = time.perf_counter()
    await asyncio.gather(*(worker(scale.queue_cycles) for _ in range(WORKERS)))
    return {"rate": WORKERS * scale.queue_cycles / (time.perf_counter() - started)}


async def queue_batches(client: Client, topic: str, scale: Scale, share: float) -> dict[str, float]:
    values = [os.urandom(VALUE_BYTES) for _ in range(BATCH)]

    done = 0

    async def take() -> None:
        nonlocal done
        taken = await client.take(topic, BATCH)
        await client.accept(topic, taken)
        done += len(taken)

    async def worker(batches: int) -> None:
        for _ in range(batches):
            await client.put(topic, values)
            await take()

    async def all_workers(batches: int) -> None:
        nonlocal done
        done = 0
        await asyncio.gather(*(worker(batches) for _ in range(BATCH_WORKERS)))
        while done < BATCH_WORKERS * batches * BATCH:
            await take()

    await all_workers(1)
    batches = max(1, int(scale.queue_batches * share))
    started = time.perf_counter()
    await all_workers(batches)
    return {"rate": BATCH_WORKERS * batches * BATCH / (time.perf_counter() - started)}


async def queue_latency(client: Client, topic: str, scale: Scale, share: float) -> dict[str, float]:
    """Messages carry the time before they were put. Their handler is waiting."""

    async def put(_: int) -> None:
        await client.put(topic, [b"%.9f" % time.perf_counter()])

    return percentiles(
        await _handled(client, topic, scale.queue_latency, put, lambda value: time.perf_counter() - float(value))
    )


async def queue_due(client: Client, topic: str, scale: Scale, share: float) -> dict[str, float]:
    """Messages carry their due time in whole milliseconds, on the machine's clock. An early one is a defect, and is counted."""
    chance = random.Random(7)

    async def put(_: int) -> None:
        due = math.ceil(time.time() * 1000 + chance.uniform(*DUE_MS)) / 1000
        await client.put_at(topic, b"%.9f" % due, due)

    times = await _handled(client, topic, scale.queue_latency, put, lambda value: time.time() - float(value))
    return percentiles(times) | {"early": float(sum(seconds < 0 for seconds in times))}


async def _handled(
    client: Client,
    topic: str,
    count: int,
    put: Callable[[int], Awaitable[None]],
    seconds_of: Callable[[bytes], float],
) -> list[float]:
    """Put at a fixed rate, and return the times that the handler found."""
    times: list[float] = []

    taking = 0

    async def handle() -> None:
        nonlocal taking
        while taking < count:
            taking += 1
            taken = await client.take(topic, 1)
            times.extend(seconds_of(one.value) for one in taken)
            await client.accept(topic, taken)

    await client.put(topic, [b"0"])
    await client.accept(topic, await client.take(topic, 1))
    async with asyncio.TaskGroup() as tasks:
        for _ in range(HANDLERS):
            tasks.create_task(handle())
        began = time.perf_counter()
        for number in range(count):
            await asyncio.sleep(max(0.0, began + number / HANDLER_PER_SECOND - time.perf_counter()))
            tasks.create_task(_put(put, number))
    return times


async def _put(put: Callable[[int], Awaitable[None]], number: int) -> None:
    await put(number)


QUEUE_WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload(
            "queue_cycles", "queue: put, lease, accept", (Figure("rate", "cycles/s", True, 8_000),), queue_cycles, is_queue=True
        ),
        Workload(
            "queue_batches", "queue: the same by 100", (Figure("rate", "messages/s", True, 60_000),), queue_batches,
            is_queue=True,
        ),
        Workload(
            "queue_latency", "queue: put to handler at 100/s",
            (Figure("p50", "ms", False, 4), Figure("p99", "ms", False, 12)), queue_latency, is_queue=True,
        ),
        Workload(
            "queue_due", "queue: lateness of due messages",
            (Figure("p50", "ms", False, 3), Figure("p99", "ms", False, 10), Figure("early", "messages", False, 0)),
            queue_due, is_queue=True,
        ),
    )
}  # fmt: skip
NOT_OF_NATS = frozenset({"queue_due"})
"""A message of NATS that is not delivered before a given time needs a server of a later version and another kind of stream."""
