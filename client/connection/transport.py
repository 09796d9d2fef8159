"""The SDK's access to brokers: a small seam (`Transport`, `Connection`, `AppendStream`) and its gRPC implementation.

A simulator replaces `GrpcTransport` with one in memory. Every failure leaves this module as a `RaftMQError`: the broker's typed error,
`UnreachableError` (nothing was sent), `BrokenConnectionError` or `RequestTimedOutError` (the request may have arrived). Must not retry or
choose brokers: the resolver and the callers do.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Protocol, cast

import grpc
import grpc.aio
from raftmq.call_metadata import CLUSTER_KEY, STATUS_DETAILS_KEY
from raftmq.client.base import settings
from raftmq.client.base.error_details import detail_from_status, error_from_detail, with_address
from raftmq.client.base.fork_guard import check_grpc_usable
from raftmq.client.connection import grpc_fork as grpc_fork  # from now on each fork checks whether gRPC is in use
from raftmq.client.connection.grpc_calls import GrpcCalls
from raftmq.client.connection.shared_channel import shared_channel
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
from raftmq.methods import APPEND_STREAM, WATCH, RequestT, ResponseT, UnaryMethod
from raftmq.proto import queue_pb2 as pb


class AppendStream(Protocol):
    """A bidirectional stream of appends to one broker."""

    async def write(self, request: bytes) -> None:
        """Send one serialized `AppendRequest` (see `append_frame`). Waits for flow control.

        Raises `BrokenConnectionError` when the stream has ended.
        """
        ...

    async def read(self) -> pb.AppendResponse:
        """Wait for the next answer. Raises a `RaftMQError` when the stream ends."""
        ...

    def cancel(self) -> None:
        """Abandon the stream. Unanswered requests have an unknown outcome."""
        ...


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

    def append_stream(self) -> AppendStream:
        """Open a stream, without waiting."""
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
        return UnsupportedVersionError(f"{address}: the server there does not know this call ({details})")
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
        self._shared = shared_channel(address, open_channel)
        self._shared.users.add(self)
        self._calls = GrpcCalls()
        self._is_closed = False

    @property
    def address(self) -> str:
        """Return its address."""
        return self._address

    async def call(
        self, method: UnaryMethod[RequestT, ResponseT], request: RequestT, timeout_seconds: float
    ) -> ResponseT:
        """Make one unary call. Cancelling it cancels the call at the broker."""
        self._check_open()
        methods = self._shared.methods
        callable_ = cast("grpc.aio.UnaryUnaryMultiCallable[RequestT, ResponseT] | None", methods.get(method.path))
        if callable_ is None:
            callable_ = self._shared.channel.unary_unary(
                method.path,
                request_serializer=method.request_type.SerializeToString,
                response_deserializer=method.response_type.FromString,
            )
            methods[method.path] = callable_
        call = callable_(request, timeout=timeout_seconds, metadata=call_metadata(self.cluster_id))
        try:
            await self._calls.wait_unary(call)
            self._check_open()
            return await call
        except grpc.aio.AioRpcError as error:
            raise error_from_call(error, self._address) from error.with_traceback(None)
        finally:
            del (
                call,
                callable_,
            )  # an error that somebody keeps refers to this frame, which must not keep gRPC alive: see `grpc_fork`

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

    def append_stream(self) -> AppendStream:
        """Open a stream, without waiting."""
        self._check_open()
        open_call: grpc.aio.StreamStreamMultiCallable[bytes, pb.AppendResponse] = self._shared.channel.stream_stream(
            APPEND_STREAM.path,
            request_serializer=None,  # the request is already serialized
            response_deserializer=pb.AppendResponse.FromString,
        )
        call = open_call(metadata=call_metadata(self.cluster_id))
        self._calls.add_stream(call)
        return _GrpcAppendStream(call, self._address, self._calls)

    async def close(self) -> None:
        """Close immediately. Running calls fail. Waits briefly until the core has ended them."""
        if not self._is_closed:
            self._is_closed = True
            try:
                await self._calls.end()
            finally:
                await self._shared.leave(self)

    def _check_open(self) -> None:
        if self._is_closed:
            raise BrokenConnectionError(f"{self._address}: the connection is closed")


class _GrpcAppendStream:
    def __init__(
        self, call: grpc.aio.StreamStreamCall[bytes, pb.AppendResponse], address: str, calls: GrpcCalls
    ) -> None:
        self._call = call
        self._address = address
        self._calls = calls

    async def write(self, request: bytes) -> None:
        try:
            await self._calls.step(self._call, self._call.write(request))
        except grpc.aio.AioRpcError as error:
            raise error_from_call(error, self._address) from error
        except asyncio.InvalidStateError as error:  # the call had ended before
            raise BrokenConnectionError(f"{self._address}: the append stream has ended") from error
        except asyncio.CancelledError as error:
            if is_caller_cancelled():
                raise
            raise BrokenConnectionError(f"{self._address}: the append stream was cancelled") from error

    async def read(self) -> pb.AppendResponse:
        try:
            response = await self._calls.step(self._call, self._call.read())
        except grpc.aio.AioRpcError as error:
            raise error_from_call(error, self._address) from error
        except asyncio.CancelledError as error:
            if is_caller_cancelled():
                raise
            raise BrokenConnectionError(f"{self._address}: the append stream was cancelled") from error
        if not isinstance(response, pb.AppendResponse):  # grpc.aio.EOF
            raise BrokenConnectionError(f"{self._address}: the broker ended the append stream")
        return response

    def cancel(self) -> None:
        self._calls.cancel(self._call)
