"""Run writers and readers through faults, and record their calls and answers for the checker.

There are three writers. The patient one waits for minutes. The records of the impatient one expire, so there are failures and unknown
outcomes to judge. The mortal one is abandoned with records in flight and replaced under a new name. One of the two readers only reads
forwards, and the other seeks to the beginning now and then. An operator creates, changes and deletes other topics. Each record names its
writer.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

from raftmq import Admin, Consumer, Producer, TopicPartition
from raftmq.errors import RaftMQError

from sim.history.events import HistoryWriter
from sim.history.recorder import Recorder
from sim.history.recording_admin import RecordingAdmin
from sim.history.recording_consumer import RecordingConsumer
from sim.history.recording_producer import RecordedDelivery, RecordingProducer

KEYS = 16
IN_FLIGHT_MAX = 60
PAUSE_SECONDS = 0.008
"""The pause between a writer's records: about a hundred per second leave the processor to the brokers."""
PATIENT_MS = 120_000.0
IMPATIENT_MS = 1_500.0
LIFE_SECONDS = (2.0, 5.0)
TOPIC_PAUSE_SECONDS = 1.0
WATCH_SECONDS = 1.0
"""The pause between two looks at the number of partitions."""
ADMIN_MS = 5_000.0
PADDING = b" " + b"." * 60


class Workload:
    """An async context manager that runs the clients until `stop`.

    Args:
        bootstrap_servers: Returns the present addresses of the cluster.
        topic: Existing topic to write and read.
        partitions: Number of its partitions.
        history_path: File for the history.
        seed: Seed of the clients' choices.
        prefix: Prefix of the clients' names, for clients that follow others on the same topic.
    """

    def __init__(
        self,
        bootstrap_servers: Callable[[], str],
        topic: str,
        partitions: int,
        history_path: Path,
        seed: int,
        prefix: str = "",
    ) -> None:
        self._prefix = prefix
        self._servers = bootstrap_servers
        self._topic = topic
        self._partitions = [TopicPartition(topic, n) for n in range(partitions)]
        self._chance = random.Random(seed)
        self._writer = HistoryWriter(history_path)
        self.recorder = Recorder(self._writer.write, time.monotonic_ns)
        self._tasks: list[asyncio.Task[None]] = []
        self._is_stopping = asyncio.Event()
        self.acknowledged = 0
        self.failed: dict[str, int] = {}
        """Number of failed calls, by error class."""
        self.read = 0

    async def __aenter__(self) -> Self:
        prefix = self._prefix
        jobs = (
            self._write_patiently(f"{prefix}patient", PATIENT_MS),
            self._write_patiently(f"{prefix}impatient", IMPATIENT_MS),
            self._write_and_die(f"{prefix}mortal"),
            self._read(f"{prefix}follower", self._partitions, goes_back=False),
            self._read(f"{prefix}rereader", self._partitions, goes_back=True),
            self._change_topics(f"{prefix}operator"),
            self._watch_partitions(f"{prefix}newcomer"),
        )
        self._tasks = [asyncio.create_task(job) for job in jobs]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._is_stopping.set()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._writer.close()

    # --------------------------------------------------------------------------------------------------------- writers

    def _producer(self, name: str, delivery_timeout_ms: float) -> RecordingProducer:
        producer = Producer(
            bootstrap_servers=self._servers(),
            linger_ms=2,
            delivery_timeout_ms=delivery_timeout_ms,
            request_timeout_ms=min(3_000.0, delivery_timeout_ms),
        )
        return RecordingProducer(producer, self.recorder, name)

    async def _write_patiently(self, name: str, delivery_timeout_ms: float) -> None:
        producer = self._producer(name, delivery_timeout_ms)
        await producer.start()
        try:
            await self._send_until(producer, name, self._is_stopping.is_set)
        except BaseException:
            await self._drop(producer)
            raise
        await producer.close()

    async def _write_and_die(self, name: str) -> None:
        life = 0
        ends_at = 0.0

        def is_over() -> bool:
            return self._is_stopping.is_set() or time.monotonic() > ends_at

        while not self._is_stopping.is_set():
            life += 1
            ends_at = time.monotonic() + self._chance.uniform(*LIFE_SECONDS)
            producer = self._producer(f"{name}-{life}", PATIENT_MS)
            try:
                await producer.start()
            except RaftMQError as error:  # no broker may answer while there is no leader
                self._count(error)
                continue
            try:
                await self._send_until(producer, f"{name}-{life}", is_over)
            finally:
                await self._drop(producer)

    @staticmethod
    async def _drop(producer: RecordingProducer) -> None:
        """Drop a producer as if its process had died: the outcome of records in flight stays unknown."""
        await producer.abandon()
        closing = asyncio.create_task(producer.producer.close())
        await asyncio.wait([closing], timeout=0.05)
        closing.cancel()  # a cancelled close is immediate
        await asyncio.gather(closing, return_exceptions=True)

    async def _send_until(self, producer: RecordingProducer, name: str, is_over: Callable[[], bool]) -> None:
        room = asyncio.Semaphore(IN_FLIGHT_MAX)
        followers: set[asyncio.Task[None]] = set()
        number = 0
        while not is_over():
            try:
                async with asyncio.timeout(0.2):
                    await room.acquire()
            except TimeoutError:
                continue  # check `is_over` again
            value = b"%s-%d" % (name.encode(), number)
            key = b"%s-key-%d" % (name.encode(), self._chance.randrange(KEYS))
            number += 1
            try:
                delivery = await producer.send(self._topic, value + PADDING, key=key)
            except RaftMQError as error:
                self._count(error)
                room.release()
            else:
                follower = asyncio.create_task(self._follow(delivery, room))
                followers.add(follower)
                follower.add_done_callback(followers.discard)
            await asyncio.sleep(PAUSE_SECONDS)

    async def _follow(self, delivery: RecordedDelivery, room: asyncio.Semaphore) -> None:
        try:
            await delivery
            self.acknowledged += 1
        except RaftMQError as error:
            self._count(error)
        finally:
            room.release()

    def _count(self, error: RaftMQError) -> None:
        name = type(error).__name__
        self.failed[name] = self.failed.get(name, 0) + 1

    # --------------------------------------------------------------------------------------------------------- readers

    async def _read(self, name: str, partitions: Sequence[TopicPartition], *, goes_back: bool) -> None:
        consumer = Consumer(bootstrap_servers=self._servers(), auto_offset_reset="earliest")
        async with RecordingConsumer(consumer, self.recorder, name, start="earliest") as reader:
            reader.assign(partitions)
            goes_back_at = time.monotonic() + self._chance.uniform(3, 6)
            while not self._is_stopping.is_set():
                try:
                    found = await reader.getmany(timeout_ms=300)
                    self.read += sum(map(len, found.values()))
                    if goes_back and time.monotonic() > goes_back_at:
                        await reader.seek_to_beginning(self._chance.choice(partitions))
                        goes_back_at = time.monotonic() + self._chance.uniform(3, 6)
                except RaftMQError as error:
                    self._count(error)

    async def _watch_partitions(self, name: str) -> None:
        """Start a reader for each partition that the topic gets during the run."""
        stopping = asyncio.ensure_future(self._is_stopping.wait())
        while not self._is_stopping.is_set():
            for new in await self._new_partitions():
                job = self._read(f"{name}-{new.partition}", [new], goes_back=False)
                self._tasks.append(asyncio.create_task(job))
            await asyncio.wait([stopping], timeout=WATCH_SECONDS)
        stopping.cancel()

    async def _new_partitions(self) -> list[TopicPartition]:
        """Return the partitions that the topic got since the last call, as far as a broker answers."""
        try:
            async with Admin(bootstrap_servers=self._servers(), request_timeout_ms=ADMIN_MS) as admin:
                seen = await admin.describe_topic(self._topic)
        except RaftMQError as error:
            self._count(error)
            return []
        new = [TopicPartition(self._topic, n) for n in range(len(self._partitions), len(seen.partitions))]
        self._partitions = [*self._partitions, *new]
        return new

    # --------------------------------------------------------------------------------------------------------- metadata

    async def _change_topics(self, name: str) -> None:
        """Create, change, describe and delete topics without records."""
        stopping = asyncio.ensure_future(self._is_stopping.wait())
        number = 0
        while not self._is_stopping.is_set():
            number += 1
            topic = f"{self._topic}-{self._prefix}side-{number}"
            admin = Admin(bootstrap_servers=self._servers(), request_timeout_ms=ADMIN_MS)
            try:
                async with RecordingAdmin(admin, self.recorder, f"{name}-{number}") as operator:
                    await operator.create_topic(topic, partitions=1, config={"retention.ms": "100000"})
                    await operator.describe_topic(topic)
                    await operator.alter_topic_config(topic, {"retention.ms": "200000"})
                    await operator.add_partitions(topic, 2)
                    await operator.describe_topic(topic)
                    await operator.delete_topic(topic)
            except RaftMQError as error:
                self._count(error)
            await asyncio.wait([stopping], timeout=TOPIC_PAUSE_SECONDS)
        stopping.cancel()

    # ------------------------------------------------------------------------------------------------------------- end

    def check_alive(self) -> None:
        """Raise the error of a client that ended with anything but an error of the SDK, which is a defect."""
        for task in self._tasks:
            if task.done() and not task.cancelled():
                task.result()

    async def wait_progress(self, records: int, seconds: float) -> bool:
        """Return whether `records` more were acknowledged, and as many more read, within the time."""
        acknowledged, read = self.acknowledged + records, self.read + records
        deadline = time.monotonic() + seconds
        while self.acknowledged < acknowledged or self.read < read:
            self.check_alive()
            if time.monotonic() > deadline:
                return False
            await asyncio.sleep(0.05)
        return True

    async def stop(self, seconds: float) -> None:
        """Stop writing and reading, and wait for every answer.

        Raises:
            TimeoutError: Answers are missing after this time. The history is incomplete.
        """
        self._is_stopping.set()
        async with asyncio.timeout(seconds):
            for task in asyncio.as_completed(self._tasks):
                await task

    async def read_back(self, seconds: float) -> None:
        """Read everything from the beginning, twice. Raise TimeoutError if that takes longer."""
        async with asyncio.timeout(seconds):
            await self._new_partitions()
            for name in ("final-1", "final-2"):
                await self._read_all(f"{self._prefix}{name}", self._partitions)

    async def _read_all(self, name: str, partitions: Sequence[TopicPartition]) -> None:
        consumer = Consumer(bootstrap_servers=self._servers(), auto_offset_reset="earliest")
        async with RecordingConsumer(consumer, self.recorder, name, start="earliest") as reader:
            await reader.read_all(partitions)
