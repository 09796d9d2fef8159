"""`WorkConsumer`: a consumer that commits what is finished beyond the offsets, too, and says what earlier owners finished.

A plain consumer has no use for it: it hands records out in order, so that nothing is finished beyond what is not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from raftmq.client.consumer.consumer import Consumer
from raftmq.client.membership.group_calls import OffsetCommit
from raftmq.client.worker.contiguous_offsets import Progress
from raftmq.offset_ranges import Ranges
from raftmq.types import TopicPartition


class WorkConsumer(Consumer):
    """A `GroupConsumer`."""

    def finished(self, partition: TopicPartition) -> Ranges:
        """As `GroupConsumer.finished`; nothing when the partition is not assigned any more."""
        state = self._fetcher.partitions.get(partition)
        return state.finished if state is not None else ()

    async def commit_progress(self, progress: Mapping[TopicPartition, Progress]) -> None:
        """As `GroupConsumer.commit_progress`; raises as `Consumer.commit`."""
        self._check_alive()
        wanted = {partition: OffsetCommit(made.offset, made.finished) for partition, made in progress.items()}
        await asyncio.shield(self._assignment.commits().submit(wanted))
