"""Writers and readers that work through faults and write down what they were told, for the judge.

Three writers of different tempers: a patient one that waits for minutes, an impatient one whose records expire (so that there are failures
and unknowns to judge), and a mortal one that is abandoned with records under way and comes again under a new name. Two readers: one reads
on and on, one goes back to the beginning now and then. An operator creates, changes and deletes other topics. Each client names its records, so a record tells who wrote it.
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
"""Between the records of a writer: some hundred a second leave the machine to the brokers."""
PATIENT_MS = 120_000.0
IMPATIENT_MS = 1_500.0
LIFE_SECONDS = (2.0, 5.0)
TOPIC_PAUSE_SECONDS = 1.0
ADMIN_MS = 5_000.0
PADDING = b" " + b"." * 60


class Workload:
    """Runs from entering to `finish`. An async context manager.

    Args:
        bootstrap_servers: of the cluster.
        topic: to write and read; it exists.
        partitions: of the topic.
        history_path: the history goes there.
        seed: of the choices the clients make.
    """

    def __init__(self, bootstrap_servers: str, topic: str, partitions: int, history_path: Path, seed: int) -> None:
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
        """Error → how many sends ended with it."""
        self.read = 0

    async def __aenter__(self) -> Self:
        jobs = (
            self._write_patiently("patient", PATIENT_MS),
            self._write_patiently("impatient", IMPATIENT_MS),
            self._write_and_die("mortal"),
            self._read("follower", goes_back=False),
            self._read("rereader", goes_back=True),
            self._change_topics("operator"),
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
            bootstrap_servers=self._servers,
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
            except RaftMQError as error:  # nobody to ask while nobody leads
                self._count(error)
                continue
            try:
                await self._send_until(producer, f"{name}-{life}", is_over)
            finally:
                await self._drop(producer)

    @staticmethod
    async def _drop(producer: RecordingProducer) -> None:
        """As if its process had died: what is under way stays unknown."""
        await producer.abandon()
        closing = asyncio.create_task(producer.producer.close())
        await asyncio.wait([closing], timeout=0.05)
        closing.cancel()  # then it closes at once
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
                continue  # to see whether it is over
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

    async def _read(self, name: str, *, goes_back: bool) -> None:
        consumer = Consumer(bootstrap_servers=self._servers, auto_offset_reset="earliest")
        async with RecordingConsumer(consumer, self.recorder, name, start="earliest") as reader:
            reader.assign(self._partitions)
            goes_back_at = time.monotonic() + self._chance.uniform(3, 6)
            while not self._is_stopping.is_set():
                try:
                    found = await reader.getmany(timeout_ms=300)
                    self.read += sum(map(len, found.values()))
                    if goes_back and time.monotonic() > goes_back_at:
                        await reader.seek_to_beginning(self._chance.choice(self._partitions))
                        goes_back_at = time.monotonic() + self._chance.uniform(3, 6)
                except RaftMQError as error:
                    self._count(error)

    # --------------------------------------------------------------------------------------------------------- metadata

    async def _change_topics(self, name: str) -> None:
        """Somebody who creates, changes, looks at and deletes topics that nobody writes to."""
        stopping = asyncio.ensure_future(self._is_stopping.wait())
        number = 0
        while not self._is_stopping.is_set():
            number += 1
            topic = f"{self._topic}-side-{number}"
            admin = Admin(bootstrap_servers=self._servers, request_timeout_ms=ADMIN_MS)
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
        """A client that ended with something else than an error of the SDK is a defect."""
        for task in self._tasks:
            if task.done() and not task.cancelled():
                task.result()

    async def wait_progress(self, records: int, seconds: float) -> bool:
        """Whether so many more records were acknowledged, and so many more read, within this time."""
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
            TimeoutError: Not within this time; the history is what it is.
        """
        self._is_stopping.set()
        async with asyncio.timeout(seconds):
            for task in asyncio.as_completed(self._tasks):
                await task

    async def read_back(self, seconds: float) -> None:
        """Read everything from the beginning, twice. Raises TimeoutError as `stop`."""
        async with asyncio.timeout(seconds):
            for name in ("final-1", "final-2"):
                await self._read_all(name, self._partitions)

    async def _read_all(self, name: str, partitions: Sequence[TopicPartition]) -> None:
        consumer = Consumer(bootstrap_servers=self._servers, auto_offset_reset="earliest")
        async with RecordingConsumer(consumer, self.recorder, name, start="earliest") as reader:
            await reader.read_all(partitions)
