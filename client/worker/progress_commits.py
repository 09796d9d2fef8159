"""`ProgressCommits`: commits the progress of partitions to the group when it changed.

Must not decide which records are done (the tracker does) or when to commit.
"""

from __future__ import annotations

from collections.abc import Collection

from raftmq.client.base import settings
from raftmq.client.base.error_details import name_of
from raftmq.client.base.logs import LogThrottle, log
from raftmq.client.base.metrics import WorkerCounters
from raftmq.client.worker.contiguous_offsets import Progress
from raftmq.client.worker.group_consumer import GroupConsumer
from raftmq.client.worker.partition_work import PartitionWork, WorkState
from raftmq.errors import RaftMQError
from raftmq.types import TopicPartition


class ProgressCommits:
    """Commits the progress of one worker."""

    def __init__(self, consumer: GroupConsumer, counters: WorkerCounters) -> None:
        self._consumer = consumer
        self._counters = counters
        self._throttle = LogThrottle(settings.LOG_INTERVAL_SECONDS)

    async def commit(self, works: Collection[PartitionWork]) -> None:
        """Commit the progress of these partitions.

        A failure is only logged: the consumer notices if it means that the partitions were lost, and tells its listener.
        """
        progress: dict[TopicPartition, Progress] = {}
        for work in works:
            made = work.tracker.progress
            if made is not None and made != work.committed and work.state is not WorkState.GONE:
                progress[work.partition] = made
        if not progress:
            return
        try:
            await self._consumer.commit_progress(progress)
        except RaftMQError as error:
            self._counters.commit_failures_total += 1
            if self._throttle.is_due():
                log.warning("progress_not_committed partitions=%d error_code=%s", len(progress), name_of(error))
            return
        self._counters.commits_total += 1
        for work in works:
            work.committed = progress.get(work.partition, work.committed)
