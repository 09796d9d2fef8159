"""Frames of data connections, from clients that mean harm."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

import grpc
from google.protobuf.message import Message
from raftmq.frames import DATA_METHODS, DATA_VERSION, HEADER_BYTES, FrameType, frame_header
from raftmq.methods import APPEND, POLL, POLL_STREAM
from raftmq.proto import queue_pb2 as pb
from raftmq.proto import queue_pb2_grpc as pb_grpc

from tests.support.hostile.attackers import dial

APPEND_NUMBER, POLL_NUMBER, STREAM_NUMBER = (DATA_METHODS.index(each) for each in (APPEND, POLL, POLL_STREAM))


class DataTarget:
    """A broker's data port. Gives tokens, as anybody gets them."""

    def __init__(self, client_address: str) -> None:
        self._channel = grpc.insecure_channel(client_address, options=[("grpc.use_local_subchannel_pool", 1)])
        self._stub = pb_grpc.LogStub(self._channel)
        self._host = client_address.rpartition(":")[0]
        self.token()

    def close(self) -> None:
        self._channel.close()

    def token(self) -> bytes:
        answer = self._stub.OpenDataConnection(pb.OpenDataConnectionRequest(), timeout=20)
        assert answer.port
        self.address = f"{self._host}:{answer.port}"
        return bytes(answer.token)

    def hello(self, token: bytes | None = None, version: int = DATA_VERSION) -> bytes:
        """The frame HELLO, by default with a token that is valid."""
        body = pb.DataHello(version=version, token=self.token() if token is None else token).SerializeToString()
        return frame_header(FrameType.HELLO, len(body)) + body

    def dial(self, *, receive_buffer: int = 0) -> socket.socket:
        """A connection that was welcomed."""
        hello = self.hello()  # first, as a client does: the broker does not wait long for it
        sock = dial(self.address, receive_buffer=receive_buffer)
        try:
            sock.sendall(hello)
            assert read_frame(sock) == (FrameType.WELCOME, 0, b"")
        except BaseException:
            sock.close()
            raise
        return sock

    @contextlib.contextmanager
    def connections(self, count: int, *, receive_buffer: int = 0) -> Iterator[list[socket.socket]]:
        """So many connections that were welcomed."""
        with contextlib.ExitStack() as stack:
            yield [stack.enter_context(self.dial(receive_buffer=receive_buffer)) for _ in range(count)]


def call(number: int, request: Message | bytes, correlation_id: int, timeout_ms: int = 0) -> bytes:
    """The frame CALL."""
    body = request if isinstance(request, bytes) else request.SerializeToString()
    return frame_header(FrameType.CALL, len(body), correlation_id, number, timeout_ms) + body


def further(request: Message | bytes, correlation_id: int) -> bytes:
    """The frame REQUEST, of a stream."""
    body = request if isinstance(request, bytes) else request.SerializeToString()
    return frame_header(FrameType.REQUEST, len(body), correlation_id) + body


def cancel(correlation_id: int) -> bytes:
    """The frame CANCEL."""
    return frame_header(FrameType.CANCEL, 0, correlation_id)


def read_frame(sock: socket.socket) -> tuple[FrameType, int, bytes] | None:
    """The next frame: type, correlation id, body. None after the last one."""
    header = _read(sock, HEADER_BYTES)
    if header is None:
        return None
    body = _read(sock, int.from_bytes(header[:4], "little"))
    return None if body is None else (FrameType(header[4]), int.from_bytes(header[12:], "little"), body)


def _read(sock: socket.socket, size: int) -> bytes | None:
    data = bytearray()
    while len(data) < size:
        try:
            piece = sock.recv(size - len(data))
        except ConnectionError:
            return None
        if not piece:
            return None
        data += piece
    return bytes(data)
