"""`GroupConsumer`: the part of a consumer that the worker uses. Tests replace it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from raftmq.client.worker.contiguous_offsets import Progress
from raftmq.offset_ranges import Ranges
from raftmq.types import Record, TopicPartition


class GroupConsumer(Protocol):
    """A consumer in a group, without automatic commits, whose rebalance listener is the work loop."""

    async def start(self) -> None:
        """Start as `Consumer.start` does."""

    async def close(self) -> None:
        """Close as `Consumer.close` does."""

    async def getmany(
        self, *partitions: TopicPartition, timeout_ms: float = 0, max_records: int | None = None
    ) -> dict[TopicPartition, list[Record]]:
        """Return records as `Consumer.getmany` does."""
        ...

    def assignment(self) -> frozenset[TopicPartition]:
        """Return the assigned partitions as `Consumer.assignment` does."""
        ...

    def pause(self, *partitions: TopicPartition) -> None:
        """Pause partitions as `Consumer.pause` does."""

    def resume(self, *partitions: TopicPartition) -> None:
        """Resume partitions as `Consumer.resume` does."""

    def rewind(self, partition: TopicPartition, offset: int) -> None:
        """Read a partition again from an offset on."""

    def finished(self, partition: TopicPartition) -> Ranges:
        """Return the ranges that earlier owners of a partition finished beyond its committed offset, as of its assignment."""
        ...

    async def commit_progress(
        self, progress: Mapping[TopicPartition, Progress], on_committed: Callable[[TopicPartition], None]
    ) -> None:
        """Commit offsets as `Consumer.commit` does, and the ranges finished beyond them.

        `on_committed` is called for each partition as soon as its progress is committed, even before the outcome of others is known.
        """
