"""Provide a FAKE data port for the SDK's tests: a real TCP server over `raftmq.frames`, in front of a `FakeBroker`.

A test can make each connection misbehave: `pause` stops its reading, `say` writes any frame, `is_mute` leaves calls unanswered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from raftmq.frames import DATA_METHODS, DATA_VERSION, FrameReader, FrameType, frame_header
from raftmq.methods import INIT_PRODUCER, POLL_STREAM
from raftmq.proto import queue_pb2 as pb

from tests.support.client.fake_queue import FakeStream

if TYPE_CHECKING:
    from tests.support.client.fake_broker import FakeBroker


class FakeDataPort:
    """A port that accepts each of its tokens once."""

    def __init__(self, broker: FakeBroker) -> None:
        self.broker = broker
        self.port = 0
        self.connections: list[FakeDataConnection] = []
        """All connections so far, open or closed."""
        self.refusal: pb.ErrorDetail | None = None
        """The error that answers HELLO."""
        self.version = DATA_VERSION
        """The newest version of the frames that it speaks."""
        self.is_silent = False
        """Whether HELLO gets no answer."""
        self.changed = asyncio.Condition()
        self._tokens: set[bytes] = set()
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: FakeDataConnection(self), "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        if self._server is not None:
            server, self._server = self._server, None
            server.close()
            for connection in self.connections:
                connection.abort()
            await server.wait_closed()
            await asyncio.sleep(0)

    def token(self) -> bytes:
        token = b"token-%d" % len(self._tokens)
        self._tokens.add(token)
        return token

    @property
    def open_connections(self) -> list[FakeDataConnection]:
        return [connection for connection in self.connections if connection.is_open]

    def note_change(self) -> None:
        async def notify() -> None:
            async with self.changed:
                self.changed.notify_all()

        task = asyncio.ensure_future(notify())
        self._notifying = task

    async def wait(self, is_so: Callable[[], bool]) -> None:
        """Wait for a condition, which is checked after each frame and each end of a connection."""
        async with asyncio.timeout(10), self.changed:
            await self.changed.wait_for(is_so)


class FakeDataConnection(asyncio.BufferedProtocol):
    def __init__(self, port: FakeDataPort) -> None:
        self._port = port
        self._reader = FrameReader(8 << 20)
        self._transport: Any = None
        self._running: dict[int, asyncio.Task[None]] = {}
        self.streams: dict[int, FakeStream] = {}
        """Streams of messages, by correlation id."""
        self.is_open = False
        self.is_mute = False
        """Whether calls are recorded but not answered."""
        self.calls: list[tuple[int, int, bytes]] = []
        """Method number, correlation id and body of each call."""
        self.timeouts_ms: list[int] = []
        self.cancelled: list[int] = []
        self.error_of: Callable[[bytes], pb.ErrorDetail | None] = lambda _: None
        """Returns the error with which a call with this body is refused."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self.is_open = True
        self._port.connections.append(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        for task in self._running.values():
            task.cancel()
        self._port.note_change()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._reader.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        self._reader.received(nbytes, self._on_frame)
        self._port.note_change()

    def say(self, frame_type: FrameType, correlation_id: int = 0, body: bytes = b"") -> None:
        self._transport.write(frame_header(frame_type, len(body), correlation_id) + body)

    def close(self) -> None:
        """Close after all written bytes were sent."""
        self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def pause(self) -> None:
        self._transport.pause_reading()

    def resume(self) -> None:
        self._transport.resume_reading()

    def _on_frame(
        self, frame_type: FrameType, method_number: int, timeout_ms: int, correlation_id: int, body: memoryview
    ) -> None:
        if frame_type is FrameType.HELLO:
            self._on_hello(pb.DataHello.FromString(bytes(body)))
        elif frame_type is FrameType.CANCEL:
            self.cancelled.append(correlation_id)
            task = self._running.pop(correlation_id, None)
            if task is not None:
                task.cancel()
        elif frame_type is FrameType.REQUEST:
            if not self.is_mute and correlation_id in self.streams:
                self.streams[correlation_id].on_request(pb.QueueStreamRequest.FromString(bytes(body)))
        else:
            assert frame_type is FrameType.CALL
            data = bytes(body)
            self.calls.append((method_number, correlation_id, data))
            self.timeouts_ms.append(timeout_ms)
            if self.is_mute:
                return
            if DATA_METHODS[method_number] is POLL_STREAM:
                stream = self.streams[correlation_id] = FakeStream(self._port.broker)
                stream.on_request(pb.QueueStreamRequest.FromString(data))
                self._running[correlation_id] = asyncio.ensure_future(self._stream(stream, correlation_id))
            else:
                self._running[correlation_id] = asyncio.ensure_future(self._answer(method_number, correlation_id, data))

    def _on_hello(self, hello: pb.DataHello) -> None:
        port = self._port
        assert hello.version == min(DATA_VERSION, port.version)
        if port.is_silent:
            return
        if port.refusal is not None:
            self.say(FrameType.ERROR, 0, port.refusal.SerializeToString())
            self._transport.close()
            return
        port._tokens.remove(hello.token)
        self.say(FrameType.WELCOME)

    async def _stream(self, stream: FakeStream, correlation_id: int) -> None:
        try:
            while (response := await stream.responses.get()) is not None:
                if response.HasField("error"):
                    self.say(FrameType.ERROR, correlation_id, response.error.SerializeToString())
                    return
                self.say(FrameType.RESPONSE, correlation_id, response.SerializeToString())
            self.say(FrameType.ANSWER, correlation_id)
        finally:
            self._port.broker.cluster.queue_streams.pop(stream, None)
            del self.streams[correlation_id]

    async def _answer(self, method_number: int, correlation_id: int, data: bytes) -> None:
        detail = self.error_of(data)
        if detail is not None:
            self.say(FrameType.ERROR, correlation_id, detail.SerializeToString())
            return
        method = DATA_METHODS[method_number]
        request = method.request_type.FromString(data)
        broker = self._port.broker
        if method is INIT_PRODUCER:
            response = await broker.InitProducer(request, None)  # a test refuses it by `error_of`
        else:
            response = await (broker.append(request) if method.name == "Append" else broker.Poll(request, None))
        self._running.pop(correlation_id, None)
        if response is not None:
            self.say(FrameType.ANSWER, correlation_id, response.SerializeToString())
