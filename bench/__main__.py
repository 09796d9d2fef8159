"""Measures RaftMQ's speed on a local three-broker cluster: every record fsynced on a majority before it is acknowledged.

Usage: python -m bench [--rounds 3] [--only produce_100b,latency] [--output results.json]

The clients run in this process, the brokers in three others, all on this machine; run it when nothing else does.
Each workload runs `--rounds` times; the table shows the median and the spread (min-max).
"""

import argparse
import asyncio
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import raftmq
from raftmq.testing import LocalCluster

from bench.assignors import bench_assignors
from bench.groups import bench_groups

PARTITIONS = 6


async def produce(servers: str, topic: str, records: int, size: int) -> float:
    """Records per second of `send_many` until the last acknowledgement."""
    value = os.urandom(size)
    async with raftmq.Producer(bootstrap_servers=servers) as producer:
        await producer.send_and_wait(topic, value=b"warm")
        started = time.perf_counter()
        await producer.send_many(topic, ((None, value) for _ in range(records)))
        await producer.flush()
        return records / (time.perf_counter() - started)


async def bench_produce_100b(servers: str) -> dict[str, float]:
    """Batched produce of 100-byte records."""
    topic = await _topic(servers)
    return {"records_per_second": await produce(servers, topic, 1_500_000, 100)}


async def bench_produce_1kib(servers: str) -> dict[str, float]:
    """Batched produce of 1 KiB records."""
    topic = await _topic(servers)
    return {"megabytes_per_second": await produce(servers, topic, 300_000, 1024) * 1024 / 1e6}


async def bench_latency(servers: str) -> dict[str, float]:
    """One record at a time: each acknowledged before the next is sent."""
    topic = await _topic(servers)
    value = os.urandom(100)
    async with raftmq.Producer(bootstrap_servers=servers) as producer:
        for _ in range(200):
            await producer.send_and_wait(topic, value=value)
        times = []
        for _ in range(3000):
            started = time.perf_counter()
            await producer.send_and_wait(topic, value=value)
            times.append(time.perf_counter() - started)
    return _milliseconds(times)


async def bench_senders(servers: str) -> dict[str, float]:
    """100 tasks on one producer, each sending one record and waiting for it."""
    topic = await _topic(servers)
    value = os.urandom(100)
    per_task = 400
    async with raftmq.Producer(bootstrap_servers=servers) as producer:
        await producer.send_and_wait(topic, value=value)

        async def sender() -> None:
            for _ in range(per_task):
                await producer.send_and_wait(topic, value=value)

        started = time.perf_counter()
        await asyncio.gather(*(sender() for _ in range(100)))
        return {"records_per_second": 100 * per_task / (time.perf_counter() - started)}


async def bench_read_back(servers: str) -> dict[str, float]:
    """`getmany` over everything, from the earliest offset."""
    topic = await _topic(servers)
    records = 1_500_000
    await produce(servers, topic, records - 1, 100)
    async with raftmq.Consumer(topic, bootstrap_servers=servers, auto_offset_reset="earliest") as consumer:
        count = 0
        started = time.perf_counter()
        while count < records:
            for batch in (await consumer.getmany(timeout_ms=1000, max_records=20_000)).values():
                count += len(batch)
        return {"records_per_second": records / (time.perf_counter() - started)}


async def bench_end_to_end(servers: str) -> dict[str, float]:
    """Produce to receive at 1,000 records a second."""
    topic = await _topic(servers)
    count = 5000
    times: list[float] = []
    async with (
        raftmq.Producer(bootstrap_servers=servers) as producer,
        raftmq.Consumer(topic, bootstrap_servers=servers, auto_offset_reset="earliest") as consumer,
    ):
        await producer.send_and_wait(topic, value=b"%.9f" % time.perf_counter())
        await anext(aiter(consumer))

        async def receive() -> None:
            async for record in consumer:
                assert record.value is not None
                times.append(time.perf_counter() - float(record.value))
                if len(times) == count:
                    return

        receiving = asyncio.create_task(receive())
        began = time.perf_counter()
        for number in range(count):
            await asyncio.sleep(max(0.0, began + number / 1000 - time.perf_counter()))
            await producer.send(topic, value=b"%.9f" % time.perf_counter())
        await receiving
    return _milliseconds(times)


def bench_idle(cluster: LocalCluster) -> dict[str, float]:
    """CPU of each broker with 300 idle partitions of three replicas, in percent of a core (mean of the brokers)."""

    async def create() -> None:
        async with raftmq.Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
            await admin.create_topic(f"idle-{time.monotonic_ns()}", partitions=300, replication_factor=3)

    asyncio.run(create())
    time.sleep(15)
    seconds = 20
    before = [_cpu_seconds(cluster.pid(node)) for node in cluster.node_ids]
    time.sleep(seconds)
    after = [_cpu_seconds(cluster.pid(node)) for node in cluster.node_ids]
    shares = [100 * (b - a) / seconds for a, b in zip(before, after, strict=True)]
    resident = [_resident_mib(cluster.pid(node)) for node in cluster.node_ids]
    return {"cpu_percent": statistics.mean(shares), "resident_mib": statistics.mean(resident)}


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _resident_mib(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def _milliseconds(times: list[float]) -> dict[str, float]:
    cuts = statistics.quantiles(times, n=100)
    return {"p50_ms": cuts[49] * 1000, "p99_ms": cuts[98] * 1000}


_names: Iterator[str] = (f"bench-{number}" for number in range(10**9))


async def _topic(servers: str) -> str:
    name = next(_names)
    async with raftmq.Admin(bootstrap_servers=servers) as admin:
        await admin.create_topic(name, partitions=PARTITIONS, replication_factor=3)
    return name


WORKLOADS: dict[str, Callable[[str], Awaitable[dict[str, float]]]] = {
    "produce_100b": bench_produce_100b,
    "produce_1kib": bench_produce_1kib,
    "latency": bench_latency,
    "senders": bench_senders,
    "read_back": bench_read_back,
    "end_to_end": bench_end_to_end,
}

ONCE: dict[str, Callable[[], dict[str, float]]] = {"assignors": bench_assignors, "groups": bench_groups}
"""Those that bring their own cluster, or need none, and run once."""


def measure(rounds: int, only: list[str]) -> dict[str, dict[str, list[float]]]:
    """{workload: {figure: one value per round}}; a fresh cluster for each workload."""
    figures: dict[str, dict[str, list[float]]] = {}
    for name in only:
        if name in ONCE:
            figures[name] = {figure: [value] for figure, value in ONCE[name]().items()}
            continue
        with LocalCluster(brokers=3) as cluster:
            for _ in range(1 if name == "idle" else rounds):
                if name == "idle":
                    values = bench_idle(cluster)
                else:
                    values = asyncio.run(_run(WORKLOADS[name], cluster.bootstrap_servers))
                for figure, value in values.items():
                    figures.setdefault(name, {}).setdefault(figure, []).append(value)
                print(f"  {name}: " + ", ".join(f"{k}={v:,.2f}" for k, v in values.items()), file=sys.stderr)
    return figures


async def _run(workload: Callable[[str], Awaitable[dict[str, float]]], servers: str) -> dict[str, float]:
    return await workload(servers)


def main() -> None:
    names = [*WORKLOADS, "idle", *ONCE]
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default=",".join(names), help="comma-separated: " + ", ".join(names))
    parser.add_argument("--output", type=Path, help="write the figures as JSON")
    arguments = parser.parse_args()
    only = arguments.only.split(",")
    if unknown := [name for name in only if name not in names]:
        parser.error(f"unknown workload {unknown[0]}; choose from {', '.join(names)}")
    figures = measure(arguments.rounds, only)
    print(f"{'workload':<14} {'figure':<22} {'median':>14} {'min':>14} {'max':>14}")
    for name, values in figures.items():
        for figure, rounds in values.items():
            print(
                f"{name:<14} {figure:<22} {statistics.median(rounds):>14,.2f} {min(rounds):>14,.2f} {max(rounds):>14,.2f}"
            )
    if arguments.output:
        machine = {"cpus": os.cpu_count(), "python": platform.python_version(), "kernel": platform.release()}
        arguments.output.write_text(json.dumps({"machine": machine, "figures": figures}, indent=2) + "\n")


if __name__ == "__main__":
    main()
