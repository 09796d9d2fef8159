"""`GroupConsumer`: what the worker uses of a consumer, so that tests can put another one in its place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from raftmq.client.worker.contiguous_offsets import Progress
from raftmq.offset_ranges import Ranges
from raftmq.types import Record, TopicPartition


class GroupConsumer(Protocol):
    """What is used of a consumer in a group; its automatic commit is off, and the loop is its listener."""

    async def start(self) -> None:
        """As `Consumer.start`."""

    async def close(self) -> None:
        """As `Consumer.close`."""

    async def getmany(
        self, *partitions: TopicPartition, timeout_ms: float = 0, max_records: int | None = None
    ) -> dict[TopicPartition, list[Record]]:
        """As `Consumer.getmany`."""
        ...

    def assignment(self) -> frozenset[TopicPartition]:
        """As `Consumer.assignment`."""
        ...

    def pause(self, *partitions: TopicPartition) -> None:
        """As `Consumer.pause`."""

    def resume(self, *partitions: TopicPartition) -> None:
        """As `Consumer.resume`."""

    def finished(self, partition: TopicPartition) -> Ranges:
        """What earlier owners of an assigned partition finished beyond the committed offset, as it was when it was assigned."""
        ...

    async def commit_progress(self, progress: Mapping[TopicPartition, Progress]) -> None:
        """As `Consumer.commit`, with what is finished beyond the offsets."""
