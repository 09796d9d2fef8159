"""Measure the start of a broker with large files after kill -9, until it is ready: with none of its files in memory, and with them.

Usage: python -m bench.cold_starts [--partitions 300] [--megabytes 100] [--starts 3] [--directory DIR]

One broker is filled with batches of 1 MiB. It needs the space of all partitions on the volume of the directory. Linux only, because it
reads /proc.
"""

import argparse
import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import raftmq
from raftmq.testing import LocalCluster

from bench.partitions import CLUSTER_SECONDS, cpu_seconds

TOPIC = "large"
RECORD_BYTES = 1_000_000
IN_FLIGHT_MAX = 16
FILLED_SECONDS = 20.0
"""Pause before each kill, for the work of a broker after its start."""


async def fill(servers: str, partitions: int, megabytes: int) -> None:
    """Write so many records of a megabyte to each partition."""
    async with (
        raftmq.Admin(bootstrap_servers=servers, request_timeout_ms=CLUSTER_SECONDS * 1000) as admin,
        raftmq.Producer(bootstrap_servers=servers, linger_ms=0) as producer,
    ):
        await admin.create_topic(TOPIC, partitions=partitions, replication_factor=1)
        room = asyncio.Semaphore(IN_FLIGHT_MAX)

        async def send(partition: int) -> None:
            async with room:
                await (await producer.send(TOPIC, os.urandom(RECORD_BYTES), partition=partition))

        for _ in range(megabytes):
            await asyncio.gather(*map(send, range(partitions)))


def drop_cached(directory: Path) -> None:
    """Write the files back and remove them from memory. No process may have them open."""
    for path in directory.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)


def bytes_read(pid: int) -> int:
    """Return the bytes that a process has read from the disk."""
    lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("read_bytes"))


def measure(
    partitions: int,
    megabytes: int,
    starts: int,
    pause_seconds: float,
    directory: Path,
    tell: Callable[[str], None],
) -> dict[str, list[float]]:
    """Return figure → values: `starts` cold starts, and as many with the files in memory."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # else each start would also compile all modules again
    values: dict[str, list[float]] = {}
    with LocalCluster(brokers=1, directory=directory, timeout_seconds=CLUSTER_SECONDS) as cluster:
        (broker,) = cluster.broker_ids
        asyncio.run(fill(cluster.bootstrap_servers, partitions, megabytes))
        for kind in ("cold", "cached"):
            for _ in range(starts):
                time.sleep(pause_seconds)
                cluster.kill(broker)
                if kind == "cold":
                    drop_cached(cluster.data_dir(broker))
                started = time.perf_counter()
                cluster.restart(broker, wait=True)
                found = {
                    "ready": time.perf_counter() - started,
                    "processor": cpu_seconds(cluster.pid(broker)),
                    "read": bytes_read(cluster.pid(broker)) / 1e6,
                }
                for name, value in found.items():
                    values.setdefault(f"{kind}_{name}", []).append(value)
                tell(
                    f"{kind}: ready after {found['ready']:.1f} s, processor {found['processor']:.1f} s, read {found['read']:,.0f} MB"
                )
    return values


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.cold_starts", description=__doc__)
    parser.add_argument("--partitions", type=int, default=300)
    parser.add_argument("--megabytes", type=int, default=100, help="size of each partition")
    parser.add_argument("--starts", type=int, default=3, help="starts of each kind")
    parser.add_argument("--pause", type=float, default=FILLED_SECONDS, help="seconds before each kill")
    parser.add_argument(
        "--directory", type=Path, help="empty directory on the volume to measure (default: a temporary one)"
    )
    arguments = parser.parse_args(words)
    with tempfile.TemporaryDirectory() as temporary:
        found = measure(
            arguments.partitions,
            arguments.megabytes,
            arguments.starts,
            arguments.pause,
            arguments.directory or Path(temporary),
            print,
        )
    print(f"{arguments.partitions} partitions of {arguments.megabytes} MB, medians: cold {statistics.median(found['cold_ready']):.1f} s, "
          f"in memory {statistics.median(found['cached_ready']):.1f} s (target: 5 s)")  # fmt: skip


if __name__ == "__main__":
    main()
