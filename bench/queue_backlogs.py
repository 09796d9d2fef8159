"""Measure queues in which many messages are ready: of thousands of tenants, ten million of one, and a million of a noisy one.

Invariant: cycles are compared with those of an empty queue of the same cluster, which are those of `queue_cycles`.
"""

import asyncio
import os
import statistics
import time

import raftmq
from raftmq.testing import LocalCluster

from bench.queue_load_parts import CALM_SECONDS, Found, LoadScale, create, cycle_rate, put_all
from bench.workloads import VALUE_BYTES, Figure

WORKERS_OF_NOISE = 20
"""Workers of the queue with a noisy tenant. Half of them may work for one tenant."""
HANDLER_SECONDS = 0.05
QUIET_PER_SECOND = 20
"""Messages of the quiet tenant. They occupy one worker on average."""
NOISY, QUIET = "noisy", "quiet"

# ---------------------------------------------------------------------------------------------------------------- tenants


def tenants_figures() -> tuple[Figure, ...]:
    return (
        Figure("tenants_empty", "cycles/s", True),
        Figure("tenants_one", "% of that", True),
        Figure("tenants_share", "% of that", True, 50),
    )


async def measure_tenants(cluster: LocalCluster, scale: LoadScale, found: Found) -> None:
    """Measure cycles of an empty queue, and of two where the messages of one tenant and of many wait, in turns."""
    servers, value = cluster.bootstrap_servers, os.urandom(VALUE_BYTES)
    fair = {"fairness": "round_robin"}
    empty, one, many = (
        raftmq.Queue[bytes](name, bootstrap_servers=servers) for name in await create(servers, {}, fair, fair)
    )
    async with empty, one, many:
        for queue, tenants in ((one, 1), (many, scale.tenants)):

            def message_of(number: int, tenants: int = tenants) -> raftmq.NewMessage[bytes]:
                return raftmq.NewMessage(value, tenant=f"t{number % tenants}")

            await put_all(queue, scale.waiting, message_of)
        turns = [
            [
                await cycle_rate(queue, scale.cycles, tenants)
                for queue, tenants in ((empty, 0), (one, 1), (many, scale.tenants))
            ]
            for _ in range(scale.turns)
        ]
    base, of_one, of_many = map(statistics.median, zip(*turns, strict=True))
    found |= {"tenants_empty": base, "tenants_one": 100 * of_one / base, "tenants_share": 100 * of_many / base}


# ------------------------------------------------------------------------------------------------------------- ten million


def ready_figures() -> tuple[Figure, ...]:
    return (
        Figure("ready_put", "messages/s", True),
        Figure("ready_empty", "cycles/s", True),
        Figure("ready_share", "% of that", True, 70),
        Figure("ready_restart", "s to ready", False, 10),
        Figure("ready_restart_killed", "s to ready", False, 10),
    )


async def measure_ready(cluster: LocalCluster, scale: LoadScale, found: Found) -> None:
    """Measure cycles before and after millions of messages of one tenant are ready, then restart the leader and kill the next one."""
    servers, value = cluster.bootstrap_servers, os.urandom(VALUE_BYTES)
    names = await create(servers, {}, {})
    empty, full = (raftmq.Queue[bytes](name, bootstrap_servers=servers) for name in names)
    async with empty, full:
        before = [await cycle_rate(empty, scale.cycles) for _ in range(scale.turns)]
        seconds = await put_all(full, scale.ready, lambda _: raftmq.NewMessage(value))
        found["ready_put"] = scale.ready / seconds
        await asyncio.sleep(min(CALM_SECONDS, scale.idle_seconds))
        beside, rates = [], []
        for _ in range(scale.turns):
            beside.append(await cycle_rate(empty, scale.cycles))
            rates.append(await cycle_rate(full, scale.cycles))
    # A broker that holds millions may serve an empty queue slower, too, so the better base counts.
    base = max(statistics.median(before), statistics.median(beside))
    found |= {"ready_empty": base, "ready_share": 100 * statistics.median(rates) / base}
    found["ready_restart"] = await asyncio.to_thread(_restart_leader, cluster, names[1], is_killed=False)
    found["ready_restart_killed"] = await asyncio.to_thread(_restart_leader, cluster, names[1], is_killed=True)


def _restart_leader(cluster: LocalCluster, topic: str, *, is_killed: bool) -> float:
    """End the topic's leader, wait for another one, start it again, and return the seconds until it is ready."""
    leader = cluster.wait_leaders(topic)[0]
    if is_killed:
        cluster.kill(leader)
    else:
        cluster.stop(leader)
    cluster.wait_leaders(topic, avoiding=leader)
    started = time.perf_counter()
    cluster.restart(leader, wait=True)
    return time.perf_counter() - started


# ------------------------------------------------------------------------------------------------------------------- noise


def noisy_figures() -> tuple[Figure, ...]:
    return (
        Figure("noisy_alone_p95", "ms of dwell", False),
        Figure("noisy_dwell_p95", "% of that", False, 120),
    )


async def measure_noisy(cluster: LocalCluster, scale: LoadScale, found: Found) -> None:
    """Measure the time from the put of a quiet tenant's message to its handler, alone and while a noisy tenant's messages are ready."""
    servers, value = cluster.bootstrap_servers, os.urandom(VALUE_BYTES)
    config = {"fairness": "round_robin", "partition.tenant.max.leased": str(WORKERS_OF_NOISE // 2)}
    (name,) = await create(servers, config)
    dwells: list[float] = []

    async def work(queue: raftmq.Queue[bytes]) -> None:
        while True:
            message = await queue.get()
            assert message is not None
            if message.tenant == QUIET:
                dwells.append(time.perf_counter() - float(message.value))
            await asyncio.sleep(HANDLER_SECONDS)
            await message.ack()

    async with raftmq.Queue[bytes](name, bootstrap_servers=servers) as queue:
        workers = [asyncio.create_task(work(queue)) for _ in range(WORKERS_OF_NOISE)]
        await _put_quietly(queue, 1)  # connections are open after that
        dwells.clear()
        await _put_quietly(queue, scale.dwell_seconds)
        alone = _p95(dwells)
        await put_all(queue, scale.noisy, lambda _: raftmq.NewMessage(value, tenant=NOISY))
        await asyncio.sleep(min(CALM_SECONDS, scale.idle_seconds))
        dwells.clear()
        await _put_quietly(queue, scale.dwell_seconds)
        await _check_noise(queue)
        beside = _p95(dwells)
        for worker in workers:
            worker.cancel()
        results = await asyncio.gather(*workers, return_exceptions=True)
        for failure in (result for result in results if isinstance(result, Exception)):
            raise failure
    found |= {"noisy_alone_p95": alone * 1000, "noisy_dwell_p95": 100 * beside / alone}


async def _put_quietly(queue: raftmq.Queue[bytes], seconds: float) -> None:
    began = time.perf_counter()
    async with asyncio.TaskGroup() as tasks:
        for number in range(int(seconds * QUIET_PER_SECOND)):
            await asyncio.sleep(max(0.0, began + number / QUIET_PER_SECOND - time.perf_counter()))
            tasks.create_task(_put_one(queue))
    await asyncio.sleep(CALM_SECONDS / 10)


async def _put_one(queue: raftmq.Queue[bytes]) -> None:
    await queue.put(b"%.9f" % time.perf_counter(), tenant=QUIET)


async def _check_noise(queue: raftmq.Queue[bytes]) -> None:
    """Raise if the noisy tenant has run out of messages."""
    if not (await queue.stats()).ready:
        raise RuntimeError("the noisy tenant has no more messages: give it more with --load noisy=N")


def _p95(seconds: list[float]) -> float:
    return statistics.quantiles(seconds, n=20)[18]
