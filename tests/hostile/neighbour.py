"""A client that behaves, beside an attack: what it writes is read exactly once and in order, and nothing takes for ever."""

from __future__ import annotations

import asyncio
import time
from typing import Self

from raftmq import Consumer, Producer, TopicPartition

LATENCY_SECONDS_MAX = 10.0
"""From sending to acknowledgement. Generous: the attackers share two cores with the broker and with us."""
_PAUSE_SECONDS = 0.005


class Neighbour:
    """An async context manager: it works while the block runs, and on leaving proves that all of it arrived."""

    def __init__(self, bootstrap_servers: str, topic: str) -> None:
        self._servers = bootstrap_servers
        self._partition = TopicPartition(topic, 0)
        self._stop = asyncio.Event()
        self._first_offset = -1
        self.sent = 0
        self.latency_seconds_max = 0.0

    async def __aenter__(self) -> Self:
        self._producer = await Producer(bootstrap_servers=self._servers, linger_ms=0).__aenter__()
        self._consumer = await Consumer(bootstrap_servers=self._servers, auto_offset_reset="latest").__aenter__()
        self._consumer.assign([self._partition])
        self._first_offset = await self._consumer.position(self._partition)
        self._work = asyncio.create_task(self._produce())
        return self

    async def _produce(self) -> None:
        while self.sent == 0 or not self._stop.is_set():
            started = time.monotonic()
            written = await self._producer.send_and_wait(self._partition.topic, value=b"%d" % self.sent, partition=0)
            self.latency_seconds_max = max(self.latency_seconds_max, time.monotonic() - started)
            assert written.offset == self._first_offset + self.sent
            self.sent += 1
            try:
                async with asyncio.timeout(_PAUSE_SECONDS):
                    await self._stop.wait()
            except TimeoutError:
                continue

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._stop.set()
        try:
            await asyncio.wait_for(self._work, 60)
            if kind is None:
                await asyncio.wait_for(self._verify(), 60)
        finally:
            await self._consumer.close()
            await self._producer.close()

    async def _verify(self) -> None:
        values: list[int] = []
        while len(values) < self.sent:
            for records in (await self._consumer.getmany(timeout_ms=1000)).values():
                values.extend(int(record.value or b"-1") for record in records)
        assert values == list(range(self.sent))
        end = (await self._consumer.end_offsets([self._partition]))[self._partition]
        assert end == self._first_offset + self.sent, "nobody else may write there"
        assert self.latency_seconds_max < LATENCY_SECONDS_MAX
