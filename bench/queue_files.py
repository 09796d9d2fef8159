"""Measure the files of a queue through which many messages pass while a few stay.

The state and the log of each replica must stay under four times the living data and the tail of the log that every replica keeps. The
default duration is five minutes, in which the log that was written exceeds the bound: that proves that files are cut, and not that they
stay small for an hour. `--load file_seconds=3600` measures an hour.
"""

import asyncio
import os
import time
from collections.abc import Iterator
from pathlib import Path

import raftmq
from raftmq.storage.page_release import allocated_bytes
from raftmq.testing import LocalCluster

from bench.queue_load_parts import DAY_MS, LOG, Found, LoadScale, create, put_all
from bench.workloads import VALUE_BYTES, Figure
from bench.written_beside import written_beside

MIB = 1024 * 1024
KEPT_BYTES = 1024
TAIL_BYTES = 64 * MIB
"""The log that every replica keeps, so that a broker that was away for half a minute needs no snapshot."""
LIVING_FACTOR = 4
BATCH = 100
TAKERS = 4
IN_FLIGHT = 16
SAMPLE_SECONDS = 1.0
FIRST_PART = 0.1
"""The part of the time whose p99 is compared with that of the rest: at its beginning there is little to cut."""
STATE_SUFFIX = ".state.mdb"


def file_figures() -> tuple[Figure, ...]:
    return (
        Figure("file_share", "% of the bound", False, 100),
        Figure("file_size", "MiB, the largest", False),
        Figure("file_rate", "cycles/s", True),
        Figure("file_seconds", "s", True),
        Figure("file_beside", "times the p99 of the first tenth", False, 2),
    )


def queue_files(data_dir: Path) -> Iterator[int]:
    """Yield the bytes on the volume of the state and the log of each queue replica of a broker."""
    for state in (data_dir / "groups").glob(f"*{STATE_SUFFIX}"):
        log = state.with_name(state.name.removesuffix(STATE_SUFFIX) + ".mdb")
        yield allocated_bytes(state) + allocated_bytes(log)


def bound_bytes(living_bytes: int) -> int:
    """Return the size that the files of a replica may have for so many bytes of unfinished messages."""
    return LIVING_FACTOR * living_bytes + TAIL_BYTES


class _Flow:
    """Messages that are put at a rate, and leased and accepted as fast as they come."""

    def __init__(self, queue: raftmq.Queue[bytes], per_second: int) -> None:
        self._queue = queue
        self._per_second = per_second
        self._room = asyncio.Semaphore(IN_FLIGHT)
        self._values = [os.urandom(VALUE_BYTES) for _ in range(BATCH)]
        self.put_count = 0
        self.accepted_count = 0

    async def put(self, ends_at: float) -> None:
        """Put until then. A put that is late delays no other, up to a limit."""
        began_at = time.perf_counter()
        async with asyncio.TaskGroup() as tasks:
            for number in range(10**9):
                due_at = began_at + number * BATCH / self._per_second
                if due_at >= ends_at:
                    return
                await asyncio.sleep(max(0.0, due_at - time.perf_counter()))
                if time.perf_counter() >= ends_at:
                    return
                await self._room.acquire()
                tasks.create_task(self._put_batch())

    async def _put_batch(self) -> None:
        try:
            await self._queue.put_many(self._values)
        finally:
            self._room.release()
        self.put_count += BATCH

    async def take(self) -> None:
        """Lease and accept until the task is cancelled."""
        while True:
            found = await self._queue.get_many(max_messages=BATCH)
            await self._queue.ack_many(found)
            self.accepted_count += len(found)


async def measure_files(cluster: LocalCluster, scale: LoadScale, found: Found) -> None:
    """Let messages pass through a queue in which some stay, and look at the files of all replicas every second."""
    servers, kept = cluster.bootstrap_servers, os.urandom(KEPT_BYTES)
    (name,) = await create(servers, {})
    async with (
        raftmq.Queue[bytes](name, bootstrap_servers=servers) as queue,
        written_beside(servers, LOG) as beside,
    ):
        await put_all(queue, scale.kept, lambda _: raftmq.NewMessage(kept, delay_ms=DAY_MS))
        flow = _Flow(queue, scale.file_rate)
        beside.seconds.clear()
        began_at = time.perf_counter()
        ends_at = began_at + scale.file_seconds
        first: float | None = None
        largest, share = 0, 0.0
        async with asyncio.TaskGroup() as tasks:
            working = [tasks.create_task(flow.take()) for _ in range(TAKERS)]
            putting = tasks.create_task(flow.put(ends_at))
            while not putting.done():
                await asyncio.sleep(SAMPLE_SECONDS)
                if first is None and time.perf_counter() >= began_at + scale.file_seconds * FIRST_PART:
                    first = await beside.p99()
                size = max(size for n in cluster.broker_ids for size in queue_files(cluster.data_dir(n)))
                living = scale.kept * KEPT_BYTES + max(0, flow.put_count - flow.accepted_count) * VALUE_BYTES
                largest, share = max(largest, size), max(share, size / bound_bytes(living))
            elapsed = time.perf_counter() - began_at
            for task in working:
                task.cancel()
        assert first is not None
        found |= {
            "file_share": 100 * share,
            "file_size": largest / MIB,
            "file_rate": flow.accepted_count / elapsed,
            "file_seconds": elapsed,
            "file_beside": await beside.p99() / first,
        }
