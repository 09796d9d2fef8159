"""The SDK's transport over the simulated network."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from typing import Generic

import grpc.aio
from raftmq.client.connection.append_stream import AppendStream, OnEnd, OnResponse, SerializedAppend
from raftmq.client.connection.pending_poll import OnPolled, PendingPoll, PollTask
from raftmq.client.connection.queue_stream import OnQueueResponse, QueueStream
from raftmq.client.connection.transport import (
    Connection,
    call_metadata,
    error_from_call,
    error_from_rpc,
)
from raftmq.errors import BrokenConnectionError
from raftmq.methods import APPEND, APPEND_STREAM, POLL, POLL_STREAM, WATCH, RequestT, ResponseT, UnaryMethod
from raftmq.proto import queue_pb2 as pb

from sim.cluster.rpc.channel import ClientCall, RpcChannel
from sim.cluster.world.loop import VirtualLoop
from sim.cluster.world.network import Network


class ClientTransport:
    """`raftmq.client.connection.transport.Transport` over the simulated network."""

    uses_threads = False

    def __init__(self, loop: VirtualLoop, network: Network) -> None:
        self._loop = loop
        self._network = network

    def connect(self, address: str) -> Connection:
        """See `Transport`."""
        return ClientConnection(self._loop, RpcChannel(self._loop, self._network, address))


class ClientConnection:
    """`Connection` over a channel."""

    def __init__(self, loop: VirtualLoop, channel: RpcChannel) -> None:
        self.cluster_id = ""
        self._loop = loop
        self._channel = channel

    @property
    def address(self) -> str:
        """The broker's address."""
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

    async def append(self, request: SerializedAppend, timeout_seconds: float) -> pb.AppendResponse:
        """See `Connection`."""
        return await self.call(APPEND, pb.AppendRequest.FromString(request.body), timeout_seconds)

    async def watch(self, request: pb.WatchRequest) -> AsyncGenerator[pb.TopologyUpdate, None]:
        """See `Connection`."""
        self._check_open()
        call = self._channel.begin(WATCH.path, messages=(request.SerializeToString(), None))
        try:
            while (data := await call.read()) is not None:
                yield pb.TopologyUpdate.FromString(data)
        except grpc.aio.AioRpcError as error:
            raise error_from_rpc(error, self.address) from error
        finally:
            call.cancel()

    def poll(self, request: pb.PollRequest, timeout_seconds: float, on_outcome: OnPolled) -> PendingPoll:
        """See `Connection`."""
        self._check_open()
        return PollTask(self.call(POLL, request, timeout_seconds), self.address, on_outcome)

    def append_stream(
        self,
        on_response: OnResponse,
        on_end: OnEnd,
        on_writable: Callable[[], None],  # a write never waits here
    ) -> AppendStream:
        """See `Connection`."""
        self._check_open()
        call = self._channel.begin(APPEND_STREAM.path, call_metadata(self.cluster_id))
        stream = _SimStream(self._loop, call, self.address, pb.AppendResponse.FromString, on_response, on_end)
        return _SimAppendStream(stream)

    def queue_stream(
        self,
        on_response: OnQueueResponse,
        on_end: OnEnd,
        on_writable: Callable[[], None],  # as in `append_stream`
    ) -> QueueStream:
        """See `Connection`."""
        self._check_open()
        call = self._channel.begin(POLL_STREAM.path, call_metadata(self.cluster_id))
        stream = _SimStream(self._loop, call, self.address, pb.QueueStreamResponse.FromString, on_response, on_end)
        return _SimQueueStream(stream)

    async def close(self) -> None:
        """See `Connection`."""
        await self._channel.close()

    def _check_open(self) -> None:
        if self._channel.is_closed:
            raise BrokenConnectionError(f"{self.address}: the connection is closed")


class _SimStream(Generic[ResponseT]):
    """A stream whose answers are passed on as they arrive."""

    def __init__(
        self,
        loop: VirtualLoop,
        call: ClientCall,
        address: str,
        parse: Callable[[bytes], ResponseT],
        on_response: Callable[[ResponseT], None],
        on_end: OnEnd,
    ) -> None:
        self.send = call.send
        self._call = call
        self._address = address
        self._parse = parse
        self._on_response = on_response
        self._on_end = on_end
        self._reader = loop.create_task(self._read_forever())

    def cancel(self) -> None:
        self._reader.cancel()
        self._call.cancel()

    async def _read_forever(self) -> None:
        try:
            while (data := await self._call.read()) is not None:
                self._on_response(self._parse(data))
        except grpc.aio.AioRpcError as error:
            self._on_end(error_from_call(error, self._address))
        else:
            self._on_end(BrokenConnectionError(f"{self._address}: the broker ended the stream"))


class _SimAppendStream:
    def __init__(self, stream: _SimStream[pb.AppendResponse]) -> None:
        self.cancel = stream.cancel
        self._stream = stream

    def write(self, request: SerializedAppend) -> bool:
        self._stream.send(request.body)
        return True

    def is_outdated(self) -> bool:
        return False

    def is_opening(self) -> bool:
        return False


class _SimQueueStream:
    def __init__(self, stream: _SimStream[pb.QueueStreamResponse]) -> None:
        self.cancel = stream.cancel
        self._stream = stream

    def write(self, request: pb.QueueStreamRequest) -> bool:
        self._stream.send(request.SerializeToString())
        return True
