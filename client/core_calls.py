"""Calls of one gRPC channel, ended in an order that leaves no event of theirs behind in gRPC's core.

gRPC's Python objects cancel a call by abandoning the future on which the core will report, while the report still comes, maybe
after the event loop is closed. Here a call is cancelled in the core only and its Python side runs to its natural end. Must not
know what the calls carry. Uses two names of grpc.aio that are not public (`_cython_call`, the name of the coroutine that waits for
a stream's status) and that this coroutine's variables hold its call; without them it falls back to the public ways, at the price of
that noise.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Coroutine
from typing import Any, Final, Protocol, TypeVar

import grpc.aio

END_SECONDS: Final = 2.0
"""How long `CoreCalls.end` waits for calls: the core reports a cancelled one within a millisecond, unless the machine is overloaded."""
STEPS_END_SECONDS: Final = 0.25
"""How long it waits for reads and writes: a write that waited for a frozen broker to take more is not reported at all."""
_STATUS_COROUTINE: Final = "_AioCall._handle_status_once_received"


RequestT = TypeVar("RequestT")
ResponseT = TypeVar("ResponseT")
ResultT = TypeVar("ResultT")


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
        self._steps: set[asyncio.Task[Any]] = set()

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
            self._let_end(_ended(call))
            raise
        finally:
            self._running.discard(call)

    def add_stream(self, call: RunningCall) -> None:
        """A stream was opened; `cancel` ends it."""
        self._running.add(call)

    def cancel(self, stream: RunningCall) -> None:
        """Give a stream up. Without effect on one that has ended."""
        if stream in self._running and (not stream.done() or stream.cancelled()):
            self._cancel_in_core(stream)
            self._let_end(_stream_ended(stream))
        self._running.discard(stream)

    async def step(self, stream: RunningCall, waiting: Coroutine[object, object, ResultT]) -> ResultT:
        """Something of a stream that waits for the core. Cancelled meanwhile, it cancels the stream, and the rest happens in the background."""
        task = asyncio.get_running_loop().create_task(waiting, name="raftmq-call-step")
        self._steps.add(task)
        task.add_done_callback(self._on_step_done)
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError:
            self._cancel_in_core(stream)
            raise
        return task.result()

    def _on_step_done(self, task: asyncio.Task[Any]) -> None:
        self._steps.discard(task)
        if not task.cancelled():
            task.exception()  # maybe nobody else asks for it

    async def end(self) -> None:
        """Cancel everything and wait until the core has reported what it will, or for `END_SECONDS` at most."""
        for call in list(self._running):
            if isinstance(call, grpc.aio.UnaryUnaryCall):
                self._cancel_in_core(call)
                self._let_end(_ended(call))
            else:
                self.cancel(call)
        if self._steps:
            await asyncio.wait(self._steps, timeout=STEPS_END_SECONDS)
        if self._ending:
            await asyncio.wait(self._ending, timeout=END_SECONDS)

    @staticmethod
    def _cancel_in_core(call: RunningCall) -> None:
        core = getattr(call, "_cython_call", None)
        if core is None:
            call.cancel()
        elif not core.done():
            core.cancel("Locally cancelled by application!")

    def _let_end(self, ending: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(ending, name="raftmq-call-end")
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)


async def _ended(call: grpc.aio.UnaryUnaryCall[RequestT, ResponseT]) -> None:
    try:
        await call
    except (asyncio.CancelledError, grpc.aio.AioRpcError):
        return


async def _stream_ended(stream: RunningCall) -> None:
    """Return when the core has reported the status: the call itself has one as soon as it is cancelled."""
    core = getattr(stream, "_cython_call", None)
    waiting = {task for task in asyncio.all_tasks() if core is not None and _is_status_task(task, core)}
    if waiting:
        await asyncio.wait(waiting)


def _is_status_task(task: asyncio.Task[object], core: object) -> bool:
    coroutine = task.get_coro()
    if getattr(coroutine, "__qualname__", "") != _STATUS_COROUTINE:
        return False
    return any(held is core for scope in gc.get_referents(coroutine) for held in gc.get_referents(scope))
