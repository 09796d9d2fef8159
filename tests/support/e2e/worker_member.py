"""Run some workers of a group and record their handlers' work, as a process that `test_worker.py` starts and kills.

    python -m tests.support.e2e.worker_member '{"bootstrap_servers": …}'

It prints `ready` when its workers run. SIGTERM ends it like any program with workers.
"""

from __future__ import annotations

import asyncio
import random
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

import msgspec
from raftmq import Producer, RebalanceListener, Record, TopicPartition, Worker
from raftmq.client.worker.contiguous_offsets import Progress
from raftmq.client.worker.dead_letters import DeadLetters
from raftmq.client.worker.group_consumer import GroupConsumer
from raftmq.client.worker.outcome import Failure
from raftmq.client.worker.work_loop import WorkLoop

from sim.history.events import HistoryWriter
from sim.history.recorder import Recorder

POISON = b" poison"
"""The end of a value that no handler can process."""


class Order(msgspec.Struct):
    """The arguments of the process."""

    name: str
    """Name of the process, unique in the run."""
    bootstrap_servers: str
    topic: str
    group_id: str
    dead_letter_topic: str
    history: str
    workers: int
    concurrency: int
    ordering: Literal["key", "partition", "none"] = "key"
    seed: int = 0
    fails_one_in: int = 20
    """One in this many handler calls fails and is retried."""
    handler_ms_max: float = 100.0
    session_timeout_ms: int = 6000


class RecordingListener(RebalanceListener):
    """A listener that passes every call on to the work loop, and records the partitions of the process."""

    def __init__(self, loop: WorkLoop, recorder: Recorder, process: str, group_id: str) -> None:
        self._loop = loop
        self._recorder = recorder
        self._process = process
        self._group_id = group_id

    async def on_assigned(self, partitions: frozenset[TopicPartition]) -> None:
        for name in partitions:
            operation = self._recorder.invoke(
                self._process, "open", group=self._group_id, topic=name.topic, partition=name.partition
            )
            operation.ok()
        await self._loop.on_assigned(partitions)

    async def on_revoked(self, partitions: frozenset[TopicPartition]) -> None:
        failures_before = self._loop.counters.commit_failures_total
        operations = [
            self._recorder.invoke(
                self._process, "release", group=self._group_id, topic=name.topic, partition=name.partition
            )
            for name in partitions
        ]
        await self._loop.on_revoked(partitions)
        for operation in operations:
            if self._loop.counters.commit_failures_total == failures_before:
                operation.ok()
            else:
                operation.info()

    async def on_lost(self, partitions: frozenset[TopicPartition]) -> None:
        await self._loop.on_lost(partitions)


class RecordingConsumer:
    """A consumer that passes every call on and records commits."""

    def __init__(self, consumer: GroupConsumer, recorder: Recorder, process: str, group_id: str) -> None:
        self._consumer = consumer
        self._recorder = recorder
        self._process = process
        self._group_id = group_id
        self.start, self.close = consumer.start, consumer.close
        self.getmany, self.assignment = consumer.getmany, consumer.assignment
        self.pause, self.resume = consumer.pause, consumer.resume
        self.finished, self.rewind = consumer.finished, consumer.rewind

    async def commit_progress(
        self, progress: Mapping[TopicPartition, Progress], on_committed: Callable[[TopicPartition], None]
    ) -> None:
        operations = [
            self._recorder.invoke(
                self._process,
                "commit",
                group=self._group_id,
                topic=name.topic,
                partition=name.partition,
                offset=made.offset,
            )
            for name, made in progress.items()
        ]
        try:
            await self._consumer.commit_progress(progress, on_committed)
        except BaseException as error:
            for operation in operations:
                operation.info(error=type(error).__name__, detail=str(error))  # some of several may have succeeded
            raise
        for operation in operations:
            operation.ok()


class RecordingLetters(DeadLetters):
    """A dead letter writer that passes records on to the real one and records them."""

    def __init__(self, letters: DeadLetters, recorder: Recorder, process: str, group_id: str) -> None:
        self._letters = letters
        self._recorder = recorder
        self._process = process
        self._group = group_id

    async def put(self, record: Record, attempts: int, failure: Failure) -> None:
        operation = self._recorder.invoke(
            self._process,
            "dead_letter",
            group=self._group,
            topic=record.topic,
            partition=record.partition,
            offset=record.offset,
        )
        await self._letters.put(record, attempts, failure)
        operation.ok()


class RecordingWorker(Worker):
    """A worker whose handler calls, commits and dead letters are in the history."""

    def __init__(self, order: Order, number: int, recorder: Recorder) -> None:
        self.process = f"{order.name}.{number}"
        self._recorder = recorder
        self._order = order
        self._chance = random.Random(f"{order.seed} {self.process}")
        super().__init__(
            order.topic,
            order.group_id,
            self.handle,
            bootstrap_servers=order.bootstrap_servers,
            concurrency=order.concurrency,
            ordering=order.ordering,
            retries=3,
            retry_backoff_ms=5,
            retry_backoff_max_ms=50,
            dead_letter_topic=order.dead_letter_topic,
            commit_interval_ms=200,
            max_partition_records=100,
            session_timeout_ms=order.session_timeout_ms,
        )

    async def handle(self, record: Record) -> None:
        """Take a random time, and fail now and then."""
        key = record.key.decode() if record.key is not None and self._order.ordering == "key" else None
        operation = self._recorder.invoke(
            self.process,
            "process",
            group=self.group_id,
            topic=record.topic,
            partition=record.partition,
            offset=record.offset,
            key=key,
            value=self._recorder.value_id(record.value),
        )
        await asyncio.sleep(self._chance.random() * self._order.handler_ms_max / 1000)
        if (record.value or b"").endswith(POISON) or self._chance.randrange(self._order.fails_one_in) == 0:
            operation.fail(error="ValueError")
            raise ValueError("not this time")
        operation.ok()

    def _make_consumer(self, listener: RebalanceListener) -> GroupConsumer:
        assert isinstance(listener, WorkLoop)
        recording = RecordingListener(listener, self._recorder, self.process, self.group_id)
        return RecordingConsumer(super()._make_consumer(recording), self._recorder, self.process, self.group_id)

    def _make_letters(self, producer: Producer, topic: str) -> DeadLetters:
        return RecordingLetters(super()._make_letters(producer, topic), self._recorder, self.process, self.group_id)


async def main(order: Order) -> None:
    """Run the workers until SIGTERM."""
    with HistoryWriter(Path(order.history), is_flushed_each=True) as writer:
        recorder = Recorder(writer.write, time.monotonic_ns)
        workers = [RecordingWorker(order, number, recorder) for number in range(order.workers)]

        def stop() -> None:
            for worker in workers:
                worker.stop()

        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop)
        print("ready", flush=True)
        await asyncio.gather(*(worker.serve() for worker in workers))


if __name__ == "__main__":
    asyncio.run(main(msgspec.json.decode(sys.argv[1], type=Order)))
