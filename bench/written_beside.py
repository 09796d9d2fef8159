"""Write a log topic at a low rate and print the seconds of each record, to see how another load delays the programs beside it.

Usage: python -m bench.written_beside SERVERS TOPIC
"""

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import raftmq

from bench.child import child
from bench.workloads import VALUE_BYTES, percentiles

PAUSE_SECONDS = 0.02
"""The pause between two records."""
RECORDS_MIN = 2


@dataclass
class Beside:
    """The seconds of each record that was written."""

    seconds: list[float] = field(default_factory=list)
    reader: asyncio.Task[None] | None = None
    """It is done when the process has ended, and there will be no more."""

    async def p99(self) -> float:
        """Return the 99th percentile in milliseconds since the last call, and begin again. Wait if there are too few records."""
        while len(self.seconds) < RECORDS_MIN:
            if self.reader is None or self.reader.done():
                raise RuntimeError("the process that writes beside the load has ended")
            await asyncio.sleep(PAUSE_SECONDS)
        found, self.seconds = self.seconds, []
        return percentiles(found)["p99"]


async def write(servers: str, topic: str) -> None:
    """Write records one by one until the process is ended."""
    async with raftmq.Producer(bootstrap_servers=servers) as producer:
        while True:
            started = time.perf_counter()
            await producer.send_and_wait(topic, os.urandom(VALUE_BYTES))
            print(time.perf_counter() - started, flush=True)
            await asyncio.sleep(PAUSE_SECONDS)


@asynccontextmanager
async def written_beside(servers: str, topic: str) -> AsyncIterator[Beside]:
    """Write a topic from another process."""
    beside = Beside()
    async with child(lambda line: beside.seconds.append(float(line)), __name__, servers, topic) as beside.reader:
        yield beside


if __name__ == "__main__":
    asyncio.run(write(sys.argv[1], sys.argv[2]))
