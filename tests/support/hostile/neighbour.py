"""Run a well-behaved client beside an attack: it must read its records exactly once, in order and within a time limit."""

from __future__ import annotations

import asyncio
import statistics
import time
from typing import Self

from raftmq import Consumer, Producer, TopicPartition

LATENCY_SECONDS_MAX = 30.0
"""Limit for each record. It is generous: attackers, broker, this client and other programs share two cores."""
LATENCY_SECONDS_MEDIAN_MAX = 10.0
"""Limit for the median. A call that waits for the eviction of an idle one waits a second, and again for the next answer."""
_PAUSE_SECONDS = 0.005
_END_SECONDS_MAX = 90.0


class Neighbour:
    """An async context manager that writes and reads during its block and checks at the exit that every record arrived."""

    def __init__(self, bootstrap_servers: str, topic: str) -> None:
        self._servers = bootstrap_servers
        self._partition = TopicPartition(topic, 0)
        self._stop = asyncio.Event()
        self._first_read = asyncio.Event()
        self._first_offset = -1
        self._sent_at: list[float] = []
        self.acknowledged_seconds: list[float] = []
        """Time from sending to acknowledgement, of each record."""
        self.read_seconds: list[float] = []
        """Time from sending to reading, of each record."""

    def __str__(self) -> str:
        return (
            f"neighbour: {len(self.read_seconds)} records, "
            f"acknowledged in {statistics.median(self.acknowledged_seconds):.3f} s (at most "
            f"{max(self.acknowledged_seconds):.3f} s), read in {statistics.median(self.read_seconds):.3f} s (at most "
            f"{max(self.read_seconds):.3f} s)"
        )

    async def __aenter__(self) -> Self:
        self._producer = await Producer(bootstrap_servers=self._servers, linger_ms=0).__aenter__()
        self._consumer = await Consumer(bootstrap_servers=self._servers, auto_offset_reset="latest").__aenter__()
        self._consumer.assign([self._partition])
        self._first_offset = await self._consumer.position(self._partition)
        self._producing = asyncio.create_task(self._produce())
        self._consuming = asyncio.create_task(self._consume())
        return self

    async def settled(self) -> None:
        """Wait until the first record was written and read, so that connections and caches exist."""
        await self._first_read.wait()

    async def _produce(self) -> None:
        while not self._stop.is_set() or not self._first_read.is_set():
            number = len(self._sent_at)
            started = time.monotonic()
            self._sent_at.append(started)
            written = await self._producer.send_and_wait(self._partition.topic, value=b"%d" % number, partition=0)
            self.acknowledged_seconds.append(time.monotonic() - started)
            assert written.offset == self._first_offset + number
            try:
                async with asyncio.timeout(_PAUSE_SECONDS):
                    await self._stop.wait()
            except TimeoutError:
                continue

    async def _consume(self) -> None:
        while not self._producing.done() or len(self.read_seconds) < len(self._sent_at):
            for records in (await self._consumer.getmany(timeout_ms=200)).values():
                for record in records:
                    number = len(self.read_seconds)
                    assert record.value == b"%d" % number, "lost, repeated or out of order"
                    self.read_seconds.append(time.monotonic() - self._sent_at[number])
                    self._first_read.set()

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._stop.set()
        try:
            async with asyncio.timeout(_END_SECONDS_MAX):
                await asyncio.gather(self._producing, self._consuming)
            if kind is None:
                await self._verify()
        finally:
            for task in (self._producing, self._consuming):
                task.cancel()
            await self._consumer.close()
            await self._producer.close()

    async def _verify(self) -> None:
        end = (await self._consumer.end_offsets([self._partition]))[self._partition]
        assert end == self._first_offset + len(self._sent_at), "no other client may write there"
        for seconds in (self.acknowledged_seconds, self.read_seconds):
            assert len(seconds) == len(self._sent_at)
            assert max(seconds) < LATENCY_SECONDS_MAX, str(self)
            assert statistics.median(seconds) < LATENCY_SECONDS_MEDIAN_MAX, str(self)
