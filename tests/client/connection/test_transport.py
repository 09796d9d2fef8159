"""A broken connection is distinguished from a defect of the broker, whichever status gRPC reports."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator

import grpc
import grpc.aio
import pytest
from raftmq.client.connection.append_stream import SerializedAppend
from raftmq.client.connection.transport import GrpcConnection, GrpcTransport, error_from_rpc
from raftmq.errors import BrokenConnectionError, InternalError, Outcome, RaftMQError, UnreachableError

CHUNK = b"x" * 1_000_000


class _NeverReads(grpc.GenericRpcHandler):
    """A server whose calls neither read nor answer."""

    def service(self, _details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes]:
        async def answer(_requests: AsyncIterator[bytes], _context: object) -> AsyncIterator[bytes]:
            await asyncio.sleep(60)
            yield b""

        return grpc.stream_stream_rpc_method_handler(answer)


async def test_a_write_on_a_dead_connection_raises_a_connection_error() -> None:
    """The write waits for flow control when the server disappears.

    gRPC usually reports INTERNAL, sometimes UNAVAILABLE, or an ended call if the previous write had just finished.
    """
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((_NeverReads(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    connection = GrpcTransport().connect(f"127.0.0.1:{port}")
    try:
        ended: asyncio.Future[RaftMQError] = asyncio.get_running_loop().create_future()
        stream = connection.append_stream(lambda _: None, ended.set_result, lambda: write_on())

        def write_on() -> None:
            while stream.write(SerializedAppend(1, 1000, CHUNK)):
                pass

        write_on()
        await asyncio.sleep(0.3)
        assert not ended.done()
        await server.stop(0)
        assert isinstance(await ended, BrokenConnectionError | UnreachableError)
    finally:
        await connection.close()


async def test_a_refused_connection_is_reported_even_if_the_write_is_the_first_to_fail(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The core may refuse the call before the write begins. The write cannot tell why, and the request has not left this process."""

    async def fail_at_once(self: object, request: bytes) -> None:
        raise asyncio.InvalidStateError("RPC already finished.")

    monkeypatch.setattr("grpc.aio._call.StreamStreamCall.write", fail_at_once)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        connection = GrpcConnection(f"127.0.0.1:{closed.getsockname()[1]}")
        try:
            ended: asyncio.Future[RaftMQError] = asyncio.get_running_loop().create_future()
            stream = connection._append_stream_over_grpc(lambda _: None, ended.set_result, lambda: None)
            stream.write(SerializedAppend(1, 1000, CHUNK))
            error = await ended
        finally:
            await connection.close()
    assert isinstance(error, UnreachableError)
    assert "connection refused" in str(error)
    assert error.outcome is Outcome.NOT_APPLIED


def _statuses() -> Iterator[tuple[str, type[Exception]]]:
    yield "Internal error from Core", BrokenConnectionError
    yield "something else", InternalError


@pytest.mark.parametrize(("details", "expected"), list(_statuses()))
def test_an_internal_status_means_a_broken_connection_only_if_the_core_failed(
    details: str, expected: type[Exception]
) -> None:
    nothing = grpc.aio.Metadata()
    error = grpc.aio.AioRpcError(grpc.StatusCode.INTERNAL, nothing, nothing, details=details)
    assert type(error_from_rpc(error, "one:9400")) is expected
