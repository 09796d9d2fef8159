"""`WorkLoop`: takes records from a group consumer, has handlers work on them, commits what is done, and gives partitions up in order.

Must not know where handlers run (the executor), what may run when (the schedule) or how progress is counted (the prefix tracker).
Invariants: what is committed of a partition is a prefix without gaps of what was done; nothing new is begun of a partition that is being given
up, and no outcome of one that is gone counts. State changes in functions without ``await``.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Collection, Iterable, Sequence

from raftmq.client import settings
from raftmq.client.background import cancel_and_wait, done_before, spawn
from raftmq.client.error_details import name_of
from raftmq.client.logs import Pace, log
from raftmq.client.metrics import WorkerCounters, WorkerMetrics
from raftmq.client.rebalance_listener import RebalanceListener
from raftmq.client.worker.back_pressure import BackPressure, WorkLimits
from raftmq.client.worker.dead_letters import DeadLetters
from raftmq.client.worker.executor import Executor
from raftmq.client.worker.group_consumer import GroupConsumer
from raftmq.client.worker.outcome import Failure, Outcome, RetryPolicy
from raftmq.client.worker.partition_work import PartitionWork, RecordJob, WorkState, bytes_of
from raftmq.client.worker.schedule import LaneSchedule, Ordering, lane_of
from raftmq.errors import DrainTimeoutError, PoisonRecordError, RaftMQError
from raftmq.types import Record, TopicPartition


class WorkLoop(RebalanceListener):
    """Runs once, by `run`. It is the consumer's rebalance listener.

    Args:
        make_consumer: makes the consumer, not started, with this loop as its listener; closed at the end.
        executor: runs the handler; closed at the end.
        dead_letters: takes records that failed for the last time; None: such a record stops the loop.
    """

    def __init__(
        self,
        make_consumer: Callable[[WorkLoop], GroupConsumer],
        executor: Executor,
        ordering: Ordering,
        retries: RetryPolicy,
        limits: WorkLimits,
        dead_letters: DeadLetters | None,
        source: random.Random,
    ) -> None:
        self.counters = WorkerCounters()
        self._executor = executor
        self._ordering: Ordering = ordering
        self._retries = retries
        self._limits = limits
        self._dead_letters = dead_letters
        self._source = source
        self._schedule: LaneSchedule[RecordJob] = LaneSchedule()
        self._works: dict[TopicPartition, PartitionWork] = {}
        self._handlers: dict[asyncio.Task[None], RecordJob] = {}
        self._letters: set[asyncio.Task[None]] = set()
        self._is_draining = False
        self._stopped = asyncio.Event()
        self._hurried = asyncio.Event()
        self._failure: BaseException | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = float("inf")
        self._handler_pace = Pace(settings.LOG_INTERVAL_SECONDS)
        self._commit_pace = Pace(settings.LOG_INTERVAL_SECONDS)
        self._consumer = make_consumer(self)
        self._pressure = BackPressure(self._consumer, limits)

    # -------------------------------------------------------------------------------------------------------- lifecycle

    async def run(self) -> None:
        """Work until `stop`, then drain. Cancelled, it ends at once: what was not committed is worked on again.

        Raises:
            DrainTimeoutError: handlers were still running when the time to drain was over.
            PoisonRecordError: a record failed for the last time and nothing takes dead letters.
            RaftMQError: the consumer or the dead-letter topic cannot go on.
        """
        tasks: list[asyncio.Task[None]] = []
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
        """Begin to drain; `at_once`: do not wait for handlers any longer."""
        self._is_draining = True
        self._stopped.set()
        if at_once:
            self._hurried.set()

    async def _start(self) -> None:
        await self._executor.start()
        await self._consumer.start()
        log.info("worker_started concurrency=%d ordering=%s", self._limits.concurrency, self._ordering)

    async def _drain(self) -> None:
        """Let what runs end, for as long as it may take, and commit."""
        log.info(
            "worker_draining handlers_running=%d records_queued=%d", self._running_count, self._schedule.queued_count
        )
        self._pressure.end(self._works.values())
        await self._wait_idle(self._works.values(), self._limits.drain_seconds, is_stopping=True)
        try:
            async with asyncio.timeout(settings.CLOSE_COMMIT_SECONDS):
                await self._commit(list(self._works.values()))
        except TimeoutError:  # no cluster: what is not committed is worked on again, which is better than not to end
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
        running = self._running_count
        self._let_go(list(self._works.values()))
        await self._executor.close()
        left = {*self._handlers, *self._letters}
        for task in left:
            task.cancel()
        if left:  # a handler that swallows its cancellation is not waited for
            await asyncio.wait(left, timeout=settings.WORKER_HANDLER_END_SECONDS)
        await self._consumer.close()
        log.info("worker_stopped handlers_running=%d", running)

    def _fail(self, error: BaseException) -> None:
        self._failure = self._failure or error
        self.stop()

    @property
    def _running_count(self) -> int:
        return sum(work.running_count for work in self._works.values())

    def metrics(self) -> WorkerMetrics:
        """What was counted, and what is now."""
        counted, schedule = self.counters, self._schedule
        return WorkerMetrics(
            records_total=counted.records_total,
            failures_total=counted.failures_total,
            timeouts_total=counted.timeouts_total,
            retries_total=counted.retries_total,
            dead_letters_total=counted.dead_letters_total,
            dropped_total=counted.dropped_total,
            handler_seconds_sum=counted.handler_seconds_sum,
            handler_seconds_max=counted.handler_seconds_max,
            commits_total=counted.commits_total,
            commit_failures_total=counted.commit_failures_total,
            partitions_lost_total=counted.partitions_lost_total,
            handlers_running=len(self._handlers),
            records_queued=schedule.queued_count,
            records_waiting=schedule.waiting_count,
            records_in_work=self._pressure.records,
            records_in_work_max=self._limits.records_max,
            bytes_in_work=self._pressure.bytes,
            partitions=len(self._works),
            partitions_paused=sum(work.is_paused for work in self._works.values()),
        )

    # -------------------------------------------------------------------------------------------------------- rebalance

    async def on_assigned(self, partitions: frozenset[TopicPartition]) -> None:
        """Partitions are ours from now on."""
        works = [PartitionWork(partition) for partition in sorted(partitions)]
        self._works.update((work.partition, work) for work in works)
        self._pressure.admit(works)

    async def on_revoked(self, partitions: frozenset[TopicPartition]) -> None:
        """Partitions go to another member: what runs may end, in time, and is committed; what has not begun is left to it."""
        works = [self._works[partition] for partition in partitions if partition in self._works]
        for work in works:
            work.state = WorkState.LEAVING
        self._drop(works)
        await self._wait_idle(works, self._limits.revocation_seconds)
        await self._commit(works)
        running = sum(work.running_count for work in works)
        if running:
            log.warning("revocation_overdue partitions=%d handlers_running=%d", len(works), running)
        self._let_go(works)

    async def on_lost(self, partitions: frozenset[TopicPartition]) -> None:
        """Partitions may be another member's already: nothing of them counts any more."""
        works = [self._works[partition] for partition in partitions if partition in self._works]
        self.counters.partitions_lost_total += len(works)
        self._let_go(works)

    def _let_go(self, works: Collection[PartitionWork]) -> None:
        self._drop(works)
        for work in works:
            if self._works.get(work.partition) is work:
                del self._works[work.partition]
                self._pressure.records -= work.tracker.span
            work.state = WorkState.GONE
        if self._executor.can_cancel:
            for task, job in self._handlers.items():
                if job.work.state is WorkState.GONE:
                    task.cancel()
        self._pressure.relieve(self._works.values())
        self._pump()

    def _drop(self, works: Iterable[PartitionWork]) -> None:
        for work in works:
            self._pressure.bytes -= sum(job.bytes for job in self._schedule.drop(work.partition))

    async def _wait_idle(self, works: Iterable[PartitionWork], seconds: float, *, is_stopping: bool = False) -> None:
        """Wait until nothing runs of these, or the time is over, or (`is_stopping`) somebody is in a hurry."""
        idle = asyncio.ensure_future(_all_idle(list(works)))
        hurried = asyncio.ensure_future(self._hurried.wait())
        try:
            waited_for = (idle, hurried) if is_stopping else (idle,)
            await asyncio.wait(waited_for, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            idle.cancel()
            hurried.cancel()

    # ---------------------------------------------------------------------------------------------------------- reading

    async def _poll_forever(self) -> None:
        """Goes on while the worker drains, with everything paused: a member that does not poll would lose its partitions."""
        while True:
            found = await self._consumer.getmany(
                timeout_ms=settings.WORKER_POLL_MS, max_records=self._limits.poll_records
            )
            if found:
                for partition, records in found.items():
                    self._take(partition, records)
                self._pressure.restrain(self._works.values())
                self._pump()
                await asyncio.sleep(0)  # a consumer that always has records never waits; handlers must get their turn

    def _take(self, partition: TopicPartition, records: Sequence[Record]) -> None:
        work = self._works.get(partition)
        if work is None or work.state is not WorkState.HELD or self._is_draining:
            return  # nothing is taken of it any more: it is not committed either, and its next owner gets it
        ordering, schedule, tracker, pressure = self._ordering, self._schedule, work.tracker, self._pressure
        for record in records:
            tracker.take(record.offset)
            size = bytes_of(record)
            pressure.bytes += size
            schedule.add(RecordJob(work, record, lane_of(ordering, record), size))
        pressure.records += len(records)

    # ---------------------------------------------------------------------------------------------------------- working

    def _pump(self) -> None:
        """Begin whatever may begin."""
        if self._is_draining:
            return
        now = asyncio.get_running_loop().time()
        while len(self._handlers) < self._limits.concurrency:
            job = self._schedule.start_next(now)
            if job is None:
                self._wake_at(self._schedule.next_due())
                return
            job.attempts += 1
            job.work.begin()
            task = spawn(self._try(job), "raftmq-worker-handler", self._fail)
            self._handlers[task] = job
            task.add_done_callback(self._on_handler_done)

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

    async def _try(self, job: RecordJob) -> None:
        loop = asyncio.get_running_loop()
        started = loop.time()
        try:
            outcome = await self._executor.run(job.record)
        except (
            BaseException
        ):  # cancelled, as its partition is gone or the worker ends; or there is no place to run a handler
            self._end(job)
            raise
        seconds = loop.time() - started
        self.counters.handler_seconds_sum += seconds
        self.counters.handler_seconds_max = max(self.counters.handler_seconds_max, seconds)
        self._on_outcome(job, outcome)

    def _on_handler_done(self, task: asyncio.Task[None]) -> None:
        del self._handlers[task]
        self._pump()

    def _on_outcome(self, job: RecordJob, outcome: Outcome) -> None:
        if job.work.state is WorkState.GONE:
            self.counters.dropped_total += 1
            self._end(job)
        elif outcome is None:
            self.counters.records_total += 1
            self._settle(job)
        else:
            self._on_failure(job, outcome)

    def _on_failure(self, job: RecordJob, failure: Failure) -> None:
        self._note_failure(job, failure)
        seconds = self._retries.wait_seconds(job.attempts, self._source)
        if seconds is None:
            self._give_up(job, failure)
        elif job.work.state is WorkState.HELD and not self._is_draining:
            self.counters.retries_total += 1
            self._schedule.retry(job, asyncio.get_running_loop().time() + seconds)
            job.work.end()
        else:
            self._end(job)  # not done, so not committed: whoever owns it next tries it again

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
            self._fail(error)
            self._end(job)
        else:
            # It goes on blocking its lane until it is moved, but no handler's place.
            task = spawn(self._bury(job, failure, self._dead_letters), "raftmq-worker-dead-letter", self._fail)
            self._letters.add(task)
            task.add_done_callback(self._letters.discard)

    async def _bury(self, job: RecordJob, failure: Failure, dead_letters: DeadLetters) -> None:
        try:
            await dead_letters.put(job.record, job.attempts, failure)
        except BaseException:
            self._end(job)
            raise
        if job.work.state is WorkState.GONE:
            self._end(job)
        else:
            self.counters.dead_letters_total += 1
            self._settle(job)
        self._pump()

    def _settle(self, job: RecordJob) -> None:
        """A record is done, one way or the other."""
        work = job.work
        span = work.tracker.span
        work.tracker.finish(job.record.offset)
        self._pressure.records -= span - work.tracker.span
        self._end(job)

    def _end(self, job: RecordJob) -> None:
        self._schedule.finish(job)
        self._pressure.bytes -= job.bytes
        job.work.end()
        self._pressure.relieve(self._works.values(), job.work)

    def _note_failure(self, job: RecordJob, failure: Failure) -> None:
        self.counters.failures_total += 1
        self.counters.timeouts_total += failure.is_timeout
        record = job.record
        data = (record.topic, record.partition, record.offset, job.attempts, failure.error)
        if self._handler_pace.is_due():
            log.warning("handler_failed topic=%s partition=%d offset=%d attempts=%d error=%s", *data)
        if failure.trace:
            log.debug(
                "handler_traceback topic=%s partition=%d offset=%d attempts=%d error=%s\n%s", *data, failure.trace
            )

    # -------------------------------------------------------------------------------------------------------- committing

    async def _commit_forever(self) -> None:
        while True:
            await asyncio.sleep(self._limits.commit_interval_seconds)
            await self._commit(list(self._works.values()))

    async def _commit(self, works: Collection[PartitionWork]) -> None:
        """Commit the progress of these. A failure is noted: what it means for ownership the consumer finds out and tells."""
        offsets: dict[TopicPartition, int] = {}
        for work in works:
            prefix = work.tracker.prefix
            if prefix is not None and prefix != work.committed and work.state is not WorkState.GONE:
                offsets[work.partition] = prefix
        if not offsets:
            return
        try:
            await self._consumer.commit(offsets)
        except RaftMQError as error:
            self.counters.commit_failures_total += 1
            if self._commit_pace.is_due():
                log.warning("progress_not_committed partitions=%d error_code=%s", len(offsets), name_of(error))
            return
        self.counters.commits_total += 1
        for work in works:
            work.committed = offsets.get(work.partition, work.committed)


async def _all_idle(works: Iterable[PartitionWork]) -> None:
    for work in works:
        await work.idle.wait()
