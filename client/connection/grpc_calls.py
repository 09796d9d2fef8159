"""Calls of one gRPC channel, ended in an order that leaves none of their events behind in gRPC's core.

gRPC's Python objects cancel a call by abandoning the future on which the core will report. The report still arrives, perhaps after the event
loop is closed. Here a call is cancelled only in the core, and its Python side runs to its natural end. Must not know the content of calls.

It uses two names of grpc.aio that are not public (`_cython_call`, and the name of the coroutine that waits for a stream's status), and relies
on this coroutine's variables to refer to its call. Without them it falls back to the public functions, which may leave events behind.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Coroutine
from typing import Any, Final, Protocol, TypeVar
from weakref import WeakKeyDictionary

import grpc.aio

END_SECONDS: Final = 2.0
"""Time for which `GrpcCalls.end` waits for calls. The core reports a cancelled call within a millisecond, unless the machine is overloaded."""
STEPS_END_SECONDS: Final = 0.25
"""Time for which it waits for reads and writes. A write that waited until a frozen broker accepts more is not reported at all."""
_CORE_CALL: Final = "_AioCall"
_STATUS_COROUTINE: Final = f"{_CORE_CALL}._handle_status_once_received"


RequestT = TypeVar("RequestT")
ResponseT = TypeVar("ResponseT")
ResultT = TypeVar("ResultT")


class RunningCall(Protocol):
    """The common part of gRPC's call objects."""

    def cancel(self) -> bool:
        """Cancel the call, abandoning its operations in progress."""
        ...

    def done(self) -> bool:
        """Return whether it has a status."""
        ...

    def cancelled(self) -> bool:
        """Return whether its status is that it was cancelled."""
        ...


class GrpcCalls:
    """The calls of one channel that are running, or cancelled and not reported yet."""

    def __init__(self) -> None:
        self._running: set[RunningCall] = set()
        self._ending: set[asyncio.Task[None]] = set()
        self._steps: set[asyncio.Task[Any]] = set()

    async def wait_unary(self, call: grpc.aio.UnaryUnaryCall[RequestT, ResponseT]) -> None:
        """Return when the call has a status. A cancellation of the wait cancels the call, whose end is handled in the background."""
        status: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def on_status(_: object) -> None:  # a cancelled call invokes it twice
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
            del call  # an error that somebody keeps refers to this frame

    def add_stream(self, call: RunningCall) -> None:
        """Add an opened stream, which `cancel` ends."""
        self._running.add(call)

    def cancel(self, stream: RunningCall) -> None:
        """Cancel a stream. Does nothing if it has ended."""
        if stream in self._running and (not stream.done() or stream.cancelled()):
            self._cancel_in_core(stream)
            self._let_end(_stream_ended(stream))
        self._running.discard(stream)

    async def step(self, stream: RunningCall, waiting: Coroutine[object, object, ResultT]) -> ResultT:
        """Await an operation of a stream that waits for the core.

        A cancellation of the wait cancels the stream, whose end is handled in the background.
        """
        task = self.begin_step(waiting)
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError:
            self._cancel_in_core(stream)
            raise
        return task.result()

    def begin_step(self, waiting: Coroutine[object, object, ResultT]) -> asyncio.Task[ResultT]:
        """Begin something of a stream that waits for the core, and return its task. `end` waits for it."""
        task = asyncio.get_running_loop().create_task(waiting, name="raftmq-call-step")
        self._steps.add(task)
        task.add_done_callback(self._on_step_done)
        return task

    def _on_step_done(self, task: asyncio.Task[Any]) -> None:
        self._steps.discard(task)
        if not task.cancelled():
            task.exception()  # marks it as retrieved: perhaps nobody else asks for it

    async def end(self) -> None:
        """Cancel everything, and wait until the core has reported the ends, at most `END_SECONDS`."""
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
    """Return when the core has reported the status. The call object itself has one as soon as it is cancelled."""
    core = getattr(stream, "_cython_call", None)
    if core is None:
        return
    scan = _next_scan()
    await asyncio.wait((scan,))
    waiting = scan.result().get(id(core))
    if waiting:
        await asyncio.wait(waiting)


Scan = dict[int, list[asyncio.Task[Any]]]
"""The tasks that wait for a status, by the id of their call in the core."""
_scans: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Future[Scan]]] = WeakKeyDictionary()
"""The scan of each event loop that runs at the end of the current turn."""


def _next_scan() -> asyncio.Future[Scan]:
    """Return the scan of all tasks for all streams that end in this turn. A hundred clients that close together have hundreds of streams."""
    loop = asyncio.get_running_loop()
    scan = _scans.get(loop)
    if scan is None:
        scan = _scans[loop] = loop.create_future()
        loop.call_soon(_run_scan, loop, scan)
    return scan


def _run_scan(loop: asyncio.AbstractEventLoop, scan: asyncio.Future[Scan]) -> None:
    _scans.pop(loop, None)
    found: Scan = {}
    for task in asyncio.all_tasks(loop):
        for core in _calls_of(task):
            found.setdefault(id(core), []).append(task)
    if not scan.done():
        scan.set_result(found)


def _calls_of(task: asyncio.Task[Any]) -> list[object]:
    """Return the call in the core whose status the task waits for, or an empty list."""
    coroutine = task.get_coro()
    if getattr(coroutine, "__qualname__", "") != _STATUS_COROUTINE:
        return []
    held = (each for scope in gc.get_referents(coroutine) for each in gc.get_referents(scope))
    return [each for each in held if type(each).__name__ == _CORE_CALL]
