"""The simulated counterpart of `grpc.aio.insecure_channel`: a connection that several calls share, and the calls."""

# ruff: noqa: ANN401 -- only their creators know the types of handlers, messages and channels

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Self

import grpc
import grpc.aio

from sim.cluster.rpc.messages import Metadata, Status, witness
from sim.cluster.rpc.server import ServerConnection
from sim.cluster.world.host import HOST, Host
from sim.cluster.world.loop import VirtualLoop
from sim.cluster.world.network import Network, Pipe

_CONNECT_SECONDS = 1.0
"""Timeout of one attempt to connect, as in gRPC."""
_BACKOFF_MIN_SECONDS = 0.05
_BACKOFF_MAX_SECONDS = 1.0


class ClientCall:
    """A call at the client, of any kind. Its callbacks run in the client's host."""

    def __init__(
        self,
        channel: RpcChannel,
        number: int,
        method: str,
        metadata: Metadata,
        seconds: float | None,
        messages: Sequence[bytes | None],
    ) -> None:
        self.number = number
        self._channel = channel
        self._loop = channel.loop
        self._method = method
        self._metadata = metadata
        self._seconds = seconds
        self._connection: _Late | None = None
        self._unsent: list[bytes | None] = list(messages)
        self._answers: deque[bytes] = deque()
        self._changed: asyncio.Future[None] | None = None
        self.status: Status | None = None
        self._timer = None if seconds is None else self._loop.call_later(seconds, self._expire)

    def opened(self, connection: _Late, pipe: Pipe) -> None:
        """Send the headers and queued messages, since the channel is connected now."""
        if self.status is not None:
            return
        self._connection = connection
        remaining = None
        if self._timer is not None:
            remaining = max(0.001, self._timer.when() - self._loop.time())
        unsent, self._unsent = self._unsent, []
        said = self._method.encode() + b"".join(witness(self._method, data) for data in unsent if data is not None)
        pipe.send(0, said, connection.begin, self, self._method, self._metadata, remaining, unsent)

    def send(self, data: bytes | None) -> None:
        """Send a message, or None after the last one."""
        if self.status is not None:
            return
        pipe = self._channel.pipe
        if self._connection is None or pipe is None:
            self._unsent.append(data)
        else:
            pipe.send(0, witness(self._method, data or b""), self._connection.message, self.number, data)

    def on_message(self, data: bytes) -> None:
        """Queue an arriving answer."""
        if self.status is None:
            self._answers.append(data)
            self._wake()

    def on_end(self, answer: bytes | None, status: Status) -> None:
        """End the call with its status and, if there is one, its only answer."""
        if answer is not None and self.status is None:
            self._answers.append(answer)
        self.on_status(status)

    def on_status(self, status: Status) -> None:
        """End the call."""
        if self.status is None:
            self.status = status
            if self._timer is not None:
                self._timer.cancel()
            self._channel.forget(self)
            self._wake()

    def cancel(self, status: Status | None = None) -> None:
        """Cancel the call, and inform the server."""
        if self.status is None:
            pipe = self._channel.pipe
            if self._connection is not None and pipe is not None:
                pipe.send(0, b"", self._connection.cancel, self.number)
            self.on_status(status or Status(grpc.StatusCode.CANCELLED, "Locally cancelled by application!"))

    def _expire(self) -> None:
        waiting = "" if self._connection is not None else " while waiting for a connection"
        self.cancel(Status(grpc.StatusCode.DEADLINE_EXCEEDED, f"Deadline Exceeded{waiting}"))

    def _wake(self) -> None:
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)

    async def read(self) -> bytes | None:
        """Return the next answer, or None after a successful end. Raises `AioRpcError`."""
        while not self._answers and self.status is None:
            self._changed = self._loop.create_future()
            await self._changed
        if self._answers:
            return self._answers.popleft()
        assert self.status is not None
        self.raise_error()
        return None

    def raise_error(self) -> None:
        """Raise `AioRpcError` unless the call ended successfully."""
        status = self.status
        if status is not None and status.code is not grpc.StatusCode.OK:
            metadata = grpc.aio.Metadata(*status.trailing)
            raise grpc.aio.AioRpcError(status.code, grpc.aio.Metadata(), metadata, details=status.details)


class RpcChannel:
    """A client's shared connection to one address."""

    def __init__(self, loop: VirtualLoop, network: Network, address: str) -> None:
        host = HOST.get()
        assert host is not None
        self.loop = loop
        self.address = address
        self.pipe: Pipe | None = None
        self._host: Host = host
        self._network = network
        self._calls: dict[int, ClientCall] = {}
        self._next_number = 1
        self._server_side: _Late | None = None
        self._is_connecting = False
        self._attempt = 0
        self._failures = 0
        self._fails_until = 0.0
        self._last_failure = ""
        self.is_closed = False

    def begin(
        self,
        method: str,
        metadata: Metadata = (),
        seconds: float | None = None,
        messages: Sequence[bytes | None] = (),
    ) -> ClientCall:
        """Begin a call. `messages` are sent with the headers. A None in them marks the end of the messages."""
        number = self._next_number
        self._next_number += 1
        call = ClientCall(self, number, method, metadata, seconds, messages)
        if self.is_closed:
            call.on_status(Status(grpc.StatusCode.CANCELLED, "Channel closed!"))
            return call
        self._calls[number] = call
        if self.pipe is not None:
            assert self._server_side is not None
            call.opened(self._server_side, self.pipe)
        elif self.loop.time() < self._fails_until:
            self.loop.call_soon(call.on_status, self._unreachable())
        else:
            self._connect()
        return call

    def _connect(self) -> None:
        if self._is_connecting:
            return
        self._is_connecting = True
        self._attempt += 1
        attempt = self._attempt
        timer = self.loop.call_later(_CONNECT_SECONDS, self._failed, attempt, "timed out")

        def on_open(pipe: Pipe) -> None:
            timer.cancel()
            if self._attempt != attempt or self.is_closed:
                pipe.close(0)
                return
            self._on_open(pipe)

        def on_refused() -> None:
            timer.cancel()
            self._failed(attempt, "Connection refused")

        self._network.connect(self._host, self.address, on_open, on_refused)

    def _on_open(self, pipe: Pipe) -> None:
        self._is_connecting = False
        self._failures = 0
        self.pipe = pipe
        pipe.ends[0].on_lost = self._on_lost
        self._server_side = _Late(pipe)
        for call in list(self._calls.values()):
            call.opened(self._server_side, pipe)

    def _failed(self, attempt: int, reason: str) -> None:
        if attempt != self._attempt or not self._is_connecting:
            return
        self._is_connecting = False
        self._attempt += 1
        self._last_failure = reason
        backoff = min(_BACKOFF_MAX_SECONDS, _BACKOFF_MIN_SECONDS * (1 << min(self._failures, 8)))
        self._failures += 1
        self._fails_until = self.loop.time() + backoff
        for call in list(self._calls.values()):
            call.on_status(self._unreachable())

    def _unreachable(self) -> Status:
        details = f"failed to connect to all addresses; last error: {self.address}: {self._last_failure}"
        return Status(grpc.StatusCode.UNAVAILABLE, details)

    def _on_lost(self) -> None:
        self.pipe = None
        for call in list(self._calls.values()):
            call.on_status(Status(grpc.StatusCode.UNAVAILABLE, "Socket closed"))

    def forget(self, call: ClientCall) -> None:
        """Remove an ended call."""
        self._calls.pop(call.number, None)

    async def close(self, grace: float | None = None) -> None:
        """Cancel all calls and close the connection."""
        self.is_closed = True
        for call in list(self._calls.values()):
            call.cancel()
        if self.pipe is not None:
            pipe, self.pipe = self.pipe, None
            pipe.ends[0].on_lost = None
            pipe.close(0)

    # as grpc.aio.Channel, for the generated stubs and the forwarder

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def unary_unary(
        self,
        path: str,
        request_serializer: Callable[[Any], bytes],
        response_deserializer: Callable[[bytes], Any],
        _registered_method: bool | None = None,
    ) -> Callable[..., Any]:
        """See `grpc.aio.Channel`."""

        async def call(request: object, *, timeout: float | None = None, metadata: Metadata = ()) -> Any:  # noqa: ASYNC109 -- gRPC's name
            return response_deserializer(await self.unary(path, request_serializer(request), metadata, timeout))

        return call

    def unary_stream(self, *_: object, **__: object) -> None:
        """Do nothing: the stubs create such calls, but nobody uses them."""

    stream_stream = stream_unary = unary_stream

    async def unary(self, path: str, request: bytes, metadata: Metadata, seconds: float | None) -> bytes:
        """Do one unary call. Raises `AioRpcError`."""
        running = self.begin(path, metadata, seconds, (request, None))
        try:
            answer = await running.read()
            while running.status is None:
                await running.read()
            running.raise_error()
        except asyncio.CancelledError:
            running.cancel()
            raise
        assert answer is not None
        return answer


class _Late:
    """A proxy for the server's side of a connection, which is created only when the server accepts."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe

    def _of(self) -> ServerConnection | None:
        lost: Any = self._pipe.ends[1].on_lost
        owner = getattr(lost, "__self__", None)
        return owner if isinstance(owner, ServerConnection) else None

    def begin(self, *args: Any) -> None:
        """See `ServerConnection`."""
        connection = self._of()
        if connection is not None:
            connection.begin(*args)

    def message(self, *args: Any) -> None:
        """See `ServerConnection`."""
        connection = self._of()
        if connection is not None:
            connection.message(*args)

    def cancel(self, *args: Any) -> None:
        """See `ServerConnection`."""
        connection = self._of()
        if connection is not None:
            connection.cancel(*args)
