"""Serve the Log RPCs: append, poll, positions, trims, producer ids.

Methods take and return protocol messages. A request that fails as a whole raises RequestError. The failure of one partition is part
of its result. Appends take effect in the order of arrival, because a request is validated and proposed without an `await`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import NamedTuple

import structlog
from raftmq.broker.base.request_error import RequestError, expired
from raftmq.broker.partitions.log import PartitionLog
from raftmq.broker.partitions.pending_append import PendingAppend
from raftmq.broker.partitions.producer_fence import fenced
from raftmq.broker.services.call import DEFAULT_CALL_SECONDS, Call
from raftmq.broker.services.host import ServiceHost
from raftmq.broker.services.locator import Locator, check_partitions
from raftmq.broker.services.poll import PollService
from raftmq.broker.services.producer_ids import ProducerIds
from raftmq.broker.services.request_metrics import OK, RequestMetrics
from raftmq.methods import APPEND, APPEND_STREAM
from raftmq.proto import queue_pb2 as pb
from raftmq.types import GroupId

log = structlog.get_logger(__name__)

LATEST = -1
EARLIEST = -2
STREAM_REQUESTS_IN_FLIGHT_MAX = 256
"""Unanswered requests of one append stream. Beyond it the stream is not read, and gRPC's flow control slows the client down."""

BATCHES_PER_PARTITION_MAX = 64
"""Batches of one partition in one request: far more than a producer may have in flight, and too few to stall the event loop."""


class _Begun(NamedTuple):
    """One partition of an append request: proposed, or refused before that."""

    partition: PartitionLog | None
    ticket: PendingAppend | None
    error: RequestError | None


class LogService:
    """Answers the RPCs about records."""

    def __init__(
        self,
        host: ServiceHost,
        partitions: Mapping[GroupId, PartitionLog],
        producer_ids: ProducerIds,
        metrics: RequestMetrics | None = None,
    ) -> None:
        self._host = host
        self._metrics = metrics or RequestMetrics()
        self._partitions = partitions
        self._locator = Locator(host, partitions)
        self._poll = PollService(host, self._locator, self._metrics)
        self._producer_ids = producer_ids
        self._stream_readers: set[asyncio.Task[None]] = set()
        self.appended_batches_total = 0
        self.appended_bytes_total = 0

    @property
    def polled_batches_total(self) -> int:
        """Return the number of batches sent to clients."""
        return self._poll.batches_total

    @property
    def polled_bytes_total(self) -> int:
        """Return the bytes of batches sent to clients."""
        return self._poll.bytes_total

    @property
    def parked_polls(self) -> int:
        """Return the number of waiting long polls."""
        return self._poll.parked

    def begin_shutdown(self) -> None:
        """Answer waiting polls now and read no more from append streams. Requests in flight are still answered."""
        self._poll.begin_shutdown()
        for reader in self._stream_readers:
            reader.cancel()

    async def init_producer(self, request: pb.InitProducerRequest, call: Call) -> pb.InitProducerResponse:
        """Assign a producer id. See `ProducerIds`."""
        return await self._producer_ids.init_producer(request, call)

    async def fence_producer(self, request: pb.FenceProducerRequest, call: Call) -> pb.FenceProducerResponse:
        """Answer when this node accepts no older epochs of the producer, and every batch accepted under them is settled.

        Raises:
            RequestError: PRODUCER_FENCED if the epoch itself is outdated. After NOT_READY and REQUEST_TIMED_OUT ask again.
        """
        await self._locator.wait_revision(request.metadata_revision, call.deadline)
        epoch_min = self._host.metadata.state_machine.batch_epoch_min(request.producer_id)
        if request.epoch < epoch_min:
            raise fenced(epoch_min)
        for partition in list(self._partitions.values()):
            await partition.appends.settle(request.producer_id, epoch_min, call.deadline)
        nodes = self._host.metadata.state_machine.nodes()
        return pb.FenceProducerResponse(addresses=[node.client_address for node in nodes if node.client_address])

    async def poll(self, request: pb.PollRequest, call: Call) -> pb.PollResponse:
        """Read from many partitions, waiting for the first records. See `PollService`."""
        return await self._poll.poll(request, call)

    # ------------------------------------------------------------------------------------------------ append

    async def append(self, request: pb.AppendRequest, call: Call) -> pb.AppendResponse:
        """Append batches to partitions that this node leads. Each partition has its own result."""
        deadline = call.within(request.timeout_ms, self._host.loop.time())
        begun = await self._begin(request, deadline)
        return await self._finish(request.correlation_id, begun, deadline)

    async def append_stream(
        self, requests: AsyncIterator[pb.AppendRequest], call: Call
    ) -> AsyncGenerator[pb.AppendResponse, None]:
        """Append requests as they arrive. Answer them in any order, by correlation id."""
        answers: asyncio.Queue[pb.AppendResponse | None] = asyncio.Queue()
        reader = self._host.loop.create_task(self._read_stream(requests, answers))
        self._stream_readers.add(reader)
        try:
            while (answer := await answers.get()) is not None:
                yield answer
        finally:
            self._stream_readers.discard(reader)
            reader.cancel()
        await asyncio.wait((reader,))
        if not reader.cancelled():
            reader.result()

    async def _read_stream(
        self, requests: AsyncIterator[pb.AppendRequest], answers: asyncio.Queue[pb.AppendResponse | None]
    ) -> None:
        slots = asyncio.Semaphore(STREAM_REQUESTS_IN_FLIGHT_MAX)
        finishing: set[asyncio.Task[None]] = set()
        try:
            async for request in requests:
                await slots.acquire()
                started_at = time.perf_counter()
                timeout_seconds = request.timeout_ms / 1000 or DEFAULT_CALL_SECONDS
                deadline = self._host.loop.time() + timeout_seconds
                try:
                    begun = await self._begin(request, deadline)
                except RequestError as error:
                    slots.release()
                    answers.put_nowait(pb.AppendResponse(correlation_id=request.correlation_id, error=error.detail))
                    self._observe(pb.ErrorCode.Name(error.code), started_at)
                    continue
                task = self._host.loop.create_task(
                    self._answer(request.correlation_id, begun, deadline, answers, started_at)
                )
                finishing.add(task)
                task.add_done_callback(finishing.discard)
                task.add_done_callback(lambda _: slots.release())
        finally:
            if finishing:
                await asyncio.wait(finishing)
            answers.put_nowait(None)

    async def _answer(
        self,
        correlation_id: int,
        begun: list[_Begun],
        deadline: float,
        answers: asyncio.Queue[pb.AppendResponse | None],
        started_at: float,
    ) -> None:
        try:
            answer = await self._finish(correlation_id, begun, deadline)
            self._observe(OK, started_at)
        except Exception:
            self._observe(pb.ErrorCode.Name(pb.INTERNAL), started_at)
            log.exception("append_failed")
            detail = RequestError(pb.INTERNAL, "a defect of the broker; see its log").detail
            detail.outcome = pb.UNKNOWN_OUTCOME
            answer = pb.AppendResponse(correlation_id=correlation_id, error=detail)
        answers.put_nowait(answer)

    def _observe(self, code: str, started_at: float) -> None:
        """Count an answered request of a stream. The requests of `append` are counted like all calls."""
        self._metrics.observe(APPEND_STREAM.name, code, time.perf_counter() - started_at)

    async def _begin(self, request: pb.AppendRequest, deadline: float) -> list[_Begun]:
        """Validate and propose all batches. It awaits only for metadata that this node does not have yet."""
        check_partitions(len(request.partitions))
        if self._host.loop.time() >= deadline:
            raise expired()
        await self._locator.wait_revision(request.metadata_revision, deadline)
        begun: list[_Begun] = []
        for part in request.partitions:
            try:
                if len(part.batches) > BATCHES_PER_PARTITION_MAX:
                    raise _too_many_batches(len(part.batches))
                partition = await self._locator.locate_confirmed(part.topic_id, part.partition, deadline)
            except RequestError as error:
                begun.append(_Begun(None, None, error))
            else:
                begun.append(_Begun(partition, partition.appends.begin(list(part.batches), deadline), None))
        return begun

    async def _finish(self, correlation_id: int, begun: list[_Begun], deadline: float) -> pb.AppendResponse:
        await self._wait(begun, deadline)
        response = pb.AppendResponse(correlation_id=correlation_id)
        for partition, ticket, error in begun:
            if partition is None or ticket is None:
                assert error is not None
                response.partitions.add(error=error.detail)
                self._refused(APPEND.name, error.code)
                continue
            result = ticket.result(partition.log_start_offset)
            if result.error.code:
                self._refused(APPEND.name, result.error.code)
            self.appended_batches_total += len(result.base_offsets)
            self.appended_bytes_total += sum(map(len, ticket.batches[: len(result.base_offsets)]))
            response.partitions.append(result)
        return response

    def _refused(self, method: str, code: pb.ErrorCode) -> None:
        self._metrics.observe_refusal(method, pb.ErrorCode.Name(code))

    async def _wait(self, begun: list[_Begun], deadline: float) -> None:
        tickets = [
            (partition, ticket) for partition, ticket, _ in begun if partition is not None and ticket is not None
        ]
        if any(ticket.is_undecided for _, ticket in tickets):
            await asyncio.gather(*(partition.appends.finish(ticket, deadline) for partition, ticket in tickets))
            return
        waiting = {future for _, ticket in tickets for future in ticket.pending()}
        if waiting:
            await asyncio.wait(waiting, timeout=max(0.0, deadline - self._host.loop.time()))

    # ------------------------------------------------------------------------------------------------ positions

    async def list_offsets(self, request: pb.ListOffsetsRequest, call: Call) -> pb.ListOffsetsResponse:
        """Return the earliest offset, the latest offset, or the first offset at a time, for each partition."""
        check_partitions(len(request.partitions))
        await self._locator.wait_revision(request.metadata_revision, call.deadline)
        results = await asyncio.gather(*(self._list_offset(part, call.deadline) for part in request.partitions))
        return pb.ListOffsetsResponse(partitions=results)

    async def _list_offset(self, part: pb.PartitionTime, deadline: float) -> pb.PartitionOffset:
        result = pb.PartitionOffset(topic_id=part.topic_id, partition=part.partition)
        try:
            partition = await self._locator.locate_confirmed(part.topic_id, part.partition, deadline)
            async with asyncio.timeout_at(deadline):
                await self._fill_offset(result, partition, part.time_ms)
            result.leader_epoch = partition.replica.term
        except RequestError as error:
            self._refused("ListOffsets", error.code)
            result.error.CopyFrom(error.detail)
        except TimeoutError:
            self._refused("ListOffsets", expired().code)
            result.error.CopyFrom(expired().detail)
        return result

    async def _fill_offset(self, result: pb.PartitionOffset, partition: PartitionLog, time_ms: int) -> None:
        if time_ms == EARLIEST:
            result.offset = partition.log_start_offset
        elif time_ms == LATEST:
            result.offset = await partition.latest_offset()
        elif time_ms < 0:
            raise RequestError(
                pb.INVALID_ARGUMENT,
                f"time {time_ms} is neither a time in milliseconds nor -1 (latest) nor -2 (earliest)",
            )
        else:
            found = await partition.offset_at_time(time_ms)
            result.offset, result.append_time_ms = found if found is not None else (-1, 0)

    async def delete_records(self, request: pb.DeleteRecordsRequest, call: Call) -> pb.DeleteRecordsResponse:
        """Trim partitions that this node leads."""
        check_partitions(len(request.partitions))
        deadline = call.within(request.timeout_ms, self._host.loop.time())
        await self._locator.wait_revision(request.metadata_revision, deadline)
        results = await asyncio.gather(*(self._delete(part, deadline) for part in request.partitions))
        return pb.DeleteRecordsResponse(partitions=results)

    async def _delete(self, part: pb.PartitionTrim, deadline: float) -> pb.PartitionTrimResult:
        result = pb.PartitionTrimResult(topic_id=part.topic_id, partition=part.partition)
        try:
            partition = await self._locator.locate_confirmed(part.topic_id, part.partition, deadline)
            result.log_start_offset = await partition.delete_records(part.before_offset, deadline)
        except RequestError as error:
            self._refused("DeleteRecords", error.code)
            result.error.CopyFrom(error.detail)
        return result


def _too_many_batches(count: int) -> RequestError:
    return RequestError(
        pb.INVALID_ARGUMENT,
        f"a request may hold at most {BATCHES_PER_PARTITION_MAX} batches of one partition, not {count}",
    )
