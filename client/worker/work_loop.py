"""`WorkLoop`: fetches records from a group consumer, runs handlers, commits what is done, and releases partitions in order.

Must not know where handlers run (the executor), which record may start (the schedule) or how progress is counted (`ContiguousOffsets`).
Invariants: the committed progress of a partition is a prefix without gaps of the finished records, and the records finished beyond it. No
record above the highest finished one is started in a partition that is being released. No outcome of a lost partition counts. State changes
in functions without ``await``.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from raftmq.client.base import settings
from raftmq.client.base.background import cancel_and_wait, done_before, spawn
from raftmq.client.base.logs import log
from raftmq.client.base.metrics import WorkerCounters, WorkerMetrics
from raftmq.client.base.tracing import active_tracing
from raftmq.client.consumer.rebalance_listener import RebalanceListener
from raftmq.client.worker.back_pressure import BackPressure, WorkLimits
from raftmq.client.worker.contiguous_offsets import ContiguousOffsets
from raftmq.client.worker.dead_letters import DeadLetters
from raftmq.client.worker.executor import Executor, shut_down, was_cancelled
from raftmq.client.worker.failure_reports import FailureReports
from raftmq.client.worker.group_consumer import GroupConsumer
from raftmq.client.worker.handlers import Attempt
from raftmq.client.worker.hooks import NO_HOOKS, Hooks
from raftmq.client.worker.outcome import Failure, Outcome, RetryPolicy
from raftmq.client.worker.partition_work import PartitionWork, RecordJob, WorkState, bytes_of
from raftmq.client.worker.progress_commits import ProgressCommits
from raftmq.client.worker.schedule import LaneSchedule, Ordering, lane_of
from raftmq.errors import DrainTimeoutError, PoisonRecordError
from raftmq.types import Record, TopicPartition

if TYPE_CHECKING:
    from raftmq.client.base.spans import Tracing


class WorkLoop(RebalanceListener):
    """Runs the work of one worker, once, by `run`. It is the consumer's rebalance listener.

    Args:
        make_consumer: creates the consumer, with this loop as its listener. The loop starts and closes it.
        executor: runs the handlers. The loop starts and closes it.
        dead_letters: accepts records that failed for the last time. None: such a record stops the loop.
        group_id: the consumer's group, for spans.
    """

    def __init__(
        self,
        make_consumer: Callable[[WorkLoop], GroupConsumer],
        executor: Executor,
        ordering: Ordering,
        retries: RetryPolicy,
        limits: WorkLimits,
        dead_letters: DeadLetters | None,
        rng: random.Random,
        hooks: Hooks = NO_HOOKS,
        group_id: str | None = None,
    ) -> None:
        self.counters = WorkerCounters()
        self._group_id = group_id
        self._tracing = active_tracing()
        self._executor = executor
        self._ordering: Ordering = ordering
        self._retries = retries
        self._limits = limits
        self._dead_letters = dead_letters
        self._rng = rng
        self._hooks = hooks
        self._reports = FailureReports(hooks.on_failure)
        self._has_begun = False
        self._schedule: LaneSchedule[RecordJob] = LaneSchedule()
        self._works: dict[TopicPartition, PartitionWork] = {}
        self._handlers: dict[asyncio.Task[None], RecordJob] = {}
        self._letters: dict[asyncio.Task[None], RecordJob] = {}
        self._is_draining = False
        self._stopped = asyncio.Event()
        self._hurried = asyncio.Event()
        self._failure: BaseException | None = None
        self._task: asyncio.Task[object] | None = None
        """The task of `run`."""
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = float("inf")
        self._consumer = make_consumer(self)
        self._pressure = BackPressure(self._consumer, limits)
        self._commits = ProgressCommits(self._consumer, self.counters)

    # -------------------------------------------------------------------------------------------------------- lifecycle

    async def run(self) -> None:
        """Work until `stop`, then drain. If it is cancelled, it ends immediately, and the next owners repeat uncommitted records.

        Raises:
            DrainTimeoutError: handlers were still running when the time to drain was over.
            PoisonRecordError: a record failed for the last time, and there is no dead-letter topic.
            RaftMQError: the consumer or the dead-letter topic failed.
        """
        tasks: list[asyncio.Task[None]] = []
        self._task = asyncio.current_task()
        try:
            if await done_before(self._start(), self._stopped):
                tasks.append(spawn(self._poll_forever(), "raftmq-worker-poll", self._fail))
                tasks.append(spawn(self._commit_forever(), "raftmq-worker-commit", self._fail))
                await self._stopped.wait()
                await self._drain()
        finally:
            await self._close(tasks)
        if self._failure is not None:
            raise self._failure

    def stop(self, *, at_once: bool = False) -> None:
        """Begin to drain. With `at_once`, stop waiting for handlers."""
        if at_once:
            self._close_to_new(self._works.values())
            self._hurried.set()
        if not self._is_draining:
            self._is_draining = True
            self._leave(self._works.values())
        self._stopped.set()

    async def _start(self) -> None:
        await self._executor.start()
        if self._hooks.on_startup is not None:
            await self._executor.call(self._hooks.on_startup)
        self._has_begun = True
        await self._consumer.start()
        log.info("worker_started concurrency=%d ordering=%s", self._limits.concurrency, self._ordering)

    async def _drain(self) -> None:
        """Finish the records below the highest finished ones, let running handlers end within the time limit, and commit."""
        log.info(
            "worker_draining handlers_running=%d records_queued=%d", self._running_count, self._schedule.queued_count
        )
        self._pressure.end(self._works.values())
        seconds = self._limits.drain_seconds
        await self._finish(self._works.values(), seconds, seconds / 2, is_stopping=True)
        try:
            async with asyncio.timeout(settings.CLOSE_COMMIT_SECONDS):
                await self._commits.commit(self._works.values())
        except TimeoutError:  # no cluster: repeating uncommitted records is better than never ending
            log.warning("progress_not_committed partitions=%d error_code=%s", len(self._works), "TimeoutError")
        running = self._running_count
        if running and self._failure is None:
            self._failure = DrainTimeoutError(
                f"{running} handlers were still running when the worker stopped", handlers_running=running
            )

    async def _close(self, tasks: Sequence[asyncio.Task[None]]) -> None:
        self._is_draining = True
        if self._timer is not None:
            self._timer.cancel()
        await cancel_and_wait(*tasks)
        await self._commits.close()
        running = self._running_count
        self._let_go(list(self._works.values()))
        if not self._executor.can_cancel:
            await self._executor.close()  # kills processes and lets threads end
        left = {*self._handlers, *self._letters}
        for task in left:
            if not task.cancelling():
                task.cancel()
        if left:
            await asyncio.wait(left, timeout=settings.WORKER_HANDLER_END_SECONDS)
        for task in left:  # do not wait for a handler that swallows its cancellation or blocks its loop
            task.cancel()
        try:
            await self._consumer.close()
        finally:
            await self._shut_down()
        log.info("worker_stopped handlers_running=%d", running)

    async def _shut_down(self) -> None:
        hook = self._hooks.on_shutdown if self._has_begun else None
        failure = await shut_down(self._executor, hook)
        self._failure = self._failure or failure

    def _fail(self, error: BaseException) -> None:
        self._failure = self._failure or error
        self._close_to_new(self._works.values())  # the cause may affect every record
        self.stop()

    @property
    def _running_count(self) -> int:
        return sum(work.running_count for work in self._works.values())

    def metrics(self) -> WorkerMetrics:
        """Return the counters and the current state."""
        return WorkerMetrics.of(
            self.counters,
            handlers_running=len(self._handlers),
            records_queued=self._schedule.queued_count,
            records_waiting=self._schedule.waiting_count,
            records_in_work=self._pressure.records,
            records_in_work_max=self._limits.records_max,
            bytes_in_work=self._pressure.bytes,
            partitions=len(self._works),
            partitions_paused=sum(work.is_paused for work in self._works.values()),
        )

    # -------------------------------------------------------------------------------------------------------- rebalance

    async def on_assigned(self, partitions: frozenset[TopicPartition]) -> None:
        """Start working on assigned partitions."""
        works = [
            PartitionWork(partition, ContiguousOffsets(self._consumer.finished(partition)))
            for partition in sorted(partitions)
        ]
        self._works.update((work.partition, work) for work in works)
        self._pressure.admit(works)

    async def on_revoked(self, partitions: frozenset[TopicPartition]) -> None:
        """Finish the records below the highest finished one, within the time limit, commit, and release the partitions.

        The rest is left to the partitions' next owners.
        """
        works = [self._works[partition] for partition in partitions if partition in self._works]
        self._leave(works)
        seconds = self._limits.revocation_seconds
        await self._finish(works, seconds, min(seconds / 2, settings.WORKER_REVOCATION_BEGIN_SECONDS))
        await self._commits.commit(works)
        running = sum(work.running_count for work in works)
        if running:
            log.warning("revocation_overdue partitions=%d handlers_running=%d", len(works), running)
        self._let_go(works)

    async def on_lost(self, partitions: frozenset[TopicPartition]) -> None:
        """Drop partitions that may already belong to another member. No outcome of theirs counts any more."""
        works = [self._works[partition] for partition in partitions if partition in self._works]
        self.counters.partitions_lost_total += len(works)
        self._let_go(works)

    def _leave(self, works: Iterable[PartitionWork]) -> None:
        """Take no more records of these partitions, and start none above the highest finished one."""
        for work in works:
            if work.state is WorkState.HELD:
                work.state = WorkState.LEAVING
                self._forget(self._schedule.leave(work.partition, work.tracker.highest_finished))
        self._pump()

    def _close_to_new(self, works: Iterable[PartitionWork]) -> None:
        """Start no more records of these partitions."""
        for work in works:
            if (
                work.state is not WorkState.GONE
            ):  # if it is, the schedule's jobs belong to the partition's new assignment
                work.state = WorkState.CLOSING
                self._forget(self._schedule.drop(work.partition))

    def _let_go(self, works: Collection[PartitionWork]) -> None:
        going = {work for work in works if work.state is not WorkState.GONE}
        self._close_to_new(works)
        for work in works:
            if self._works.get(work.partition) is work:
                del self._works[work.partition]
                self._pressure.records -= work.tracker.span
            work.state = WorkState.GONE
        if self._executor.can_cancel:
            for task, job in self._handlers.items():
                if job.work in going:  # once: another cancellation would interrupt what a handler does at its end
                    task.cancel()
        self._pressure.relieve(self._works.values())
        self._pump()

    def _forget(self, jobs: Collection[RecordJob]) -> None:
        """Remove jobs that are no longer in work and not done."""
        for job in jobs:
            self._pressure.bytes -= job.bytes
            job.work.remove_jobs(1)

    async def _finish(
        self, works: Iterable[PartitionWork], seconds: float, begin_seconds: float, *, is_stopping: bool = False
    ) -> None:
        """Wait until no job of these partitions is left: first for all jobs that may still start, then only for running ones.

        With `is_stopping`, a second call of `stop` ends the wait.
        """
        wanted = list(works)
        await self._wait_empty(wanted, begin_seconds, is_stopping=is_stopping)
        self._close_to_new(wanted)
        await self._wait_empty(wanted, seconds - begin_seconds, is_stopping=is_stopping)

    async def _wait_empty(self, works: Iterable[PartitionWork], seconds: float, *, is_stopping: bool) -> None:
        empty = asyncio.ensure_future(_all_empty(list(works)))
        hurried = asyncio.ensure_future(self._hurried.wait())
        try:
            waited_for = (empty, hurried) if is_stopping else (empty,)
            await asyncio.wait(waited_for, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            empty.cancel()
            hurried.cancel()

    # ---------------------------------------------------------------------------------------------------------- reading

    async def _poll_forever(self) -> None:
        """Poll, even while the worker drains with everything paused: a member that does not poll would lose its partitions."""
        while True:
            found = await self._consumer.getmany(
                timeout_ms=settings.WORKER_POLL_MS, max_records=self._limits.poll_records
            )
            if found:
                for partition, records in found.items():
                    self._take(partition, records)
                self._pressure.restrain(self._works.values())
                self._pump()
                await asyncio.sleep(
                    0
                )  # a consumer that always has records never waits, and handlers must get their turn

    def _take(self, partition: TopicPartition, records: Sequence[Record]) -> None:
        work = self._works.get(partition)
        if work is None or work.state is not WorkState.HELD or self._is_draining:
            return  # the records are not committed, so the partition's next owner gets them
        if records[0].offset < work.tracker.next_offset:
            begin = min(work.tracker.first_open, records[0].offset)
            work = self._begin_again(work)
            if begin < records[0].offset:
                self._consumer.rewind(partition, begin)
                return
        ordering, schedule, tracker, pressure = self._ordering, self._schedule, work.tracker, self._pressure
        span = tracker.span
        for record in records:
            if not tracker.take(record.offset):
                self.counters.skipped_total += 1
                continue
            size = bytes_of(record)
            pressure.bytes += size
            work.add_job()
            schedule.add(RecordJob(work, record, lane_of(ordering, record), size))
        pressure.records += tracker.span - span

    def _begin_again(self, work: PartitionWork) -> PartitionWork:
        """Replace the work of a partition whose position went back, because an operator recovered it without its last records.

        Records that were in work begin again, also those before the lost ones: the outcomes of running handlers no longer count.
        """
        log.warning("work_begun_again topic=%s partition=%d", *work.partition)
        self._let_go([work])
        new = self._works[work.partition] = PartitionWork(work.partition, is_paused=work.is_paused)
        return new

    # ---------------------------------------------------------------------------------------------------------- working

    def _pump(self) -> None:
        """Start every job that may start."""
        now = asyncio.get_running_loop().time()
        while len(self._handlers) < self._limits.concurrency:
            job = self._schedule.start_next(now)
            if job is None:
                self._wake_at(self._schedule.next_due())
                return
            job.attempts += 1
            job.work.running_count += 1
            trying = self._try(job) if self._tracing is None else self._try_traced(job, self._tracing)
            self._spawn(trying, "raftmq-worker-handler", job, self._handlers)

    def _wake_at(self, when: float | None) -> None:
        if when is None or when >= self._timer_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = when
        self._timer = asyncio.get_running_loop().call_at(when, self._on_timer)

    def _on_timer(self) -> None:
        self._timer, self._timer_at = None, float("inf")
        self._pump()

    async def _try_traced(self, job: RecordJob, tracing: Tracing) -> None:
        with tracing.processing(job.record, job.attempts, self._group_id):
            await self._try(job)

    async def _try(self, job: RecordJob) -> None:
        loop = asyncio.get_running_loop()
        started = loop.time()
        outcome: Outcome
        try:
            outcome = await self._executor.run(job.record, self._attempt(job))
        except asyncio.CancelledError as error:
            if job.work.state is WorkState.GONE or was_cancelled(self._task):
                raise
            outcome = Failure.of(error)  # the program cancelled its handler
        seconds = loop.time() - started
        self.counters.handler_seconds_sum += seconds
        self.counters.handler_seconds_max = max(self.counters.handler_seconds_max, seconds)
        self._on_outcome(job, outcome)

    def _attempt(self, job: RecordJob) -> Attempt:
        return Attempt(job.attempts, self._retries.attempts_max)

    def _spawn(
        self,
        coroutine: Coroutine[object, object, None],
        name: str,
        job: RecordJob,
        tasks: dict[asyncio.Task[None], RecordJob],
    ) -> None:
        task = spawn(coroutine, name, self._fail, keeps_span=True)
        tasks[task] = job
        task.add_done_callback(partial(self._on_task_done, tasks))

    def _on_task_done(self, tasks: dict[asyncio.Task[None], RecordJob], task: asyncio.Task[None]) -> None:
        """End the job of a task that failed or was cancelled with its partition, perhaps before its first step."""
        job = tasks.pop(task)
        if task.cancelled() or task.exception() is not None:
            self._leave_undone(job)
        self._pump()

    def _on_outcome(self, job: RecordJob, outcome: Outcome) -> None:
        if job.work.state is WorkState.GONE:
            self.counters.dropped_total += 1
            self._leave_undone(job)
        elif outcome is None:
            self.counters.records_total += 1
            self._settle(job)
        else:
            self._on_failure(job, outcome)

    def _on_failure(self, job: RecordJob, failure: Failure) -> None:
        self.counters.failures_total += 1
        self.counters.timeouts_total += failure.is_timeout
        if self._tracing is not None and not failure.is_retry:
            self._tracing.fail_active(failure.error, failure.message, failure.exception)
        seconds = self._retries.wait_seconds(failure, job.attempts, self._rng)
        self._reports.report(job.record, self._attempt(job), failure, seconds)
        if seconds is None:
            self._give_up(job, failure)
        elif job.work.state is WorkState.HELD or (
            job.work.state is WorkState.LEAVING and seconds <= settings.WORKER_DRAIN_RETRY_SECONDS
        ):
            self.counters.retries_total += 1
            self._schedule.retry(job, asyncio.get_running_loop().time() + seconds)
            job.work.running_count -= 1
        else:
            self._leave_undone(job)  # not committed: the partition's next owner tries it again

    def _give_up(self, job: RecordJob, failure: Failure) -> None:
        if self._dead_letters is None:
            record = job.record
            error = PoisonRecordError(
                f"{record.topic}/{record.partition} offset {record.offset} failed {job.attempts} times, "
                f"last with {failure.error}: {failure.message[: settings.DEAD_LETTER_TEXT_BYTES_MAX]}",
                topic=record.topic,
                partition=record.partition,
                offset=record.offset,
                attempts=job.attempts,
            )
            error.__cause__ = failure.cause
            self._fail(error)
            self._leave_undone(job)
        else:
            # The record blocks its lane until it is moved, but it occupies no handler.
            burying = self._dead_letter(job, failure, self._dead_letters)
            self._spawn(burying, "raftmq-worker-dead-letter", job, self._letters)

    async def _dead_letter(self, job: RecordJob, failure: Failure, dead_letters: DeadLetters) -> None:
        await dead_letters.put(job.record, job.attempts, failure)
        if job.work.state is WorkState.GONE:
            self._leave_undone(job)
        else:
            self.counters.dead_letters_total += 1
            self._settle(job)

    def _settle(self, job: RecordJob) -> None:
        """Finish a record that succeeded or was moved to the dead-letter topic."""
        work = job.work
        span = work.tracker.span
        work.tracker.finish(job.record.offset)
        self._pressure.records -= span - work.tracker.span
        self._schedule.finish(job)
        self._end(job)

    def _leave_undone(self, job: RecordJob) -> None:
        """Stop working on a record that is not done. The later records of its lane are dropped, too."""
        if job.work.state is WorkState.GONE:
            self._schedule.finish(job)  # the lane's other jobs belong to the partition's new assignment
        else:
            self._forget(self._schedule.abandon(job))
        self._end(job)

    def _end(self, job: RecordJob) -> None:
        job.work.running_count -= 1
        self._forget((job,))
        self._pressure.relieve(self._works.values(), job.work)

    # -------------------------------------------------------------------------------------------------------- committing

    async def _commit_forever(self) -> None:
        while True:
            await asyncio.sleep(self._limits.commit_interval_seconds)
            self._commits.begin(self._works.values(), self._fail)


async def _all_empty(works: Iterable[PartitionWork]) -> None:
    for work in works:
        await work.empty.wait()
