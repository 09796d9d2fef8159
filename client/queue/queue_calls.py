"""The unary calls of a `Queue` to the leaders of its partitions: browse, change, jobs, pauses, statistics, clocks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Iterable, Sequence
from typing import NamedTuple, TypeVar
from zlib import crc32

from raftmq.batch_header import BatchFormatError
from raftmq.client.base import settings
from raftmq.client.base.background import Backoff
from raftmq.client.base.error_details import error_from_detail, with_doubt
from raftmq.client.connection.resolver import Resolver
from raftmq.client.queue.job_view import QueueJob, read_job
from raftmq.client.queue.leader_call import call_leader, whole_ms
from raftmq.client.queue.refusals import refusal
from raftmq.client.queue.topic import QueuePartition, QueueTopic
from raftmq.client.queue.views import BrowsedMessage, QueueStats, read_browsed, read_stats
from raftmq.errors import NoSuchMessageError, Outcome, ProtocolError, RaftMQError
from raftmq.message_block import unpack_block
from raftmq.methods import (
    BROWSE,
    CANCEL_JOB,
    CHANGE,
    LIST_JOBS,
    PAUSE,
    QUEUE_STATS,
    START_JOB,
    STEP_CLOCK,
    WAIT_FINISHED,
    RequestT,
    ResponseT,
    UnaryMethod,
)
from raftmq.proto import queue_pb2 as pb

T = TypeVar("T")


class MessageFilter(NamedTuple):
    """The messages to browse."""

    state: pb.MessageState = pb.ANY_STATE
    tenant: str = ""
    id: str = ""
    enqueued_before_ms: int = 0


class JobOrder(NamedTuple):
    """The kind of a job, and the messages that it concerns."""

    kind: pb.JobKind
    states: Sequence[pb.MessageState] = ()
    tenants: Sequence[str] = ()
    before_ms: int = 0
    messages_per_second: int = 0


class QueueCalls:
    """Calls about one topic. It keeps no state between them."""

    def __init__(self, resolver: Resolver, topic: QueueTopic, timeout_seconds: float) -> None:
        self._resolver = resolver
        self._topic = topic
        self._timeout_seconds = timeout_seconds
        self._timeout_ms = whole_ms(timeout_seconds)

    # ------------------------------------------------------------------------------------------------------------ browse

    async def browse(
        self, wanted: MessageFilter, limit: int | None, *, with_values: bool
    ) -> AsyncIterator[BrowsedMessage]:
        """Yield messages, partition by partition."""
        left = limit
        for partition in await self._partitions():
            async for message in self._browse_partition(partition, wanted, left, with_values=with_values):
                yield message
                if left is not None:
                    left -= 1
            if left is not None and left <= 0:
                return

    async def _browse_partition(
        self, partition: QueuePartition, wanted: MessageFilter, limit: int | None, *, with_values: bool
    ) -> AsyncIterator[BrowsedMessage]:
        page = settings.BROWSE_PAGE_BODIES if with_values else settings.BROWSE_PAGE_MESSAGES
        cursor = b""
        while limit is None or limit > 0:
            answer = await self._call(
                partition,
                BROWSE,
                pb.BrowseRequest(
                    metadata_revision=self._resolver.metadata_revision,
                    topic_id=partition.topic_id,
                    partition=partition.partition,
                    state=wanted.state,
                    tenant=wanted.tenant,
                    id=wanted.id,
                    enqueued_before_ms=wanted.enqueued_before_ms,
                    cursor=cursor,
                    limit=page if limit is None else min(page, limit),
                    with_bodies=with_values,
                ),
                is_read=True,
            )
            messages = _read_page(partition.partition, answer, with_values=with_values)
            for message in messages:
                yield message
            if limit is not None:
                limit -= len(messages)
            cursor = answer.cursor
            if not cursor:
                return

    # ------------------------------------------------------------------------------------------------------------ change

    async def change(self, change: pb.MessageChange, partition: int | None) -> int:
        """Change one message, and return its version afterwards. The partition of an id is looked for.

        Raises:
            NoSuchMessageError, VersionConflictError, MessageLeasedError, WrongMessageStateError: nothing was changed.
            RaftMQError: as for `call_leader`.
        """
        if partition is not None:
            return await self._change_in(await self._topic.partition(partition), change)
        partitions = await self._partitions_of(change.id)
        for candidate in partitions[:-1]:
            try:
                return await self._change_in(candidate, change)
            except NoSuchMessageError:
                continue
        return await self._change_in(partitions[-1], change)

    async def _change_in(self, partition: QueuePartition, change: pb.MessageChange) -> int:
        answer = await self._call(
            partition,
            CHANGE,
            pb.ChangeRequest(
                metadata_revision=self._resolver.metadata_revision,
                timeout_ms=self._timeout_ms,
                topic_id=partition.topic_id,
                partition=partition.partition,
                changes=[change],
            ),
        )
        if len(answer.results) != 1:
            raise ProtocolError(f"the broker answered for {len(answer.results)} changes instead of 1")
        (result,) = answer.results
        if result.code != pb.OK:
            place = f"message {change.sequence} of partition {partition.partition}"
            raise refusal(result.code, f"message {change.id!r}" if change.id else place)
        return result.version

    async def wait_finished(self, name: str, timeout_seconds: float | None) -> bool:
        """Wait until no unfinished message has this id. Return whether that is so."""
        loop = asyncio.get_running_loop()
        deadline = float("inf") if timeout_seconds is None else loop.time() + timeout_seconds
        for partition in await self._partitions_of(name):
            while not await self._is_finished(partition, name, deadline - loop.time()):
                if loop.time() >= deadline:
                    return False
        return True

    async def _is_finished(self, partition: QueuePartition, name: str, seconds: float) -> bool:
        wait_ms = int(max(0.0, min(seconds * 1000, settings.WAIT_FINISHED_MS)))
        request = pb.WaitFinishedRequest(
            metadata_revision=self._resolver.metadata_revision,
            topic_id=partition.topic_id,
            partition=partition.partition,
            id=name,
            max_wait_ms=wait_ms,
        )
        answer = await self._call(partition, WAIT_FINISHED, request, is_read=True, extra_seconds=wait_ms / 1000)
        return answer.is_finished

    # -------------------------------------------------------------------------------------------------------------- jobs

    async def run_job(self, order: JobOrder) -> int:
        """Start a job in every partition, and wait for the end of all. Return the number of messages that were seen to be done.

        Raises:
            RaftMQError: as for `call_leader`. Its outcome is unknown as soon as one partition has a job, which goes on.
        """
        partitions = await self._partitions()
        started = await _changed_everywhere(self._start_job(partition, order) for partition in partitions)
        try:
            return sum(await asyncio.gather(*map(self._finish_job, partitions, started)))
        except RaftMQError as error:
            raise with_doubt(error) from error

    async def _start_job(self, partition: QueuePartition, order: JobOrder) -> pb.StartJobResponse:
        return await self._call(
            partition,
            START_JOB,
            pb.StartJobRequest(
                metadata_revision=self._resolver.metadata_revision,
                timeout_ms=self._timeout_ms,
                topic_id=partition.topic_id,
                partition=partition.partition,
                kind=order.kind,
                states=order.states,
                tenants=order.tenants,
                before_ms=order.before_ms,
                messages_per_second=order.messages_per_second,
            ),
        )

    async def _finish_job(self, partition: QueuePartition, started: pb.StartJobResponse) -> int:
        done_count, job = started.done_count, started.job
        backoff = Backoff(settings.RETRY_BACKOFF_MIN_SECONDS, settings.RETRY_BACKOFF_MAX_SECONDS, self._resolver.rng)
        while job:
            await asyncio.sleep(backoff.next_seconds())
            running = await self._job(partition, job)
            if running is None:
                return done_count
            done_count = running.done_count
            if running.is_finished:
                return done_count
        return done_count

    async def jobs(self) -> list[QueueJob]:
        """Return the jobs of all partitions, and those that have finished recently."""
        partitions = await self._partitions()
        found = await asyncio.gather(*map(self._jobs, partitions))
        return [
            read_job(partition.partition, job)
            for partition, jobs in zip(partitions, found, strict=True)
            for job in sorted(jobs, key=lambda job: job.job)
        ]

    async def cancel_job(self, partition: int, job: int) -> int:
        """End a job where it is. Return the messages that it has taken. Raises `UnknownJobError`, and the errors of `call_leader`."""
        place = await self._topic.partition(partition)
        request = pb.CancelJobRequest(
            metadata_revision=self._resolver.metadata_revision,
            timeout_ms=self._timeout_ms,
            topic_id=place.topic_id,
            partition=partition,
            job=job,
        )
        return (await self._call(place, CANCEL_JOB, request)).done_count

    async def _job(self, partition: QueuePartition, job: int) -> pb.QueueJob | None:
        return next((found for found in await self._jobs(partition) if found.job == job), None)

    async def _jobs(self, partition: QueuePartition) -> Sequence[pb.QueueJob]:
        request = pb.ListJobsRequest(
            metadata_revision=self._resolver.metadata_revision,
            topic_id=partition.topic_id,
            partitions=[partition.partition],
        )
        return (await self._call(partition, LIST_JOBS, request, is_read=True)).jobs

    # ------------------------------------------------------------------------------------------------- pauses, statistics

    async def pause(self, tenant: str, pause_ms: int) -> None:
        """Pause (-1: until it is resumed) or resume (0) a subtree of tenants in every partition."""
        for number, partition in enumerate(await self._partitions()):
            request = pb.PauseRequest(
                metadata_revision=self._resolver.metadata_revision,
                timeout_ms=self._timeout_ms,
                topic_id=partition.topic_id,
                partitions=[partition.partition],
                tenant=tenant,
                pause_ms=pause_ms,
            )
            try:
                await self._call(partition, PAUSE, request, is_read=True)  # repeating it changes nothing
            except RaftMQError as error:
                if number:
                    raise with_doubt(error) from error  # the partitions before it have changed
                raise

    async def stats(self, tenants_max: int) -> QueueStats:
        """Return the state of all partitions."""
        partitions = await self._partitions()
        return read_stats(await asyncio.gather(*(self._stats_of(partition, tenants_max) for partition in partitions)))

    async def _stats_of(self, partition: QueuePartition, tenants_max: int) -> pb.PartitionQueueStats:
        request = pb.QueueStatsRequest(
            metadata_revision=self._resolver.metadata_revision,
            topic_id=partition.topic_id,
            partitions=[partition.partition],
            tenants_max=tenants_max,
        )

        def stats_of(answer: pb.QueueStatsResponse) -> pb.PartitionQueueStats:
            if len(answer.partitions) != 1:
                raise ProtocolError(f"the broker answered for {len(answer.partitions)} partitions instead of 1")
            (found,) = answer.partitions
            if found.HasField("error"):
                raise error_from_detail(found.error, f"partition {partition.partition}")
            return found

        return await call_leader(
            self._resolver, partition, QUEUE_STATS, request, stats_of, self._timeout_seconds, is_read=True
        )

    # ------------------------------------------------------------------------------------------------------------ clocks

    async def clocks(self) -> dict[int, float]:
        """Return the seconds by which each partition's queue time is ahead of wall time."""
        partitions = await self._partitions()
        found = await asyncio.gather(*(self._stats_of(partition, 0) for partition in partitions))
        return {stats.partition: stats.clock_difference_ms / 1000 for stats in found}

    async def step_clocks(self) -> dict[int, float]:
        """Step the clock of every partition forward. Return the seconds of each step."""
        partitions = await self._partitions()
        found = await _changed_everywhere(map(self._step_clock, partitions))
        return {partition.partition: seconds for partition, seconds in zip(partitions, found, strict=True)}

    async def _step_clock(self, partition: QueuePartition) -> float:
        request = pb.StepClockRequest(
            metadata_revision=self._resolver.metadata_revision,
            timeout_ms=self._timeout_ms,
            topic_id=partition.topic_id,
            partitions=[partition.partition],
        )

        def stepped_seconds(answer: pb.StepClockResponse) -> float:
            if len(answer.partitions) != 1:
                raise ProtocolError(f"the broker answered for {len(answer.partitions)} clocks instead of 1")
            (found,) = answer.partitions
            if found.HasField("error"):
                raise error_from_detail(found.error, f"partition {partition.partition}")
            return found.stepped_ms / 1000

        # A repeated step finds the clock in its place.
        return await call_leader(
            self._resolver, partition, STEP_CLOCK, request, stepped_seconds, self._timeout_seconds, is_read=True
        )

    # ------------------------------------------------------------------------------------------------------------ common

    async def _partitions(self) -> list[QueuePartition]:
        info = await self._topic.info()
        return [QueuePartition(info.topic_id, number, group) for number, group in enumerate(info.group_ids)]

    async def _partitions_of(self, name: str) -> list[QueuePartition]:
        """Return the partitions that may have an id, the one that its hash names first.

        A message may be elsewhere if it was routed by its key, or before partitions were added.
        """
        partitions = await self._partitions()
        first = crc32(name.encode()) % len(partitions)
        return [partitions[first], *partitions[:first], *partitions[first + 1 :]]

    async def _call(
        self,
        partition: QueuePartition,
        method: UnaryMethod[RequestT, ResponseT],
        request: RequestT,
        *,
        is_read: bool = False,
        extra_seconds: float = 0.0,
    ) -> ResponseT:
        seconds = self._timeout_seconds + extra_seconds
        return await call_leader(self._resolver, partition, method, request, _unchanged, seconds, is_read=is_read)


async def _changed_everywhere(changes: Iterable[Awaitable[T]]) -> list[T]:
    """Wait for the changes of all partitions. Raise the first failure, with an unknown outcome if another partition was changed."""
    found = await asyncio.gather(*changes, return_exceptions=True)
    failures = [one for one in found if isinstance(one, BaseException)]
    for failure in failures:
        if not isinstance(failure, RaftMQError):
            raise failure
        if len(failures) < len(found) or failure.outcome is Outcome.UNKNOWN:
            raise with_doubt(failure) from failure
    if failures:
        raise failures[0]
    return [one for one in found if not isinstance(one, BaseException)]


def _unchanged(answer: T) -> T:
    return answer


def _read_page(partition: int, answer: pb.BrowseResponse, *, with_values: bool) -> list[BrowsedMessage]:
    if not answer.block:
        return []
    try:
        block = unpack_block(answer.block)
    except BatchFormatError as error:
        raise ProtocolError(f"partition {partition}: a damaged page: {error.reason}") from error
    return [
        read_browsed(partition, block, at, status, with_value=with_values)
        for at, status in enumerate(answer.statuses[: len(block.sequences)])
    ]
