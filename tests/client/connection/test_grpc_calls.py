"""Calls are cancelled in gRPC's core and run to their natural end: an operation that waits for the core is never abandoned."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc.aio
import pytest
from raftmq.client.connection import grpc_calls as core_calls
from raftmq.client.connection.grpc_calls import GrpcCalls, _calls_of, _stream_ended


class _Stream:
    """A call whose end the test controls."""

    def __init__(self) -> None:
        self.is_cancelled = False
        self.reported = asyncio.Event()

    def cancel(self) -> bool:
        self.is_cancelled = True
        return True

    def done(self) -> bool:
        return self.reported.is_set()

    def cancelled(self) -> bool:
        return self.is_cancelled

    async def read(self) -> str:
        await self.reported.wait()
        if self.is_cancelled:
            raise asyncio.CancelledError
        return "answer"


async def test_a_cancelled_step_ends_only_when_the_core_has_answered() -> None:
    calls, stream = GrpcCalls(), _Stream()
    reading = asyncio.create_task(calls.step(stream, stream.read()))
    await asyncio.sleep(0)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert stream.is_cancelled
    ending = asyncio.create_task(calls.end())
    done, _ = await asyncio.wait({ending}, timeout=0.05)
    assert not done
    stream.reported.set()
    await ending


async def test_the_wait_for_a_step_that_the_core_does_not_report_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """An example is a write that waits until a frozen broker accepts more."""
    monkeypatch.setattr(core_calls, "STEPS_END_SECONDS", 0.01)
    calls, stream = GrpcCalls(), _Stream()
    writing = asyncio.create_task(calls.step(stream, stream.read()))
    await asyncio.sleep(0)
    await calls.end()
    assert not writing.done()
    stream.reported.set()
    await writing


async def test_a_step_returns_the_streams_message_or_error() -> None:
    calls, stream = GrpcCalls(), _Stream()
    stream.reported.set()
    assert await calls.step(stream, stream.read()) == "answer"
    stream.cancel()
    with pytest.raises(asyncio.CancelledError):  # gRPC's way to say that the stream was cancelled
        await calls.step(stream, stream.read())


@asynccontextmanager
async def _endless_stream() -> AsyncIterator[str]:
    """Return the address of a server whose stream sends one message and stays open."""

    async def stream(request: bytes, context: object) -> AsyncIterator[bytes]:
        yield request
        await asyncio.Event().wait()

    server = grpc.aio.server()
    handlers = {"Watch": grpc.unary_stream_rpc_method_handler(stream)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Streams", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(0)


async def test_the_end_of_a_stream_is_recognized_by_its_own_status() -> None:
    """Other streams of the process stay open, and nothing waits for them."""
    async with _endless_stream() as address, grpc.aio.insecure_channel(address) as channel:
        streams = [channel.unary_stream("/test.Streams/Watch")(b"x") for _ in range(3)]
        for stream in streams:
            assert await stream.read() == b"x"
        mine = streams[1]
        core = mine._cython_call  # type: ignore[attr-defined] # as the product
        found = [task for task in asyncio.all_tasks() if core in _calls_of(task)]
        assert len(found) == 1
        calls = GrpcCalls()
        calls.add_stream(mine)
        calls.cancel(mine)
        await calls.end()
        assert found[0].done()
        assert [stream.done() for stream in streams] == [False, True, False]
        await _stream_ended(mine)  # it has nothing to wait for any more
        for stream in streams:
            stream.cancel()


async def test_the_ends_of_simultaneous_streams_are_found_with_one_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """When a hundred clients close together, the tasks of the loop are examined once, not once for each stream."""
    scans = 0
    all_tasks = asyncio.all_tasks

    def counted(loop: asyncio.AbstractEventLoop | None = None) -> set[asyncio.Task[object]]:
        nonlocal scans
        scans += 1
        return all_tasks(loop)

    async with _endless_stream() as address, grpc.aio.insecure_channel(address) as channel:
        streams = [channel.unary_stream("/test.Streams/Watch")(b"x") for _ in range(20)]
        for stream in streams:
            assert await stream.read() == b"x"
        calls = GrpcCalls()
        for stream in streams:
            calls.add_stream(stream)
        monkeypatch.setattr(asyncio, "all_tasks", counted)
        await calls.end()
        monkeypatch.undo()
        assert scans == 1
        assert not calls._ending
        assert not [task for task in asyncio.all_tasks() if _calls_of(task)]
