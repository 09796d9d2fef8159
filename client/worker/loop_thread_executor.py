"""`LoopThreadExecutor`: runs async handlers on an event loop of their own, in a thread.

A handler that blocks its loop delays the other handlers but not the worker: progress is still committed, signals are handled, and draining
ends on time. The thread is a daemon, so it cannot keep the program from ending.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import copy_context
from functools import partial
from typing import ClassVar, Generic, TypeVar

from raftmq.client.base.logs import log
from raftmq.client.worker.executor import Hook
from raftmq.client.worker.handlers import FIRST, Attempt, Handlers
from raftmq.client.worker.loop_executor import LoopExecutor
from raftmq.client.worker.outcome import Outcome
from raftmq.types import Record

T = TypeVar("T")


class _Mailbox:
    """Calls queued for another thread's loop. One wake-up serves all calls that are queued before that loop runs them."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._calls: deque[Callable[[], object]] = deque()
        self._is_woken = False

    def put(self, call: Callable[[], object]) -> None:
        """Run a call on the other loop, in the order of queueing. A call for a closed loop is dropped."""
        self._calls.append(call)
        if not self._is_woken:
            self._is_woken = True
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._call_all)

    def _call_all(self) -> None:
        self._is_woken = False  # before the queue is read: a call that is put from now on wakes the loop again
        while self._calls:
            self._calls.popleft()()


class _Ended(asyncio.Future[T], Generic[T]):
    """The result of a coroutine that runs on another loop.

    Cancelling it cancels the coroutine and waits for its end. A second cancellation does not wait.
    """

    def __init__(self, make: Callable[[], Coroutine[object, object, T]], here: _Mailbox, there: _Mailbox) -> None:
        super().__init__()
        self._make = make
        self._here = here
        self._there = there
        self._task: asyncio.Task[T] | None = None  # created and cancelled on the other loop
        self._is_cancelling = False
        self._context = copy_context()
        """Of the caller, so that the coroutine sees the active span."""
        there.put(self._begin)

    def cancel(self, msg: object = None) -> bool:
        if self.done():
            return False
        if self._is_cancelling:
            return super().cancel(msg)
        self._is_cancelling = True
        self._there.put(self._cancel_there)
        return True

    def _begin(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._make(), context=self._context)
        self._task.add_done_callback(lambda task: self._here.put(partial(self._end, task)))

    def _cancel_there(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _end(self, task: asyncio.Task[T]) -> None:
        if task.cancelled():
            super().cancel()
        elif self.done():
            task.exception()  # marks it as retrieved: nobody waits for it
        elif (error := task.exception()) is not None:
            self.set_exception(error)
        else:
            self.set_result(task.result())


class LoopThreadExecutor:
    """Runs handlers as `LoopExecutor` does, on a loop in another thread."""

    can_cancel: ClassVar[bool] = True

    def __init__(self, handlers: Handlers[object, object], timeout_seconds: float | None) -> None:
        self._inner = LoopExecutor(handlers, timeout_seconds)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._here: _Mailbox | None = None
        self._there: _Mailbox | None = None

    async def start(self) -> None:
        """Start the thread."""
        here = asyncio.get_running_loop()
        # The same kind of loop as the worker's: uvloop, say, if that is what the program runs on.
        loop = self._loop = type(here)()
        self._here, self._there = _Mailbox(here), _Mailbox(loop)
        threading.Thread(target=self._serve, args=(loop,), name="raftmq-worker-handlers", daemon=True).start()

    async def call(self, hook: Hook) -> None:
        """Implement `Executor.call` on the handlers' loop."""
        await self._run_there(lambda: self._inner.call(hook))

    async def run(self, record: Record, attempt: Attempt = FIRST) -> Outcome:
        """Implement `Executor.run`. Cancelling it cancels the handler."""
        return await self._run_there(lambda: self._inner.run(record, attempt))

    async def close(self) -> None:
        """Ask the thread to end. It ends unless a handler blocks it."""
        loop, self._loop = self._loop, None
        if loop is not None:
            loop.call_soon_threadsafe(loop.stop)

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        """Run the loop until it is closed, and again after each exception that a handler lets escape."""
        asyncio.set_event_loop(loop)
        try:
            while self._loop is not None:
                try:
                    loop.run_forever()
                except BaseException:  # noqa: BLE001 - asyncio lets SystemExit and KeyboardInterrupt of any task end the loop
                    # The task that raised it has ended. The other handlers must go on, or their awaiters would wait indefinitely.
                    log.exception("handler_loop_interrupted")
            _end_tasks(loop)
        finally:
            loop.close()

    def _run_there(self, make: Callable[[], Coroutine[object, object, T]]) -> asyncio.Future[T]:
        assert self._here is not None and self._there is not None, "it is started"  # noqa: PT018
        return _Ended(make, self._here, self._there)


def _end_tasks(loop: asyncio.AbstractEventLoop) -> None:
    left = asyncio.all_tasks(loop)
    for task in left:
        task.cancel()
    # A task that swallows its cancellation blocks this thread, which is a daemon and blocks nothing else.
    loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
    loop.run_until_complete(loop.shutdown_asyncgens())
