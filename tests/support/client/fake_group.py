"""Provide a group consumer without brokers that revokes, loses and refuses at a moment that the test chooses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from raftmq.client.worker.contiguous_offsets import Progress
from raftmq.client.worker.work_loop import WorkLoop
from raftmq.errors import FencedError, RaftMQError
from raftmq.offset_ranges import Ranges, decode_ranges
from raftmq.types import Record, TopicPartition

TOPIC = "t"


def partition(number: int) -> TopicPartition:
    return TopicPartition(TOPIC, number)


class FakeStore:
    """The state that members share: logs, progress, and the owner of each partition."""

    def __init__(self) -> None:
        self.logs: dict[TopicPartition, list[Record]] = {}
        self.committed: dict[TopicPartition, int] = {}
        self.finished: dict[TopicPartition, bytes] = {}
        self.owners: dict[TopicPartition, FakeConsumer] = {}


class FakeConsumer:
    """A consumer that returns records of its partitions from the committed offset on, and commits only its own partitions."""

    def __init__(self, store: FakeStore | None = None) -> None:
        self.store = store or FakeStore()
        self.logs, self.committed = self.store.logs, self.store.committed
        self.listener: WorkLoop | None = None
        self.commits: list[dict[TopicPartition, int]] = []
        self.commit_error: RaftMQError | None = None
        self.may_commit = asyncio.Event()
        self.may_commit.set()
        self.read_error: RaftMQError | None = None
        self.paused: set[TopicPartition] = set()
        self.polls = 0
        self.is_closed = False
        self._positions: dict[TopicPartition, int] = {}
        self._news = asyncio.Event()
        self.has_committed = asyncio.Event()
        self.has_polled_idly = asyncio.Event()
        self.has_failed = asyncio.Event()

    # -------------------------------------------------------------------------------------------- called by the test

    def write(self, number: int, *keys: bytes | None, value: bytes | None = b"v") -> None:
        """Append a record for each key."""
        log = self.logs.setdefault(partition(number), [])
        for key in keys:
            log.append(Record(TOPIC, number, len(log), 1000 + len(log), key, value))
        self._news.set()

    def lose_records(self, number: int, end: int) -> None:
        """Remove the records from `end` on, as an unsafe recovery does."""
        del self.logs[partition(number)][end:]
        self._positions[partition(number)] = end

    async def assign(self, *numbers: int) -> None:
        """Assign partitions to this member."""
        names = frozenset(map(partition, numbers))
        assert self.listener is not None
        for name in sorted(names):
            self._positions[name] = self.committed.get(name, 0)
            self.store.owners[name] = self
        await self.listener.on_assigned(names)
        self._news.set()

    async def revoke(self, *numbers: int) -> None:
        """Revoke partitions, which the member releases in order."""
        names = frozenset(map(partition, numbers))
        assert self.listener is not None
        await self.listener.on_revoked(names)
        self._forget(names)

    async def lose(self, *numbers: int) -> None:
        """Take partitions away without a release."""
        names = frozenset(map(partition, numbers))
        assert self.listener is not None
        self._forget(names)
        await self.listener.on_lost(names)

    def _forget(self, names: frozenset[TopicPartition]) -> None:
        for name in names:
            del self._positions[name]
            self.paused.discard(name)

    async def wait_committed(self, number: int, offset: int) -> None:
        """Wait until a partition is committed up to the offset."""
        while self.committed.get(partition(number), 0) < offset:
            self.has_committed.clear()
            await self.has_committed.wait()

    async def wait_idle_poll(self) -> None:
        """Wait until a later poll finds no record."""
        self.has_polled_idly.clear()
        self._news.set()
        await self.has_polled_idly.wait()

    def position(self, number: int) -> int:
        return self._positions[partition(number)]

    # ------------------------------------------------------------------------------------------ called by the worker

    async def start(self) -> None:
        pass

    async def close(self) -> None:
        self.is_closed = True

    async def getmany(
        self, *partitions: TopicPartition, timeout_ms: float = 0, max_records: int | None = None
    ) -> dict[TopicPartition, list[Record]]:
        assert not partitions
        assert max_records is not None
        self.polls += 1
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                while True:
                    if self.read_error is not None:
                        self.has_failed.set()
                        raise self.read_error
                    self._news.clear()
                    found = self._collect(max_records)
                    if found:
                        return found
                    self.has_polled_idly.set()
                    await self._news.wait()
        except TimeoutError:
            return {}

    def _collect(self, room: int) -> dict[TopicPartition, list[Record]]:
        found: dict[TopicPartition, list[Record]] = {}
        for name, position in self._positions.items():
            if name in self.paused or room <= 0:
                continue
            records = self.logs.get(name, [])[position : position + room]
            if records:
                found[name] = records
                room -= len(records)
                self._positions[name] = records[-1].offset + 1
        return found

    def rewind(self, partition: TopicPartition, offset: int) -> None:
        assert partition in self._positions
        self._positions[partition] = offset
        self._news.set()

    def assignment(self) -> frozenset[TopicPartition]:
        return frozenset(self._positions)

    def pause(self, *partitions: TopicPartition) -> None:
        assert partitions, "without names it would be all of them"
        assert self._positions.keys() >= set(partitions)
        self.paused.update(partitions)

    def resume(self, *partitions: TopicPartition) -> None:
        assert partitions, "without names it would be all of them"
        assert self._positions.keys() >= set(partitions)
        self.paused.difference_update(partitions)
        self._news.set()

    def finished(self, partition: TopicPartition) -> Ranges:
        return decode_ranges(self.committed.get(partition, 0), self.store.finished.get(partition, b""))

    async def commit_progress(
        self, progress: Mapping[TopicPartition, Progress], on_committed: Callable[[TopicPartition], None]
    ) -> None:
        assert progress
        await asyncio.sleep(0)
        await self.may_commit.wait()
        if self.commit_error is not None:
            raise self.commit_error
        if any(self.store.owners[name] is not self or name not in self._positions for name in progress):
            raise FencedError("another member's")
        offsets = {name: made.offset for name, made in progress.items()}
        self.commits.append(offsets)
        self.committed.update(offsets)
        self.store.finished.update((name, made.finished) for name, made in progress.items())
        for name in progress:
            on_committed(name)
        self.has_committed.set()
