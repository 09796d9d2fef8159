"""Run a producer and a consumer through faults, and record their calls and answers in a history that the checker judges."""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Self

from raftmq import Consumer, Producer, Record, TopicPartition

from sim.history.checker import Verdict, judge
from sim.history.events import Event
from sim.history.recorder import Recorder
from sim.history.recording_consumer import RecordingConsumer
from sim.history.recording_producer import RecordingProducer

IN_FLIGHT_MAX = 300
BURST = 20
"""Number of records sent without a pause, so that batches have several records."""
PAUSE_SECONDS = 0.02
"""Pause between bursts: a thousand records a second leave the processors to the brokers and other tests."""
KEYS = 16
ANSWER_SECONDS = 150.0
READ_SECONDS = 60.0


class Workload:
    """An async context manager that runs one producer and one consumer as tasks and collects their `events`."""

    def __init__(self, bootstrap_servers: str, topic: str, partitions: int) -> None:
        self.events: list[Event] = []
        self.sent = 0
        self.acknowledged = 0
        self.unsuccessful: list[Event] = []
        """Sends that failed or have an unknown outcome."""
        self.read = 0
        self._recorder = Recorder(self._on_event, time.monotonic_ns)
        self.bootstrap_servers = bootstrap_servers
        """The addresses for consumers that begin later. Brokers may have left."""
        self._topic = topic
        self._partitions = [TopicPartition(topic, n) for n in range(partitions)]
        self._room = asyncio.Semaphore(IN_FLIGHT_MAX)
        self._changed = asyncio.Event()
        self._is_stopping = False
        self._readings = 0

    async def __aenter__(self) -> Self:
        producer = Producer(bootstrap_servers=self.bootstrap_servers, linger_ms=2)
        self._producer = await RecordingProducer(producer, self._recorder, "writer").__aenter__()
        self._consumer = await self._new_consumer("reader").__aenter__()
        self._consumer.assign(self._partitions)
        self._producing = asyncio.create_task(self._produce())
        self._consuming = asyncio.create_task(self._consume())
        for task in (self._producing, self._consuming):
            task.add_done_callback(lambda _: self._changed.set())
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in (self._producing, self._consuming):
            task.cancel()
        await asyncio.gather(self._producing, self._consuming, return_exceptions=True)
        await self._consumer.close()
        await self._producer.close()

    def _new_consumer(self, name: str) -> RecordingConsumer:
        consumer = Consumer(bootstrap_servers=self.bootstrap_servers, auto_offset_reset="earliest")
        return RecordingConsumer(consumer, self._recorder, name, start="earliest")

    def _on_event(self, event: Event) -> None:
        self.events.append(event)
        if event.operation == "send" and event.kind != "invoke":
            self._room.release()
            if event.kind == "ok":
                self.acknowledged += 1
            else:
                self.unsuccessful.append(event)
        elif event.process == "reader" and event.records:
            self.read += sum(len(batch.offsets) for batch in event.records)
        self._changed.set()

    async def _produce(self) -> None:
        while not self._is_stopping:
            await self._room.acquire()
            number = self.sent
            self.sent += 1
            await self._producer.send(self._topic, b"%d " % number + b"." * 100, key=b"key-%d" % (number % KEYS))
            if number % BURST == 0:
                await asyncio.sleep(PAUSE_SECONDS)

    async def _consume(self) -> None:
        while True:
            await self._consumer.getmany(timeout_ms=500)

    async def wait(self, condition: Callable[[], bool], what: str, seconds: float = 60.0) -> None:
        """Wait until the condition holds. Fail with `what` after the time, or with the error of a task that died."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while (
                    not condition() and not self._consuming.done() and (self._is_stopping or not self._producing.done())
                ):
                    self._changed.clear()
                    await self._changed.wait()
        for task in (self._producing, self._consuming):
            if task.done():
                task.result()
        assert condition(), (
            f"{what} did not happen within {seconds:.0f} s: {self.acknowledged} of {self.sent} acknowledged, {self.read} read, "
            f"unsuccessful {self.unsuccessful[:3]}"
        )

    async def wait_progress(self, records: int = 500, seconds: float = 60.0) -> None:
        """Wait until `records` more are acknowledged and as many more are read."""
        acknowledged, read = self.acknowledged + records, self.read + records
        await self.wait(
            lambda: self.acknowledged >= acknowledged and self.read >= read, f"progress of {records} records", seconds
        )

    async def finish(self) -> None:
        """Stop producing, and wait until every send is answered and every acknowledged record is read."""
        self._is_stopping = True
        await asyncio.wait_for(self._producing, 60)
        await self.wait(
            lambda: self.acknowledged + len(self.unsuccessful) == self.sent,
            "an answer for every record",
            ANSWER_SECONDS,
        )
        await self.wait(lambda: self.read >= self.acknowledged, "reading everything acknowledged")

    async def read_again(self) -> dict[TopicPartition, list[Record]]:
        """Read everything from the beginning with a new consumer, as part of the history."""
        self._readings += 1
        async with self._new_consumer(f"reader-again-{self._readings}") as consumer, asyncio.timeout(READ_SECONDS):
            return await consumer.read_all(self._partitions)

    async def check(self) -> Verdict:
        """End the test: check that all sent records are acknowledged and read again, and that the history is clean. Return the verdict."""
        await self.finish()
        assert self.unsuccessful == []
        assert self.acknowledged == self.sent
        await self.read_again()
        verdict = judge(self.events)
        verdict.demand_clean()
        assert verdict.outcomes["send"] == {"ok": self.sent}
        assert verdict.is_read_to_the_end
        return verdict
