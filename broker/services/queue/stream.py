"""Serve one `PollStream`: messages within the client's credit, and settlements by correlation id.

A stream costs one task, which reads requests. Messages and results are added by callbacks, and written one response after the other.
While a response waits for the client to read, the stream leases nothing more. A message that was leased and not written is given back.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from functools import partial
from typing import Final

from raftmq.broker.base.request_error import RequestError
from raftmq.broker.services.call import ANYONE, CALL_SECONDS_MAX, Call
from raftmq.broker.services.host import ServiceHost
from raftmq.broker.services.locator import check_partitions
from raftmq.broker.services.queue.consumer import QueueConsumer
from raftmq.broker.services.queue.credit import Credit
from raftmq.broker.services.queue.deliveries import Deliveries, Delivery
from raftmq.broker.services.queue.poll import block_message, wanted_messages
from raftmq.broker.services.queue.settlements import Settlements, settled_messages
from raftmq.broker.services.queue.topics import QueueTopics
from raftmq.proto import queue_pb2 as pb

ACKS_IN_FLIGHT_MAX: Final = 64
"""Requests with settlements whose answers are not written. A client has one per partition, and further ones are not read."""
UNSENT_BYTES_MAX: Final = 1 << 20
"""Blocks that wait for the client to read. Above it the stream leases nothing more."""
_READY_MAX: Final = (1 << 32) - 1


class _Response:
    """A response that was not written yet."""

    __slots__ = ("deliveries", "is_answer", "message")

    def __init__(self, message: pb.QueueStreamResponse, deliveries: list[Delivery], *, is_answer: bool = False) -> None:
        self.message = message
        self.deliveries = deliveries
        self.is_answer = is_answer
        """Whether it answers a request with settlements."""


class _Acks:
    """The settlements of one request, partition by partition."""

    __slots__ = ("begun", "message", "undecided")

    def __init__(self, message: pb.QueueStreamRequest) -> None:
        self.message = message
        self.begun: list[asyncio.Future[object] | RequestError] = []
        self.undecided = 0


class ConsumerStream:
    """One stream."""

    def __init__(
        self, host: ServiceHost, topics: QueueTopics, deliveries: Deliveries, settlements: Settlements
    ) -> None:
        self._host = host
        self._topics = topics
        self._deliveries = deliveries
        self._settlements = settlements
        self._principal = ANYONE
        self._credit = Credit()
        self._consumer: QueueConsumer | None = None
        self._outgoing: deque[_Response] = deque()
        self._unsent_bytes = 0
        self._unanswered = 0
        """Requests with settlements whose answers are not written."""
        self._answered = asyncio.Event()
        """Set when the answer to a request with settlements is written."""
        self._is_leaving = False
        """Whether the client takes no more messages."""
        self._failure: BaseException | None = None
        self._changed = asyncio.Event()
        """Set when there is something to write, or to read."""

    async def run(
        self, requests: AsyncIterator[pb.QueueStreamRequest], call: Call
    ) -> AsyncGenerator[pb.QueueStreamResponse, None]:
        """Yield responses until the client has said goodbye, or cancels.

        Raises:
            RequestError: The first request is wrong, or the topic is gone.
        """
        self._principal = call.principal
        reader = self._host.loop.create_task(self._read(requests, call))
        reader.add_done_callback(self._on_read_end)
        try:
            while True:
                while self._outgoing:
                    response = self._outgoing.popleft()
                    response.message.ready = self._ready()
                    yield response.message
                    self._on_written(response)
                if self._failure is not None:
                    raise self._failure
                if self._is_leaving and not self._unanswered and not self._credit.is_reserved:
                    return
                self._changed.clear()
                await self._changed.wait()
        finally:
            reader.cancel()
            self._close()

    def _close(self) -> None:
        if self._consumer is not None:
            self._topics.forget(self._consumer)
        for response in self._outgoing:
            for delivery in response.deliveries:
                delivery.give_back()
        self._outgoing.clear()

    # ------------------------------------------------------------------------------------------------ reading

    async def _read(self, requests: AsyncIterator[pb.QueueStreamRequest], call: Call) -> None:
        async for request in requests:
            if self._consumer is None:
                await self._open(request, call)
            self._on_request(request)
            if self._unanswered >= ACKS_IN_FLIGHT_MAX:
                self._answered.clear()
                await self._answered.wait()

    def _on_read_end(self, reader: asyncio.Task[None]) -> None:
        """End the stream as after a goodbye, or with the reader's failure."""
        if not reader.cancelled() and reader.exception() is not None:
            self._failure = reader.exception()
        self._leave()

    async def _open(self, request: pb.QueueStreamRequest, call: Call) -> None:
        if not request.HasField("open"):
            raise RequestError(pb.INVALID_ARGUMENT, "the first request of a stream must have the field open")
        opening = request.open
        wanted = wanted_messages(tuple(opening.tenants))
        deadline = min(call.deadline, self._host.loop.time() + CALL_SECONDS_MAX)
        topic = await self._topics.topic(opening.topic_id, opening.metadata_revision, deadline)
        self._consumer = QueueConsumer(
            self._deliveries, wanted, opening.lease_ms, self._credit, self._on_delivery, self._tell_changed,
            auto_accept=opening.auto_accept,
        )  # fmt: skip
        self._topics.follow(self._consumer, topic, on_gone=self._fail)

    def _on_request(self, request: pb.QueueStreamRequest) -> None:
        consumer = self._consumer
        assert consumer is not None
        if request.acks:
            self._begin_acks(request)
        if request.goodbye:
            self._leave()
        elif not self._is_leaving:
            self._credit.set_limits(request.messages_limit, request.bytes_limit)
            consumer.wake()

    def _leave(self) -> None:
        """Lease nothing more. Messages that are being leased are given back."""
        self._is_leaving = True
        if self._consumer is not None:
            self._topics.forget(self._consumer)
        self._tell_changed()

    def _fail(self, error: RequestError) -> None:
        self._failure = error
        self._tell_changed()

    # ------------------------------------------------------------------------------------------------ settlements

    def _begin_acks(self, request: pb.QueueStreamRequest) -> None:
        check_partitions(len(request.acks))
        acks = _Acks(request)
        self._unanswered += 1
        for ack in request.acks:
            begun = self._settlements.begin(ack, self._principal)
            acks.begun.append(begun)
            if isinstance(begun, asyncio.Future):
                acks.undecided += 1
                begun.add_done_callback(partial(self._on_decided, acks))
        if not acks.undecided:
            self._answer(acks)

    def _on_decided(self, acks: _Acks, _future: asyncio.Future[object]) -> None:
        acks.undecided -= 1
        if not acks.undecided:
            self._answer(acks)

    def _answer(self, acks: _Acks) -> None:
        message = pb.QueueStreamResponse(correlation_id=acks.message.correlation_id)
        for ack, begun in zip(acks.message.acks, acks.begun, strict=True):
            result = self._settlements.answer(ack, begun)
            message.results.append(result)
            if self._consumer is not None and not result.HasField("error"):
                self._consumer.on_settled(ack.partition, settled_messages(ack))
        self._outgoing.append(_Response(message, [], is_answer=True))
        self._tell_changed()
        if self._consumer is not None:
            self._consumer.wake()  # accepted messages may have made others leasable

    # ------------------------------------------------------------------------------------------------ writing

    def _on_delivery(self, delivery: Delivery) -> None:
        block = block_message(delivery)
        last = self._outgoing[-1] if self._outgoing else None
        if last is not None and self._unsent_bytes + len(delivery.block) <= UNSENT_BYTES_MAX:
            last.message.messages.append(block)
            last.deliveries.append(delivery)
        else:
            self._outgoing.append(_Response(pb.QueueStreamResponse(messages=[block]), [delivery]))
        self._unsent_bytes += len(delivery.block)
        self._pause()
        self._tell_changed()

    def _on_written(self, response: _Response) -> None:
        if response.is_answer:
            self._unanswered -= 1
            self._answered.set()
        if response.deliveries:
            self._unsent_bytes -= sum(len(delivery.block) for delivery in response.deliveries)
            response.deliveries.clear()
            self._pause()
            if self._consumer is not None:
                self._consumer.wake()

    def _pause(self) -> None:
        if self._consumer is not None:
            self._consumer.is_paused = self._unsent_bytes >= UNSENT_BYTES_MAX

    def _tell_changed(self) -> None:
        self._changed.set()

    def _ready(self) -> int:
        """Return the messages that wait here."""
        if self._consumer is None:
            return 0
        counts = (
            one.queue.replica.state_machine.ready_count
            for one in self._consumer.partitions
            if one.queue.replica.is_leader
        )
        return min(sum(counts), _READY_MAX)
