"""`WorkConsumer`: a consumer that also commits the ranges finished beyond the offsets, and returns those of earlier owners.

A plain consumer does not need it: it returns records in order, so that nothing is finished beyond the committed offset.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import ClassVar

from raftmq.client.consumer.consumer import Consumer
from raftmq.client.membership.group_calls import OffsetCommit
from raftmq.client.worker.contiguous_offsets import Progress
from raftmq.offset_ranges import Ranges
from raftmq.types import TopicPartition


class WorkConsumer(Consumer):
    """Implements `GroupConsumer`."""

    _has_receive_spans: ClassVar[bool] = False  # each record has a span when it is processed

    def finished(self, partition: TopicPartition) -> Ranges:
        """Implement `GroupConsumer.finished`. Return nothing if the partition is no longer assigned."""
        state = self._fetcher.partitions.get(partition)
        return state.finished if state is not None else ()

    def rewind(self, partition: TopicPartition, offset: int) -> None:
        """Implement `GroupConsumer.rewind`."""
        self._assignment.seek({partition: offset})

    async def commit_progress(
        self, progress: Mapping[TopicPartition, Progress], on_committed: Callable[[TopicPartition], None]
    ) -> None:
        """Implement `GroupConsumer.commit_progress`. Raises as `Consumer.commit` does."""
        self._check_alive()
        wanted = {partition: OffsetCommit(made.offset, made.finished) for partition, made in progress.items()}
        await asyncio.shield(self._assignment.commits().submit(wanted, on_committed))
