"""An operator of queue partitions: it moves, cancels and redrives messages, runs jobs, pauses tenants, and keeps schedules."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

from raftmq.broker.partitions.queue.partition import PartitionQueue
from raftmq.fsm.queue.commands import (
    CancelJob,
    Change,
    ChangeItem,
    ChangeOperation,
    ContinueJob,
    DeleteSchedule,
    Item,
    JobFilter,
    JobKind,
    PauseTenant,
    PurgeAll,
    PutSchedule,
    ResumeTenant,
    StartJob,
)
from raftmq.fsm.queue.results import Changed, JobProgress, JobStarted

from sim.cluster.queues import services
from sim.cluster.queues.ledger import Ledger
from sim.cluster.queues.port import Answered, CallFailedError, QueuePort
from sim.cluster.queues.producer import DELAY_MS_MAX, TENANTS
from sim.cluster.queues.records import changed_messages
from sim.history.queues.operations import Alteration, Outcome, Sweep, Swept

_ALL_STATES = 0b111110
_SLICE = 10
SLICES_MAX = 200
_SCHEDULED_AFTER_MS = 400 * 86_400_000


class Meddler:
    """One operator of one partition."""

    def __init__(self, process: str, ledger: Ledger, port: QueuePort, group_id: int) -> None:
        self._process = process
        self._ledger = ledger
        self._port = port
        self._group_id = group_id

    async def meddle(self) -> None:
        """Do one thing."""
        rng = self._ledger.rng
        actions: list[tuple[int, Callable[[], Coroutine[Any, Any, Any]]]] = [
            (12, self.change),
            (3, self.redrive_all),
            (self._ledger.queue_options.purges, self.purge_some),
            (self._ledger.queue_options.purges // 2, self.purge_all),
            (4, self.pause),
            (3, self.keep_schedules),
        ]
        (action,) = rng.choices([action for _, action in actions], [weight for weight, _ in actions])
        await action()

    async def _call(self, item: Item) -> Answered:
        answered = await self._port.call(self._group_id, partial(_execute, item))
        self._ledger.see(self._group_id, answered.before_ms)
        return answered

    async def _try(self, item: Item) -> Answered | None:
        """Execute a command of which nobody must know whether it was done."""
        try:
            return await self._call(item)
        except CallFailedError:
            return None

    # ------------------------------------------------------------------------------------------------ messages

    async def change(self) -> None:
        """Change a few messages."""
        rng = self._ledger.rng
        known = [sequence for group_id, sequence in self._ledger.known if group_id == self._group_id]
        if known:
            chosen = rng.sample(known, min(len(known), rng.randint(1, 3)))
            await self.send([self._new_change(sequence) for sequence in chosen])

    def _new_change(self, sequence: int) -> ChangeItem:
        rng = self._ledger.rng
        operation = rng.choice(
            (ChangeOperation.MOVE, ChangeOperation.MOVE, ChangeOperation.CANCEL, ChangeOperation.REDRIVE)
        )
        if operation is not ChangeOperation.MOVE:
            return ChangeItem(operation, sequence)
        delay_ms = rng.choice((0, rng.randrange(DELAY_MS_MAX)))
        seen_ms = self._ledger.seen_ms.get(self._group_id, 0)
        if seen_ms and rng.random() < 0.4:
            return ChangeItem(operation, sequence, due=seen_ms + delay_ms, priority=rng.choice((None, -7)))
        return ChangeItem(operation, sequence, delay_ms=delay_ms, priority=rng.choice((None, 7)))

    async def send(self, items: Sequence[ChangeItem]) -> None:
        """Send changes once."""
        ledger, began = self._ledger, self._ledger.now
        outcome, changed, before_ms = Outcome.UNKNOWN, None, 0
        try:
            answered = await self._call(Change(tuple(items)))
        except CallFailedError as error:
            outcome = Outcome.FAILED if error.is_definite else Outcome.UNKNOWN
        else:
            assert isinstance(answered.result, Changed)
            outcome, changed, before_ms = Outcome.OK, answered.result, answered.before_ms
        ended = ledger.ended(is_answered=outcome is not Outcome.UNKNOWN)
        messages = changed_messages(items, changed)
        ledger.record(Alteration(self._process, self._group_id, began, ended, outcome, before_ms, messages))

    # ------------------------------------------------------------------------------------------------ sweeps

    async def redrive_all(self) -> None:
        """Redrive all dead messages by a job."""
        await self._run_job(StartJob(JobKind.REDRIVE), Sweep.REDRIVE, "")

    async def purge_some(self) -> None:
        """Purge the messages of a tenant by a job. Sometimes nobody ends it."""
        tenant = self._ledger.rng.choice(TENANTS[2:])
        await self._run_job(StartJob(JobKind.PURGE, JobFilter(_ALL_STATES, (tenant,))), Sweep.PURGE, tenant)

    async def _run_job(self, start: StartJob, sweep: Sweep, tenant: str) -> None:
        ledger, began = self._ledger, self._ledger.now
        job, outcome = 0, Outcome.UNKNOWN
        try:
            answered = await self._call(start)
        except CallFailedError as error:
            outcome = Outcome.FAILED if error.is_definite else Outcome.UNKNOWN
        else:
            outcome = Outcome.OK if isinstance(answered.result, JobStarted) else Outcome.FAILED
            job = answered.result.job if isinstance(answered.result, JobStarted) else 0
        ended = ledger.ended(is_answered=outcome is not Outcome.UNKNOWN)
        ledger.record(Swept(self._process, self._group_id, began, ended, outcome, 0, sweep, tenant))
        for _ in range(SLICES_MAX if job else 0):
            progress = await self._try(ContinueJob(job, _SLICE))
            if progress is not None and not (
                isinstance(progress.result, JobProgress) and not progress.result.is_finished
            ):
                return
            if ledger.rng.random() < 0.05:
                await self._try(CancelJob(job))
                return

    async def purge_all(self) -> None:
        """Purge everything."""
        ledger, began = self._ledger, self._ledger.now
        outcome = Outcome.OK
        try:
            await self._call(PurgeAll())
        except CallFailedError as error:
            outcome = Outcome.FAILED if error.is_definite else Outcome.UNKNOWN
        ended = ledger.ended(is_answered=outcome is not Outcome.UNKNOWN)
        ledger.record(Swept(self._process, self._group_id, began, ended, outcome, 0, Sweep.PURGE_ALL))

    # ------------------------------------------------------------------------------------------------ settings

    async def pause(self) -> None:
        """Pause a tenant or the whole partition for a time, or until it is resumed."""
        rng = self._ledger.rng
        await self._try(PauseTenant(rng.choice(TENANTS), rng.choice((200, 800, -1))))
        if rng.random() < 0.7:
            await self.resume()

    async def resume(self) -> None:
        """End all pauses."""
        for tenant in dict.fromkeys(TENANTS):
            await self._try(ResumeTenant(tenant))

    async def keep_schedules(self) -> None:
        """Put or delete a schedule. It is due after the run."""
        rng = self._ledger.rng
        name = rng.choice(("nightly", "weekly"))
        seen_ms = self._ledger.seen_ms.get(self._group_id, 0)
        if seen_ms:
            put = PutSchedule(name, b"rule", seen_ms + _SCHEDULED_AFTER_MS)
            await self._try(DeleteSchedule(name) if rng.random() < 0.4 else put)


async def _execute(item: Item, partition: PartitionQueue, deadline: float) -> object:
    return await services.execute(partition, item, deadline)
