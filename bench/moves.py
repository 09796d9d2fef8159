"""Measure appends while partitions move, beside idle times: 99th percentiles, their ratio, and the rate of the copies.

Usage: python -m bench --only moves, or python -m bench.moves. Four brokers and all clients are on this machine. One producer sends a record and waits for
it, again and again. In the first phase nothing else happens. In the second, all partitions move to another set of brokers, at a limited rate.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

import raftmq
from raftmq.testing import LocalCluster

from bench.workloads import Figure

PARTITIONS: Final = 4
PARTITION_BYTES: Final = 64 << 20
RECORD_BYTES: Final = 32 << 10
RATE: Final = 20 << 20
"""Bytes per second that each broker sends for moves: a likely choice for a disk that others use, too."""
IDLE_SECONDS: Final = 10.0
TOPIC: Final = "bench-moves"


async def measure(cluster: LocalCluster) -> dict[str, float]:
    """Fill the partitions, then send without and with moves."""
    servers = cluster.bootstrap_servers
    async with (
        raftmq.Admin(bootstrap_servers=servers) as admin,
        raftmq.Producer(bootstrap_servers=servers) as producer,
    ):
        await admin.set_balancing(auto_balance=False, moves_max=PARTITIONS, bytes_per_second=RATE)
        await admin.create_topic(TOPIC, partitions=PARTITIONS, replication_factor=3)
        body = bytes(RECORD_BYTES)
        for partition in range(PARTITIONS):
            for _ in range(PARTITION_BYTES // RECORD_BYTES):
                await producer.send(TOPIC, value=body, partition=partition)
        await producer.flush()
        sender = _Sender(producer)
        idle = await sender.run_for(IDLE_SECONDS)
        topic = await admin.describe_topic(TOPIC)
        brokers = set(cluster.broker_ids)
        for one in topic.partitions:
            (newcomer,) = brokers.difference(one.replica_brokers)
            await admin.move_partition(TOPIC, one.partition, [*one.replica_brokers[:-1], newcomer])
        began = time.perf_counter()
        moving = await sender.run_while(admin)
        seconds = time.perf_counter() - began
    return {
        "idle_p99": _p99(idle),
        "moving_p99": _p99(moving),
        "slowdown": _p99(moving) / _p99(idle),
        "copied": PARTITIONS * PARTITION_BYTES / seconds / 1e6,
    }


class _Sender:
    """Sends one record after the other, and keeps the milliseconds of each."""

    def __init__(self, producer: raftmq.Producer) -> None:
        self._producer = producer
        self._number = 0

    async def run_for(self, seconds: float) -> list[float]:
        """Send for a time."""
        ends_at = time.perf_counter() + seconds
        times: list[float] = []
        while time.perf_counter() < ends_at:
            times.append(await self._send())
        return times

    async def run_while(self, admin: raftmq.Admin) -> list[float]:
        """Send until no partition moves any more."""
        times: list[float] = []
        watching = asyncio.create_task(_wait_idle(admin))
        while not watching.done():
            times.append(await self._send())
        watching.result()
        return times

    async def _send(self) -> float:
        self._number += 1
        began = time.perf_counter()
        await self._producer.send_and_wait(TOPIC, value=b"x" * 100, partition=self._number % PARTITIONS)
        return (time.perf_counter() - began) * 1000


async def _wait_idle(admin: raftmq.Admin) -> None:
    while (await admin.describe_moves()).moves:  # noqa: ASYNC110 -- another process
        await asyncio.sleep(0.5)


def _p99(times: list[float]) -> float:
    return sorted(times)[len(times) * 99 // 100]


def bench_moves() -> dict[str, float]:
    """Measure on a new cluster of four brokers."""
    with LocalCluster(brokers=4) as cluster:
        return asyncio.run(measure(cluster))


def figures() -> tuple[Figure, ...]:
    """Return the figures. Appends may take up to three times their idle time while partitions move."""
    return (
        Figure("idle_p99", "ms", False, None),
        Figure("moving_p99", "ms", False, None),
        Figure("slowdown", "times", False, 3),
        Figure("copied", "MB/s", True, None),
    )


if __name__ == "__main__":
    for name, value in bench_moves().items():
        print(f"{name:<12} {value:>10,.2f}")
