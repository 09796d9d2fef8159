"""gRPC as far as brokers and clients see it, over the simulated network: real handlers, real bytes, no sockets.

A server serves what the production server registers, through the production interceptors. A channel connects when it is first
used, fails fast while it cannot, and loses its calls when its connection breaks. A cancelled or overdue call is cancelled at
the server when the word of it arrives. What a side says in one step travels as one packet: headers with the messages that are
known at the beginning, a single answer with its status, as gRPC's library writes them.
"""

# ruff: noqa: ANN401 -- what handlers, messages and channels are is known to those who make them

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any, NamedTuple, Self, TypeVar

import grpc
import grpc.aio
from raftmq.client.heartbeat_runner import LoopHeartbeats
from raftmq.client.membership import Membership
from raftmq.client.transport import (
    AppendStream,
    Connection,
    HeartbeatRunner,
    UnaryMethod,
    call_metadata,
    error_from_call,
    error_from_rpc,
)
from raftmq.errors import BrokenConnectionError
from raftmq.proto import queue_pb2 as pb

from sim.node.host import HOST, Host
from sim.node.loop import VirtualLoop
from sim.node.network import Listener, Network, Pipe

_CONNECT_SECONDS = 1.0
"""GRPC's patience with one attempt to connect."""
_BACKOFF_MIN_SECONDS = 0.05
_BACKOFF_MAX_SECONDS = 1.0

Metadata = Sequence[tuple[str, str | bytes]]


class _Details(NamedTuple):
    method: str
    invocation_metadata: Metadata


def _has_map(message: Any, seen: tuple[str, ...] = ()) -> bool:
    """Whether a message may have a map in it, at whatever depth."""
    if message.full_name in seen:
        return False
    deeper = (*seen, message.full_name)
    return any(
        field.message_type is not None
        and (field.message_type.GetOptions().map_entry or _has_map(field.message_type, deeper))
        for field in message.fields
    )


_WITH_MAPS = frozenset(
    f"/{service.full_name}/{method.name}"
    for service in pb.DESCRIPTOR.services_by_name.values()
    for method in service.methods
    if _has_map(method.input_type) or _has_map(method.output_type)
)
"""Methods whose messages have maps, which protobuf writes in an order that differs from process to process."""


def _witness(method: str, data: bytes) -> bytes:
    """What stands for a message in the trace."""
    return bytes(sorted(data)) if method in _WITH_MAPS else data


class Status(NamedTuple):
    """How a call ended."""

    code: grpc.StatusCode
    details: str = ""
    trailing: Metadata = ()


# ---------------------------------------------------------------------------------------------------------------- server


class RpcServer:
    """What `grpc.aio.server` gives, as far as the product uses it."""

    def __init__(self, loop: VirtualLoop, network: Network, interceptors: Sequence[Any], address: str) -> None:
        host = HOST.get()
        assert host is not None
        self.loop = loop
        self.network = network
        self.host: Host = host
        self._interceptors = interceptors
        self._address = address
        self._handlers: dict[str, Any] = {}
        self._connections: dict[_ServerConnection, None] = {}
        self.is_stopping = False

    def add_generic_rpc_handlers(self, generic_rpc_handlers: Sequence[Any]) -> None:
        """Not needed: what counts is registered by name as well."""

    def add_registered_method_handlers(self, service_name: str, method_handlers: dict[str, Any]) -> None:
        """Serve these methods."""
        for name, handler in method_handlers.items():
            self._handlers[f"/{service_name}/{name}"] = handler

    def add_insecure_port(self, address: str) -> int:
        """Listen there."""
        self.network.listeners[self._address] = Listener(self.host, self._accept)
        return int(self._address.rpartition(":")[2])

    async def start(self) -> None:
        """Begin to serve."""

    async def stop(self, grace: float | None) -> None:
        """Take no new calls, wait for those under way, and end the rest."""
        self.is_stopping = True
        self.network.listeners.pop(self._address, None)
        tasks = [task for connection in self._connections for task in connection.tasks()]
        if tasks and grace:
            await asyncio.wait(tasks, timeout=grace)
        for connection in list(self._connections):
            connection.close()

    def _accept(self, pipe: Pipe) -> None:
        connection = _ServerConnection(self, pipe)
        self._connections[connection] = None

    def forget(self, connection: _ServerConnection) -> None:
        """A connection is gone."""
        self._connections.pop(connection, None)

    async def handler_of(self, details: _Details, position: int = 0) -> Any:
        """The handler behind all interceptors."""
        if position == len(self._interceptors):
            return self._handlers.get(details.method)

        async def rest(details: _Details) -> Any:
            return await self.handler_of(details, position + 1)

        return await self._interceptors[position].intercept_service(rest, details)


class _ServerConnection:
    """A client's connection at the server."""

    def __init__(self, server: RpcServer, pipe: Pipe) -> None:
        self.server = server
        self.pipe = pipe
        self.calls: dict[int, ServerCall] = {}
        pipe.ends[1].on_lost = self._on_lost

    def tasks(self) -> list[asyncio.Task[None]]:
        """Of calls under way."""
        return [call.task for call in self.calls.values() if call.task is not None]

    def begin(
        self,
        client: ClientCall,
        method: str,
        metadata: Metadata,
        seconds: float | None,
        messages: Sequence[bytes | None],
    ) -> None:
        """A call's headers arrived, and the messages that came with them."""
        if self.server.is_stopping:
            refusal = Status(grpc.StatusCode.UNAVAILABLE, "the server is shutting down")
            self.pipe.send(1, b"", client.on_end, None, refusal)
            return
        call = ServerCall(self, client, method, metadata, seconds, messages)
        self.calls[client.number] = call
        call.task = self.server.loop.create_task(call.run(), context=self.server.host.context.copy())

    def message(self, number: int, data: bytes | None) -> None:
        """A message arrived; None: the client has no more."""
        call = self.calls.get(number)
        if call is not None:
            call.on_message(data)

    def cancel(self, number: int) -> None:
        """The client gave the call up."""
        call = self.calls.pop(number, None)
        if call is not None and call.task is not None:
            call.task.cancel()

    def close(self) -> None:
        """The server closes it."""
        self.pipe.close(1)
        self._on_lost()

    def _on_lost(self) -> None:
        self.server.forget(self)
        for number in list(self.calls):
            self.cancel(number)


class ServerCall:
    """A call at the server: the context of its handler."""

    def __init__(
        self,
        connection: _ServerConnection,
        client: ClientCall,
        method: str,
        metadata: Metadata,
        seconds: float | None,
        messages: Sequence[bytes | None],
    ) -> None:
        self._connection = connection
        self._client = client
        self._method = method
        self._metadata = tuple(metadata)
        self._loop = connection.server.loop
        self._deadline = None if seconds is None else self._loop.time() + seconds
        self._messages: deque[bytes | None] = deque(messages)
        self._reader: asyncio.Future[None] | None = None
        self._is_ended = False
        self.task: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Serve it; whatever comes of it leaves as a status."""
        status = Status(grpc.StatusCode.OK)
        answer: bytes | None = None
        timer = None
        if self._deadline is not None:
            timer = self._loop.call_at(self._deadline, self._expire)
        try:
            handler = await self._connection.server.handler_of(_Details(self._method, self._metadata))
            if handler is None:
                status = Status(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")
            elif handler.response_streaming:
                await handler.stream_stream(None, self)
            else:
                answer = await handler.stream_unary(None, self)
        except grpc.aio.AbortError:
            return
        except asyncio.CancelledError:
            status = Status(grpc.StatusCode.CANCELLED, "the call was cancelled")
        except Exception as error:  # noqa: BLE001 -- as gRPC does
            status = Status(grpc.StatusCode.UNKNOWN, f"Unexpected {type(error)}: {error}")
            self._loop.failures.append((f"{self._connection.server.host}: {self._method}", error))
        finally:
            if timer is not None:
                timer.cancel()
            self._connection.calls.pop(self._client.number, None)
        self._end(status, answer)

    def _expire(self) -> None:
        if self.task is not None:
            self.task.cancel()

    def _end(self, status: Status, answer: bytes | None = None) -> None:
        if not self._is_ended:
            self._is_ended = True
            self._connection.calls.pop(self._client.number, None)
            said = status.details.encode() if answer is None else _witness(self._method, answer)
            self._connection.pipe.send(1, said, self._client.on_end, answer, status)

    def on_message(self, data: bytes | None) -> None:
        """From the client."""
        self._messages.append(data)
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    async def read(self) -> Any:
        """The next message."""
        while not self._messages:
            self._reader = self._loop.create_future()
            await self._reader
        data = self._messages[0]
        if data is None:
            return grpc.aio.EOF
        self._messages.popleft()
        return data

    async def write(self, data: bytes) -> None:
        """Send an answer."""
        if not self._is_ended:
            self._connection.pipe.send(1, _witness(self._method, data), self._client.on_message, data)

    async def abort(self, code: grpc.StatusCode, details: str = "", trailing_metadata: Metadata = ()) -> None:
        """End the call."""
        self._end(Status(code, details, tuple(trailing_metadata)))
        raise grpc.aio.AbortError

    def peer(self) -> str:
        """Who calls."""
        return "sim:" + self._connection.pipe.ends[0].host.name

    def time_remaining(self) -> float | None:
        """Until the client's deadline."""
        return None if self._deadline is None else max(0.0, self._deadline - self._loop.time())

    def invocation_metadata(self) -> Metadata:
        """What came with the headers."""
        return self._metadata


# ---------------------------------------------------------------------------------------------------------------- client


class ClientCall:
    """A call at the client, of any shape. Its callbacks run in the client's host."""

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
        """The channel is connected: send what there is."""
        if self.status is not None:
            return
        self._connection = connection
        remaining = None
        if self._timer is not None:
            remaining = max(0.001, self._timer.when() - self._loop.time())
        unsent, self._unsent = self._unsent, []
        said = self._method.encode() + b"".join(_witness(self._method, data) for data in unsent if data is not None)
        pipe.send(0, said, connection.begin, self, self._method, self._metadata, remaining, unsent)

    def send(self, data: bytes | None) -> None:
        """Send a message; None: there are no more."""
        if self.status is not None:
            return
        pipe = self._channel.pipe
        if self._connection is None or pipe is None:
            self._unsent.append(data)
        else:
            pipe.send(0, _witness(self._method, data or b""), self._connection.message, self.number, data)

    def on_message(self, data: bytes) -> None:
        """An answer arrived."""
        if self.status is None:
            self._answers.append(data)
            self._wake()

    def on_end(self, answer: bytes | None, status: Status) -> None:
        """It is over, with an answer or without."""
        if answer is not None and self.status is None:
            self._answers.append(answer)
        self.on_status(status)

    def on_status(self, status: Status) -> None:
        """It is over."""
        if self.status is None:
            self.status = status
            if self._timer is not None:
                self._timer.cancel()
            self._channel.forget(self)
            self._wake()

    def cancel(self, status: Status | None = None) -> None:
        """Give it up, and tell the server."""
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
        """The next answer; None when it ended well. Raises `AioRpcError`."""
        while not self._answers and self.status is None:
            self._changed = self._loop.create_future()
            await self._changed
        if self._answers:
            return self._answers.popleft()
        assert self.status is not None
        self.raise_error()
        return None

    def raise_error(self) -> None:
        """Raise unless it ended well."""
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
        """Begin a call. `messages`: what is sent at once; None: there are no more."""
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
        """It is over."""
        self._calls.pop(call.number, None)

    async def close(self, grace: float | None = None) -> None:
        """End everything."""
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
        """As `grpc.aio.Channel`."""

        async def call(request: object, *, timeout: float | None = None, metadata: Metadata = ()) -> Any:  # noqa: ASYNC109 -- gRPC's name
            return response_deserializer(await self.unary(path, request_serializer(request), metadata, timeout))

        return call

    def unary_stream(self, *_: object, **__: object) -> None:
        """Made by the stubs and not used."""

    stream_stream = stream_unary = unary_stream

    async def unary(self, path: str, request: bytes, metadata: Metadata, seconds: float | None) -> bytes:
        """One call. Raises `AioRpcError`."""
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
    """The server's side of a connection, as the client can name it: it is made when the server accepts."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe

    def _of(self) -> _ServerConnection | None:
        lost: Any = self._pipe.ends[1].on_lost
        owner = getattr(lost, "__self__", None)
        return owner if isinstance(owner, _ServerConnection) else None

    def begin(self, *args: Any) -> None:
        """See `_ServerConnection`."""
        connection = self._of()
        if connection is not None:
            connection.begin(*args)

    def message(self, *args: Any) -> None:
        """See `_ServerConnection`."""
        connection = self._of()
        if connection is not None:
            connection.message(*args)

    def cancel(self, *args: Any) -> None:
        """See `_ServerConnection`."""
        connection = self._of()
        if connection is not None:
            connection.cancel(*args)


# ------------------------------------------------------------------------------------------------------- the SDK's transport

RequestT = TypeVar("RequestT", bound=Any)
ResponseT = TypeVar("ResponseT", bound=Any)


class ClientTransport:
    """`raftmq.client.transport.Transport` over the simulated network."""

    def __init__(self, loop: VirtualLoop, network: Network) -> None:
        self._loop = loop
        self._network = network

    def connect(self, address: str) -> Connection:
        """See `Transport`."""
        return ClientConnection(RpcChannel(self._loop, self._network, address))

    def run_heartbeats(self, membership: Membership, on_news: Callable[[], None], cluster_id: str) -> HeartbeatRunner:
        """See `Transport`: in the loop, which nothing blocks here."""
        return LoopHeartbeats(self, membership, on_news, cluster_id)


class ClientConnection:
    """`Connection` over a channel."""

    def __init__(self, channel: RpcChannel) -> None:
        self.cluster_id = ""
        self._channel = channel

    @property
    def address(self) -> str:
        """Where it leads."""
        return self._channel.address

    async def call(
        self, method: UnaryMethod[RequestT, ResponseT], request: RequestT, timeout_seconds: float
    ) -> ResponseT:
        """See `Connection`."""
        self._check_open()
        metadata = call_metadata(self.cluster_id)
        try:
            data = await self._channel.unary(method.path, request.SerializeToString(), metadata, timeout_seconds)
        except grpc.aio.AioRpcError as error:
            raise error_from_call(error, self.address) from error
        answer: ResponseT = method.response_type.FromString(data)
        return answer

    async def watch(self, request: pb.WatchRequest) -> AsyncGenerator[pb.TopologyUpdate, None]:
        """See `Connection`."""
        self._check_open()
        call = self._channel.begin("/raftmq.v1.Topology/Watch", messages=(request.SerializeToString(), None))
        try:
            while (data := await call.read()) is not None:
                yield pb.TopologyUpdate.FromString(data)
        except grpc.aio.AioRpcError as error:
            raise error_from_rpc(error, self.address) from error
        finally:
            call.cancel()

    def append_stream(self) -> AppendStream:
        """See `Connection`."""
        self._check_open()
        call = self._channel.begin("/raftmq.v1.Queue/AppendStream", call_metadata(self.cluster_id))
        return _SimAppendStream(call, self.address)

    async def close(self) -> None:
        """See `Connection`."""
        await self._channel.close()

    def _check_open(self) -> None:
        if self._channel.is_closed:
            raise BrokenConnectionError(f"{self.address}: the connection is closed")


class _SimAppendStream:
    def __init__(self, call: ClientCall, address: str) -> None:
        self._call = call
        self._address = address

    async def write(self, request: bytes) -> None:
        status = self._call.status
        if status is not None:
            try:
                self._call.raise_error()
            except grpc.aio.AioRpcError as error:
                raise error_from_call(error, self._address) from error
            raise BrokenConnectionError(f"{self._address}: the append stream has ended")
        self._call.send(request)

    async def read(self) -> pb.AppendResponse:
        try:
            data = await self._call.read()
        except grpc.aio.AioRpcError as error:
            raise error_from_call(error, self._address) from error
        if data is None:
            raise BrokenConnectionError(f"{self._address}: the broker ended the append stream")
        return pb.AppendResponse.FromString(data)

    def cancel(self) -> None:
        self._call.cancel()
