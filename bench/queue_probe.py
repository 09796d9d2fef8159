"""Put, lease and accept single messages of a queue, and print the time of each call, to see how another load of the queue delays it.

Usage: python -m bench.queue_probe SERVERS TOPIC WORKERS PAUSE

A line has the call, the time at which it began and its seconds. The time is that of `perf_counter`, which the processes of a Linux
machine share.
"""

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import NamedTuple

import raftmq

from bench.child import child
from bench.workloads import VALUE_BYTES, percentiles

PUT, LEASE, ACK = "put", "lease", "ack"


class Call(NamedTuple):
    """A finished call of the probe."""

    name: str
    began_at: float
    seconds: float


def p99(calls: Iterable[Call], name: str) -> float:
    """Return the 99th percentile of the calls of this name, in milliseconds. Raises if there are fewer than two."""
    seconds = [call.seconds for call in calls if call.name == name]
    if len(seconds) < 2:
        raise RuntimeError(f"the probe finished {len(seconds)} calls of {name!r}, too few for a percentile")
    return percentiles(seconds)["p99"]


async def probe(servers: str, topic: str, workers: int, pause_seconds: float) -> None:
    """Work until the process is ended."""

    def tell(name: str, began_at: float) -> float:
        now = time.perf_counter()
        print(name, began_at, now - began_at, flush=True)
        return now

    async def work(queue: raftmq.Queue[bytes]) -> None:
        value = os.urandom(VALUE_BYTES)
        while True:
            put_at = time.perf_counter()
            await queue.put(value)
            leased_at = tell(PUT, put_at)
            message = await queue.get()
            assert message is not None
            accepted_at = tell(LEASE, leased_at)
            await message.ack()
            tell(ACK, accepted_at)
            await asyncio.sleep(pause_seconds)

    async with raftmq.Queue[bytes](topic, bootstrap_servers=servers) as queue, asyncio.TaskGroup() as tasks:
        for _ in range(workers):
            tasks.create_task(work(queue))


@asynccontextmanager
async def probed(servers: str, topic: str, workers: int, pause_seconds: float) -> AsyncIterator[list[Call]]:
    """Probe a queue from another process. The list grows during the block."""
    calls: list[Call] = []

    def add(line: str) -> None:
        name, began_at, seconds = line.split()
        calls.append(Call(name, float(began_at), float(seconds)))

    async with child(add, __name__, servers, topic, str(workers), str(pause_seconds)) as reader:
        yield calls
        if reader.done():
            raise RuntimeError("the process that probes the queue has ended")


if __name__ == "__main__":
    asyncio.run(probe(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])))
