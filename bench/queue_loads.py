"""List the measurements of queues that hold much, and measure a million delayed messages and many idle consumers.

Each measurement has a cluster of its own. Linux only, because it reads /proc. Invariant: a log topic beside the queue is written
at the same time, because the load of one partition must not delay the others.
"""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import raftmq
from raftmq.testing import OWN_COMMAND, LocalCluster

from bench import queue_backlogs, queue_commits, queue_files, timed_broker
from bench.partitions import cpu_seconds
from bench.queue_load_parts import CALM_SECONDS, DAY_MS, LOG, DelayedMessages, Found, LoadScale, create, put_all
from bench.workloads import VALUE_BYTES, Figure
from bench.written_beside import written_beside

PUT_PER_SECOND = 20_000
"""Delayed messages that are put steadily while the delay of others is measured."""
KIB = 1024
CLUSTER_SECONDS = 300.0
"""Limit for a start of brokers. One with ten million messages that misses its target must still be measured."""


@dataclass(frozen=True, slots=True)
class Load:
    """Describe one measurement."""

    figures: tuple[Figure, ...]
    measure: Callable[[LocalCluster, LoadScale, Found], Awaitable[None]]
    """Adds each figure as soon as it is found."""
    command: Sequence[str] = OWN_COMMAND
    """The command of the brokers."""


def run_load(load: Load, scale: LoadScale, found: Found) -> None:
    """Carry a measurement out on a fresh cluster. If it fails, the figures that were found before remain."""

    async def measure(cluster: LocalCluster) -> None:
        await load.measure(cluster, scale, found)

    with LocalCluster(brokers=3, timeout_seconds=CLUSTER_SECONDS, command=load.command) as cluster:
        asyncio.run(measure(cluster))


# ---------------------------------------------------------------------------------------------------------------- delayed


def anonymous_mib(pid: int) -> float:
    """Return the memory of a process that is no file."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) / KIB


async def measure_delayed(cluster: LocalCluster, scale: LoadScale, found: Found) -> None:
    """Put messages that are due at random times of a day, then kill the leader and put another one."""
    servers, value = cluster.bootstrap_servers, os.urandom(VALUE_BYTES)
    (name,) = await create(servers, {})
    message_of = DelayedMessages(value, 7)
    async with raftmq.Queue[bytes](name, bootstrap_servers=servers) as queue:
        await queue.put(value, delay_ms=DAY_MS)
        async with written_beside(servers, LOG) as beside:
            await asyncio.sleep(min(CALM_SECONDS, scale.idle_seconds))
            calm = await beside.p99()
            before = {n: anonymous_mib(cluster.pid(n)) for n in cluster.broker_ids}
            fast = scale.delayed // 2
            seconds = await put_all(queue, fast, message_of)
            await asyncio.sleep(min(CALM_SECONDS, scale.idle_seconds))
            beside.seconds.clear()
            await put_all(queue, scale.delayed - fast, message_of, PUT_PER_SECOND)
            loaded = await beside.p99()
            added = max(anonymous_mib(cluster.pid(n)) - before[n] for n in cluster.broker_ids)
        found |= {"delayed_put": fast / seconds, "delayed_memory": max(added, 0.0), "delayed_beside": loaded / calm}
        (leader,) = set((await asyncio.to_thread(cluster.leaders, name)).values())
        started = time.perf_counter()
        await asyncio.to_thread(cluster.kill, leader)
        await queue.put(value, delay_ms=DAY_MS)
        found["delayed_failover"] = time.perf_counter() - started


def delayed_figures() -> tuple[Figure, ...]:
    return (
        Figure("delayed_put", "messages/s", True, 20_000),
        Figure("delayed_memory", "MiB of a broker", False, 64),
        Figure("delayed_beside", "times the p99 before", False, 2),
        Figure("delayed_failover", "s", False, 2),
    )


# ------------------------------------------------------------------------------------------------------------------- idle


async def measure_idle(cluster: LocalCluster, scale: LoadScale, found: Found) -> None:
    """Let many consumers wait for messages of queues that get none."""
    servers = cluster.bootstrap_servers
    names = await create(servers, *({} for _ in range(scale.queues)))
    queues = [raftmq.Queue[bytes](name, bootstrap_servers=servers) for name in names]
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
    found["idle_cpu"] = 100 * used / elapsed


def idle_figures() -> tuple[Figure, ...]:
    return (Figure("idle_cpu", "% of a core per broker", False, 5),)


# ------------------------------------------------------------------------------------------------------------------- all

LOADS: Mapping[str, Load] = {
    "queue_delayed": Load(delayed_figures(), measure_delayed),
    "queue_tenants": Load(queue_backlogs.tenants_figures(), queue_backlogs.measure_tenants),
    "queue_due_together": Load(queue_commits.due_figures(), queue_commits.measure_due),
    "queue_idle": Load(idle_figures(), measure_idle),
    "queue_saturated": Load(queue_commits.saturated_figures(), queue_commits.measure_saturated, timed_broker.COMMAND),
    "queue_noisy": Load(queue_backlogs.noisy_figures(), queue_backlogs.measure_noisy),
    "queue_files": Load(queue_files.file_figures(), queue_files.measure_files),
    "queue_ready": Load(queue_backlogs.ready_figures(), queue_backlogs.measure_ready),
}
"""Row → its measurement, the longest last."""
