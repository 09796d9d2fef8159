"""Produce the flights at full speed, kill a broker in the middle, and restart it later."""

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice

from raftmq import BulkDelivery, Producer
from raftmq.testing import LocalCluster

from examples.demo_flights.progress import Reporter, Stage
from examples.demo_flights.source import Flight

CHUNK_RECORDS = 1_000
"""Records per `send_many`, whose acknowledgement is timed."""
CHUNKS_IN_FLIGHT = 16
"""Enough to keep three brokers busy. More would only measure the queue in front of them."""
KILL_AT = 0.4
RESTART_AT = 0.75
"""Shares of the records handed to the producer when the broker is killed and when it is restarted."""


@dataclass
class LoadReport:
    """Report the run of the producer."""

    records: int = 0
    bytes: int = 0
    seconds: float = 0.0
    append_seconds: list[float] = field(default_factory=list)
    """For each chunk, the time from handing it to the producer to its acknowledgement by majorities."""
    killed_broker: int = 0
    killed_partitions: tuple[int, ...] = ()
    """Partitions that the broker led when it was killed."""
    killed_after: int = 0
    """Records handed to the producer before the kill."""
    failover_seconds: float = 0.0
    """Time from the SIGKILL until every partition that the dead broker led has acknowledged a record sent after it."""
    restarted_after: int = 0
    """Records acknowledged before the broker was restarted."""


def choose_victim(leaders: dict[int, int]) -> tuple[int, tuple[int, ...]]:
    """Return the broker that leads most partitions (the lowest id among equals), and those partitions."""
    led = Counter(leaders.values())
    victim = min(led, key=lambda broker_id: (-led[broker_id], broker_id))
    return victim, tuple(partition for partition, broker_id in sorted(leaders.items()) if broker_id == victim)


class Load:
    """Produce all flights once. One task hands chunks over in order, and other tasks await their acknowledgements."""

    def __init__(self, cluster: LocalCluster, topic: str, producer: Producer, reporter: Reporter) -> None:
        self.report = LoadReport()
        self._cluster = cluster
        self._topic = topic
        self._producer = producer
        self._reporter = reporter
        self._killed_at = 0.0
        self._awaited: set[int] = set()
        """Partitions of the killed broker that have acknowledged no record since the kill."""
        self._acknowledged = 0

    async def run(self, flights: Sequence[Flight]) -> LoadReport:
        """Produce all flights. Raises the first failure of a record or of the restart."""
        report = self.report
        room = asyncio.Semaphore(CHUNKS_IN_FLIGHT)
        records = iter(flights)
        started = time.perf_counter()
        with self._reporter.stage("produced", len(flights)) as stage:
            async with asyncio.TaskGroup() as tasks:
                restart: asyncio.Task[None] | None = None
                while chunk := list(islice(records, CHUNK_RECORDS)):
                    await room.acquire()
                    if not report.killed_broker and report.records >= KILL_AT * len(flights):
                        self._kill()
                    # Restart only after the cluster has recovered without the broker.
                    if restart is None and report.records >= RESTART_AT * len(flights) and not self._awaited:
                        restart = tasks.create_task(self._restart())
                    # `send_many` waits for buffer space only. Records keep the order of these calls, so they are made in turn.
                    taken_at = time.perf_counter()
                    delivery = await self._producer.send_many(self._topic, chunk)
                    tasks.create_task(self._follow(delivery, taken_at, room, stage))
                    report.records += len(chunk)
                    report.bytes += sum(len(value) + len(key or b"") for key, value in chunk)
                await self._all_acknowledged(room)
                report.seconds = time.perf_counter() - started
                if restart is None:
                    await self._restart()
        return report

    async def _follow(self, delivery: BulkDelivery, taken_at: float, room: asyncio.Semaphore, stage: Stage) -> None:
        """Wait for one chunk's acknowledgement and record its time."""
        spans = await delivery
        now = time.perf_counter()
        self.report.append_seconds.append(now - taken_at)
        if self._awaited and taken_at >= self._killed_at:
            self._awaited -= {span.partition for span in spans}
            if not self._awaited:
                self.report.failover_seconds = now - self._killed_at
                self._reporter.say(f"  every partition has a leader again after {self.report.failover_seconds:.2f} s")
        self._acknowledged += delivery.count
        stage.advance(delivery.count)
        room.release()

    @staticmethod
    async def _all_acknowledged(room: asyncio.Semaphore) -> None:
        """Wait until every chunk has released its slot, which it does when acknowledged. A failed one cancels all tasks."""
        for _ in range(CHUNKS_IN_FLIGHT):
            await room.acquire()

    def _kill(self) -> None:
        report = self.report
        report.killed_broker, report.killed_partitions = choose_victim(self._cluster.wait_leaders(self._topic))
        report.killed_after = report.records
        self._awaited = set(report.killed_partitions)
        self._killed_at = time.perf_counter()
        self._cluster.kill(report.killed_broker)
        led = ", ".join(map(str, report.killed_partitions))
        self._reporter.say(
            f"  kill -9 of broker {report.killed_broker}, leader of partitions {led}, after {report.records:,} records"
        )

    async def _restart(self) -> None:
        self.report.restarted_after = self._acknowledged
        self._reporter.say(
            f"  broker {self.report.killed_broker} starts again after {self._acknowledged:,} acknowledged records"
        )
        await asyncio.to_thread(self._cluster.restart, self.report.killed_broker)
