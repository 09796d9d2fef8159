"""Serve long polls: read available records, else wait until the first of many partitions changes. The number of waiting polls is bounded.

A poll costs no task while only records are waited for: it is answered by the callback of the progress that it waits for. It has one while
it waits for metadata, for a quorum or for the disk.

Polls wait on shared futures (`Replica.wait_progress`). A poll adds a callback and removes it again, and never cancels the future.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial

from raftmq.broker.base.request_error import RequestError, expired
from raftmq.broker.partitions.log import PartitionLog
from raftmq.broker.services.call import Call
from raftmq.broker.services.host import ServiceHost
from raftmq.broker.services.locator import Locator, check_partitions
from raftmq.broker.services.request_metrics import RequestMetrics
from raftmq.methods import POLL
from raftmq.proto import queue_pb2 as pb
from raftmq.raft.entry import Entry

OnPolled = Callable[[pb.PollResponse | Exception], None]
"""Takes the answer to a poll, or its failure: a `RequestError`, or a defect. Must not raise."""

_MAX_WAIT_SECONDS = 60.0
_ANSWER_MARGIN_SECONDS = 0.05
"""A poll ends this long before its call's deadline, so that an empty answer arrives instead of an error."""
_PARTITION_BYTES_DEFAULT = 1024 * 1024
_PARKED_RETRY_MS = 100


@dataclass(slots=True)
class _Want:
    """One partition of a poll."""

    topic_id: int
    partition: int
    offset: int
    bytes_max: int
    group_id: int = 0
    """The group from which the reader has the records before the offset, or 0."""
    found: PartitionLog | None = None
    refusal: RequestError | None = None


class _Answer:
    """A response under construction."""

    def __init__(self) -> None:
        self.response = pb.PollResponse()
        self.bytes = 0
        self.batches = 0
        self.has_errors = False

    def refuse(self, want: _Want, error: RequestError) -> None:
        self.has_errors = True
        self.response.partitions.add(topic_id=want.topic_id, partition=want.partition, error=error.detail)

    def add(self, want: _Want, log: PartitionLog, entries: Sequence[Entry]) -> None:
        result = self.response.partitions.add(
            topic_id=want.topic_id,
            partition=want.partition,
            high_watermark=log.high_watermark,
            log_start_offset=log.log_start_offset,
            leader_epoch=log.replica.term,
            group_id=log.replica.group_id,
        )
        payloads = [entry.payload for entry in entries]
        result.base_offsets.extend([entry.base_offset for entry in entries])
        result.batches.extend(payloads)
        result.append_times_ms.extend([entry.append_time_ms for entry in entries])
        self.bytes += sum(map(len, payloads))
        self.batches += len(payloads)


class Poll:
    """A poll under way. Created by `PollService.begin`."""

    __slots__ = (
        "_bytes_max",
        "_bytes_min",
        "_deadline",
        "_loop",
        "_on_outcome",
        "_progress",
        "_service",
        "_task",
        "_timer",
        "_until",
        "_wants",
        "is_over",
    )

    def __init__(self, service: PollService, request: pb.PollRequest, deadline: float, on_outcome: OnPolled) -> None:
        self._service = service
        self._loop = service.loop
        self._on_outcome = on_outcome
        self._deadline = deadline
        wait_seconds = min(request.max_wait_ms / 1000, _MAX_WAIT_SECONDS)
        self._until = min(self._loop.time() + wait_seconds, deadline - _ANSWER_MARGIN_SECONDS)
        """Loop time at which it is answered at the latest."""
        self._wants = service.rotated(request)
        self._bytes_max = min(request.max_bytes or service.bytes_max, service.bytes_max)
        self._bytes_min = max(1, min(request.min_bytes, self._bytes_max))
        self._progress: Sequence[asyncio.Future[None]] = ()
        """What it waits for while it is parked."""
        self._timer: asyncio.TimerHandle | None = None
        """Runs while it is parked."""
        self._task: asyncio.Task[None] | None = None
        self.is_over = False
        """Whether it was answered, has failed, or was cancelled."""

    def cancel(self) -> None:
        """End it without an outcome."""
        self.is_over = True
        self._leave_parking()
        if self._task is not None:
            self._task.cancel()

    def begin(self, revision: int) -> None:
        """Answer it, or wait, first for that revision of the metadata."""
        if self._service.locator.has_revision(revision):
            self._advance()
        else:
            self._wait_in_task(partial(self._wait_revision, revision))

    async def _wait_revision(self, revision: int) -> pb.PollResponse | None:
        await self._service.locator.wait_revision(revision, self._deadline)
        return self._look()

    def _wait_in_task(self, look: Callable[[], Awaitable[pb.PollResponse | None]]) -> None:
        self._task = self._loop.create_task(self._run(look))

    async def _run(self, look: Callable[[], Awaitable[pb.PollResponse | None]]) -> None:
        try:
            outcome: pb.PollResponse | Exception | None = await look()
        except Exception as error:  # noqa: BLE001 -- the root of a call: a defect is its outcome
            outcome = error
        self._end(outcome)

    def _advance(self) -> None:
        try:
            outcome: pb.PollResponse | Exception | None = self._look()
        except Exception as error:  # noqa: BLE001 -- as in `_run`
            outcome = error
        self._end(outcome)

    def _end(self, outcome: pb.PollResponse | Exception | None) -> None:
        """Give the outcome, unless there is none yet."""
        if outcome is not None:
            self.is_over = True
            self._on_outcome(outcome)

    # ---------------------------------------------------------------------------------------------------- reading

    def _look(self) -> pb.PollResponse | None:
        """Return the answer if there is one now. Otherwise wait."""
        is_last = self._is_last()
        answer = self._service.read_now(self._wants, self._bytes_max, is_last=is_last)
        if answer is None:
            self._wait_in_task(partial(self._read, is_last=is_last))
            return None
        if is_last or self._is_enough(answer):
            return self._response(answer)
        self._park(_progress_of(self._wants))
        return None

    async def _read(self, *, is_last: bool) -> pb.PollResponse | None:
        # taken before reading, so that records that arrive during a cold read wake the poll
        progress = [] if is_last else _progress_of(self._wants)
        answer = await self._service.read(self._wants, self._bytes_max, self._deadline, is_last=is_last)
        if is_last or self._service.is_stopping or self._is_enough(answer):
            return self._response(answer)
        self._park(progress)
        return None

    def _is_last(self) -> bool:
        """Return whether it is answered now, with or without records."""
        return self._service.is_stopping or self._loop.time() >= self._until

    def _is_enough(self, answer: _Answer) -> bool:
        return answer.has_errors or answer.bytes >= self._bytes_min

    def _response(self, answer: _Answer) -> pb.PollResponse:
        self._service.count(answer)
        return answer.response

    # ---------------------------------------------------------------------------------------------------- waiting

    def _park(self, progress: Sequence[asyncio.Future[None]]) -> None:
        self._service.park(self)
        self._progress = progress
        for future in progress:
            future.add_done_callback(self._on_progress)
        self._timer = self._loop.call_at(self._until, self.wake)

    def _on_progress(self, _: asyncio.Future[None]) -> None:
        self.wake()

    def wake(self) -> None:
        """Look for an answer again, if it is parked."""
        if self._leave_parking():
            self._advance()

    def _leave_parking(self) -> bool:
        """Stop waiting. Return whether it was parked."""
        if self._timer is None:
            return False
        self._service.parked.pop(self)
        self._timer.cancel()
        self._timer = None
        for future in self._progress:
            if not future.done():
                future.remove_done_callback(self._on_progress)
        self._progress = ()
        return True


class PollService:
    """Answers the long polls of one node."""

    def __init__(self, host: ServiceHost, locator: Locator[PartitionLog], metrics: RequestMetrics) -> None:
        self._host = host
        self._metrics = metrics
        self.loop = host.loop
        self.locator = locator
        self.parked: dict[Poll, None] = {}
        """The waiting polls, in the order in which they came."""
        self.is_stopping = False
        """Whether no poll waits any more."""
        self._cold_slots = asyncio.Semaphore(host.limits.cold_polls_max)
        self._rotation = 0
        self.batches_total = 0
        self.bytes_total = 0

    @property
    def bytes_max(self) -> int:
        """Return the most bytes of an answer."""
        return self._host.limits.poll_bytes_max

    def begin_shutdown(self) -> None:
        """Answer every waiting poll now, and let no further one wait."""
        self.is_stopping = True
        for poll in list(self.parked):
            poll.wake()

    async def poll(self, request: pb.PollRequest, call: Call) -> pb.PollResponse:
        """Answer with batches or errors as soon as there are any, or with an empty response when the wait is over.

        Raises:
            RequestError: INVALID_ARGUMENT; NOT_READY; THROTTLED if too many polls already wait.
        """
        # An error is a result: of a call that is cancelled at this moment nobody would take an exception.
        outcome: asyncio.Future[pb.PollResponse | Exception] = self.loop.create_future()
        poll = self.begin(request, call, partial(_set_outcome, outcome))
        try:
            found = await outcome
        finally:
            poll.cancel()
        if isinstance(found, Exception):
            raise found
        return found

    def begin(self, request: pb.PollRequest, call: Call, on_outcome: OnPolled) -> Poll:
        """Begin a poll as `poll` does. `on_outcome` may be called before this returns.

        Raises:
            RequestError: INVALID_ARGUMENT.
        """
        check_partitions(len(request.partitions))
        poll = Poll(self, request, call.deadline, on_outcome)
        poll.begin(request.metadata_revision)
        return poll

    # ---------------------------------------------------------------------------------------------------- polls

    def rotated(self, request: pb.PollRequest) -> list[_Want]:
        """Start each poll with another partition, so that a full answer does not starve the last ones."""
        wants = [
            _Want(part.topic_id, part.partition, part.offset, part.max_bytes or _PARTITION_BYTES_DEFAULT, part.group_id)
            for part in request.partitions
        ]
        self._rotation += 1
        first = self._rotation % len(wants)
        return wants[first:] + wants[:first] if first else wants

    def park(self, poll: Poll) -> None:
        """Let a poll wait. Raises THROTTLED if too many do."""
        if len(self.parked) >= self._host.limits.parked_polls_max:
            raise RequestError(
                pb.THROTTLED, "too many polls are waiting on this broker", retry_after_ms=_PARKED_RETRY_MS
            )
        self.parked[poll] = None

    def count(self, answer: _Answer) -> None:
        """Count an answer."""
        self.batches_total += answer.batches
        self.bytes_total += answer.bytes
        if answer.has_errors:
            for result in answer.response.partitions:
                if result.HasField("error"):
                    self._metrics.observe_refusal(POLL.name, pb.ErrorCode.Name(result.error.code))

    # ---------------------------------------------------------------------------------------------------- reading

    def read_now(self, wants: list[_Want], bytes_max: int, *, is_last: bool) -> _Answer | None:
        """Read from memory what is readable now. None: ask `read`, which can wait.

        Every partition is located, also for a poll that waits afterwards.
        """
        answer = _Answer()
        must_wait = False
        for want in wants:
            if answer.bytes >= bytes_max and not must_wait:
                break
            want.found = None
            try:
                log = want.found = self.locator.locate(want.topic_id, want.partition)
                log.check_reader(want.offset, want.group_id)
                if not log.is_readable(want.offset):
                    # above the end: a quorum confirms it
                    must_wait |= want.offset > log.high_watermark and (is_last or log.replica.is_leader)
                    continue
            except RequestError as error:
                must_wait |= self.locator.is_unconfirmed(error)
                answer.refuse(want, error)
                continue
            entries = log.read_recent(want.offset, min(want.bytes_max, bytes_max - answer.bytes))
            if entries is None:
                must_wait = True
            else:
                self._add(want, answer, log, entries, bytes_max)
        return None if must_wait else answer

    async def read(self, wants: list[_Want], bytes_max: int, deadline: float, *, is_last: bool) -> _Answer:
        """Read the readable records. Waits for confirmations and for the disk."""
        answer = _Answer()
        is_cold = False
        for want in wants:
            if answer.bytes >= bytes_max:
                break
            want.refusal = None
            try:
                is_cold |= not await self._read_from_memory(want, answer, bytes_max, deadline, is_last=is_last)
            except RequestError as error:
                want.refusal = error
                answer.refuse(want, error)
        return await self._read_from_disk(wants, bytes_max, deadline) if is_cold else answer

    async def _read_from_memory(
        self, want: _Want, answer: _Answer, bytes_max: int, deadline: float, *, is_last: bool
    ) -> bool:
        """Read one partition. Return False when memory does not hold its records."""
        log = want.found = await self.locator.locate_confirmed(want.topic_id, want.partition, deadline)
        log.check_reader(want.offset, want.group_id)
        if not log.is_readable(want.offset):
            if want.offset > log.high_watermark:
                await log.confirm_end(want.offset)
                if is_last:
                    raise log.not_available(want.offset)
            return True
        entries = log.read_recent(want.offset, min(want.bytes_max, bytes_max - answer.bytes))
        if entries is None:
            return False
        self._add(want, answer, log, entries, bytes_max)
        return True

    async def _read_from_disk(self, wants: list[_Want], bytes_max: int, deadline: float) -> _Answer:
        """Read what was confirmed by `_read_from_memory`, all of it again. Nothing is held before a slot is free.

        A poll that waits for the disk already holds a part of its answer, and thousands of them can wait.
        """
        async with self._cold_slots:
            if self.loop.time() >= deadline:
                raise expired()
            answer = _Answer()
            for want in wants:
                if answer.bytes >= bytes_max:
                    break
                try:
                    if want.refusal is not None:
                        raise want.refusal
                    if want.found is None:  # not confirmed: the answer was full before
                        continue
                    # it may have been closed or recovered since
                    log = self.locator.locate(want.topic_id, want.partition)
                    log.check_reader(want.offset, want.group_id)
                    if log.is_readable(want.offset):
                        entries = await log.read(want.offset, min(want.bytes_max, bytes_max - answer.bytes))
                        self._add(want, answer, log, entries, bytes_max)
                except RequestError as error:
                    answer.refuse(want, error)
            return answer

    @staticmethod
    def _add(want: _Want, answer: _Answer, log: PartitionLog, entries: Sequence[Entry], bytes_max: int) -> None:
        # the first batch of an answer always fits, regardless of the requested size; others only while there is space
        if entries and (answer.batches == 0 or len(entries[0].payload) <= bytes_max - answer.bytes):
            answer.add(want, log, entries)


def _progress_of(wants: list[_Want]) -> list[asyncio.Future[None]]:
    replicas = {want.found.replica.group_id: want.found.replica for want in wants if want.found is not None}
    return [replica.wait_progress() for replica in replicas.values()]


def _set_outcome(future: asyncio.Future[pb.PollResponse | Exception], outcome: pb.PollResponse | Exception) -> None:
    if not future.done():
        future.set_result(outcome)
