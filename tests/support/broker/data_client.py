"""Provide a client of the data port that sends any bytes, valid ones like the SDK's and invalid ones."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from google.protobuf.message import Message
from raftmq.broker.base.limits import Limits
from raftmq.broker.data_port.port import DataPort
from raftmq.broker.grpc_port.server import GrpcServer
from raftmq.broker.services.call import Call
from raftmq.frames import DATA_METHODS, DATA_VERSION, HEADER_BYTES, FrameType, frame_header
from raftmq.methods import UnaryMethod
from raftmq.proto import queue_pb2 as pb

from tests.support.broker.harness import Harness, running


class Frame(NamedTuple):
    type: FrameType
    correlation_id: int
    body: bytes

    @property
    def error(self) -> pb.ErrorDetail:
        assert self.type is FrameType.ERROR, self
        return pb.ErrorDetail.FromString(self.body)


class DataClient:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.last_correlation_id = 0

    def say_hello(self, token: bytes, version: int = DATA_VERSION) -> None:
        self.send(FrameType.HELLO, pb.DataHello(version=version, token=token).SerializeToString())

    def send(self, frame_type: int, body: bytes = b"", correlation_id: int = 0, number: int = 0, ms: int = 0) -> None:
        self.writer.write(frame_header(FrameType(frame_type), len(body), correlation_id, number, ms) + body)

    def call(self, method: UnaryMethod[Any, Any], request: Message, ms: int = 10_000) -> int:
        self.last_correlation_id += 1
        number = DATA_METHODS.index(method)
        self.send(FrameType.CALL, request.SerializeToString(), self.last_correlation_id, number, ms)
        return self.last_correlation_id

    async def frame(self) -> Frame:
        header = await asyncio.wait_for(self.reader.readexactly(HEADER_BYTES), 10)
        length, type_number = int.from_bytes(header[:4], "little"), header[4]
        body = await asyncio.wait_for(self.reader.readexactly(length), 10)
        return Frame(FrameType(type_number), int.from_bytes(header[12:20], "little"), body)

    async def ended(self) -> bool:
        """Return whether the broker has ended the connection, and close it as a client does."""
        try:
            is_ended = await asyncio.wait_for(self.reader.read(1), 10) == b""
        except ConnectionError:
            is_ended = True
        self.writer.close()
        return is_ended


@dataclass
class Serving:
    node: Harness
    grpc: GrpcServer
    port: DataPort
    clients: list[DataClient] = field(default_factory=list)

    async def token(self) -> bytes:
        answer = await self.grpc.data_tokens.open_data_connection(pb.OpenDataConnectionRequest(), Call(0.0))
        assert answer.port == self.grpc.data_tokens.port
        return answer.token

    async def connect(self) -> DataClient:
        client = DataClient(*await asyncio.open_connection("127.0.0.1", self.grpc.data_tokens.port))
        self.clients.append(client)
        return client

    async def client(self) -> DataClient:
        client = await self.connect()
        client.say_hello(await self.token())
        assert (await client.frame()).type is FrameType.WELCOME
        return client


@contextlib.asynccontextmanager
async def serving(limits: Limits | None = None) -> AsyncIterator[Serving]:
    async with running() as node:
        if limits is not None:
            node.limits = limits
        grpc_server = GrpcServer(node, node.forwarder)
        port = DataPort(node, grpc_server)
        await port.start("127.0.0.1", 0)
        broker = Serving(node, grpc_server, port)
        try:
            yield broker
        finally:
            for client in broker.clients:
                client.writer.transport.abort()
                with contextlib.suppress(ConnectionError):
                    await client.writer.wait_closed()
            await port.stop(1.0)
            await grpc_server.stop(0)
