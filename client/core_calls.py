"""Calls of one gRPC channel, ended in an order that leaves no event of theirs behind in gRPC's core.

gRPC's Python objects cancel a call by abandoning the future on which the core will report, while the report still comes, maybe
after the event loop is closed. Here a call is cancelled in the core only and its Python side runs to its natural end. Must not
know what the calls carry. Uses two names of grpc.aio that are not public (`_cython_call`, the name of the coroutine that waits for
a stream's status); without them it falls back to the public ways, at the price of that noise.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final, Protocol, TypeVar

import grpc.aio

END_SECONDS: Final = 0.25
"""How long `CoreCalls.end` waits: the core reports a cancelled call within a millisecond, unless the machine is overloaded."""
STREAMS_REMEMBERED_MAX: Final = 16
_STATUS_COROUTINE: Final = "_AioCall._handle_status_once_received"


RequestT = TypeVar("RequestT")
ResponseT = TypeVar("ResponseT")


class RunningCall(Protocol):
    """Any of gRPC's call objects."""

    def cancel(self) -> bool:
        """Cancel, abandoning what is under way."""
        ...

    def done(self) -> bool:
        """Whether it has a status."""
        ...

    def cancelled(self) -> bool:
        """Whether the status is that it was cancelled."""
        ...


class CoreCalls:
    """The calls of one channel that are under way, or cancelled and not yet reported."""

    def __init__(self) -> None:
        self._running: set[RunningCall] = set()
        self._ending: set[asyncio.Task[None]] = set()
        self._cancelled_at: deque[float] = deque(maxlen=STREAMS_REMEMBERED_MAX)

    async def wait_unary(self, call: grpc.aio.UnaryUnaryCall[RequestT, ResponseT]) -> None:
        """Return when the call has a status. Cancelled meanwhile, it cancels the call, and the rest happens in the background."""
        status: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def on_status(_: object) -> None:  # called twice for a call that is cancelled
            if not status.done():
                status.set_result(None)

        call.add_done_callback(on_status)
        self._running.add(call)
        try:
            await status
        except asyncio.CancelledError:
            self._cancel_in_core(call)
            self._let_end(call)
            raise
        finally:
            self._running.discard(call)

    def add_stream(self, call: RunningCall) -> None:
        """A stream was opened; `cancel` ends it."""
        self._running.add(call)

    def cancel(self, stream: RunningCall) -> None:
        """Give a stream up. Without effect on one that has ended."""
        if stream in self._running and (not stream.done() or stream.cancelled()):
            self._cancelled_at.append(asyncio.get_running_loop().time())
            self._cancel_in_core(stream)
        self._running.discard(stream)

    async def end(self) -> None:
        """Cancel everything and wait, `END_SECONDS` at most, until the core has nothing more to report."""
        for call in list(self._running):
            if isinstance(call, grpc.aio.UnaryUnaryCall):
                self._cancel_in_core(call)
                self._let_end(call)
            else:
                self.cancel(call)
        deadline = asyncio.get_running_loop().time() + END_SECONDS
        if self._ending:
            await asyncio.wait(self._ending, timeout=END_SECONDS)
        await self._wait_streams(deadline)

    @staticmethod
    def _cancel_in_core(call: RunningCall) -> None:
        core = getattr(call, "_cython_call", None)
        if core is None:
            call.cancel()
        elif not core.done():
            core.cancel("Locally cancelled by application!")

    def _let_end(self, call: grpc.aio.UnaryUnaryCall[RequestT, ResponseT]) -> None:
        task = asyncio.get_running_loop().create_task(_ended(call), name="raftmq-call-end")
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _wait_streams(self, deadline: float) -> None:
        """The status is the last thing the core reports of a stream. Waits for as many as were cancelled: others may be open."""
        loop = asyncio.get_running_loop()
        expected = sum(at > deadline - 2 * END_SECONDS for at in self._cancelled_at)
        waiting = {task for task in asyncio.all_tasks() if _name(task) == _STATUS_COROUTINE}
        enough = len(waiting) - expected
        while waiting and len(waiting) > enough and (remaining := deadline - loop.time()) > 0:
            _, waiting = await asyncio.wait(waiting, timeout=remaining, return_when=asyncio.FIRST_COMPLETED)


async def _ended(call: grpc.aio.UnaryUnaryCall[RequestT, ResponseT]) -> None:
    try:
        await call
    except (asyncio.CancelledError, grpc.aio.AioRpcError):
        return


def _name(task: asyncio.Task[object]) -> str:
    return getattr(task.get_coro(), "__qualname__", "")
