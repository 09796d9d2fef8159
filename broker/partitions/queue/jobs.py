"""Continue the jobs of a queue partition: the leader proposes one slice after the other, until a job is finished or canceled.

A job is a row of the partition, so the next leader continues where the last one stopped. One slice of a partition is under way at a time,
and jobs take turns. A job with a rate waits between its slices.

The leader also starts jobs itself: those that remove dead messages that are too old or too many.
"""

from __future__ import annotations

import asyncio
from typing import Final, NamedTuple

from raftmq.broker.base.request_error import RequestError
from raftmq.broker.partitions.queue.commands import QueueCommands
from raftmq.broker.partitions.queue.config import QueueConfig
from raftmq.broker.replica.deadline_timer import DeadlineTimer
from raftmq.broker.replica.replica import Replica
from raftmq.fsm.queue.commands import ContinueJob, JobFilter, JobKind, StartJob
from raftmq.fsm.queue.jobs import JobRow, is_surplus
from raftmq.fsm.queue.limits import JOBS_MAX
from raftmq.fsm.queue.message import Message
from raftmq.fsm.queue.partition import QueuePartition
from raftmq.fsm.queue.results import JobProgress
from raftmq.raft.ready import Role, RoleChange

SLICE_MESSAGES_MAX: Final = 250
"""Messages of a slice: half of those that the commands of an entry may touch, so that a job does not displace leases and settlements."""
FINISHED_MAX: Final = 100
"""Finished jobs whose counts are remembered for those who started them."""
PACE_SECONDS: Final = 0.1
"""A job with a rate does a slice of this length at a time."""
RETRY_SECONDS: Final = 0.1
"""The pause after a slice that was refused."""


class FinishedJob(NamedTuple):
    """A job that has ended."""

    kind: int
    done_count: int


class QueueJobs:
    """The jobs of one partition, while this replica leads it."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, replica: Replica[QueuePartition], commands: QueueCommands
    ) -> None:
        self._loop = loop
        self._replica = replica
        self._commands = commands
        self._next_at: dict[int, float] = {}
        """Loop time of the next slice of each job that has begun here."""
        self.finished: dict[int, FinishedJob] = {}
        """The jobs that ended here most recently, by number."""
        self._is_under_way = False
        """Whether a slice is proposed and not applied."""
        self._timer = DeadlineTimer(loop, self._continue)
        replica.progress_listeners.append(self._continue)
        replica.role_listeners.append(self._on_role)

    def _on_role(self, change: RoleChange) -> None:
        if change.role is not Role.LEADER:
            self._timer.cancel()
            self._next_at.clear()
            self.finished.clear()

    def wake(self) -> None:
        """Look again at the next slice: the timer does not see that a doubted leadership was confirmed."""
        self._continue()

    def _continue(self) -> None:
        """Propose the next slice, or set the timer to it."""
        replica = self._replica
        if self._is_under_way or not replica.is_leader or replica.applier.is_suspended:
            return
        jobs = replica.state_machine.jobs.by_key
        if not jobs:
            return
        if len(self._next_at) > JOBS_MAX:
            self._next_at = {number: at for number, at in self._next_at.items() if number in jobs}
        number = min(jobs, key=lambda number: self._next_at.get(number, 0.0))
        at, now = self._next_at.get(number, 0.0), self._loop.time()
        if at > now:
            self._timer.set(at)
        else:
            self._propose(number, jobs[number], now)

    def _propose(self, number: int, row: JobRow, now: float) -> None:
        self._next_at[number] = now + RETRY_SECONDS
        # a redrive is refused like an append, and a purge frees space
        if row.kind == JobKind.REDRIVE and self._replica.refusal_of_writes() is not None:
            self._timer.set(now + RETRY_SECONDS)
            return
        try:
            future = self._commands.submit(ContinueJob(number, slice_messages(row.messages_per_second)))
        except RequestError:
            self._timer.set(now + RETRY_SECONDS)
            return
        self._is_under_way = True
        future.add_done_callback(lambda done: self._on_applied(number, row, now, done))

    def _on_applied(self, number: int, row: JobRow, began_at: float, done: asyncio.Future[object]) -> None:
        self._is_under_way = False
        result = None if done.cancelled() or done.exception() is not None else done.result()
        if isinstance(result, JobProgress):
            if result.is_finished:
                self._next_at.pop(number, None)
                self.finished[number] = FinishedJob(row.kind, result.done_count)
                if len(self.finished) > FINISHED_MAX:
                    del self.finished[next(iter(self.finished))]
            else:
                taken, rate = result.done_count - row.done_count, row.messages_per_second
                self._next_at[number] = began_at + taken / rate if rate else self._loop.time()
        self._continue()

    async def retain_dead(self, config: QueueConfig, now_ms: int, oldest: Message | None) -> None:
        """Begin to remove dead messages if there are too many, or too old ones. `oldest` died first."""
        machine = self._replica.state_machine
        if oldest is None or any(row.kind == JobKind.RETAIN for row in machine.jobs.by_key.values()):
            return
        if config.dead_letter_topic and oldest.dead_number > machine.state.scalars.copied_dead:
            return  # it waits for its copy
        before_ms = 0 if config.dead_retention_ms < 0 else max(0, now_ms - config.dead_retention_ms)
        keep_count, keep_bytes = config.dead_messages_max, config.dead_bytes_max
        if is_surplus(machine.state.scalars, keep_count, keep_bytes) or oldest.dead_at < before_ms:
            chosen = JobFilter(before_ms=before_ms, keep_count=keep_count, keep_bytes=keep_bytes)
            await self._commands.submit(StartJob(JobKind.RETAIN, chosen))


def slice_messages(messages_per_second: int) -> int:
    """Return how many messages a slice of a job takes."""
    if not messages_per_second:
        return SLICE_MESSAGES_MAX
    return min(SLICE_MESSAGES_MAX, max(1, int(messages_per_second * PACE_SECONDS)))
