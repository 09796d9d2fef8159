"""Use an installed RaftMQ from end to end: real brokers, every kind of client, the command line, a crash. Needs nothing of the checkout.

Usage: python smoke.py VERSION. `make release` runs it with the wheel in a clean environment.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import json
import os
import subprocess
import sys
from pathlib import Path

import raftmq
from raftmq import Admin, Consumer, Producer, Queue
from raftmq.testing import LocalCluster

RECORDS = 100
WAIT_SECONDS = 60


def command(servers: str, *arguments: str) -> str:
    """Run the installed command, and return its standard output."""
    program = Path(sys.executable).with_name("raftmq")
    environment = os.environ | {"RAFTMQ_BOOTSTRAP_SERVERS": servers}
    done = subprocess.run(
        [program, *arguments], capture_output=True, text=True, check=False, timeout=WAIT_SECONDS, env=environment
    )
    if done.returncode != 0:
        raise SystemExit(f"raftmq {' '.join(arguments)} ended with {done.returncode}: {done.stderr}")
    return done.stdout


async def produce(servers: str, first: int) -> None:
    async with Producer(bootstrap_servers=servers, compression_type="zstd") as producer:
        for number in range(first, first + RECORDS):
            await producer.send_and_wait("orders", f"{number}".encode(), f"k{number % 7}".encode())


async def consume(servers: str, count: int) -> set[int]:
    found: set[int] = set()
    async with Consumer(
        "orders", group_id="smoke", bootstrap_servers=servers, auto_offset_reset="earliest", enable_auto_commit=False
    ) as consumer:
        while len(found) < count:
            record = await anext(consumer)
            assert record.value is not None
            found.add(int(record.value))
    return found


async def use(cluster: LocalCluster) -> None:
    servers = cluster.bootstrap_servers
    async with Admin(bootstrap_servers=servers) as admin:
        await admin.create_topic("orders", partitions=3, replication_factor=3)
        await admin.create_topic("jobs", kind="queue", replication_factor=3)
        await produce(servers, 0)
        async with Queue("jobs", bootstrap_servers=servers) as queue:
            await queue.put(b"job")
            message = await queue.get()
            assert message is not None
            assert message.value == b"job"
            await message.ack()
        assert await consume(servers, RECORDS) == set(range(RECORDS))
        cluster.kill(1)
        await produce(servers, RECORDS)
        await asyncio.to_thread(cluster.restart, 1)
        assert await consume(servers, 2 * RECORDS) == set(range(2 * RECORDS))
        await admin.alter_config({"log_level": "debug"})
        assert (await admin.describe_config(1))["log_level"].source == "cluster"


def main() -> None:
    (version,) = sys.argv[1:]
    home = Path(raftmq.__file__ or "").resolve()
    if not home.is_relative_to(Path(sys.prefix).resolve()):
        raise SystemExit(f"raftmq was imported from {home}, not from the environment {sys.prefix}")
    if importlib.metadata.version("raftmq") != version:
        raise SystemExit(f"version {importlib.metadata.version('raftmq')} is installed, not {version}")
    with LocalCluster(brokers=3) as cluster:
        asyncio.run(asyncio.wait_for(use(cluster), 4 * WAIT_SECONDS))
        servers = cluster.bootstrap_servers
        assert command(servers, "--version").strip() == f"raftmq {version}"
        assert "orders" in command(servers, "topic", "list")
        assert len(json.loads(command(servers, "cluster", "nodes", "--output", "json"))) == 3
    print(f"raftmq {version} works on Python {sys.version.split()[0]}")


if __name__ == "__main__":
    main()
