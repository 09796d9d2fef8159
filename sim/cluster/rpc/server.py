"""The simulated counterpart of `grpc.aio.server`: connections, calls, and the contexts of handlers."""

# ruff: noqa: ANN401 -- only their creators know the types of handlers, messages and channels

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any

import grpc
import grpc.aio

from sim.cluster.rpc.messages import Caller, Details, Metadata, Status, witness
from sim.cluster.world.host import HOST, Host
from sim.cluster.world.loop import VirtualLoop
from sim.cluster.world.network import Listener, Network, Pipe


class RpcServer:
    """A server with the part of `grpc.aio.server` that the product uses."""

    def __init__(self, loop: VirtualLoop, network: Network, interceptors: Sequence[Any], address: str) -> None:
        host = HOST.get()
        assert host is not None
        self.loop = loop
        self.network = network
        self.host: Host = host
        self._interceptors = interceptors
        self._address = address
        self._handlers: dict[str, Any] = {}
        self._connections: dict[ServerConnection, None] = {}
        self.is_stopping = False

    def add_generic_rpc_handlers(self, generic_rpc_handlers: Sequence[Any]) -> None:
        """Do nothing, since all methods that matter are registered by name as well."""

    def add_registered_method_handlers(self, service_name: str, method_handlers: dict[str, Any]) -> None:
        """Register the methods of a service."""
        for name, handler in method_handlers.items():
            self._handlers[f"/{service_name}/{name}"] = handler

    def add_insecure_port(self, address: str) -> int:
        """Listen on the simulated address."""
        self.network.listeners[self._address] = Listener(self.host, self._accept)
        return int(self._address.rpartition(":")[2])

    async def start(self) -> None:
        """Do nothing, since the server listens already."""

    async def stop(self, grace: float | None) -> None:
        """Refuse new calls, wait for calls under way, and end the rest."""
        self.is_stopping = True
        self.network.listeners.pop(self._address, None)
        tasks = [task for connection in self._connections for task in connection.tasks()]
        if tasks and grace:
            await asyncio.wait(tasks, timeout=grace)
        for connection in list(self._connections):
            connection.close()

    def _accept(self, pipe: Pipe) -> None:
        connection = ServerConnection(self, pipe)
        self._connections[connection] = None

    def forget(self, connection: ServerConnection) -> None:
        """Remove a lost connection."""
        self._connections.pop(connection, None)

    async def handler_of(self, details: Details, position: int = 0) -> Any:
        """Return the handler after passing all interceptors."""
        if position == len(self._interceptors):
            return self._handlers.get(details.method)

        async def rest(details: Details) -> Any:
            return await self.handler_of(details, position + 1)

        return await self._interceptors[position].intercept_service(rest, details)


class ServerConnection:
    """A client's connection, at the server."""

    def __init__(self, server: RpcServer, pipe: Pipe) -> None:
        self.server = server
        self.pipe = pipe
        self.calls: dict[int, ServerCall] = {}
        pipe.ends[1].on_lost = self._on_lost

    def tasks(self) -> list[asyncio.Task[None]]:
        """Return the tasks of the calls under way."""
        return [call.task for call in self.calls.values() if call.task is not None]

    def begin(
        self,
        client: Caller,
        method: str,
        metadata: Metadata,
        seconds: float | None,
        messages: Sequence[bytes | None],
    ) -> None:
        """Begin a call whose headers arrived, with the messages that came with them."""
        if self.server.is_stopping:
            refusal = Status(grpc.StatusCode.UNAVAILABLE, "the server is shutting down")
            self.pipe.send(1, b"", client.on_end, None, refusal)
            return
        call = ServerCall(self, client, method, metadata, seconds, messages)
        self.calls[client.number] = call
        call.task = self.server.loop.create_task(call.run(), context=self.server.host.context.copy())

    def message(self, number: int, data: bytes | None) -> None:
        """Pass an arriving message to its call. None marks the end of the client's messages."""
        call = self.calls.get(number)
        if call is not None:
            call.on_message(data)

    def cancel(self, number: int) -> None:
        """Cancel a call for its client."""
        call = self.calls.pop(number, None)
        if call is not None and call.task is not None:
            call.task.cancel()

    def close(self) -> None:
        """Close the connection at the server."""
        self.pipe.close(1)
        self._on_lost()

    def _on_lost(self) -> None:
        self.server.forget(self)
        for number in list(self.calls):
            self.cancel(number)


class ServerCall:
    """A call at the server, which is the context of its handler."""

    def __init__(
        self,
        connection: ServerConnection,
        client: Caller,
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
        """Serve the call, and send its result as a status."""
        status = Status(grpc.StatusCode.OK)
        answer: bytes | None = None
        timer = None
        if self._deadline is not None:
            timer = self._loop.call_at(self._deadline, self._expire)
        try:
            handler = await self._connection.server.handler_of(Details(self._method, self._metadata))
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
        except Exception as error:  # noqa: BLE001 -- as in gRPC
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
            said = status.details.encode() if answer is None else witness(self._method, answer)
            self._connection.pipe.send(1, said, self._client.on_end, answer, status)

    def on_message(self, data: bytes | None) -> None:
        """Queue a message of the client."""
        self._messages.append(data)
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    async def read(self) -> Any:
        """Return the next message, or EOF."""
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
            self._connection.pipe.send(1, witness(self._method, data), self._client.on_message, data)

    async def abort(self, code: grpc.StatusCode, details: str = "", trailing_metadata: Metadata = ()) -> None:
        """End the call with a status."""
        self._end(Status(code, details, tuple(trailing_metadata)))
        raise grpc.aio.AbortError

    def peer(self) -> str:
        """Return the caller's name."""
        return "sim:" + self._connection.pipe.ends[0].host.name

    def time_remaining(self) -> float | None:
        """Return the seconds until the client's deadline, or None."""
        return None if self._deadline is None else max(0.0, self._deadline - self._loop.time())

    def invocation_metadata(self) -> Metadata:
        """Return the metadata that came with the headers."""
        return self._metadata
