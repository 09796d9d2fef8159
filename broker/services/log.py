"""Serve the Log RPCs: append, poll, positions, trims, producer ids.

Methods take and return protocol messages. A request that fails as a whole raises RequestError. The failure of one partition is part
of its result.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from functools import partial

import structlog
from raftmq.broker.base.request_error import RequestError, expired
from raftmq.broker.partitions.kinds import LOG
from raftmq.broker.partitions.log import PartitionLog
from raftmq.broker.partitions.partition import Partition
from raftmq.broker.partitions.producer_fence import fenced
from raftmq.broker.services.append import AppendService, Begun, outcome_of, proposals
from raftmq.broker.services.append_session import AppendSession
from raftmq.broker.services.call import Call
from raftmq.broker.services.host import ServiceHost
from raftmq.broker.services.locator import Locator, check_partitions
from raftmq.broker.services.poll import OnPolled, Poll, PollService
from raftmq.broker.services.producer_ids import ProducerIds
from raftmq.broker.services.request_metrics import CANCELLED, INTERNAL, RequestMetrics
from raftmq.methods import APPEND, APPEND_STREAM
from raftmq.proto import queue_pb2 as pb
from raftmq.types import GroupId

log = structlog.get_logger(__name__)

LATEST = -1
EARLIEST = -2
STREAM_REQUESTS_IN_FLIGHT_MAX = 256
"""Unanswered requests of one append stream. Beyond it the stream is not read, and gRPC's flow control slows the client down."""


class LogService:
    """Answers the RPCs about records."""

    def __init__(
        self,
        host: ServiceHost,
        partitions: Mapping[GroupId, Partition],
        producer_ids: ProducerIds,
        metrics: RequestMetrics | None = None,
    ) -> None:
        self._host = host
        self._metrics = metrics or RequestMetrics()
        self._partitions = partitions
        self._locator = Locator(host, partitions, LOG)
        self._appends = AppendService(host, Locator(host, partitions), self._metrics)
        self._poll = PollService(host, self._locator, self._metrics)
        self._producer_ids = producer_ids
        self._stream_readers: dict[asyncio.Task[None], None] = {}

    @property
    def appended_batches_total(self) -> int:
        """Batches acknowledged."""
        return self._appends.batches_total

    @property
    def appended_bytes_total(self) -> int:
        """Bytes of batches acknowledged."""
        return self._appends.bytes_total

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
        return len(self._poll.parked)

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
            await partition.settle_producer(request.producer_id, epoch_min, call.deadline)
        nodes = self._host.metadata.state_machine.nodes()
        return pb.FenceProducerResponse(addresses=[node.client_address for node in nodes if node.client_address])

    async def poll(self, request: pb.PollRequest, call: Call) -> pb.PollResponse:
        """Read from many partitions, waiting for the first records. See `PollService`."""
        return await self._poll.poll(request, call)

    def begin_poll(self, request: pb.PollRequest, call: Call, on_outcome: OnPolled) -> Poll:
        """Begin a poll that needs no task. See `PollService.begin`."""
        return self._poll.begin(request, call, on_outcome)

    # ------------------------------------------------------------------------------------------------ append

    async def append(self, request: pb.AppendRequest, call: Call) -> pb.AppendResponse:
        """Append batches to partitions that this node leads. Each partition has its own result."""
        started_at = time.perf_counter()
        deadline = call.within(request.timeout_ms, self._host.loop.time())
        begun: Begun = ()
        outcome = CANCELLED
        try:
            begun = await self._appends.begin(request, deadline)
            await self._appends.wait(begun, deadline)
            response = self._appends.response(request.correlation_id, begun)
            outcome = outcome_of(response)
        except RequestError as error:
            outcome = pb.ErrorCode.Name(error.code)
            raise
        except Exception:
            outcome = INTERNAL
            raise
        finally:
            seconds = time.perf_counter() - started_at
            if self._metrics.tracing is not None:
                attributes = partial(self._appends.span_attributes, request, begun, started_at, started_at + seconds)
                self._metrics.tracing.add_attributes(attributes)
            if seconds >= self._metrics.slow.threshold_seconds:
                self._metrics.slow.report_append(APPEND.name, outcome, started_at, seconds, proposals(begun))
        return response

    def append_session(self, method: str) -> AppendSession:
        """Return a session for the requests of one caller, which are counted under the method's name."""
        return AppendSession(self._host.loop, self._appends, self._metrics, method)

    async def append_stream(
        self, requests: AsyncIterator[pb.AppendRequest], call: Call
    ) -> AsyncGenerator[pb.AppendResponse, None]:
        """Append requests as they arrive. Answer them in any order, by correlation id."""
        answers: asyncio.Queue[pb.AppendResponse | None] = asyncio.Queue()
        session = self.append_session(APPEND_STREAM.name)
        reader = self._host.loop.create_task(self._read_stream(requests, session, answers))
        self._stream_readers[reader] = None
        try:
            while (answer := await answers.get()) is not None:
                yield answer
        finally:
            self._stream_readers.pop(reader, None)
            reader.cancel()
            session.close()
        await asyncio.wait((reader,))
        if not reader.cancelled():
            reader.result()

    async def _read_stream(
        self,
        requests: AsyncIterator[pb.AppendRequest],
        session: AppendSession,
        answers: asyncio.Queue[pb.AppendResponse | None],
    ) -> None:
        try:
            async for request in requests:
                session.submit(request, answers.put_nowait)
                await session.below(STREAM_REQUESTS_IN_FLIGHT_MAX)
        finally:
            await session.below(1)
            answers.put_nowait(None)

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
                await self._fill_offset(result, partition, part)
            result.leader_epoch = partition.replica.term
        except RequestError as error:
            self._refused("ListOffsets", error.code)
            result.error.CopyFrom(error.detail)
        except TimeoutError:
            self._refused("ListOffsets", expired().code)
            result.error.CopyFrom(expired().detail)
        return result

    async def _fill_offset(self, result: pb.PartitionOffset, partition: PartitionLog, part: pb.PartitionTime) -> None:
        time_ms = part.time_ms
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
            if part.time_kind == pb.TIMESTAMP:
                found = await partition.batch_at_timestamp(time_ms, part.from_offset)
                result.time_kind = pb.TIMESTAMP
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

    def _refused(self, method: str, code: pb.ErrorCode) -> None:
        self._metrics.observe_refusal(method, pb.ErrorCode.Name(code))
