"""A producer and a consumer that run through faults and write down what they were told."""

import asyncio
from collections.abc import Callable
from typing import Self

from raftmq import Consumer, Producer, TopicPartition
from raftmq.errors import RaftMQError

from tests.e2e.history import History, key_of, value_of

IN_FLIGHT_MAX = 300


class Workload:
    """Runs one producer and one consumer as tasks; `history` fills while it runs. An async context manager."""

    def __init__(self, bootstrap_servers: str, topic: str, partitions: int) -> None:
        self.history = History()
        self._servers = bootstrap_servers
        self._topic = topic
        self._partitions = [TopicPartition(topic, n) for n in range(partitions)]
        self._tasks: list[asyncio.Task[None]] = []
        self._followers: set[asyncio.Task[None]] = set()
        self._room = asyncio.Semaphore(IN_FLIGHT_MAX)
        self._is_stopping = False
        self._changed = asyncio.Condition()

    async def __aenter__(self) -> Self:
        self._producer = await Producer(bootstrap_servers=self._servers, linger_ms=2).__aenter__()
        self._consumer = await Consumer(bootstrap_servers=self._servers, auto_offset_reset="earliest").__aenter__()
        self._consumer.assign(self._partitions)
        self._tasks = [asyncio.create_task(self._produce()), asyncio.create_task(self._consume())]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in [*self._tasks, *self._followers]:
            task.cancel()
        await asyncio.gather(*self._tasks, *self._followers, return_exceptions=True)
        await self._consumer.close()
        await self._producer.close()

    async def _produce(self) -> None:
        while not self._is_stopping:
            await self._room.acquire()
            number = self.history.sent
            self.history.sent += 1
            acknowledgement = await self._producer.send(self._topic, value=value_of(number), key=key_of(number))
            follower = asyncio.create_task(self._follow(number, acknowledgement))
            self._followers.add(follower)
            follower.add_done_callback(self._followers.discard)

    async def _follow(self, number: int, acknowledgement: object) -> None:
        try:
            written = await acknowledgement  # type: ignore[misc]  # an awaitable of the SDK's own
            self.history.acknowledged[number] = (written.partition, written.offset)
        except RaftMQError as error:
            self.history.failed[number] = error
        finally:
            self._room.release()
        await self._announce()

    async def _consume(self) -> None:
        while True:
            for tp, records in (await self._consumer.getmany(timeout_ms=500)).items():
                seen = self.history.read.setdefault(tp.partition, [])
                seen.extend((record.offset, int((record.value or b"-1").split()[0])) for record in records)
            await self._announce()

    async def _announce(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def wait(self, condition: Callable[[History], bool], what: str, seconds: float = 60.0) -> None:
        """Wait until the history fulfils the condition; fails naming `what` when it does not, or when a task of ours died."""

        async def fulfilled() -> None:
            async with self._changed:
                await self._changed.wait_for(
                    lambda: condition(self.history) or any(task.done() for task in self._tasks)
                )

        try:
            async with asyncio.timeout(seconds):
                await fulfilled()
        except TimeoutError:
            raise AssertionError(
                f"{what} did not happen within {seconds:.0f} s: {len(self.history.acknowledged)} of {self.history.sent} acknowledged, "
                f"{self.history.read_count} read, failures {list(self.history.failed.items())[:3]}"
            ) from None
        for task in self._tasks:
            if task.done() and not self._is_stopping:
                task.result()

    async def wait_progress(self, records: int = 500, seconds: float = 60.0) -> None:
        """Wait until so many more records are acknowledged and so many more are read."""
        acknowledged, read = len(self.history.acknowledged) + records, self.history.read_count + records
        await self.wait(
            lambda h: len(h.acknowledged) >= acknowledged and h.read_count >= read,
            f"progress of {records} records",
            seconds,
        )

    async def finish(self) -> History:
        """Stop producing, wait for every answer and for everything acknowledged to be read."""
        self._is_stopping = True
        producing, consuming = self._tasks
        await asyncio.wait_for(producing, 60)
        self._tasks = [consuming]
        await self.wait(lambda h: len(h.acknowledged) + len(h.failed) == h.sent, "an answer for every record", 150)
        await self.wait(lambda h: h.read_count >= len(h.acknowledged), "reading everything acknowledged")
        return self.history

    async def read_again(self) -> dict[int, list[tuple[int, int]]]:
        """Everything from the beginning, by a new consumer."""
        wanted = self.history.read_count
        read: dict[int, list[tuple[int, int]]] = {}
        async with (
            Consumer(bootstrap_servers=self._servers, auto_offset_reset="earliest") as consumer,
            asyncio.timeout(60),
        ):
            consumer.assign(self._partitions)
            while sum(map(len, read.values())) < wanted:
                for tp, records in (await consumer.getmany(timeout_ms=500)).items():
                    seen = read.setdefault(tp.partition, [])
                    seen.extend((record.offset, int((record.value or b"-1").split()[0])) for record in records)
        return read
