"""`ProgressCommits`: commits the progress of partitions to the group when it changed.

Must not decide which records are done (the tracker does) or when to commit. No partition waits for the commit of another one, which may
have no leader.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from functools import partial

from raftmq.client.base import settings
from raftmq.client.base.background import cancel_and_wait, spawn
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
        self._in_flight: dict[PartitionWork, Progress] = {}
        """The commits that `begin` sent and that have no outcome yet."""
        self._tasks: dict[asyncio.Task[None], None] = {}

    def begin(self, works: Iterable[PartitionWork], on_crash: Callable[[BaseException], None]) -> None:
        """Commit the progress of these partitions as `commit` does, without waiting. Those whose last commit is in flight are left out."""
        wanted = [work for work in works if work not in self._in_flight]
        progress = _changed(wanted)
        if progress:
            sent = {work.partition: work for work in wanted if work.partition in progress}
            self._in_flight.update((work, progress[partition]) for partition, work in sent.items())
            task = spawn(self._send(sent, progress), "raftmq-worker-progress", on_crash)
            self._tasks[task] = None
            task.add_done_callback(partial(self._on_ended, sent, progress))

    async def commit(self, works: Iterable[PartitionWork]) -> None:
        """Commit the progress of these partitions, and wait for the outcome.

        A failure is only logged: the consumer notices if it means that the partitions were lost, and tells its listener.
        """
        wanted = list(works)
        progress = _changed(wanted)
        if progress:
            await self._send({work.partition: work for work in wanted if work.partition in progress}, progress)

    async def close(self) -> None:
        """Abandon the commits in flight. Their outcome is unknown."""
        await cancel_and_wait(*self._tasks)

    async def _send(
        self, works: Mapping[TopicPartition, PartitionWork], progress: Mapping[TopicPartition, Progress]
    ) -> None:
        def on_committed(partition: TopicPartition) -> None:
            works[partition].committed = progress[partition]
            self._land(works[partition], progress[partition])

        try:
            await self._consumer.commit_progress(progress, on_committed)
        except RaftMQError as error:
            self._counters.commit_failures_total += 1
            if self._throttle.is_due():
                log.warning("progress_not_committed partitions=%d error_code=%s", len(progress), name_of(error))
            return
        self._counters.commits_total += 1

    def _on_ended(
        self,
        works: Mapping[TopicPartition, PartitionWork],
        progress: Mapping[TopicPartition, Progress],
        task: asyncio.Task[None],
    ) -> None:
        del self._tasks[task]
        for partition, work in works.items():
            self._land(work, progress[partition])

    def _land(self, work: PartitionWork, progress: Progress) -> None:
        """Record that a commit is no longer in flight. A later one of the same partition may be."""
        if self._in_flight.get(work) is progress:
            del self._in_flight[work]


def _changed(works: Iterable[PartitionWork]) -> dict[TopicPartition, Progress]:
    """Return the progress of those partitions that have made some since their last commit."""
    progress: dict[TopicPartition, Progress] = {}
    for work in works:
        made = work.tracker.progress
        if made is not None and made != work.committed and work.state is not WorkState.GONE:
            progress[work.partition] = made
    return progress
