"""`QueueWorkLoop`: runs handlers over the messages of a queue topic, and settles each by its outcome.

Every free handler asks the queue for one message, so that idle workers anywhere get the next one. Must not know where handlers run (the
executor), or how messages arrive and settlements travel (the queue). Invariant: a message that was begun is settled by the outcome of its
handler, or its lease ends. One that was not begun is given back uncounted.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Collection
from contextlib import nullcontext

from raftmq.client.base import settings
from raftmq.client.base.background import done_before, spawn
from raftmq.client.base.error_details import name_of
from raftmq.client.base.logs import log
from raftmq.client.base.metrics import WorkerCounters, WorkerMetrics
from raftmq.client.base.tracing import active_tracing
from raftmq.client.queue.intake import LeasedMessage, LeaseOptions
from raftmq.client.queue.lease import Lease
from raftmq.client.queue.queue import Queue
from raftmq.client.worker.back_pressure import WorkLimits
from raftmq.client.worker.executor import Executor, shut_down, was_cancelled
from raftmq.client.worker.failure_reports import FailureReports
from raftmq.client.worker.handlers import Attempt
from raftmq.client.worker.hooks import NO_HOOKS, Hooks
from raftmq.client.worker.outcome import Failure, Outcome, RetryPolicy
from raftmq.errors import DrainTimeoutError, RaftMQError
from raftmq.types import QueueRecord


class WorkQueue(Queue[bytes]):
    """A queue that also returns messages as they are leased, without the object that programs get."""

    async def take(self, lease_ms: int) -> list[LeasedMessage]:
        """Lease one message, as soon as there is one."""
        self._check_usable()
        return await self._receiver.take(LeaseOptions(lease_ms), 1, None)

    def hold_ahead(self, lease_ms: int, change: int) -> None:
        """Change the number of messages to hold ready beside those that somebody waits for."""
        self._desk.intake(LeaseOptions(lease_ms)).hold_ahead(change)


class QueueWorkLoop:
    """Runs the work of one worker on a queue topic, once, by `run`. It starts and closes the queue and the executor."""

    def __init__(
        self,
        queue: WorkQueue,
        executor: Executor,
        retries: RetryPolicy,
        limits: WorkLimits,
        hooks: Hooks = NO_HOOKS,
        *,
        lease_ms: float | None,
        prefetch: int,
    ) -> None:
        self.counters = WorkerCounters()
        self._queue = queue
        self._executor = executor
        self._retries = RetryPolicy(None, 1.0, 1.0, retries.retry_on, retries.give_up_on)
        """Only decides whether a failure is tried again. The topic has the number of attempts and the back-off."""
        self._limits = limits
        self._hooks = hooks
        self._lease_ms = 0 if lease_ms is None else round(lease_ms)
        self._prefetch = prefetch
        self._reports = FailureReports(hooks.on_failure)
        self._rng = random.Random()
        self._tracing = active_tracing()
        self._slots: list[asyncio.Task[None]] = []
        self._taking: set[asyncio.Task[None]] = set()
        """The slots that wait for a message. They may be cancelled at any time."""
        self._running: set[asyncio.Task[None]] = set()
        """The slots whose handler runs."""
        self._has_begun = False
        self._is_draining = False
        self._stopped = asyncio.Event()
        self._hurried = asyncio.Event()
        self._failure: BaseException | None = None
        self._task: asyncio.Task[object] | None = None
        """The task of `run`."""

    # -------------------------------------------------------------------------------------------------------- lifecycle

    async def run(self) -> None:
        """Work until `stop`, then drain. If it is cancelled, it ends immediately, and messages in work are delivered again.

        Raises:
            DrainTimeoutError: handlers were still running when the time to drain was over.
            RaftMQError: the queue failed.
        """
        self._task = asyncio.current_task()
        try:
            if await done_before(self._start(), self._stopped):
                self._slots = [
                    spawn(self._serve_slot(), "raftmq-worker-slot", self._fail) for _ in range(self._limits.concurrency)
                ]
                self._queue.hold_ahead(self._lease_ms, self._prefetch)
                await self._stopped.wait()
                self._queue.hold_ahead(self._lease_ms, -self._prefetch)
                await self._drain()
        finally:
            await self._close()
        if self._failure is not None:
            raise self._failure

    def stop(self, *, at_once: bool = False) -> None:
        """Begin to drain. With `at_once`, stop waiting for handlers."""
        self._is_draining = True
        for task in self._taking:
            task.cancel()
        if at_once:
            self._hurried.set()
        self._stopped.set()

    def metrics(self) -> WorkerMetrics:
        """Return the counters and the current state. A queue has no assigned partitions."""
        return WorkerMetrics.of(
            self.counters,
            handlers_running=len(self._running),
            records_queued=0,
            records_waiting=0,
            records_in_work=len(self._slots) - len(self._taking),
            records_in_work_max=self._limits.concurrency,
            bytes_in_work=0,
            partitions=0,
            partitions_paused=0,
        )

    async def _start(self) -> None:
        await self._executor.start()
        if self._hooks.on_startup is not None:
            await self._executor.call(self._hooks.on_startup)
        self._has_begun = True
        await self._queue.start()
        log.info("worker_started concurrency=%d ordering=%s", self._limits.concurrency, "none")

    async def _drain(self) -> None:
        log.info("worker_draining handlers_running=%d records_queued=%d", len(self._running), 0)
        ended = asyncio.ensure_future(_all_ended(self._slots))
        hurried = asyncio.ensure_future(self._hurried.wait())
        try:
            await asyncio.wait(
                (ended, hurried), timeout=self._limits.drain_seconds, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            ended.cancel()
            hurried.cancel()
        running = len(self._running)
        if running and self._failure is None:
            self._failure = DrainTimeoutError(
                f"{running} handlers were still running when the worker stopped", handlers_running=running
            )

    async def _close(self) -> None:
        self._is_draining = True
        running = len(self._running)
        if not self._executor.can_cancel:
            await self._executor.close()  # kills processes and lets threads end
        left = [slot for slot in self._slots if not slot.done()]
        for slot in left:
            slot.cancel()
        if left:
            await asyncio.wait(left, timeout=settings.WORKER_HANDLER_END_SECONDS)
            for slot in left:  # do not wait for a handler that blocks its loop, and give its message back
                slot.cancel()
            await asyncio.sleep(0)
        try:
            await self._queue.close()
        finally:
            await self._shut_down()
        log.info("worker_stopped handlers_running=%d", running)

    async def _shut_down(self) -> None:
        hook = self._hooks.on_shutdown if self._has_begun else None
        failure = await shut_down(self._executor, hook)
        self._failure = self._failure or failure

    def _fail(self, error: BaseException) -> None:
        self._failure = self._failure or error
        self.stop()

    # ---------------------------------------------------------------------------------------------------------- working

    async def _serve_slot(self) -> None:
        """Work on one message after the other."""
        task = asyncio.current_task()
        assert task is not None, "a coroutine runs in a task"
        while not self._is_draining:
            try:
                await self._serve_once(task)
            except asyncio.CancelledError:
                if self._is_ending or not task.cancelling():
                    raise
                _forget_cancellations(task)  # the program cancelled a handler that had ended before

    async def _serve_once(self, task: asyncio.Task[None]) -> None:
        self._taking.add(task)
        try:
            found = await self._queue.take(self._lease_ms)
        finally:
            self._taking.discard(task)
        for leased in found:
            await self._work_on(leased, task)

    @property
    def _is_ending(self) -> bool:
        """Return whether slots are cancelled because the worker ends. Otherwise it was the program, or the lease was lost."""
        return self._is_draining or was_cancelled(self._task)

    async def _work_on(self, leased: LeasedMessage, task: asyncio.Task[None]) -> None:
        received, lease = leased.received, leased.lease
        record = QueueRecord(
            self._queue.topic,
            lease.partition.partition,
            received.sequence,
            received.enqueued_ms,
            received.key,
            received.value,
            tuple((name, value or b"") for name, value in received.headers),
            received.tenant,
            received.id,
            received.priority,
        )
        attempt = Attempt(received.attempts)
        with nullcontext() if self._tracing is None else self._tracing.processing(record, attempt.number):
            await self._handle(record, attempt, lease, task)

    async def _handle(self, record: QueueRecord, attempt: Attempt, lease: Lease, task: asyncio.Task[None]) -> None:
        outcome: Outcome
        try:
            outcome = await self._run_handler(record, attempt, lease, task)
        except asyncio.CancelledError as error:
            if self._is_ending:
                lease.give_back(is_uncounted=False)
                raise
            _forget_cancellations(task)
            if lease.is_lost:
                self.counters.dropped_total += 1
                return
            outcome = Failure.of(error)  # the program cancelled its handler
        except Exception:  # of the executor: the handler has not run
            lease.give_back()
            raise
        if not self._is_ending:
            _forget_cancellations(task)  # the handler swallowed them
        await self._settle(record, attempt, lease, outcome)

    async def _run_handler(
        self, record: QueueRecord, attempt: Attempt, lease: Lease, task: asyncio.Task[None]
    ) -> Outcome:
        loop = asyncio.get_running_loop()
        started = loop.time()
        self._running.add(task)
        if self._executor.can_cancel:
            lease.on_lost = task.cancel
        try:
            return await self._executor.run(record, attempt)
        finally:
            lease.on_lost = None
            self._running.discard(task)
            seconds = loop.time() - started
            self.counters.handler_seconds_sum += seconds
            self.counters.handler_seconds_max = max(self.counters.handler_seconds_max, seconds)

    # --------------------------------------------------------------------------------------------------------- settling

    async def _settle(self, record: QueueRecord, attempt: Attempt, lease: Lease, outcome: Outcome) -> None:
        """Settle a message by the outcome of its handler. If that fails, it is delivered again, or was settled by an unanswered request."""
        try:
            if outcome is None:
                await lease.accept()
                self.counters.records_total += 1
            else:
                await self._settle_failure(record, attempt, lease, outcome)
        except RaftMQError as error:
            self.counters.dropped_total += 1
            if outcome is not None:
                self._reports.report(record, attempt, outcome, 0.0)
            data = (record.topic, record.partition, record.offset, name_of(error))
            log.warning("message_not_settled topic=%s partition=%d sequence=%d error_code=%s", *data)

    async def _settle_failure(self, record: QueueRecord, attempt: Attempt, lease: Lease, failure: Failure) -> None:
        self.counters.failures_total += 1
        self.counters.timeouts_total += failure.is_timeout
        if self._tracing is not None and not failure.is_retry:
            self._tracing.fail_active(failure.error, failure.message, failure.exception)
        text = f"{failure.error}: {failure.message}"
        is_kept = False
        if self._retries.wait_seconds(failure, attempt.number, self._rng) is None:
            await lease.reject(text)
        else:
            after = failure.retry_after_seconds
            is_kept = await lease.release(None if after is None else after * 1000, error=text)
        self.counters.retries_total += is_kept
        self.counters.dead_letters_total += not is_kept
        self._reports.report(record, attempt, failure, (failure.retry_after_seconds or 0.0) if is_kept else None)


def _forget_cancellations(task: asyncio.Task[None]) -> None:
    """Let a task go on as if nobody had cancelled it."""
    while task.cancelling():
        task.uncancel()


async def _all_ended(tasks: Collection[asyncio.Task[None]]) -> None:
    if tasks:
        await asyncio.wait(tasks)
