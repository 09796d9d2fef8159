"""Serve long polls: read available records, else wait until the first of many partitions changes. The number of waiting polls is bounded.

Polls wait on shared futures (`Replica.wait_progress`). A poll adds a callback and removes it again, and never cancels the future.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from raftmq.broker.base.request_error import RequestError, expired
from raftmq.broker.partitions.log import PartitionLog
from raftmq.broker.services.call import Call
from raftmq.broker.services.host import ServiceHost
from raftmq.broker.services.locator import Locator, check_partitions
from raftmq.broker.services.request_metrics import RequestMetrics
from raftmq.methods import POLL
from raftmq.proto import queue_pb2 as pb
from raftmq.raft.entry import Entry

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
        )
        payloads = [entry.payload for entry in entries]
        result.base_offsets.extend([entry.base_offset for entry in entries])
        result.batches.extend(payloads)
        result.append_times_ms.extend([entry.append_time_ms for entry in entries])
        self.bytes += sum(map(len, payloads))
        self.batches += len(payloads)


class PollService:
    """Answers the long polls of one node."""

    def __init__(self, host: ServiceHost, locator: Locator[PartitionLog], metrics: RequestMetrics) -> None:
        self._host = host
        self._metrics = metrics
        self._locator = locator
        self._parked: dict[asyncio.Future[None], None] = {}
        self._is_stopping = False
        self._cold_slots = asyncio.Semaphore(host.limits.cold_polls_max)
        self._rotation = 0
        self.batches_total = 0
        self.bytes_total = 0

    @property
    def parked(self) -> int:
        """Return the number of waiting polls."""
        return len(self._parked)

    def begin_shutdown(self) -> None:
        """Answer every waiting poll now, and let no further one wait."""
        self._is_stopping = True
        for woken in self._parked:
            _wake(woken)

    async def poll(self, request: pb.PollRequest, call: Call) -> pb.PollResponse:
        """Answer with batches or errors as soon as there are any, or with an empty response when the wait is over.

        Raises:
            RequestError: INVALID_ARGUMENT; NOT_READY; THROTTLED if too many polls already wait.
        """
        check_partitions(len(request.partitions))
        now = self._host.loop.time()
        wait_seconds = min(request.max_wait_ms / 1000, _MAX_WAIT_SECONDS)
        until = min(now + wait_seconds, call.deadline - _ANSWER_MARGIN_SECONDS)
        await self._locator.wait_revision(request.metadata_revision, call.deadline)
        wants = self._rotated(request)
        bytes_max = min(request.max_bytes or self._host.limits.poll_bytes_max, self._host.limits.poll_bytes_max)
        bytes_min = max(1, min(request.min_bytes, bytes_max))
        while True:
            is_last = self._is_stopping or self._host.loop.time() >= until
            must_wait = self._must_wait(wants)
            # taken before reading, so that records that arrive during a cold read wake the poll
            progress = [] if is_last else _progress_of(wants)
            if is_last or not must_wait:
                answer = await self._read(wants, bytes_max, call.deadline, is_last=is_last)
                if is_last or answer.has_errors or answer.bytes >= bytes_min:
                    self.batches_total += answer.batches
                    self.bytes_total += answer.bytes
                    return answer.response
            await self._park(progress, until)

    def _rotated(self, request: pb.PollRequest) -> list[_Want]:
        """Start each poll with another partition, so that a full answer does not starve the last ones."""
        wants = [
            _Want(part.topic_id, part.partition, part.offset, part.max_bytes or _PARTITION_BYTES_DEFAULT)
            for part in request.partitions
        ]
        self._rotation += 1
        first = self._rotation % len(wants)
        return wants[first:] + wants[:first]

    def _must_wait(self, wants: list[_Want]) -> bool:
        """Return whether no partition has an answer yet. It only checks: `_read` creates the refusals."""
        must_wait = True
        for want in wants:
            try:
                log = want.found = self._locator.locate(want.topic_id, want.partition)
                if log.is_readable(want.offset) or (want.offset > log.high_watermark and log.replica.is_leader):
                    must_wait = False
            except RequestError:
                must_wait = False
        return must_wait

    async def _read(self, wants: list[_Want], bytes_max: int, deadline: float, *, is_last: bool) -> _Answer:
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
        if is_cold:
            answer = await self._read_from_disk(wants, bytes_max, deadline)
        for result in answer.response.partitions:
            if result.HasField("error"):
                self._metrics.observe_refusal(POLL.name, pb.ErrorCode.Name(result.error.code))
        return answer

    async def _read_from_memory(
        self, want: _Want, answer: _Answer, bytes_max: int, deadline: float, *, is_last: bool
    ) -> bool:
        """Read one partition. Return False when memory does not hold its records."""
        log = want.found = await self._locator.locate_confirmed(want.topic_id, want.partition, deadline)
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
            if self._host.loop.time() >= deadline:
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
                    log = self._locator.locate(want.topic_id, want.partition)  # it may have been closed since
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

    async def _park(self, progress: list[asyncio.Future[None]], until: float) -> None:
        if len(self._parked) >= self._host.limits.parked_polls_max:
            raise RequestError(
                pb.THROTTLED, "too many polls are waiting on this broker", retry_after_ms=_PARKED_RETRY_MS
            )
        woken: asyncio.Future[None] = self._host.loop.create_future()

        def wake(_: asyncio.Future[None]) -> None:
            _wake(woken)

        for future in progress:
            future.add_done_callback(wake)
        timer = self._host.loop.call_at(until, _wake, woken)
        self._parked[woken] = None
        try:
            await woken
        finally:
            self._parked.pop(woken, None)
            timer.cancel()
            for future in progress:
                if not future.done():
                    future.remove_done_callback(wake)


def _progress_of(wants: list[_Want]) -> list[asyncio.Future[None]]:
    replicas = {want.found.replica.group_id: want.found.replica for want in wants if want.found is not None}
    return [replica.wait_progress() for replica in replicas.values()]


def _wake(woken: asyncio.Future[None]) -> None:
    if not woken.done():
        woken.set_result(None)
