"""Connect the SDK to a `FakeCluster` that is never started: no sockets, no gRPC, every step a pass of the event loop.

A test can cut a broker off: calls in flight fail with a broken connection, and later ones with an unreachable broker.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import cast

from google.rpc import status_pb2
from raftmq import errors
from raftmq.client.base.error_details import error_from_detail
from raftmq.client.connection.append_stream import SerializedAppend
from raftmq.client.connection.pending_poll import OnPolled, PollTask
from raftmq.methods import APPEND, POLL
from raftmq.proto import queue_pb2 as pb

from tests.support.client.fake_broker import FakeBroker, FakeCluster
from tests.support.client.fake_queue import FakeStream


class _Context:
    """Substitute for gRPC's context: `abort` raises the error that the client would see."""

    async def abort(self, code, message, trailing_metadata=()):
        detail = pb.ErrorDetail()
        (packed,) = status_pb2.Status.FromString(trailing_metadata[0][1]).details
        packed.Unpack(detail)
        raise error_from_detail(detail)


class MemoryTransport:
    """The `transport` of clients whose `bootstrap_servers` are `addresses`."""

    uses_threads = False

    def __init__(self, cluster: FakeCluster) -> None:
        self.cluster = cluster
        self.cut_off: set[str] = set()
        self.changed = asyncio.Event()
        for broker_id, broker in cluster.brokers.items():
            broker.port = 1000 + broker_id
        self.brokers = {broker.address: broker for broker in cluster.brokers.values()}

    @property
    def addresses(self) -> str:
        return ",".join(self.brokers)

    def connect(self, address: str) -> MemoryConnection:
        return MemoryConnection(self, address, self.brokers[address])

    def cut(self, address: str) -> None:
        self.cut_off.add(address)
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()

    def heal(self) -> None:
        self.cut_off.clear()


class MemoryConnection:
    def __init__(self, transport: MemoryTransport, address: str, broker: FakeBroker) -> None:
        self.address = address
        self.cluster_id = ""
        self._transport = transport
        self._broker = broker
        self._closed = asyncio.Event()

    async def call(self, method, request, timeout_seconds):
        self._check()
        service = self._broker.queue if method.service.endswith(".Queue") else self._broker
        return await self._guarded(getattr(service, method.name)(request, _Context()), timeout_seconds)

    async def append(self, request, timeout_seconds):
        return await self.call(APPEND, pb.AppendRequest.FromString(request.body), timeout_seconds)

    async def watch(self, request) -> AsyncGenerator[pb.TopologyUpdate, None]:
        self._check()
        updates = cast("AsyncGenerator[pb.TopologyUpdate, None]", self._broker.Watch(request, _Context()))
        try:
            while True:
                yield await self._guarded(anext(updates))
        finally:
            await updates.aclose()

    def poll(self, request: pb.PollRequest, timeout_seconds: float, on_outcome: OnPolled) -> PollTask:
        return PollTask(self.call(POLL, request, timeout_seconds), self.address, on_outcome)

    def append_stream(self, on_response, on_end, on_writable) -> MemoryStream:
        self._check()
        return MemoryStream(self, self._broker, on_response, on_end)

    def queue_stream(self, on_response, on_end, on_writable) -> MemoryQueueStream:
        self._check()
        return MemoryQueueStream(self, self._broker, on_response, on_end)

    async def close(self) -> None:
        self._closed.set()
        await asyncio.sleep(0)

    def _check(self) -> None:
        if self.address in self._transport.cut_off:
            raise errors.UnreachableError(f"{self.address}: connection refused")
        if self._closed.is_set():
            raise errors.BrokenConnectionError(f"{self.address}: the connection is closed")

    async def _guarded(self, coroutine, timeout_seconds=None, *events: asyncio.Event):
        """Return the coroutine's result, or raise when the connection breaks or closes, an event is set, or the time is up."""
        work = asyncio.ensure_future(coroutine)
        ends = [asyncio.ensure_future(e.wait()) for e in (self._transport.changed, self._closed, *events)]
        try:
            await asyncio.wait([work, *ends], timeout=timeout_seconds, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                return work.result()
            if any(end.done() for end in ends):
                raise errors.BrokenConnectionError(f"{self.address}: cut off")
            raise errors.RequestTimedOutError(f"{self.address}: no answer")
        finally:
            for future in (work, *ends):
                future.cancel()
            await asyncio.wait([work, *ends])
            if not work.cancelled():
                work.exception()


class MemoryStream:
    def __init__(self, connection: MemoryConnection, broker: FakeBroker, on_response, on_end) -> None:
        self._connection = connection
        self._broker = broker
        self._on_response = on_response
        self._on_end = on_end
        self._requests: asyncio.Queue[pb.AppendRequest] = asyncio.Queue()
        self._reader = asyncio.ensure_future(self._answer_forever())

    def write(self, request: SerializedAppend) -> bool:
        self._requests.put_nowait(pb.AppendRequest.FromString(request.body))
        return True

    def is_outdated(self) -> bool:
        return False

    def is_opening(self) -> bool:
        return False

    def cancel(self) -> None:
        self._reader.cancel()

    async def _answer_forever(self) -> None:
        try:
            while True:
                request = await self._connection._guarded(self._requests.get())
                self._connection._check()
                response = await self._connection._guarded(self._broker.append(request))
                if response is not None:
                    self._on_response(response)
        except errors.RaftMQError as error:
            self._on_end(error)


class MemoryQueueStream:
    def __init__(self, connection: MemoryConnection, broker: FakeBroker, on_response, on_end) -> None:
        self._connection = connection
        self._on_response = on_response
        self._on_end = on_end
        self._stream = FakeStream(broker)
        self._requests: asyncio.Queue[pb.QueueStreamRequest] = asyncio.Queue()
        self._tasks = [asyncio.ensure_future(self._send_forever()), asyncio.ensure_future(self._read_forever())]

    def write(self, request: pb.QueueStreamRequest) -> bool:
        self._requests.put_nowait(pb.QueueStreamRequest.FromString(request.SerializeToString()))
        return True

    def cancel(self) -> None:
        self._stream.broker.cluster.queue_streams.pop(self._stream, None)
        for task in self._tasks:
            task.cancel()

    async def _send_forever(self) -> None:
        while True:
            self._stream.on_request(await self._requests.get())

    async def _read_forever(self) -> None:
        try:
            while (response := await self._connection._guarded(self._stream.responses.get())) is not None:
                self._on_response(response)
        except errors.RaftMQError as error:
            self._on_end(error)
        else:
            self._on_end(errors.BrokenConnectionError("the broker ended the stream"))
