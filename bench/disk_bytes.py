"""Measure the bytes on the volume of one broker for each record and each waiting message. Usage: python -m bench.disk_bytes [RECORDS]

Each way of writing has a topic of its own, with one partition. Values are random, so that no codec makes them smaller. The files of one
broker are compared with their size before the first record. Bytes beyond the value are the key, the offsets and times of a record, the
header of its batch, Raft's entry and LMDB's pages.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import raftmq
from raftmq.storage.page_release import allocated_bytes
from raftmq.testing import LocalCluster

RECORDS: Final = 100_000
SINGLE_SHARE: Final = 50
"""Records that are sent one at a time are fewer by this factor, because each waits for its commit."""
SETTLE_SECONDS: Final = 15.0
"""Housekeeping returns free pages in this time."""


def bytes_on_volume(directory: Path) -> int:
    """Return the bytes that the files of a directory take on its volume."""
    return sum(allocated_bytes(path) for path in directory.rglob("*") if path.is_file())


async def _log(servers: str, records: int, size: int, *, at_a_time: bool) -> None:
    async with raftmq.Admin(bootstrap_servers=servers) as admin:
        await admin.create_topic(f"log-{size}-{at_a_time}", 1)
    values = [os.urandom(size) for _ in range(256)]
    async with raftmq.Producer(bootstrap_servers=servers) as producer:
        topic = f"log-{size}-{at_a_time}"
        if at_a_time:
            for number in range(records):
                await producer.send_and_wait(topic, values[number % 256])
        else:
            await producer.send_many(topic, [(None, values[number % 256]) for number in range(records)])
            await producer.flush()


async def _queue(servers: str, records: int, size: int) -> None:
    async with raftmq.Admin(bootstrap_servers=servers) as admin:
        await admin.create_topic("queue", kind="queue", partitions=1)
    async with raftmq.Queue[bytes]("queue", bootstrap_servers=servers) as queue:
        for first in range(0, records, 1000):
            await queue.put_many([os.urandom(size) for _ in range(min(1000, records - first))])


WAYS: Final[tuple[tuple[str, int, int, Callable[[str, int, int], Awaitable[None]]], ...]] = (
    ("records of 100 B in full batches", 1, 100, lambda s, n, size: _log(s, n, size, at_a_time=False)),
    ("records of 1 KiB in full batches", 1, 1024, lambda s, n, size: _log(s, n, size, at_a_time=False)),
    ("records of 100 B, one at a time", SINGLE_SHARE, 100, lambda s, n, size: _log(s, n, size, at_a_time=True)),
    ("records of 1 KiB, one at a time", SINGLE_SHARE, 1024, lambda s, n, size: _log(s, n, size, at_a_time=True)),
    ("waiting messages of 100 B", 1, 100, _queue),
)


async def measure(records: int = RECORDS) -> list[tuple[str, float]]:
    """Return the bytes of one broker for each record, by way of writing."""
    found: list[tuple[str, float]] = []
    for name, share, size, write in WAYS:
        with LocalCluster(brokers=1) as cluster:
            (broker,) = cluster.broker_ids
            directory = Path(cluster.data_dir(broker))
            before = bytes_on_volume(directory)
            await write(cluster.bootstrap_servers, records // share, size)
            await asyncio.sleep(SETTLE_SECONDS)
            found.append((name, (bytes_on_volume(directory) - before) / (records // share)))
    return found


if __name__ == "__main__":
    for way, size in asyncio.run(measure(int(sys.argv[1]) if len(sys.argv) > 1 else RECORDS)):
        print(f"{way:40} {size:8.0f} B")
