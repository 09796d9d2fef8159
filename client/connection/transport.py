"""The SDK's access to brokers: a small seam (`Transport`, `Connection`, `AppendStream`) and its implementation.

Calls go over gRPC. Polls, appends (alone or in streams) and streams of messages go over data connections where the broker has them
(`data_port`), and a registration of a producer goes over the one for appends if it is open.

A simulator replaces `GrpcTransport` with one in memory. Every failure leaves this module as a `RaftMQError`: the broker's typed error,
`UnreachableError` (nothing was sent), `BrokenConnectionError` or `RequestTimedOutError` (the request may have arrived). Must not retry or
choose brokers: the resolver and the callers do.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from functools import partial
from typing import Any, Generic, Protocol, cast
from weakref import WeakSet

import grpc
import grpc.aio
from raftmq.call_metadata import CLUSTER_KEY, STATUS_DETAILS_KEY
from raftmq.client.base import settings
from raftmq.client.base.background import cancel_and_wait, spawn
from raftmq.client.base.error_details import detail_from_status, error_from_detail, fresh_copy, with_address
from raftmq.client.base.fork_guard import check_grpc_usable
from raftmq.client.base.tracing import active_tracing
from raftmq.client.connection import grpc_fork as grpc_fork  # from now on each fork checks whether gRPC is in use
from raftmq.client.connection.append_stream import AppendStream, OnEnd, OnResponse, SerializedAppend
from raftmq.client.connection.data_calls import APPEND_NUMBER, INIT_PRODUCER_NUMBER, POLL_NUMBER, DataCalls
from raftmq.client.connection.data_connection import DataConnection
from raftmq.client.connection.data_port import DataPort
from raftmq.client.connection.data_stream import (
    POLL_STREAM_NUMBER,
    DataAppendStream,
    DataQueueStream,
    DataStream,
)
from raftmq.client.connection.grpc_calls import GrpcCalls
from raftmq.client.connection.pending_poll import OnPolled, PendingPoll, PollTask
from raftmq.client.connection.queue_stream import OnQueueResponse, QueueStream
from raftmq.client.connection.shared_channel import SharedChannel, shared_channel
from raftmq.errors import (
    BrokenConnectionError,
    InternalError,
    PermissionDeniedError,
    RaftMQError,
    RequestTimedOutError,
    UnreachableError,
    UnsupportedVersionError,
    WrongClusterError,
)
from raftmq.frames import STREAMS_MAX
from raftmq.methods import (
    APPEND,
    APPEND_STREAM,
    INIT_PRODUCER,
    OPEN_DATA_CONNECTION,
    POLL,
    POLL_STREAM,
    WATCH,
    RequestT,
    ResponseT,
    UnaryMethod,
)
from raftmq.proto import queue_pb2 as pb


class Connection(Protocol):
    """A shared connection to one broker."""

    cluster_id: str
    """The only cluster that may answer calls and append streams. Another one raises `UnreachableError`. Empty: any cluster."""

    @property
    def address(self) -> str:
        """Return its address (``host:port``)."""
        ...

    async def call(
        self, method: UnaryMethod[RequestT, ResponseT], request: RequestT, timeout_seconds: float
    ) -> ResponseT:
        """Make one unary call. Raises a `RaftMQError`."""
        ...

    def watch(self, request: pb.WatchRequest) -> AsyncGenerator[pb.TopologyUpdate, None]:
        """Open the topology stream. Iterating raises a `RaftMQError`."""
        ...

    def poll(self, request: pb.PollRequest, timeout_seconds: float, on_outcome: OnPolled) -> PendingPoll:
        """Send a poll without waiting. Raises a `RaftMQError` if it cannot be sent."""
        ...

    async def append(self, request: SerializedAppend, timeout_seconds: float) -> pb.AppendResponse:
        """Make one append without a stream. Raises a `RaftMQError`."""
        ...

    def append_stream(self, on_response: OnResponse, on_end: OnEnd, on_writable: Callable[[], None]) -> AppendStream:
        """Open a stream. Does not wait.

        Args:
            on_response: called with each answer. Must not raise.
            on_end: called once when the stream ends without `cancel`. The error is about every unanswered request.
            on_writable: called when the stream takes requests again, after a `write` that returned False.
        """
        ...

    def queue_stream(self, on_response: OnQueueResponse, on_end: OnEnd, on_writable: Callable[[], None]) -> QueueStream:
        """Open a stream of messages of queue topics. Its arguments are those of `append_stream`."""
        ...

    async def close(self) -> None:
        """Close immediately. Running calls fail."""
        ...


class Transport(Protocol):
    """Creates connections."""

    uses_threads: bool
    """Whether clients may call brokers from their own threads, over gRPC. False in a simulation, which runs in one loop."""

    def connect(self, address: str) -> Connection:
        """Return a connection to ``host:port``. It is established on demand, so this neither waits nor fails."""
        ...


_CHANNEL_OPTIONS: list[tuple[str, int]] = [
    ("grpc.max_receive_message_length", settings.MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", settings.MESSAGE_BYTES_MAX),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 1000),  # gRPC's minimum time for one attempt to connect
    ("grpc.max_reconnect_backoff_ms", int(settings.CONNECT_BACKOFF_MAX_SECONDS * 1000)),
    ("grpc.enable_retries", 0),  # retries are ours: only we know which calls are idempotent
    ("grpc.use_local_subchannel_pool", 1),  # we share channels ourselves, and close them with their last client
]


def open_channel(address: str) -> grpc.aio.Channel:
    """Open a channel, currently without TLS and credentials."""
    return grpc.aio.insecure_channel(address, options=_CHANNEL_OPTIONS)


def open_blocking_channel(address: str) -> grpc.Channel:
    """Open a channel for a thread without an event loop."""
    return grpc.insecure_channel(address, options=_CHANNEL_OPTIONS)


_NEVER_LEFT = ("failed to connect", "errors resolving", "dns resolution failed")
"""Beginnings of the core's text for a call that was never sent: the core has no status code for that. A test checks its wording."""
_REASONS: dict[str, str] = {
    "errors resolving": "the host name cannot be resolved",
    "dns resolution failed": "the host name cannot be resolved",
    "failed parsing http/2": "the server there does not speak gRPC: is it the HTTP port?",
    "before receiving settings frame": "the server there accepts connections but does not answer",
    "connection refused": "connection refused",
}
"""Phrases of the core in such a text, and our reasons."""


_CORE_FAILED = "Internal error from Core"
"""Text of gRPC's Python layer for a call whose write failed because the connection broke. A broker's own defect has an error detail."""


def unreachable_reason(details: str) -> str:
    """Return a short reason why a call was never sent, or an empty text if it may have been sent."""
    lowered = details.lower()
    if not lowered.startswith(_NEVER_LEFT):
        return ""
    return next((ours for theirs, ours in _REASONS.items() if theirs in lowered), details.rpartition(": ")[2])


def error_from_rpc(error: grpc.aio.AioRpcError | grpc.Call, address: str) -> RaftMQError:
    """Return the typed error of a failed call, with the address that was asked."""
    return with_address(_error_of_status(error, address), address)


def _error_of_status(error: grpc.aio.AioRpcError | grpc.Call, address: str) -> RaftMQError:
    """Return the error of a status. Without our error detail, its code decides."""
    for key, value in error.trailing_metadata() or ():
        if key == STATUS_DETAILS_KEY and isinstance(value, bytes):
            detail = detail_from_status(value)
            if detail is not None:
                return error_from_detail(detail)
    status, details = error.code(), error.details() or ""
    message = f"{address}: {details or status.name}"
    if status is grpc.StatusCode.UNAVAILABLE:
        reason = unreachable_reason(details)
        return UnreachableError(f"{address}: {reason}") if reason else BrokenConnectionError(message)
    if status is grpc.StatusCode.DEADLINE_EXCEEDED:
        return RequestTimedOutError(message)
    if status is grpc.StatusCode.UNIMPLEMENTED:
        return UnsupportedVersionError(
            f"{address}: the server there does not know this call ({details}): upgrade the older side, and check that the address is a "
            "broker's client address (port 9400 by default)"
        )
    if status in (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED):
        return PermissionDeniedError(message)
    if status in (grpc.StatusCode.CANCELLED, grpc.StatusCode.ABORTED, grpc.StatusCode.RESOURCE_EXHAUSTED):
        return BrokenConnectionError(message)
    if status is grpc.StatusCode.INTERNAL and details.startswith(_CORE_FAILED):
        return BrokenConnectionError(f"{address}: the connection broke")
    return InternalError(message)


def error_from_call(error: grpc.aio.AioRpcError | grpc.Call, address: str) -> RaftMQError:
    """Return the error of a call that contains its cluster id. If another cluster answered, ours is unreachable."""
    found = error_from_rpc(error, address)
    if isinstance(found, WrongClusterError):
        return with_address(UnreachableError(f"{address}: {found.args[0]}"), address)
    return found


def call_metadata(cluster_id: str) -> tuple[tuple[str, str], ...]:
    """Return the metadata of a call."""
    return ((CLUSTER_KEY, cluster_id),) if cluster_id else ()


def is_caller_cancelled() -> bool:
    """Return whether a `CancelledError` was caused by the caller. gRPC raises the same error when the call itself is cancelled.

    The status of the call does not tell: for a write that was waiting for flow control it is INTERNAL instead of CANCELLED.
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class GrpcTransport:
    """Connects over gRPC. Raises `ForkedClientError` where gRPC cannot work."""

    uses_threads = True

    def __init__(self) -> None:
        check_grpc_usable()

    def connect(self, address: str) -> Connection:
        """Return a connection to ``host:port``, which is established on demand."""
        check_grpc_usable()  # checked again, because a fork since the creation may have found gRPC unused and reset it
        return GrpcConnection(address)


class GrpcConnection:
    """One client's calls to one broker, over a channel that all clients of the event loop share (`shared_channel`).

    Closing leaves nothing behind in gRPC's core. All event loops of a process share one completion queue there. If a call completed after its
    loop was closed, another loop would pick it up and fail with "Event loop is closed" on stderr. So calls are cancelled only in the core (see
    `grpc_calls`), and `close` waits for their last event.
    """

    def __init__(self, address: str) -> None:
        self.cluster_id = ""
        self._address = address
        self._tracing = active_tracing()
        self._shared = shared_channel(address, open_channel)
        self._shared.users.add(self)
        self._calls = GrpcCalls()
        self._readers: set[asyncio.Task[None]] = set()
        """Of the streams, until they have ended."""
        self._poll_tasks: set[asyncio.Task[pb.PollResponse]] = set()
        """Polls without a data connection, until they have ended."""
        self._data_calls = DataCalls(address)
        self._data_streams: WeakSet[DataStream[Any, Any]] = WeakSet()  # Any: of each kind
        self._closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when `close` was called."""

    @property
    def address(self) -> str:
        """Return its address."""
        return self._address

    async def call(
        self, method: UnaryMethod[RequestT, ResponseT], request: RequestT, timeout_seconds: float
    ) -> ResponseT:
        """Make one unary call. Cancelling it cancels the call at the broker."""
        self._check_open()
        if method is POLL:
            deadline = asyncio.get_running_loop().time() + timeout_seconds
            connection = await self._wait_data_connection(POLL_NUMBER, timeout_seconds)
            timeout_seconds = deadline - asyncio.get_running_loop().time()
            if connection is not None:
                return await self._call_over(connection, method, request.SerializeToString(), timeout_seconds)
        elif method is INIT_PRODUCER and self._tracing is None:
            opened = self._data_port().open_connection(INIT_PRODUCER_NUMBER, APPEND_NUMBER)
            if opened is not None:
                return await self._call_over(opened, method, request.SerializeToString(), timeout_seconds)
        metadata = call_metadata(self.cluster_id)
        if self._tracing is not None and method is not POLL:  # a consumer reads ahead, for later callers
            metadata += self._tracing.call_metadata()
        call = _unary_call(self._shared, method, request, timeout_seconds, metadata)
        try:
            await self._calls.wait_unary(call)
            self._check_open()
            return await call
        except grpc.aio.AioRpcError as error:
            failure = error_from_call(error, self._address)
            if (method is POLL or method is APPEND) and isinstance(failure, BrokenConnectionError | UnreachableError):
                port = self._shared.data_ports.get(self.cluster_id)
                if port is not None:
                    port.on_broker_lost()
            raise failure from error.with_traceback(None)
        finally:
            del (
                call
            )  # an error that somebody keeps refers to this frame, which must not keep gRPC alive: see `grpc_fork`

    def poll(self, request: pb.PollRequest, timeout_seconds: float, on_outcome: OnPolled) -> PendingPoll:
        """Send a poll without waiting. Only where no data connection is open it has a task."""
        self._check_open()
        opened = self._data_port().connection(POLL_NUMBER)
        if isinstance(opened, DataConnection):
            return self._data_calls.begin(opened, POLL, request.SerializeToString(), timeout_seconds, on_outcome)
        poll = PollTask(self.call(POLL, request, timeout_seconds), self._address, on_outcome)
        self._poll_tasks.add(poll.task)
        poll.task.add_done_callback(self._poll_tasks.discard)
        return poll

    async def append(self, request: SerializedAppend, timeout_seconds: float) -> pb.AppendResponse:
        """Make one append without a stream. Cancelling it does not cancel it at the broker."""
        self._check_open()
        deadline = asyncio.get_running_loop().time() + timeout_seconds
        connection = await self._wait_data_connection(APPEND_NUMBER, timeout_seconds)
        timeout_seconds = deadline - asyncio.get_running_loop().time()
        if connection is None:
            return await self.call(APPEND, pb.AppendRequest.FromString(request.body), timeout_seconds)
        body = request.body
        if self._tracing is not None:  # fields that follow are added to a message
            body += pb.AppendRequest(trace_contexts=self._tracing.active_context()).SerializeToString()
        return await self._call_over(connection, APPEND, body, timeout_seconds)

    async def _call_over(
        self,
        connection: DataConnection,
        method: UnaryMethod[RequestT, ResponseT],
        body: bytes,
        timeout_seconds: float,
    ) -> ResponseT:
        """Make a call over the method's data connection."""
        # An error is a result: of a call that is cancelled at this moment nobody would take an exception.
        outcome: asyncio.Future[ResponseT | BaseException] = asyncio.get_running_loop().create_future()
        call = self._data_calls.begin(connection, method, body, timeout_seconds, partial(_set_outcome, outcome))
        try:
            found = await outcome
        finally:
            call.cancel()
        if isinstance(found, BaseException):
            raise found
        return found

    async def _wait_data_connection(self, method_number: int, timeout_seconds: float) -> DataConnection | None:
        """Wait for the method's data connection, or None: use gRPC. Raises a `RaftMQError` when the broker is out of reach."""
        found = self._data_port().connection(method_number)
        if not isinstance(found, asyncio.Task):
            return found
        await asyncio.wait((found, self._closed), timeout=timeout_seconds, return_when=asyncio.FIRST_COMPLETED)
        self._check_open()
        if not found.done() or found.cancelled():
            # Not `RequestTimedOutError`: nothing was sent, so that no caller must fear that its records were written.
            raise UnreachableError(f"{self._address}: no data connection within {timeout_seconds:g} s")
        opened = found.result()
        if isinstance(opened, RaftMQError):
            raise fresh_copy(opened) from opened.__cause__
        return opened

    def _data_port(self) -> DataPort:
        """Return the broker's data port. Clients of another cluster do not share it: the broker compares clusters as a connection is opened."""
        port = self._shared.data_ports.get(self.cluster_id)
        if port is None:
            ask = partial(_ask_data_connection, self._shared, self._address, self.cluster_id)
            port = self._shared.data_ports[self.cluster_id] = DataPort(self._address, ask)
        return port

    async def watch(self, request: pb.WatchRequest) -> AsyncGenerator[pb.TopologyUpdate, None]:
        """Open the topology stream."""
        self._check_open()
        call = self._shared.channel.unary_stream(
            WATCH.path,
            request_serializer=pb.WatchRequest.SerializeToString,
            response_deserializer=pb.TopologyUpdate.FromString,
        )(request)
        self._calls.add_stream(call)
        try:
            while isinstance(
                update := await self._calls.step(call, call.read()), pb.TopologyUpdate
            ):  # else grpc.aio.EOF
                yield update
        except grpc.aio.AioRpcError as error:
            raise error_from_rpc(error, self._address) from error.with_traceback(None)
        except asyncio.CancelledError as error:
            if is_caller_cancelled():
                raise
            raise BrokenConnectionError(f"{self._address}: the connection was closed") from error
        finally:
            self._calls.cancel(call)
            del call  # as in `call`

    def append_stream(self, on_response: OnResponse, on_end: OnEnd, on_writable: Callable[[], None]) -> AppendStream:
        """Open a stream. Does not wait."""
        self._check_open()
        open_over_grpc = partial(self._append_stream_over_grpc, on_response, on_end, on_writable)
        opened = self._data_port().connection(APPEND_NUMBER)
        if opened is None:
            return open_over_grpc()
        stream = DataAppendStream(opened, open_over_grpc, self._address, on_response, on_end, on_writable)
        self._data_streams.add(stream)
        return stream

    def _append_stream_over_grpc(
        self, on_response: OnResponse, on_end: OnEnd, on_writable: Callable[[], None]
    ) -> AppendStream:
        self._check_open()
        open_call: grpc.aio.StreamStreamMultiCallable[bytes, pb.AppendResponse] = self._shared.channel.stream_stream(
            APPEND_STREAM.path,
            request_serializer=None,  # the request is already serialized
            response_deserializer=pb.AppendResponse.FromString,
        )
        call = open_call(metadata=call_metadata(self.cluster_id))
        self._calls.add_stream(call)
        port = self._data_port()

        def on_lost(error: RaftMQError) -> None:
            port.on_broker_lost()
            on_end(error)

        def is_outdated() -> bool:
            return isinstance(port.connection(APPEND_NUMBER), DataConnection)

        stream = _GrpcStream(call, self._address, self._calls, pb.AppendResponse, on_response, on_lost, on_writable)
        self._keep_reader(stream.reader)
        return _GrpcAppendStream(stream, is_outdated)

    def queue_stream(self, on_response: OnQueueResponse, on_end: OnEnd, on_writable: Callable[[], None]) -> QueueStream:
        """Open a stream of messages. Does not wait."""
        self._check_open()
        open_over_grpc = partial(self._queue_stream_over_grpc, on_response, on_end, on_writable)
        opened = self._data_port().connection(POLL_STREAM_NUMBER)
        if opened is None or (isinstance(opened, DataConnection) and opened.user_count >= STREAMS_MAX):
            return open_over_grpc()
        stream = DataQueueStream(opened, open_over_grpc, self._address, on_response, on_end, on_writable)
        self._data_streams.add(stream)
        return stream

    def _queue_stream_over_grpc(
        self, on_response: OnQueueResponse, on_end: OnEnd, on_writable: Callable[[], None]
    ) -> QueueStream:
        self._check_open()
        open_call: grpc.aio.StreamStreamMultiCallable[bytes, pb.QueueStreamResponse] = (
            self._shared.channel.stream_stream(
                POLL_STREAM.path, request_serializer=None, response_deserializer=pb.QueueStreamResponse.FromString
            )
        )
        call = open_call(metadata=call_metadata(self.cluster_id))
        self._calls.add_stream(call)
        port = self._data_port()

        def on_lost(error: RaftMQError) -> None:
            port.on_broker_lost()
            on_end(error)

        stream = _GrpcStream(
            call, self._address, self._calls, pb.QueueStreamResponse, on_response, on_lost, on_writable
        )
        self._keep_reader(stream.reader)
        return _GrpcQueueStream(stream)

    def _keep_reader(self, reader: asyncio.Task[None]) -> None:
        self._readers.add(reader)
        reader.add_done_callback(self._readers.discard)

    async def close(self) -> None:
        """Close immediately. Running calls fail. Waits briefly until the core has ended them."""
        if not self._closed.done():
            self._closed.set_result(None)
            self._data_calls.close(BrokenConnectionError(f"{self._address}: the connection is closed"))
            for stream in list(self._data_streams):
                stream.close()
            try:
                await self._calls.end()
                if self._poll_tasks:
                    await asyncio.wait(self._poll_tasks)  # they have heard of it
                await cancel_and_wait(*self._readers)
            finally:
                await self._shared.leave(self)

    def _check_open(self) -> None:
        if self._closed.done():
            raise BrokenConnectionError(f"{self._address}: the connection is closed")


def _set_outcome(future: asyncio.Future[ResponseT | BaseException], outcome: ResponseT | BaseException) -> None:
    if not future.done():
        future.set_result(outcome)


def _unary_call(
    shared: SharedChannel,
    method: UnaryMethod[RequestT, ResponseT],
    request: RequestT,
    timeout_seconds: float,
    metadata: tuple[tuple[str, str], ...],
) -> grpc.aio.UnaryUnaryCall[RequestT, ResponseT]:
    """Begin a call. A reference to the result, or to a frame that has it, keeps gRPC alive."""
    callable_ = cast("grpc.aio.UnaryUnaryMultiCallable[RequestT, ResponseT] | None", shared.methods.get(method.path))
    if callable_ is None:
        callable_ = shared.channel.unary_unary(
            method.path,
            request_serializer=method.request_type.SerializeToString,
            response_deserializer=method.response_type.FromString,
        )
        shared.methods[method.path] = callable_
    return callable_(request, timeout=timeout_seconds, metadata=metadata)


async def _ask_data_connection(shared: SharedChannel, address: str, cluster_id: str) -> pb.OpenDataConnectionResponse:
    """Ask the broker for a data connection, for all clients that share the channel. Raises a `RaftMQError`."""
    request = pb.OpenDataConnectionRequest()
    call = _unary_call(shared, OPEN_DATA_CONNECTION, request, settings.DATA_OPEN_SECONDS, call_metadata(cluster_id))
    try:
        await shared.calls.wait_unary(call)
        return await call
    except grpc.aio.AioRpcError as error:
        raise error_from_call(error, address) from error.with_traceback(None)
    finally:
        del call, shared


class _GrpcStream(Generic[ResponseT]):
    """A stream of requests that are already serialized, and of answers that come in any order."""

    def __init__(
        self,
        call: grpc.aio.StreamStreamCall[bytes, ResponseT],
        address: str,
        calls: GrpcCalls,
        response_type: type[ResponseT],
        on_response: Callable[[ResponseT], None],
        on_end: OnEnd,
        on_writable: Callable[[], None],
    ) -> None:
        self._call = call
        self._address = address
        self._calls = calls
        self._response_type = response_type
        self._on_response = on_response
        self._on_end = on_end
        self._on_writable = on_writable
        self._is_ended = False
        """It was cancelled, or its end was reported."""
        self.reader = spawn(self._read_forever(), f"raftmq-stream-answers-{address}", self._on_crash)

    def write(self, body: bytes) -> None:
        """Send a request. `on_writable` or `on_end` is called afterwards."""
        if not self._is_ended:
            self._calls.begin_step(self._call.write(body)).add_done_callback(self._on_written)

    def cancel(self) -> None:
        self._is_ended = True
        self._calls.cancel(self._call)
        self.reader.cancel()

    def _on_written(self, writing: asyncio.Task[None]) -> None:
        if self._is_ended:
            return
        error = None if writing.cancelled() else writing.exception()
        if writing.cancelled():
            self._end(BrokenConnectionError(f"{self._address}: the stream was given up"))
        elif isinstance(error, grpc.aio.AioRpcError | asyncio.InvalidStateError):
            return  # The call has ended. Only the reader learns from its status whether the request can have left.
        elif error is not None:
            self._on_crash(error)
        else:
            self._on_writable()

    async def _read_forever(self) -> None:
        try:
            while not self._is_ended:
                response = await self._calls.step(self._call, self._call.read())
                if not isinstance(response, self._response_type):  # grpc.aio.EOF
                    self._end(BrokenConnectionError(f"{self._address}: the broker ended the stream"))
                elif not self._is_ended:
                    self._on_response(response)
        except grpc.aio.AioRpcError as error:
            self._end(error_from_call(error, self._address))
        except asyncio.CancelledError:
            if is_caller_cancelled():
                raise
            self._end(BrokenConnectionError(f"{self._address}: the stream was given up"))

    def _on_crash(self, error: BaseException) -> None:
        """End the stream after a defect of gRPC's Python layer, or of this class. Its requests may have arrived."""
        broken = BrokenConnectionError(f"{self._address}: the stream failed: {error!r}")
        broken.__cause__ = error
        self._end(broken)

    def _end(self, error: RaftMQError) -> None:
        if not self._is_ended:
            self._is_ended = True
            self._on_end(error)


class _GrpcAppendStream:
    """`AppendStream` over gRPC."""

    def __init__(self, stream: _GrpcStream[pb.AppendResponse], is_outdated: Callable[[], bool]) -> None:
        self.is_outdated = is_outdated
        self.cancel = stream.cancel
        self._stream = stream

    def write(self, request: SerializedAppend) -> bool:
        self._stream.write(request.body)
        return False

    def is_opening(self) -> bool:
        return False  # gRPC opens its connections itself, so a request may be under way


class _GrpcQueueStream:
    """`QueueStream` over gRPC."""

    def __init__(self, stream: _GrpcStream[pb.QueueStreamResponse]) -> None:
        self.cancel = stream.cancel
        self._stream = stream

    def write(self, request: pb.QueueStreamRequest) -> bool:
        self._stream.write(request.SerializeToString())
        return False
