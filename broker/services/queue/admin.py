"""Answer the calls of service `Queue` that change many messages, or single ones that nobody has leased, and wait for their ends."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from raftmq.broker.base.request_error import RequestError
from raftmq.broker.partitions.queue.partition import PartitionQueue
from raftmq.broker.services.call import Call
from raftmq.broker.services.queue.browse import status_of
from raftmq.broker.services.queue.partitions import QueuePartitions, answers, reading
from raftmq.fsm.queue.commands import (
    ANY_VERSION,
    FOREVER_MS,
    CancelJob,
    Change,
    ChangeItem,
    ChangeOperation,
    JobFilter,
    JobKind,
    PauseTenant,
    PurgeAll,
    ResumeTenant,
    StartJob,
    Tick,
)
from raftmq.fsm.queue.limits import DELAY_MS_MAX, ID_BYTES_MAX, ITEMS_WORK_MAX, JOBS_MAX, TENANT_DEPTH_MAX, TENANTS_MAX
from raftmq.fsm.queue.message import Message, State
from raftmq.fsm.queue.results import Changed, Code, Done, JobProgress, JobStarted, Purged, Refused
from raftmq.message_checks import TIME_MAX_MS
from raftmq.proto import queue_pb2 as pb

CHANGES_MAX: Final = ITEMS_WORK_MAX
"""Changes in a request: they travel in one entry."""
WAIT_MS_MAX: Final = 60_000
RATE_MAX: Final = 1_000_000
_CHANGE_CODES: Final[dict[int, pb.ErrorCode]] = {
    Code.OK: pb.OK,
    Code.NO_SUCH_MESSAGE: pb.NO_SUCH_MESSAGE,
    Code.VERSION_CONFLICT: pb.VERSION_CONFLICT,
    Code.MESSAGE_LEASED: pb.MESSAGE_LEASED,
    Code.WRONG_STATE: pb.WRONG_MESSAGE_STATE,
    Code.OVER_LIMIT: pb.THROTTLED,
}
_SHOWN_JOBS: Final[dict[int, pb.JobKind]] = {JobKind.PURGE: pb.PURGE_JOB, JobKind.REDRIVE: pb.REDRIVE_JOB}
_STATES: Final[dict[int, State]] = {
    pb.READY: State.READY,
    pb.DELAYED: State.DELAYED,
    pb.LEASED: State.LEASED,
    pb.DEAD: State.DEAD,
    pb.BLOCKED: State.LINED,
}


class QueueAdminService:
    """Changes the messages of queue partitions."""

    def __init__(self, partitions: QueuePartitions) -> None:
        self._partitions = partitions

    # ------------------------------------------------------------------------------------------------------------ messages

    async def change(self, request: pb.ChangeRequest, call: Call) -> pb.ChangeResponse:
        """Move, cancel or redrive messages. Each change has its own result.

        Raises:
            RequestError: INVALID_ARGUMENT: nothing was changed. The refusals of appends if a change makes messages ready.
        """
        deadline = call.within(request.timeout_ms, self._partitions.now)
        items = _items_of(request.changes)
        partition = await self._partitions.one(request.topic_id, request.partition, request.metadata_revision, deadline)
        if any(item.operation != ChangeOperation.CANCEL for item in items):
            _require_writes(partition, "send changes that only cancel in a request of their own")
        result = await partition.commands.execute(Change(items), Changed, deadline)
        assert isinstance(result, Changed), "a change is never refused as a whole"
        response = pb.ChangeResponse()
        for item, code, version in zip(items, result.codes, result.versions, strict=True):
            is_gone = item.operation == ChangeOperation.CANCEL and code == Code.OK
            response.results.add(code=_CHANGE_CODES.get(code, pb.INVALID_ARGUMENT), version=0 if is_gone else version)
        return response

    async def wait_finished(self, request: pb.WaitFinishedRequest, call: Call) -> pb.WaitFinishedResponse:
        """Wait until no unfinished message has an id, at most `max_wait_ms`."""
        id_ = request.id.encode()
        if not 1 <= len(id_) <= ID_BYTES_MAX:
            raise RequestError(pb.INVALID_ARGUMENT, f"an id has 1 to {ID_BYTES_MAX} bytes")
        partition = await self._partitions.one(
            request.topic_id, request.partition, request.metadata_revision, call.deadline
        )
        # a put that another leader accepted must be known before its id is called finished
        await reading(partition.replica.read_index(), call.deadline)
        ends_at = min(call.deadline, self._partitions.now + min(request.max_wait_ms, WAIT_MS_MAX) / 1000)
        while True:
            message = await reading(partition.views.by_id(id_), call.deadline)
            if message is None:
                return pb.WaitFinishedResponse(is_finished=True)
            if self._partitions.now >= ends_at:
                break
            await self._wait_for_end(partition, id_, message, ends_at)
        return pb.WaitFinishedResponse(state=status_of(message, 0).state)

    async def _wait_for_end(self, partition: PartitionQueue, id_: bytes, message: Message, ends_at: float) -> None:
        """Wait until a message may be finished, at most until `ends_at`."""
        watch = partition.finishes.add(message.sequence)
        try:
            async with asyncio.timeout_at(ends_at):
                # it may have ended before the watch began
                again = await partition.views.by_id(id_)
                if again is not None and again.sequence == message.sequence:
                    await watch.changed
        except TimeoutError:
            return
        finally:
            partition.finishes.remove(watch)

    # ---------------------------------------------------------------------------------------------------------------- jobs

    async def start_job(self, request: pb.StartJobRequest, call: Call) -> pb.StartJobResponse:
        """Begin a purge or a redrive. A purge of everything is done in one entry, and its response has no job."""
        deadline = call.within(request.timeout_ms, self._partitions.now)
        command = _job_of(request)
        partition = await self._partitions.one(request.topic_id, request.partition, request.metadata_revision, deadline)
        if isinstance(command, PurgeAll):
            purged = await partition.commands.execute(command, Purged, deadline)
            assert isinstance(purged, Purged), "a purge is never refused"
            return pb.StartJobResponse(done_count=purged.count)
        if command.kind == JobKind.REDRIVE:
            _require_writes(partition, "a purge frees space")
        result = await partition.commands.execute(command, JobStarted, deadline)
        if isinstance(result, Refused):
            raise RequestError(
                pb.TOO_MANY_JOBS, f"the partition has {JOBS_MAX} jobs already: wait for the end of some, or cancel them"
            )
        return pb.StartJobResponse(job=result.job)

    async def list_jobs(self, request: pb.ListJobsRequest, call: Call) -> pb.ListJobsResponse:
        """Return the jobs, and those that have finished here recently. Raises the refusal of a partition if there is one."""

        async def jobs_of(partition: PartitionQueue) -> list[pb.QueueJob]:
            await reading(partition.replica.read_index(), call.deadline)
            finished = [
                pb.QueueJob(job=number, kind=_SHOWN_JOBS[job.kind], done_count=job.done_count, is_finished=True)
                for number, job in partition.jobs.finished.items()
                if job.kind in _SHOWN_JOBS
            ]
            return finished + [
                pb.QueueJob(job=number, kind=_SHOWN_JOBS[row.kind], done_count=row.done_count)
                for number, row in partition.replica.state_machine.jobs.ordered()
                if row.kind in _SHOWN_JOBS
            ]

        outcomes = await self._partitions.each(
            "ListJobs", request.topic_id, request.partitions, request.metadata_revision, call.deadline, jobs_of
        )
        response = pb.ListJobsResponse()
        for outcome, jobs in zip(outcomes, answers(outcomes), strict=True):
            for job in jobs:
                job.partition = outcome.partition
                response.jobs.append(job)
        return response

    async def cancel_job(self, request: pb.CancelJobRequest, call: Call) -> pb.CancelJobResponse:
        """End a job where it is. Raises RequestError UNKNOWN_JOB, also for one that has finished."""
        deadline = call.within(request.timeout_ms, self._partitions.now)
        partition = await self._partitions.one(request.topic_id, request.partition, request.metadata_revision, deadline)
        result = await partition.commands.execute(CancelJob(request.job), JobProgress, deadline)
        if isinstance(result, Refused):
            raise RequestError(
                pb.UNKNOWN_JOB, f"partition {request.partition} has no job {request.job}: it may have finished"
            )
        return pb.CancelJobResponse(done_count=result.done_count)

    # -------------------------------------------------------------------------------------------------------- pauses, clock

    async def pause(self, request: pb.PauseRequest, call: Call) -> pb.PauseResponse:
        """Pause or resume leasing in each partition. Raises the refusal of a partition if there is one: repeat the call then."""
        deadline = call.within(request.timeout_ms, self._partitions.now)
        if not FOREVER_MS <= request.pause_ms <= DELAY_MS_MAX:
            raise RequestError(pb.INVALID_ARGUMENT, f"pause_ms is -1, 0, or at most {DELAY_MS_MAX}")
        command = PauseTenant(request.tenant, request.pause_ms) if request.pause_ms else ResumeTenant(request.tenant)

        async def pause_one(partition: PartitionQueue) -> Done | Refused:
            tenants = partition.replica.state_machine.state.tenants.by_path
            if request.tenant not in tenants:
                if not request.pause_ms:
                    return Done()  # nothing is paused, and a resumption must not create the tenant
                if len(tenants) + TENANT_DEPTH_MAX > TENANTS_MAX:
                    raise RequestError(
                        pb.TOO_MANY_TENANTS,
                        f"the partition has {len(tenants)} of at most {TENANTS_MAX} tenants: pause one that has messages",
                    )
            return await partition.commands.execute(command, Done, deadline)

        outcomes = await self._partitions.each(
            "Pause", request.topic_id, request.partitions, request.metadata_revision, deadline, pause_one
        )
        answers(outcomes)
        return pb.PauseResponse()

    async def step_clock(self, request: pb.StepClockRequest, call: Call) -> pb.StepClockResponse:
        """Step the queue clocks to the median of the brokers' clocks. A clock that is not behind stays."""
        deadline = call.within(request.timeout_ms, self._partitions.now)

        async def step(partition: PartitionQueue) -> int:
            behind_ms = -(partition.clock.difference_ms or 0)
            if behind_ms > 0:
                partition.clock.step_to(partition.clock.read_ms() + behind_ms)
            # the time must be in the log: the next leader continues from there
            await partition.commands.execute(Tick(), Done, deadline)
            return max(behind_ms, 0)

        outcomes = await self._partitions.each(
            "StepClock", request.topic_id, request.partitions, request.metadata_revision, deadline, step
        )
        response = pb.StepClockResponse()
        for outcome in outcomes:
            clock = response.partitions.add(partition=outcome.partition, stepped_ms=outcome.answer or 0)
            if outcome.error is not None:
                clock.error.CopyFrom(outcome.error.detail)
        return response


def _require_writes(partition: PartitionQueue, remedy: str) -> None:
    """Refuse a command that makes messages ready like an append."""
    refusal = partition.replica.refusal_of_writes()
    if refusal is not None:
        code, text = refusal.code, refusal.detail.message
        raise RequestError(code, f"{text} ({remedy})", retry_after_ms=refusal.detail.retry_after_ms)


def _items_of(changes: Sequence[pb.MessageChange]) -> tuple[ChangeItem, ...]:
    if not 1 <= len(changes) <= CHANGES_MAX:
        raise RequestError(
            pb.INVALID_ARGUMENT, f"a request has 1 to {CHANGES_MAX} changes, not {len(changes)}: use several requests"
        )
    return tuple(_item_of(place, change) for place, change in enumerate(changes))


def _item_of(place: int, change: pb.MessageChange) -> ChangeItem:
    has_time = change.HasField("delay_ms") or change.HasField("not_before_ms")
    reason = ""
    if change.operation not in ChangeOperation._value2member_map_:
        reason = "the operation is unknown"
    elif change.operation != pb.MOVE and (has_time or change.HasField("priority")):
        reason = "only a move takes a time or a priority"
    elif change.operation == pb.MOVE and not has_time and not change.HasField("priority"):
        reason = "a move needs delay_ms, not_before_ms or priority"
    elif change.HasField("delay_ms") and change.HasField("not_before_ms"):
        reason = "a move takes delay_ms or not_before_ms, not both"
    elif change.delay_ms > DELAY_MS_MAX or not 0 <= change.not_before_ms <= TIME_MAX_MS:
        reason = f"delay_ms is at most {DELAY_MS_MAX}, and not_before_ms is between 0 and {TIME_MAX_MS}"
    elif len(change.id.encode()) > ID_BYTES_MAX:
        reason = f"an id has at most {ID_BYTES_MAX} bytes"
    if reason:
        raise RequestError(pb.INVALID_ARGUMENT, f"change {place}: {reason}")
    return ChangeItem(
        change.operation,
        0 if change.id else change.sequence,
        change.id.encode(),
        change.version if change.HasField("version") else ANY_VERSION,
        change.delay_ms if change.HasField("delay_ms") else -1,
        change.not_before_ms if change.HasField("not_before_ms") else -1,
        change.priority if change.HasField("priority") else None,
    )


def _job_of(request: pb.StartJobRequest) -> StartJob | PurgeAll:
    if not 0 <= request.messages_per_second <= RATE_MAX or request.before_ms < 0:
        raise RequestError(
            pb.INVALID_ARGUMENT, f"messages_per_second is at most {RATE_MAX}, and before_ms is not negative"
        )
    if request.kind == pb.REDRIVE_JOB:
        if any(state != pb.DEAD for state in request.states):
            raise RequestError(pb.INVALID_ARGUMENT, "only dead messages are redriven: leave out the states")
        job_filter = JobFilter(0, tuple(request.tenants), request.before_ms)
        return StartJob(JobKind.REDRIVE, job_filter, request.messages_per_second)
    if request.kind != pb.PURGE_JOB:
        raise RequestError(pb.INVALID_ARGUMENT, "a job purges or redrives")
    if not request.states and not request.tenants and not request.before_ms:
        if request.messages_per_second:
            raise RequestError(
                pb.INVALID_ARGUMENT,
                "a purge without a filter deletes everything in one step: name states to give it a rate",
            )
        return PurgeAll()
    mask = 0
    for state in request.states or _STATES:
        if state not in _STATES:
            raise RequestError(pb.INVALID_ARGUMENT, f"the state {state} is unknown")
        mask |= 1 << _STATES[state]
    return StartJob(
        JobKind.PURGE, JobFilter(mask, tuple(request.tenants), request.before_ms), request.messages_per_second
    )
