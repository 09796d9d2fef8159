"""Measure queues that hold much: a million delayed messages, thousands of tenants, a million due in one second, and many that are idle.

Usage: python -m bench.queue_loads [--quick]

Each measurement has a cluster of its own. Linux only, because it reads /proc. Invariant: a log topic beside the queue is written
meanwhile, because the load of one partition must not delay the others.
"""

import asyncio
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import raftmq
from raftmq.testing import LocalCluster

from bench.partitions import cpu_seconds
from bench.workloads import VALUE_BYTES, Figure, percentiles
from bench.written_beside import PAUSE_SECONDS, written_beside

QUEUE, LOG = "load", "beside"
DAY_MS = 86_400_000
PUT_BATCH = 1000
PUTS_IN_FLIGHT = 8
TAKE_BATCH = 100
TAKERS = 8
PUT_PER_SECOND = 20_000
"""Delayed messages that are put steadily while the delay of others is measured."""
CALM_SECONDS = 5.0
KIB = 1024


@dataclass(frozen=True, slots=True)
class LoadScale:
    """Hold the sizes of the measurements."""

    delayed: int = 1_000_000
    drained: int = 50_000
    """Messages that are worked on with one tenant, and again with many."""
    tenants: int = 10_000
    due: int = 1_000_000
    due_after_seconds: float = 90.0
    """Time to enqueue them."""
    due_watched_seconds: float = 30.0
    queues: int = 100
    pollers: int = 100
    """Consumers of each idle queue."""
    idle_seconds: float = 30.0


FULL = LoadScale()
QUICK = LoadScale(2000, 500, 50, 1000, 4.0, 1.0, 3, 3, 0.5)


def figures() -> tuple[Figure, ...]:
    """Return the figures and their targets."""
    return (
        Figure("delayed_put", "messages/s", True, 20_000),
        Figure("delayed_memory", "MiB of a broker", False, 64),
        Figure("delayed_beside", "times the p99 before", False, 2),
        Figure("delayed_failover", "s", False, 2),
        Figure("tenants_one", "messages/s", True),
        Figure("tenants_share", "% of the rate of one tenant", True, 50),
        Figure("due_p99", "ms of a commit beside", False, 50),
        Figure("due_put_p99", "ms of a put into it", False, 50),
        Figure("idle_cpu", "% of a core per broker", False, 5),
    )


# -------------------------------------------------------------------------------------------------------------- the parts


def anonymous_mib(pid: int) -> float:
    """Return the memory of a process that is no file."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) / KIB


async def create(servers: str, config: dict[str, str] | None = None, queues: int = 1) -> None:
    """Create the queue topics and the log topic."""
    async with raftmq.Admin(bootstrap_servers=servers) as admin:
        for number in range(queues):
            await admin.create_topic(f"{QUEUE}-{number}", 1, 3, config, kind="queue")
        await admin.create_topic(LOG, 1, 3)


async def put_all(
    queue: raftmq.Queue[bytes],
    count: int,
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
        for first in range(0, count, PUT_BATCH):
            await asyncio.sleep(max(0.0, started + first / per_second - time.perf_counter()))
            await room.acquire()
            tasks.create_task(put(range(first, min(first + PUT_BATCH, count))))
    return time.perf_counter() - started


async def work_off(queue: raftmq.Queue[bytes], count: int) -> float:
    """Lease and accept messages in batches. Return the seconds until the last acceptance."""
    left, ended = count, 0.0

    async def take() -> None:
        nonlocal left, ended
        while left > 0:
            found = await queue.get_many(max_messages=TAKE_BATCH, wait_ms=1000)
            left -= len(found)
            await queue.ack_many(found)
            if found:
                ended = time.perf_counter()

    started = time.perf_counter()
    await asyncio.gather(*(take() for _ in range(TAKERS)))
    return ended - started


# ----------------------------------------------------------------------------------------------------------- measurements


async def measure_delayed(cluster: LocalCluster, scale: LoadScale) -> dict[str, float]:
    """Put messages that wait for a day, then kill the leader and put another one."""
    servers, value = cluster.bootstrap_servers, os.urandom(VALUE_BYTES)
    await create(servers)
    async with raftmq.Queue[bytes](f"{QUEUE}-0", bootstrap_servers=servers) as queue:
        await queue.put(value, delay_ms=DAY_MS)
        async with written_beside(servers, LOG) as beside:
            await asyncio.sleep(min(CALM_SECONDS, scale.idle_seconds))
            calm = await beside.p99()
            before = {n: anonymous_mib(cluster.pid(n)) for n in cluster.broker_ids}

            def message_of(number: int) -> raftmq.NewMessage[bytes]:
                return raftmq.NewMessage(value, delay_ms=number % DAY_MS + DAY_MS)

            fast = scale.delayed // 2
            seconds = await put_all(queue, fast, message_of)
            await asyncio.sleep(min(CALM_SECONDS, scale.idle_seconds))
            beside.seconds.clear()
            await put_all(queue, scale.delayed - fast, message_of, PUT_PER_SECOND)
            loaded = await beside.p99()
            added = max(anonymous_mib(cluster.pid(n)) - before[n] for n in cluster.broker_ids)
        (leader,) = set((await asyncio.to_thread(cluster.leaders, f"{QUEUE}-0")).values())
        started = time.perf_counter()
        await asyncio.to_thread(cluster.kill, leader)
        await queue.put(value, delay_ms=DAY_MS)
        failover = time.perf_counter() - started
    return {
        "delayed_put": fast / seconds,
        "delayed_memory": max(added, 0.0),
        "delayed_beside": loaded / calm,
        "delayed_failover": failover,
    }


async def measure_tenants(cluster: LocalCluster, scale: LoadScale) -> dict[str, float]:
    """Work off the same number of messages of one tenant, and of many that take turns."""
    servers, value = cluster.bootstrap_servers, os.urandom(VALUE_BYTES)
    await create(servers, {"fairness": "round_robin"})
    rates = []
    async with raftmq.Queue[bytes](f"{QUEUE}-0", bootstrap_servers=servers) as queue:
        for tenants in (1, scale.tenants):

            def message_of(number: int, tenants: int = tenants) -> raftmq.NewMessage[bytes]:
                return raftmq.NewMessage(value, tenant=f"t{number % tenants}")

            await put_all(queue, scale.drained, message_of)
            rates.append(scale.drained / await work_off(queue, scale.drained))
    return {"tenants_one": rates[0], "tenants_share": 100 * rates[1] / rates[0]}


async def measure_due(cluster: LocalCluster, scale: LoadScale) -> dict[str, float]:
    """Let all messages become due in one second, and write beside them and to the same queue."""
    servers, value = cluster.bootstrap_servers, os.urandom(VALUE_BYTES)
    await create(servers)
    due = datetime.now(UTC) + timedelta(seconds=scale.due_after_seconds)
    async with raftmq.Queue[bytes](f"{QUEUE}-0", bootstrap_servers=servers) as queue:
        await put_all(
            queue,
            scale.due,
            lambda number: raftmq.NewMessage(value, not_before=due + timedelta(milliseconds=number % 1000)),
        )
        left = (due - datetime.now(UTC)).total_seconds()
        if left < 0:
            raise TimeoutError(f"enqueuing took {-left:.0f} s longer than the messages wait")
        puts: list[float] = []
        async with written_beside(servers, LOG) as beside:
            await asyncio.sleep(left)
            beside.seconds.clear()
            ends_at = time.perf_counter() + 1 + scale.due_watched_seconds
            while (started := time.perf_counter()) < ends_at:
                await queue.put(value)
                puts.append(time.perf_counter() - started)
                await asyncio.sleep(PAUSE_SECONDS)
            return {"due_p99": await beside.p99(), "due_put_p99": percentiles(puts)["p99"]}


async def measure_idle(cluster: LocalCluster, scale: LoadScale) -> dict[str, float]:
    """Let many consumers wait for messages of queues that get none."""
    servers = cluster.bootstrap_servers
    await create(servers, queues=scale.queues)
    queues = [raftmq.Queue[bytes](f"{QUEUE}-{n}", bootstrap_servers=servers) for n in range(scale.queues)]
    for queue in queues:
        await queue.start()
    waiting = [asyncio.create_task(queue.get()) for queue in queues for _ in range(scale.pollers)]
    await asyncio.sleep(min(CALM_SECONDS, scale.idle_seconds))
    pids = [cluster.pid(n) for n in cluster.broker_ids]
    before, started = [cpu_seconds(pid) for pid in pids], time.perf_counter()
    await asyncio.sleep(scale.idle_seconds)
    elapsed = time.perf_counter() - started
    used = max(cpu_seconds(pid) - earlier for pid, earlier in zip(pids, before, strict=True))
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    for queue in queues:
        await queue.close()
    return {"idle_cpu": 100 * used / elapsed}


MEASUREMENTS = (measure_delayed, measure_tenants, measure_due, measure_idle)


def measure(scale: LoadScale, tell: Callable[[str], None]) -> dict[str, float]:
    """Carry out all measurements, each on a fresh cluster."""
    found: dict[str, float] = {}
    for measurement in MEASUREMENTS:
        with LocalCluster(brokers=3) as cluster:
            new = asyncio.run(measurement(cluster, scale))
        tell(f"queue_loads: {', '.join(f'{name} {value:,.2f}' for name, value in new.items())}")
        found |= new
    return found


if __name__ == "__main__":
    measure(QUICK if "--quick" in sys.argv[1:] else FULL, print)
