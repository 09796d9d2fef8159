"""Serve one client's data connection: cut its bytes into frames, make calls of them, and send the answers back.

It decides nothing about data. The connection's append session begins appends to a partition in the order of their frames. Polls are
answered by callbacks, and so are streams (`stream.py`). Any other call is a task, and so is an answer that must wait until the client has
taken the ones before it. The memory that a client can occupy is bounded: its streams (`STREAMS_MAX`), its unanswered calls and requests of
streams (`CALLS_MAX`), and the bytes of large requests and of unread answers (the budgets that gRPC's calls share). A connection that exceeds a bound is not read until it is below it. Requests that are not small need
budget until they are answered, and are refused if there is none.

Invariants: nothing is done for a client before its HELLO has named a token; nothing is written after `_finish`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from google.protobuf.message import DecodeError, Message
from raftmq.broker.base.budget import RETRY_MS, Budget, Reservation
from raftmq.broker.base.limits import Limits
from raftmq.broker.base.request_error import RequestError, parsed
from raftmq.broker.data_port.stream import DataStream
from raftmq.broker.grpc_port.handlers import internal_error, observed
from raftmq.broker.grpc_port.methods import Row
from raftmq.broker.grpc_port.security import refusal_of
from raftmq.broker.services.append_session import AppendSession
from raftmq.broker.services.call import CALL_SECONDS_MAX, DEFAULT_CALL_SECONDS, Call, Principal
from raftmq.broker.services.poll import OnPolled, Poll
from raftmq.broker.services.queue.stream import ConsumerStream
from raftmq.broker.services.request_metrics import CANCELLED, OK, RequestMetrics
from raftmq.frames import (
    BUFFER_BYTES,
    DATA_METHODS,
    DATA_VERSION,
    DATA_VERSION_MIN,
    STREAMS_MAX,
    FrameError,
    FrameReader,
    FrameType,
    frame_header,
)
from raftmq.methods import APPEND, INIT_PRODUCER, POLL, POLL_STREAM
from raftmq.proto import queue_pb2 as pb
from raftmq.sockets import tune

if TYPE_CHECKING:
    from opentelemetry.trace import Span

CALLS_MAX: Final = 1024
"""Calls of one connection, and requests of its streams, without an answer. All producers, or all consumers, of an event loop share one."""
SMALL_REQUEST_BYTES: Final = 4096
"""A request up to this size needs no budget: `CALLS_MAX` bounds them."""
_PARTITION_BYTES: Final = 64
"""The least memory of a partition of a request, which may have two bytes in the frame."""
_POLL_NUMBER: Final = DATA_METHODS.index(POLL)
HELLO_BYTES_MAX: Final = 1024
"""Body of the first frame."""
LARGE_BUFFER_SECONDS: Final = 1.0
"""A large read buffer is kept so long after a large request, for the next one."""
WRITE_BUFFER_BYTES: Final = 64 * 1024
"""Answers of one connection that the kernel has not taken. Beyond it the connection is not read, and large answers wait."""


class DataPortOwner(Protocol):
    """The port as its connections see it."""

    loop: asyncio.AbstractEventLoop
    limits: Limits
    metrics: RequestMetrics
    connections: Budget
    """A slot for each connection that has said HELLO."""
    receiving: Budget
    requests: Budget
    """Bytes of requests that are not small, until they are answered."""
    unsent: Budget
    received_bytes: int
    sent_bytes: int

    @property
    def rows(self) -> tuple[Row, ...]:
        """The methods, by number."""
        ...

    @property
    def answers(self) -> Mapping[str, Any]:
        """The services' methods, by name."""
        ...

    def append_session(self) -> AppendSession:
        """Return a session for a connection's appends."""
        ...

    def begin_poll(self, request: pb.PollRequest, call: Call, on_outcome: OnPolled) -> Poll:
        """Begin a poll. Raises RequestError. `on_outcome` may be called before this returns."""
        ...

    def consumer_stream(self, principal: Principal, on_changed: Callable[[], None]) -> ConsumerStream:
        """Return a stream of messages of queue topics."""
        ...

    def redeem(self, token: bytes) -> Principal | None:
        """Return the principal of a token, or None if the token is void."""
        ...

    def may_go_on(self) -> bool:
        """Return whether there is time left in this turn of the event loop to handle a frame."""
        ...

    def defer(self, connection: DataConnection) -> None:
        """Call the connection's `resume` in a later turn of the event loop."""
        ...

    def on_opened(self, connection: DataConnection) -> None:
        """Count an accepted connection. The owner may abort it until `on_greeted`, when there are too many such ones."""
        ...

    def on_greeted(self, connection: DataConnection) -> None:
        """Note that a connection's client has named its token."""
        ...

    def on_closed(self, connection: DataConnection) -> None:
        """Forget an ended connection."""
        ...


class DataConnection(asyncio.BufferedProtocol):
    """One connection, from its acceptance to its end. Holds budget (`Holder`)."""

    def __init__(self, owner: DataPortOwner) -> None:
        self._owner = owner
        self._reader = FrameReader(HELLO_BYTES_MAX)
        self._transport: asyncio.Transport | None = None
        self._peer = ""
        self._principal: Principal | None = None
        """The caller. None before HELLO."""
        self._session: AppendSession | None = None
        self._slot: Reservation | None = None
        self._receiving: Reservation | None = None
        """Budget of a large read buffer."""
        self._large_at = 0.0
        """Loop time of the last large request."""
        self._waiting_for_memory: asyncio.Task[None] | None = None
        self._unsent: list[Reservation] = []
        """Budget of large answers in the transport's buffer."""
        self._calls: dict[int, Reservation | None] = {}
        """Unanswered calls, by correlation id, and the budget of each request that is not small."""
        self._tasks: dict[int, asyncio.Task[None]] = {}
        """Tasks of these calls. An append has none, and a poll only while it waits for memory."""
        self._polls: dict[int, tuple[Poll, float, Span | None]] = {}
        """Unanswered polls without a task, by correlation id, with the time when each began and its span."""
        self._streams: dict[int, DataStream] = {}
        """Streams that have not ended, by correlation id."""
        self._stream_requests = 0
        """Requests of streams without an answer."""
        self._changed: dict[DataStream, None] = {}
        """Streams that may have something to write."""
        self._is_pumping = False
        """They will be asked in the next turn of the event loop."""
        self._last_correlation_id = 0
        """Of the calls that were accepted: they ascend."""
        self._writable = asyncio.Event()
        self._writable.set()
        self._is_reading = True
        self._is_deferred = False
        """Frames that have arrived wait for a later turn of the event loop."""
        self._is_stopping = False
        """No more calls are accepted."""
        self._is_finished = False
        """Nothing more will be sent."""
        self._ultimatum: asyncio.TimerHandle | None = None
        """Runs until HELLO has come, and from `_end` on."""

    # ---------------------------------------------------------------------------------------------------- asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for HELLO."""
        owner = self._owner
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is one in all but the class
        owner.on_opened(self)
        name = transport.get_extra_info("peername") or ("", 0)
        self._peer = f"{'ipv6' if ':' in str(name[0]) else 'ipv4'}:{name[0]}:{name[1]}"
        tune(transport.get_extra_info("socket"), owner.limits.client_unacked_seconds)
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES, low=0)
        self._ultimatum = owner.loop.call_later(owner.limits.client_handshake_seconds, self.abort)

    def get_buffer(self, sizehint: int) -> memoryview:
        """See `asyncio.BufferedProtocol`."""
        return self._reader.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """See `asyncio.BufferedProtocol`."""
        owner = self._owner
        owner.received_bytes += nbytes
        if self._slot is not None:
            owner.connections.keepalive(self._slot)
        if self._receiving is not None:
            owner.receiving.keepalive(self._receiving)
        if self._is_stopping or owner.may_go_on():
            self._read(nbytes)
        else:
            self._reader.keep(nbytes)
            self._defer()

    def pause_writing(self) -> None:
        """See `asyncio.BaseProtocol`."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """See `asyncio.BaseProtocol`."""
        self._release_unsent()
        self._writable.set()
        self._pump_soon()
        self._go_on()

    def eof_received(self) -> None:
        """See `asyncio.BaseProtocol`: the connection is closed."""

    def connection_lost(self, exc: Exception | None) -> None:
        """Give everything back. Appends that were accepted go on, without an answer."""
        owner = self._owner
        if self._ultimatum is not None:
            self._ultimatum.cancel()
        self._give_up_calls()
        self._stop_receiving()
        self._release_unsent()
        if self._slot is not None:
            owner.connections.release(self._slot)
        self._writable.set()
        owner.on_closed(self)

    # ---------------------------------------------------------------------------------------------------- holder

    def peer(self) -> str:
        """Return the client's address, as gRPC names it."""
        return self._peer

    def evict(self, reservation: Reservation) -> bool:
        """Give back a read buffer that is empty. Otherwise end the connection, whose memory is free in this turn of the loop."""
        if reservation is self._receiving and self._reader.shrink():
            self._receiving = None
        else:
            self.abort()
        return True

    def shrink_idle(self, now: float) -> None:
        """Give back a large read buffer that no large request has used for `LARGE_BUFFER_SECONDS`."""
        if self._receiving is not None and now - self._large_at >= LARGE_BUFFER_SECONDS and self._reader.shrink():
            self._owner.receiving.release(self._receiving)
            self._receiving = None

    # ---------------------------------------------------------------------------------------------------- life

    def begin_shutdown(self) -> None:
        """Accept no more calls, and close after the last answer."""
        self._is_stopping = True
        if self._principal is None:
            self.abort()
            return
        self._stop_receiving()
        self._write(frame_header(FrameType.GOODBYE, 0, self._last_correlation_id))
        for stream in self._streams.values():
            stream.leave()
        self._set_reading()
        self._go_on()

    def abort(self) -> None:
        """Close without another answer."""
        if self._transport is not None:
            self._transport.abort()

    def _end(self, error: RequestError) -> None:
        """Close with a reason. Calls under way are not answered any more."""
        owner = self._owner
        self._is_stopping = True
        self._send_error(0, error)
        self._finish()
        self._give_up_calls()
        self._stop_receiving()
        if self._ultimatum is not None:
            self._ultimatum.cancel()
        self._ultimatum = owner.loop.call_later(owner.limits.client_handshake_seconds, self.abort)

    def _give_up_calls(self) -> None:
        if self._session is not None:
            self._session.close()
        for task in self._tasks.values():
            task.cancel()
        self._tasks.clear()
        for correlation_id in list(self._polls):
            self._cancel_poll(correlation_id)
        for correlation_id in list(self._calls):
            self._forget(correlation_id)
        for stream in list(self._streams.values()):
            self._forget_stream(stream)

    def _finish(self) -> None:
        """Say that nothing more will be sent: the client closes the connection."""
        transport = self._transport
        if transport is not None and not transport.is_closing() and not self._is_finished:
            self._is_finished = True
            transport.write_eof()
            self._set_reading()

    # ---------------------------------------------------------------------------------------------------- reading

    @property
    def _may_read(self) -> bool:
        if self._is_stopping:
            return True  # and drop it
        return (
            len(self._calls) + self._stream_requests < CALLS_MAX
            and self._waiting_for_memory is None
            and self._writable.is_set()
            and not self._is_deferred
        )

    def _read(self, count: int) -> None:
        """Handle the frames that are whole after `count` more bytes."""
        if self._is_stopping:
            return  # drop it: unread, it would reset the connection, and lose the last answers
        try:
            self._reader.received(count, self._on_frame)
        except FrameError as error:
            self._end(RequestError(pb.INVALID_ARGUMENT, str(error)))
            return
        if self._reader.needs_growth and self._waiting_for_memory is None:
            self._reserve(self._reader.wanted_size)
        self._set_reading()

    def _defer(self) -> None:
        if not self._is_deferred:
            self._is_deferred = True
            self._owner.defer(self)
        self._set_reading()

    def resume(self) -> None:
        """Go on after `DataPortOwner.defer`."""
        self._is_deferred = False
        if self._can_read_on:
            self._read(0)

    def _stop_receiving(self) -> None:
        """Drop a request that has not arrived completely, and everything that is received from now on."""
        self._reader = FrameReader(0)
        if self._waiting_for_memory is not None:
            self._waiting_for_memory.cancel()
            self._waiting_for_memory = None
        if self._receiving is not None:
            self._owner.receiving.release(self._receiving)
            self._receiving = None

    def _reserve(self, size: int) -> None:
        """Take budget for a large request, or wait for it without reading."""
        if self._receiving is not None:
            self._owner.receiving.release(self._receiving)
            self._receiving = None
        try:
            self._receiving = self._owner.receiving.acquire(self, size)
        except RequestError:
            self._waiting_for_memory = self._owner.loop.create_task(self._wait_for_memory(size))

    async def _wait_for_memory(self, size: int) -> None:
        self._receiving = await self._owner.receiving.wait(self, size)
        self._waiting_for_memory = None
        self._go_on()

    def _set_reading(self) -> None:
        transport, may_read = self._transport, self._may_read
        if transport is None or may_read == self._is_reading or transport.is_closing():
            return
        self._is_reading = may_read
        if may_read:
            transport.resume_reading()
        else:
            transport.pause_reading()

    def _go_on(self) -> None:
        """Something was answered, or sent: read on, or close after the last answer."""
        if self._is_stopping:
            if not self._calls and not self._streams:
                self._finish()
        elif not self._is_reading and self._may_read:
            self._owner.loop.call_soon(self._read_on)

    def _read_on(self) -> None:
        if not self._can_read_on:
            return
        if self._owner.may_go_on():
            self._read(0)
        else:
            self._defer()

    @property
    def _can_read_on(self) -> bool:
        """Return whether reading is paused and need not be."""
        return (
            not self._is_reading and self._may_read and self._transport is not None and not self._transport.is_closing()
        )

    # ---------------------------------------------------------------------------------------------------- frames

    def _on_frame(
        self, frame_type: FrameType, method_number: int, timeout_ms: int, correlation_id: int, body: memoryview
    ) -> bool:
        if self._principal is None:
            self._greet(frame_type, body)
        elif frame_type is FrameType.CALL:
            self._call(method_number, timeout_ms, correlation_id, body)
        elif frame_type is FrameType.REQUEST:
            self._request(correlation_id, body)
        elif frame_type is FrameType.CANCEL:
            self._cancel(correlation_id)
        else:
            raise FrameError(f"a client does not send {frame_type.name}")
        if not self._owner.may_go_on():
            self._defer()
        return self._is_stopping or not self._may_read

    def _greet(self, frame_type: FrameType, body: memoryview) -> None:
        if frame_type is not FrameType.HELLO:
            raise FrameError("the first frame must be HELLO")
        try:
            hello = pb.DataHello.FromString(bytes(body))
        except DecodeError as error:
            raise FrameError(f"malformed HELLO: {error}") from None
        if not DATA_VERSION_MIN <= hello.version <= DATA_VERSION:
            self._end(
                RequestError(
                    pb.UNSUPPORTED_VERSION,
                    f"frames of version {hello.version} are not known here, only {DATA_VERSION_MIN} to {DATA_VERSION}",
                )
            )
            return
        principal = self._owner.redeem(hello.token)
        if principal is None:
            self._end(
                RequestError(
                    pb.PERMISSION_DENIED, "the token is not known here, or too old: ask OpenDataConnection for one"
                )
            )
            return
        try:
            self._slot = self._owner.connections.acquire(self)
        except RequestError as error:
            self._end(error)
            return
        self._owner.on_greeted(self)
        self._principal = principal
        self._session = self._owner.append_session()
        self._reader.body_bytes_max = self._owner.limits.grpc_message_bytes_max
        if self._ultimatum is not None:
            self._ultimatum.cancel()
        self._write(frame_header(FrameType.WELCOME, 0))

    def _call(self, method_number: int, timeout_ms: int, correlation_id: int, body: memoryview) -> None:
        if correlation_id <= self._last_correlation_id:
            raise FrameError(f"correlation id {correlation_id} does not follow {self._last_correlation_id}")
        self._last_correlation_id = correlation_id
        if len(body) > BUFFER_BYTES:
            self._large_at = self._owner.loop.time()
        try:
            row = self._row(method_number)
            request = parsed(row.method.request_type.FromString, bytes(body))
            seconds = min(timeout_ms / 1000 or DEFAULT_CALL_SECONDS, CALL_SECONDS_MAX)
            if row.method is POLL_STREAM:
                self._begin_stream(request, self._reserve_request(body, len(request.acks)), seconds, correlation_id)
                return
            partitions = 0 if row.method is INIT_PRODUCER else len(request.partitions)
            self._calls[correlation_id] = self._reserve_request(body, partitions)
        except RequestError as error:
            self._send_error(correlation_id, error)
            return
        if row.method is APPEND:
            assert self._session is not None
            self._session.submit(request, partial(self._on_appended, correlation_id), seconds)
            return
        assert self._principal is not None
        call = Call(self._owner.loop.time() + seconds, self._principal)
        if row.method is POLL and self._may_answer(row, request):
            self._poll(request, call, correlation_id)
        else:
            self._begin_task(row, self._serve(row, request, call, correlation_id), correlation_id)

    def _reserve_request(self, body: memoryview, partitions: int) -> Reservation | None:
        """Reserve memory for a request until it is answered, unless it is small. Raises RequestError."""
        size = len(body) + _PARTITION_BYTES * partitions
        return self._owner.requests.acquire(self, size) if size > SMALL_REQUEST_BYTES else None

    def _may_answer(self, row: Row, request: Message) -> bool:
        """Return whether there is budget for an answer of any size to this request."""
        owner = self._owner
        return row.answer_bytes_max is None or owner.unsent.has_room(row.answer_bytes_max(request, owner.limits))

    def _begin_task(self, row: Row, steps: Coroutine[object, object, None], correlation_id: int) -> None:
        task = self._owner.loop.create_task(steps)
        self._tasks[correlation_id] = task
        task.add_done_callback(partial(self._on_served, row, correlation_id))  # also if it never began

    def _forget(self, correlation_id: int) -> None:
        """Record that a call has ended."""
        reservation = self._calls.pop(correlation_id, None)
        if reservation is not None:
            self._owner.requests.release(reservation)

    def _row(self, number: int) -> Row:
        """Return the method of a number. Raises RequestError for an unknown one, and for one that the caller may not call."""
        assert self._principal is not None
        if number >= len(self._owner.rows):
            raise RequestError(pb.UNSUPPORTED_VERSION, f"a data connection has no method of number {number}")
        row = self._owner.rows[number]
        refusal = refusal_of(self._principal, row.right)
        if refusal is not None:
            raise refusal
        return row

    def _cancel(self, correlation_id: int) -> None:
        task = self._tasks.get(correlation_id)
        if task is not None:
            task.cancel()
        elif correlation_id in self._polls:
            self._cancel_poll(correlation_id)
            self._forget(correlation_id)
            self._go_on()
        elif correlation_id in self._streams:
            self._forget_stream(self._streams[correlation_id])
            self._go_on()
        # an append cannot be taken back

    # ---------------------------------------------------------------------------------------------------- streams

    def _begin_stream(
        self, request: pb.QueueStreamRequest, reservation: Reservation | None, seconds: float, correlation_id: int
    ) -> None:
        owner = self._owner
        assert self._principal is not None
        if len(self._streams) >= STREAMS_MAX:
            if reservation is not None:
                owner.requests.release(reservation)
            raise RequestError(
                pb.THROTTLED,
                f"a data connection has at most {STREAMS_MAX} streams: use another, or gRPC",
                retry_after_ms=RETRY_MS,
            )
        stream = DataStream(self, owner.consumer_stream, self._principal, correlation_id)
        self._streams[correlation_id] = stream
        self._stream_requests += 1
        owner.metrics.stream_started(POLL_STREAM.name)
        stream.open(owner.loop, request, reservation, owner.loop.time() + seconds)

    def _request(self, correlation_id: int, body: memoryview) -> None:
        """Take a further request of a stream."""
        if correlation_id > self._last_correlation_id:
            raise FrameError(f"a request of stream {correlation_id}, which was not called")
        stream = self._streams.get(correlation_id)
        if stream is None:
            return  # it has ended, and the client does not know that yet
        if len(body) > BUFFER_BYTES:
            self._large_at = self._owner.loop.time()
        try:
            request = parsed(pb.QueueStreamRequest.FromString, bytes(body))
            reservation = self._reserve_request(body, len(request.acks))
        except RequestError as error:
            stream.fail(error)
            return
        self._stream_requests += 1
        stream.request(request, reservation)

    def _forget_stream(self, stream: DataStream) -> None:
        del self._streams[stream.correlation_id]
        self._changed.pop(stream, None)
        stream.close()
        self._owner.metrics.stream_ended(POLL_STREAM.name)

    def _pump_soon(self) -> None:
        """Have streams write in the next turn of the event loop, when this one's other callbacks have added theirs."""
        if self._changed and not self._is_pumping and self._writable.is_set():
            self._is_pumping = True
            self._owner.loop.call_soon(self._pump)

    def _pump(self) -> None:
        self._is_pumping = False
        changed, self._changed = self._changed, {}
        for stream in [stream for stream in changed if stream.correlation_id in self._streams]:
            try:
                stream.pump()
            except Exception as error:  # noqa: BLE001 -- the root of a callback: a defect ends the stream
                self.end_stream(stream, error)
            if not self._writable.is_set() and stream.correlation_id in self._streams:
                self._changed[stream] = None  # and asked again by `resume_writing`

    @property
    def is_writable(self) -> bool:
        """See `StreamConnection`."""
        return self._writable.is_set()

    def on_stream_changed(self, stream: DataStream) -> None:
        """See `StreamConnection`."""
        self._changed[stream] = None
        self._pump_soon()

    def on_request_answered(self, reservation: Reservation | None) -> None:
        """See `StreamConnection`."""
        self._stream_requests -= 1
        if reservation is not None:
            self._owner.requests.release(reservation)
        self._go_on()

    def send_response(self, stream: DataStream, response: pb.QueueStreamResponse) -> None:
        """See `StreamConnection`."""
        data = response.SerializeToString()
        header = frame_header(FrameType.RESPONSE, len(data), stream.correlation_id)
        if len(data) <= WRITE_BUFFER_BYTES:
            self._write(header + data)
            return
        reservation = self._owner.unsent.acquire(self, len(data))
        reservation.is_sending = True
        self._unsent.append(reservation)
        self._write(header, data)
        if self._writable.is_set():  # the kernel has taken it, or nearly
            self._release_unsent()

    def end_stream(self, stream: DataStream, failure: BaseException | None) -> None:
        """See `StreamConnection`."""
        if failure is None:
            self._write(frame_header(FrameType.ANSWER, 0, stream.correlation_id))
        else:
            error = failure if isinstance(failure, RequestError) else internal_error(POLL_STREAM.name, failure)
            self._owner.metrics.count(POLL_STREAM.name, pb.ErrorCode.Name(error.code))
            self._send_error(stream.correlation_id, error)
        self._forget_stream(stream)
        self._go_on()

    # ---------------------------------------------------------------------------------------------------- answers

    def _on_appended(self, correlation_id: int, response: pb.AppendResponse) -> None:
        self._forget(correlation_id)
        data = response.SerializeToString()
        self._write(frame_header(FrameType.ANSWER, len(data), correlation_id) + data)
        self._go_on()

    def _poll(self, request: pb.PollRequest, call: Call, correlation_id: int) -> None:
        """Serve a poll, which is answered now or by a callback."""
        began_at = time.perf_counter()
        tracing = self._owner.metrics.tracing
        span = None if tracing is None else tracing.begin(POLL.name)
        try:
            poll = self._owner.begin_poll(request, call, partial(self._on_polled, correlation_id, began_at, span))
        except Exception as error:  # noqa: BLE001 -- the root of a call: a defect is its answer
            self._on_polled(correlation_id, began_at, span, error)
            return
        if not poll.is_over:
            self._polls[correlation_id] = (poll, began_at, span)

    def _on_polled(
        self, correlation_id: int, began_at: float, span: Span | None, outcome: pb.PollResponse | Exception
    ) -> None:
        self._polls.pop(correlation_id, None)
        code = OK
        if isinstance(outcome, pb.PollResponse):
            self._answer_poll(correlation_id, outcome.SerializeToString())
        else:
            error = outcome if isinstance(outcome, RequestError) else internal_error(POLL.name, outcome)
            code = pb.ErrorCode.Name(error.code)
            self._send_error(correlation_id, error)
            self._forget(correlation_id)
            self._go_on()
        self._observe_poll(code, began_at, span)

    def _observe_poll(self, code: str, began_at: float, span: Span | None) -> None:
        metrics = self._owner.metrics
        metrics.observe(POLL.name, code, time.perf_counter() - began_at)
        if metrics.tracing is not None and span is not None:
            metrics.tracing.end(span, code)

    def _answer_poll(self, correlation_id: int, data: bytes) -> None:
        if self._leaves_now(data):
            self._write(frame_header(FrameType.ANSWER, len(data), correlation_id) + data)
            self._forget(correlation_id)
            self._go_on()
        else:
            self._begin_task(self._owner.rows[_POLL_NUMBER], self._send_or_refuse(correlation_id, data), correlation_id)

    def _cancel_poll(self, correlation_id: int) -> None:
        poll, began_at, span = self._polls.pop(correlation_id)
        poll.cancel()
        self._observe_poll(CANCELLED, began_at, span)

    async def _serve(self, row: Row, request: Message, call: Call, correlation_id: int) -> None:
        """Answer a call."""
        owner = self._owner
        answer = owner.answers[row.method.name]
        try:
            if row.answer_bytes_max is not None:
                await owner.unsent.wait_possible(row.answer_bytes_max(request, owner.limits))
            # no name for the response: it would be kept, beside its bytes, while they wait for a slow reader
            data = (await observed(owner.metrics, row.method.name, lambda: answer(request, call))).SerializeToString()
        except RequestError as error:
            self._send_error(correlation_id, error)
        else:
            await self._send_or_refuse(correlation_id, data)

    async def _send_or_refuse(self, correlation_id: int, data: bytes) -> None:
        try:
            await self._send(correlation_id, data)
        except RequestError as error:
            self._send_error(correlation_id, error)

    def _on_served(self, row: Row, correlation_id: int, task: asyncio.Task[None]) -> None:
        self._tasks.pop(correlation_id, None)
        self._forget(correlation_id)
        if not task.cancelled() and (failure := task.exception()) is not None:
            self._send_error(correlation_id, internal_error(row.method.name, failure))
        self._go_on()

    async def _send(self, correlation_id: int, data: bytes) -> None:
        """Send an answer when the client has taken the ones before it."""
        if self._leaves_now(data):
            self._write(frame_header(FrameType.ANSWER, len(data), correlation_id) + data)
            return
        reservation = self._owner.unsent.acquire(self, len(data))
        reservation.is_sending = True
        try:
            while not self._writable.is_set():
                await self._writable.wait()
        except asyncio.CancelledError:
            self._owner.unsent.release(reservation)
            raise
        self._unsent.append(reservation)
        self._write(frame_header(FrameType.ANSWER, len(data), correlation_id), data)
        if self._writable.is_set():  # the kernel has taken it, or nearly
            self._release_unsent()

    def _leaves_now(self, data: bytes) -> bool:
        """Return whether an answer needs no budget: it is small, and the client takes the ones before it."""
        return len(data) <= WRITE_BUFFER_BYTES and self._writable.is_set()

    def _send_error(self, correlation_id: int, error: RequestError) -> None:
        data = error.detail.SerializeToString()
        self._write(frame_header(FrameType.ERROR, len(data), correlation_id) + data)

    def _write(self, *parts: bytes) -> None:
        transport = self._transport
        if transport is None or self._is_finished or transport.is_closing():
            return
        self._owner.sent_bytes += sum(map(len, parts))
        for part in parts:  # `writelines` of Python 3.12 does not pause the protocol (CVE-2024-12254)
            transport.write(part)

    def _release_unsent(self) -> None:
        for reservation in self._unsent:
            self._owner.unsent.release(reservation)
        self._unsent.clear()
