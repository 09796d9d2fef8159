"""Provide the sizes and the parts of the measurements of large queues: create, put, work off, and cycles of single messages."""

import asyncio
import os
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from itertools import count
from typing import Self

import raftmq

from bench.queue_workloads import WORKERS
from bench.workloads import VALUE_BYTES

QUEUE, LOG = "load", "beside"
PUT_BATCH = 1000
PUTS_IN_FLIGHT = 8
CALM_SECONDS = 5.0
DAY_MS = 86_400_000
Found = dict[str, float]
"""Figure → value, filled while a measurement runs."""


@dataclass(frozen=True, slots=True)
class LoadScale:
    """Hold the sizes of the measurements. `--load` changes them by name."""

    delayed: int = 1_000_000
    """Messages that wait for up to a day."""
    waiting: int = 50_000
    """Messages that wait while the cycles of one and of many tenants are measured."""
    tenants: int = 10_000
    cycles: int = 200
    """Cycles of each worker in one turn."""
    turns: int = 3
    """Turns in which rates that are compared alternate."""
    due: int = 1_000_000
    """Messages that are due in the same second."""
    due_after_seconds: float = 120.0
    """Time to enqueue them."""
    due_watched_seconds: float = 30.0
    queues: int = 100
    pollers: int = 100
    """Consumers of each idle queue."""
    idle_seconds: float = 30.0
    ready: int = 10_000_000
    """Messages of one tenant that are ready."""
    noisy: int = 1_000_000
    """Messages of the noisy tenant that are ready."""
    dwell_seconds: float = 60.0
    """Time for which the dwell of the quiet tenant is measured, alone and beside the noisy one."""
    saturated_seconds: float = 30.0
    saturating_puts: int = 8
    """Batches of delayed messages in flight. The leader always has one to work on, and a call of the probe waits for few."""
    saturating_batch: int = 50
    """Messages of each of these batches."""
    kept: int = 10_000
    """Messages of 1 KiB that stay in the queue whose files are measured."""
    file_seconds: float = 300.0
    """Duration of the measurement of files."""
    file_rate: int = 5000
    """Cycles per second during that time."""

    def with_values(self, values: Mapping[str, str]) -> Self:
        """Return a copy with these values. Raises ValueError for an unknown name or a value that is no positive number."""
        known = {field.name: type(getattr(self, field.name)) for field in fields(self)}
        if unknown := [name for name in values if name not in known]:
            raise ValueError(f"{unknown[0]!r} is not one of {', '.join(known)}")
        parsed = {name: known[name](text) for name, text in values.items()}
        if wrong := [name for name, value in parsed.items() if not value > 0]:
            raise ValueError(f"{wrong[0]} must be above 0")
        return replace(self, **parsed)


FULL = LoadScale()
QUICK = LoadScale(
    delayed=2000,
    waiting=500,
    tenants=50,
    cycles=2,
    turns=1,
    due=1000,
    due_after_seconds=10.0,
    due_watched_seconds=1.0,
    queues=3,
    pollers=3,
    idle_seconds=0.5,
    ready=2000,
    noisy=3000,
    dwell_seconds=3.0,
    saturated_seconds=4.0,
    kept=500,
    file_seconds=3.0,
    file_rate=500,
)


async def create(servers: str, *configs: dict[str, str]) -> list[str]:
    """Create a queue topic for each configuration, and the log topic. Return the names of the queues."""
    names = [f"{QUEUE}-{number}" for number in range(len(configs))]
    async with raftmq.Admin(bootstrap_servers=servers) as admin:
        for name, config in zip(names, configs, strict=True):
            await admin.create_topic(name, 1, 3, config, kind="queue")
        await admin.create_topic(LOG, 1, 3)
    return names


class DelayedMessages:
    """Makes messages whose due times are drawn uniformly within a day: rows go to random places of the file."""

    def __init__(self, value: bytes, seed: int) -> None:
        self._value = value
        self._rng = random.Random(seed)

    def __call__(self, _number: int) -> raftmq.NewMessage[bytes]:
        """Make the next message."""
        return raftmq.NewMessage(self._value, delay_ms=self._rng.randrange(DAY_MS))


async def put_all(
    queue: raftmq.Queue[bytes],
    total: int,
    message_of: Callable[[int], raftmq.NewMessage[bytes]],
    per_second: float = float("inf"),
) -> float:
    """Put messages in batches, at most so many per second. Return the seconds until the last acknowledgement."""
    room = asyncio.Semaphore(PUTS_IN_FLIGHT)

    async def put(numbers: range) -> None:
        try:
            await queue.put_many([message_of(number) for number in numbers])
        finally:
            room.release()

    started = time.perf_counter()
    async with asyncio.TaskGroup() as tasks:
        for first in range(0, total, PUT_BATCH):
            await asyncio.sleep(max(0.0, started + first / per_second - time.perf_counter()))
            await room.acquire()
            tasks.create_task(put(range(first, min(first + PUT_BATCH, total))))
    return time.perf_counter() - started


async def cycle_rate(queue: raftmq.Queue[bytes], cycles: int, tenants: int = 0) -> float:
    """Return the cycles per second of as many workers as `queue_cycles` has, each with one message at a time.

    With tenants, each message is of the next one in turn.
    """
    value, numbers = os.urandom(VALUE_BYTES), count()

    async def work(cycles: int) -> None:
        for _ in range(cycles):
            await queue.put(value, tenant=f"t{next(numbers) % tenants}" if tenants else None)
            message = await queue.get()
            assert message is not None
            await message.ack()

    await asyncio.gather(*(work(1 + cycles // 10) for _ in range(WORKERS)))
    started = time.perf_counter()
    await asyncio.gather(*(work(cycles) for _ in range(WORKERS)))
    return WORKERS * cycles / (time.perf_counter() - started)
