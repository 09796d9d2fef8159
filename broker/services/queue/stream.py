"""Serve one `PollStream`: messages within the client's credit, and settlements by correlation id.

A stream has no task and knows no transport: messages and results are added by callbacks, and a transport passes requests on and takes one response
after the other. While a response waits for the client to read, the stream leases nothing more. A message that was leased and not written is
given back.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Final

from raftmq.broker.base.request_error import RequestError
from raftmq.broker.services.call import CALL_SECONDS_MAX, Call, Principal
from raftmq.broker.services.host import ServiceHost
from raftmq.broker.services.locator import check_partitions
from raftmq.broker.services.queue.consumer import QueueConsumer
from raftmq.broker.services.queue.credit import Credit
from raftmq.broker.services.queue.deliveries import Deliveries, Delivery
from raftmq.broker.services.queue.poll import block_message, requested_lease_ms, wanted_messages
from raftmq.broker.services.queue.settlements import Settlements, settled_messages
from raftmq.broker.services.queue.topics import QueueTopics
from raftmq.broker.services.request_metrics import OK
from raftmq.methods import ACK
from raftmq.proto import queue_pb2 as pb

if TYPE_CHECKING:
    from opentelemetry.trace import Span
    from raftmq.broker.base.tracing import Tracing

ACKS_IN_FLIGHT_MAX: Final = 64
"""Requests with settlements of one gRPC stream whose answers are not written. Further ones are not read. A client has five per partition."""
UNSENT_BYTES_MAX: Final = 1 << 20
"""Blocks that wait for the client to read. Above it the stream leases nothing more."""
_READY_MAX: Final = (1 << 32) - 1


def _nothing() -> None:
    pass


class _Response:
    """A response that was not written yet."""

    __slots__ = ("deliveries", "message", "on_answered")

    def __init__(
        self, message: pb.QueueStreamResponse, deliveries: list[Delivery], on_answered: Callable[[], None] = _nothing
    ) -> None:
        self.message = message
        self.deliveries = deliveries
        self.on_answered = on_answered
        """Called when it is written."""


class _Acks:
    """The settlements of one request, partition by partition."""

    __slots__ = ("begun", "message", "on_answered", "span", "undecided")

    def __init__(self, message: pb.QueueStreamRequest, on_answered: Callable[[], None]) -> None:
        self.message = message
        self.on_answered = on_answered
        self.begun: list[asyncio.Future[object] | RequestError] = []
        self.undecided = 0
        self.span: Span | None = None
        """None: it has none."""


class ConsumerStream:
    """One stream."""

    def __init__(
        self,
        host: ServiceHost,
        topics: QueueTopics,
        deliveries: Deliveries,
        settlements: Settlements,
        principal: Principal,
        on_changed: Callable[[], None],
        tracing: Tracing | None = None,
    ) -> None:
        """Take the caller, and `on_changed`, which is called when there may be a response, or the stream may be over."""
        self._host = host
        self._topics = topics
        self._deliveries = deliveries
        self._settlements = settlements
        self._principal = principal
        self._on_changed = on_changed
        self._tracing = tracing
        self._credit = Credit()
        self._consumer: QueueConsumer | None = None
        self._outgoing: deque[_Response] = deque()
        self._writing: _Response | None = None
        """The response that the transport has taken, until it takes the next one."""
        self._unsent_bytes = 0
        self._unanswered = 0
        """Requests with settlements whose answers are not written."""
        self._is_leaving = False
        """Whether the client takes no more messages."""
        self.failure: BaseException | None = None
        """Why the stream must end now."""

    @property
    def is_over(self) -> bool:
        """Return whether the client has said goodbye, and every response was taken."""
        return self._is_leaving and not (self._unanswered or self._outgoing or self._credit.is_reserved)

    async def open(self, request: pb.QueueStreamRequest, deadline: float) -> None:
        """Begin with the first request, which `on_request` gets as well. Waits for the topic until the deadline (loop time).

        Raises:
            RequestError: The request is wrong, or there is no such topic.
        """
        if not request.HasField("open"):
            raise RequestError(pb.INVALID_ARGUMENT, "the first request of a stream must have the field open")
        opening = request.open
        wanted, lease_ms = wanted_messages(tuple(opening.tenants)), requested_lease_ms(opening.lease_ms)
        topic = await self._topics.topic(opening.topic_id, opening.metadata_revision, deadline)
        self._consumer = QueueConsumer(
            self._deliveries, wanted, lease_ms, self._credit, self._on_delivery, self._on_changed,
            auto_accept=opening.auto_accept,
        )  # fmt: skip
        self._topics.follow(self._consumer, topic, on_gone=self.fail)

    def on_request(self, request: pb.QueueStreamRequest, on_answered: Callable[[], None] = _nothing) -> None:
        """Handle a request after `open`. `on_answered` is called when it needs no answer, or its answer is written.

        Raises:
            RequestError: The request is wrong. The stream must end.
        """
        consumer = self._consumer
        assert consumer is not None
        if request.acks:
            self._begin_acks(request, on_answered)
        else:
            on_answered()
        if request.goodbye:
            self.leave()
        elif not self._is_leaving:
            self._credit.set_limits(request.messages_limit, request.bytes_limit)
            consumer.wake()

    def leave(self) -> None:
        """Lease nothing more. Messages that are being leased are given back."""
        self._is_leaving = True
        if self._consumer is not None:
            self._topics.forget(self._consumer)
        self._on_changed()

    def fail(self, error: BaseException) -> None:
        """End the stream with an error. After one that may be retried, settlements without an answer may be applied nevertheless."""
        if self.failure is None:
            if isinstance(error, RequestError) and error.detail.retriable and self._unanswered:
                error, original = RequestError(error.code, str(error)), error
                error.detail.CopyFrom(original.detail)
                error.detail.outcome = pb.UNKNOWN_OUTCOME
            self.failure = error
        self._on_changed()

    def close(self) -> None:
        """Give back the messages that were not written. Nothing more is called back."""
        self._on_changed = _nothing
        if self._consumer is not None:
            self._topics.forget(self._consumer)
        for response in self._outgoing:
            for delivery in response.deliveries:
                delivery.give_back()
        self._outgoing.clear()

    # ------------------------------------------------------------------------------------------------ settlements

    def _begin_acks(self, request: pb.QueueStreamRequest, on_answered: Callable[[], None]) -> None:
        check_partitions(len(request.acks))
        acks = _Acks(request, on_answered)
        self._unanswered += 1
        if self._tracing is not None:
            acks.span = self._tracing.begin_linked(ACK.name, request.trace_contexts)
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
        if self._tracing is not None and acks.span is not None:
            self._tracing.end(acks.span, _outcome_of(message.results))
        self._outgoing.append(_Response(message, [], partial(self._on_answered, acks)))
        self._on_changed()
        if self._consumer is not None:
            self._consumer.wake()  # accepted messages may have made others leasable

    def _on_answered(self, acks: _Acks) -> None:
        self._unanswered -= 1
        acks.on_answered()

    # ------------------------------------------------------------------------------------------------ writing

    def next_response(self) -> pb.QueueStreamResponse | None:
        """Return the next response to write, or None if there is none now. The one before it is written by then."""
        written, self._writing = self._writing, None
        if written is not None:
            self._on_written(written)
        if not self._outgoing:
            return None
        self._writing = self._outgoing.popleft()
        self._writing.message.ready = self._ready()
        return self._writing.message

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
        self._on_changed()

    def put_back(self) -> None:
        """Take back the response that was returned last, because it cannot be written. Only before `close`."""
        if self._writing is not None:
            self._outgoing.appendleft(self._writing)
            self._writing = None

    def _on_written(self, response: _Response) -> None:
        response.on_answered()
        if response.deliveries:
            self._unsent_bytes -= sum(len(delivery.block) for delivery in response.deliveries)
            response.deliveries.clear()
            self._pause()
            if self._consumer is not None:
                self._consumer.wake()

    def _pause(self) -> None:
        if self._consumer is not None:
            self._consumer.is_paused = self._unsent_bytes >= UNSENT_BYTES_MAX

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


def _outcome_of(results: Iterable[pb.PartitionAckResult]) -> str:
    """Return the code of the first refused partition, or OK."""
    return next((pb.ErrorCode.Name(one.error.code) for one in results if one.HasField("error")), OK)


class GrpcConsumerStream:
    """A stream over gRPC, which takes the next response when the client has room for it. One task reads requests."""

    def __init__(self, make_stream: Callable[[Principal, Callable[[], None]], ConsumerStream]) -> None:
        self._make_stream = make_stream
        self._changed = asyncio.Event()
        """Set when there is something to write, or to read."""
        self._unanswered = 0
        self._answered = asyncio.Event()
        """Set when a request is answered."""

    async def run(
        self, requests: AsyncIterator[pb.QueueStreamRequest], call: Call
    ) -> AsyncGenerator[pb.QueueStreamResponse, None]:
        """Yield responses until the client has said goodbye, or cancels.

        Raises:
            RequestError: The first request is wrong, or the topic is gone.
        """
        stream = self._make_stream(call.principal, self._changed.set)
        reader = asyncio.get_running_loop().create_task(self._read(stream, requests, call.deadline))
        reader.add_done_callback(partial(_on_read_end, stream))
        try:
            while True:
                while (response := stream.next_response()) is not None:
                    yield response
                if stream.failure is not None:
                    raise stream.failure
                if stream.is_over:
                    return
                self._changed.clear()
                await self._changed.wait()
        finally:
            reader.cancel()
            stream.close()

    async def _read(
        self, stream: ConsumerStream, requests: AsyncIterator[pb.QueueStreamRequest], deadline: float
    ) -> None:
        is_open = False
        async for request in requests:
            if not is_open:
                loop = asyncio.get_running_loop()
                await stream.open(request, min(deadline, loop.time() + CALL_SECONDS_MAX))
                is_open = True
            self._unanswered += 1
            stream.on_request(request, self._on_answered)
            if self._unanswered >= ACKS_IN_FLIGHT_MAX:
                self._answered.clear()
                await self._answered.wait()

    def _on_answered(self) -> None:
        self._unanswered -= 1
        self._answered.set()


def _on_read_end(stream: ConsumerStream, reader: asyncio.Task[None]) -> None:
    """End the stream as after a goodbye, or with the reader's failure."""
    failure = None if reader.cancelled() else reader.exception()
    if failure is not None:
        stream.fail(failure)
    stream.leave()
