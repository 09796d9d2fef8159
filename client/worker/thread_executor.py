"""`ThreadExecutor`: runs plain functions in threads. The executor of processes uses its thread pool, too."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextvars import Context, copy_context
from dataclasses import dataclass
from queue import SimpleQueue
from typing import ClassVar, Generic, TypeVar

from raftmq.client.base.logs import log
from raftmq.client.worker.executor import Hook, call_hook
from raftmq.client.worker.handlers import FIRST, Attempt, Handlers, check_has_run
from raftmq.client.worker.outcome import Failure, Outcome
from raftmq.types import Record

Try = tuple[Record, Attempt]
"""The arguments of a handler."""
RequestT = TypeVar("RequestT")
AnswerT = TypeVar("AnswerT")


@dataclass(frozen=True, slots=True)
class _Call(Generic[RequestT, AnswerT]):
    request: RequestT
    future: asyncio.Future[AnswerT]
    context: Context
    """Of the caller, so that the function sees the active span."""


class ThreadPool(Generic[RequestT, AnswerT]):
    """Threads that each call a function of their own.

    The threads are daemons, so a handler that never ends does not keep the program from ending. (The interpreter joins the threads of
    `concurrent.futures` at exit, so such a handler would block the exit.)
    """

    def __init__(self, count: int, make_call: Callable[[], Callable[[RequestT], AnswerT]]) -> None:
        self._count = count
        self._make_call = make_call
        self._calls: SimpleQueue[_Call[RequestT, AnswerT] | None] = SimpleQueue()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._threads = 0
        self._busy = 0
        self._is_closed = False

    async def run(self, request: RequestT) -> AnswerT:
        """Run a call in one of the threads, which are started on demand. An exception of the function is raised.

        If it is cancelled, the call continues and its answer is dropped.
        """
        self._loop = asyncio.get_running_loop()
        future: asyncio.Future[AnswerT] = self._loop.create_future()
        self._busy += 1
        if self._busy > self._threads and self._threads < self._count:
            self._threads += 1
            threading.Thread(target=self._work, name=f"raftmq-worker-{self._threads}", daemon=True).start()
        self._calls.put(_Call(request, future, copy_context()))
        return await future

    def close(self) -> None:
        """Let the threads end, each after its current call."""
        if not self._is_closed:
            self._is_closed = True
            for _ in range(self._threads):
                self._calls.put(None)

    def _work(self) -> None:
        function = self._make_call()
        while (call := self._calls.get()) is not None:
            if self._is_closed:
                return
            answer: AnswerT | BaseException
            try:
                answer = call.context.run(function, call.request)
            except BaseException as error:  # noqa: BLE001 - a thread's root: `run` raises it
                answer = error
            assert self._loop is not None
            try:
                self._loop.call_soon_threadsafe(self._set, call.future, answer)
            except RuntimeError:
                return  # the loop is closed: the worker has ended without waiting for us

    def _set(self, future: asyncio.Future[AnswerT], answer: AnswerT | BaseException) -> None:
        self._busy -= 1
        if future.done():
            return
        if isinstance(answer, BaseException):
            future.set_exception(answer)
        else:
            future.set_result(answer)


class ThreadExecutor:
    """Runs handlers in threads, which cannot be stopped.

    An attempt that exceeds its time limit counts as failed, but it ends only when its function returns. Therefore a record is never processed
    twice simultaneously. A function that never returns blocks its lane, and a warning names the record.
    """

    can_cancel: ClassVar[bool] = False

    def __init__(self, handlers: Handlers[object, object], count: int, timeout_seconds: float | None) -> None:
        self._handlers = handlers
        self._timeout_seconds = timeout_seconds
        self._pool: ThreadPool[Try, Outcome] = ThreadPool(count, lambda: self._call)

    async def start(self) -> None:
        """Do nothing: threads start on demand."""

    async def call(self, hook: Hook) -> None:
        """Implement `Executor.call`."""
        await call_hook(hook)

    async def run(self, record: Record, attempt: Attempt = FIRST) -> Outcome:
        """Implement `Executor.run`."""
        if self._timeout_seconds is None:
            return await self._pool.run((record, attempt))
        call = asyncio.ensure_future(self._pool.run((record, attempt)))
        try:
            done, _ = await asyncio.wait((call,), timeout=self._timeout_seconds)
            if done:
                return call.result()
            data = (record.topic, record.partition, record.offset, self._timeout_seconds)
            log.warning("handler_overdue topic=%s partition=%d offset=%d timeout_seconds=%g", *data)
            await call
        finally:
            call.cancel()
        return Failure.overdue(self._timeout_seconds)

    async def close(self) -> None:
        """Let the threads end, each after its current call."""
        self._pool.close()

    def _call(self, request: Try) -> Outcome:
        try:
            result = self._handlers(*request)
        except BaseException as error:  # noqa: BLE001 - the root of the user's code: whatever it raises is its failure
            return Failure.of(error)
        check_has_run(result)
        return None
