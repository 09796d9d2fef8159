"""The SDK's transport over the simulated network."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import grpc.aio
from raftmq.client.connection.transport import AppendStream, Connection, call_metadata, error_from_call, error_from_rpc
from raftmq.errors import BrokenConnectionError
from raftmq.methods import APPEND_STREAM, WATCH, RequestT, ResponseT, UnaryMethod
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
        return ClientConnection(RpcChannel(self._loop, self._network, address))


class ClientConnection:
    """`Connection` over a channel."""

    def __init__(self, channel: RpcChannel) -> None:
        self.cluster_id = ""
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

    def append_stream(self) -> AppendStream:
        """See `Connection`."""
        self._check_open()
        call = self._channel.begin(APPEND_STREAM.path, call_metadata(self.cluster_id))
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
