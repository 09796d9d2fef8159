"""Serve the calls of consumers of queue topics. Methods take and return protocol messages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from typing import TYPE_CHECKING

from raftmq.broker.base.request_error import RequestError
from raftmq.broker.partitions.kinds import QUEUE
from raftmq.broker.partitions.partition import Partition
from raftmq.broker.services.call import Call, Principal
from raftmq.broker.services.host import ServiceHost
from raftmq.broker.services.locator import Locator, check_partitions
from raftmq.broker.services.queue.deliveries import Deliveries
from raftmq.broker.services.queue.poll import QueuePolls
from raftmq.broker.services.queue.settlements import Settlements
from raftmq.broker.services.queue.stream import ConsumerStream, GrpcConsumerStream
from raftmq.broker.services.queue.topics import QueueTopics
from raftmq.proto import queue_pb2 as pb
from raftmq.types import GroupId

if TYPE_CHECKING:
    from raftmq.broker.base.tracing import Tracing


class QueueService:
    """The consumers of one broker."""

    def __init__(
        self, host: ServiceHost, partitions: Mapping[GroupId, Partition], tracing: Tracing | None = None
    ) -> None:
        self._host = host
        self._tracing = tracing
        self._locator = Locator(host, partitions, QUEUE)
        self._topics = QueueTopics(host, partitions, self._locator)
        self._deliveries = Deliveries(host)
        self._settlements = Settlements(self._locator)
        self._polls = QueuePolls(host, self._topics, self._deliveries, self._locator)

    async def poll(self, request: pb.QueuePollRequest, call: Call) -> pb.QueuePollResponse:
        """Lease messages, waiting for the first ones. See `QueuePolls`."""
        return await self._polls.poll(request, call)

    async def poll_stream(
        self, requests: AsyncIterator[pb.QueueStreamRequest], call: Call
    ) -> AsyncGenerator[pb.QueueStreamResponse, None]:
        """Send messages within the client's credit, and settle them. See `GrpcConsumerStream`."""
        responses = GrpcConsumerStream(self.consumer_stream).run(requests, call)
        try:
            async for response in responses:
                yield response
        except RequestError as error:
            yield pb.QueueStreamResponse(error=error.detail)
        finally:
            await responses.aclose()

    def consumer_stream(self, principal: Principal, on_changed: Callable[[], None]) -> ConsumerStream:
        """Return a stream for any transport. See `ConsumerStream`."""
        return ConsumerStream(
            self._host, self._topics, self._deliveries, self._settlements, principal, on_changed, self._tracing
        )

    async def ack(self, request: pb.AckRequest, call: Call) -> pb.AckResponse:
        """Settle messages of many partitions, each with its own result."""
        check_partitions(len(request.partitions))
        deadline = call.within(request.timeout_ms, self._host.loop.time())
        await self._locator.wait_revision(request.metadata_revision, deadline)
        results = await asyncio.gather(
            *(self._settlements.settle(ack, call.principal, deadline) for ack in request.partitions)
        )
        return pb.AckResponse(partitions=results)

    async def open_session(self, request: pb.OpenSessionRequest, call: Call) -> pb.OpenSessionResponse:
        """Open a session in each of the partitions."""
        check_partitions(len(request.partitions))
        deadline = call.within(request.timeout_ms, self._host.loop.time())
        await self._locator.wait_revision(request.metadata_revision, deadline)
        opened = (self._settlements.open_session(request.topic_id, number, deadline) for number in request.partitions)
        return pb.OpenSessionResponse(partitions=await asyncio.gather(*opened))
