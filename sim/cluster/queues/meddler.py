"""An operator of queue partitions: it moves, cancels and redrives messages, runs jobs, and pauses tenants."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

from raftmq.fsm.queue.commands import (
    ANY_VERSION,
    CancelJob,
    Change,
    ChangeItem,
    ChangeOperation,
    ContinueJob,
    JobFilter,
    JobKind,
    PauseTenant,
    PurgeAll,
    ResumeTenant,
    StartJob,
)
from raftmq.fsm.queue.results import Changed, JobProgress, JobStarted

from sim.cluster.queues import services
from sim.cluster.queues.producer import DELAY_MS_MAX, IDS, TENANTS
from sim.cluster.queues.records import changed_messages
from sim.cluster.queues.requests import Attempt, Requests
from sim.cluster.queues.scheduler import Scheduler
from sim.history.queues.operations import Alteration, Outcome, Sweep, Swept

_ALL_STATES = 0b111110
_SLICE = 10
SLICES_MAX = 200


class Meddler:
    """One operator of one partition."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests
        self._ledger = requests.ledger
        self._group_id = requests.group_id
        self._scheduler = Scheduler(requests)
        self._versions: dict[int, int] = {}
        """The versions of messages that this operator was told, by sequence."""

    async def meddle(self) -> None:
        """Do one thing."""
        options = self._ledger.queue_options
        actions: list[tuple[int, Callable[[], Coroutine[Any, Any, Any]]]] = [
            (12, self.change),
            (3, self.redrive_all),
            (options.purges, self.purge_some),
            (options.purges // 2, self.purge_all),
            (4, self.pause),
            (1, self.step_clock),
            (options.schedules, self._scheduler.meddle),
        ]
        rng = self._ledger.rng
        (action,) = rng.choices([action for _, action in actions], [weight for weight, _ in actions])
        await action()

    # ------------------------------------------------------------------------------------------------ messages

    async def change(self) -> None:
        """Change a few messages."""
        rng = self._ledger.rng
        known = [sequence for group_id, sequence in self._ledger.known if group_id == self._group_id]
        if known:
            chosen = rng.sample(known, min(len(known), rng.randint(1, 3)))
            await self.send([self._new_change(sequence) for sequence in chosen])

    def _new_change(self, sequence: int) -> ChangeItem:
        """Draw a change of a message. Sometimes it names another message, by an id, or a version that may be outdated."""
        rng = self._ledger.rng
        operation = rng.choice(
            (ChangeOperation.MOVE, ChangeOperation.MOVE, ChangeOperation.CANCEL, ChangeOperation.REDRIVE)
        )
        id_ = rng.choice(IDS).encode() if rng.random() < 0.2 else b""
        version = ANY_VERSION
        if rng.random() < 0.3:
            version = rng.randrange(4) if id_ else self._versions.get(sequence, rng.randrange(4))
        sequence = 0 if id_ else sequence
        if operation is not ChangeOperation.MOVE:
            return ChangeItem(operation, sequence, id_, version)
        delay_ms = rng.choice((0, rng.randrange(DELAY_MS_MAX)))
        seen_ms = self._ledger.seen_ms.get(self._group_id, 0)
        if seen_ms and rng.random() < 0.4:
            priority = rng.choice((None, -7))
            return ChangeItem(operation, sequence, id_, version, due=seen_ms + delay_ms, priority=priority)
        return ChangeItem(operation, sequence, id_, version, delay_ms, priority=rng.choice((None, 7)))

    async def send(self, items: Sequence[ChangeItem]) -> None:
        """Send changes. In the history each attempt is an operation of its own."""
        answered = await self._requests.execute(Change(tuple(items)), partial(self._record_change, items))
        if answered is None:
            return
        assert isinstance(answered.result, Changed)
        for item, version in zip(items, answered.result.versions, strict=True):
            if not item.id:
                self._versions[item.sequence] = version
        for item in items:
            by = "id" if item.id else "version" if item.version != ANY_VERSION else "sequence"
            self._ledger.counts[f"queue changes by {by}"] += 1

    def _record_change(self, items: Sequence[ChangeItem], attempt: Attempt) -> None:
        answered = attempt.answered
        messages = changed_messages(items, None if answered is None else answered.result)
        before_ms = 0 if answered is None else answered.before_ms
        self._ledger.record(
            Alteration(
                self._requests.process, self._group_id, attempt.began, attempt.ended, attempt.outcome, before_ms, messages
            )
        )  # fmt: skip

    # ------------------------------------------------------------------------------------------------ sweeps

    async def redrive_all(self) -> None:
        """Redrive all dead messages by a job."""
        await self._run_job(StartJob(JobKind.REDRIVE), Sweep.REDRIVE, "")

    async def purge_some(self) -> None:
        """Purge the messages of a tenant by a job. Sometimes nobody ends it."""
        tenant = self._ledger.rng.choice(TENANTS[2:])
        await self._run_job(StartJob(JobKind.PURGE, JobFilter(_ALL_STATES, (tenant,))), Sweep.PURGE, tenant)

    async def _run_job(self, start: StartJob, sweep: Sweep, tenant: str) -> None:
        """Start a job and continue it. One that was started without an answer is continued by the leader alone."""
        answered = await self._requests.execute(start, partial(self._record_sweep, sweep, tenant))
        if answered is None or not isinstance(answered.result, JobStarted):
            return
        job = answered.result.job
        for _ in range(SLICES_MAX):
            if self._ledger.rng.random() < 0.1:
                await self._requests.execute(CancelJob(job))
                return
            progress = await self._requests.execute(ContinueJob(job, _SLICE))
            if progress is not None and not (
                isinstance(progress.result, JobProgress) and not progress.result.is_finished
            ):
                return

    def _record_sweep(self, sweep: Sweep, tenant: str, attempt: Attempt) -> None:
        outcome = attempt.outcome
        if attempt.answered is not None and sweep is not Sweep.PURGE_ALL:
            outcome = Outcome.OK if isinstance(attempt.answered.result, JobStarted) else Outcome.FAILED
        self._ledger.record(
            Swept(self._requests.process, self._group_id, attempt.began, attempt.ended, outcome, 0, sweep, tenant)
        )

    async def purge_all(self) -> None:
        """Purge everything."""
        await self._requests.execute(PurgeAll(), partial(self._record_sweep, Sweep.PURGE_ALL, ""))

    # ------------------------------------------------------------------------------------------------ settings

    async def pause(self) -> None:
        """Pause a tenant or the whole partition for a time, or until it is resumed."""
        rng = self._ledger.rng
        await self._requests.execute(PauseTenant(rng.choice(TENANTS), rng.choice((200, 800, -1))))
        if rng.random() < 0.7:
            await self.resume()

    async def resume(self) -> None:
        """End all pauses."""
        for tenant in dict.fromkeys(TENANTS):
            await self._requests.execute(ResumeTenant(tenant))

    async def step_clock(self) -> None:
        """Step the queue clock to the median of the brokers' clocks."""
        await self._requests.send("StepClock", services.step_clock)

    async def end_schedules(self) -> None:
        """Wait until nothing is overdue, and delete all schedules."""
        await self._scheduler.end()
