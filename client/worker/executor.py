"""`Executor`: the protocol of the places where handlers run. Must not know partitions, order or retries."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import ClassVar, Final, Literal, Protocol

from raftmq.client.base import settings
from raftmq.client.base.logs import log
from raftmq.client.worker.handlers import Attempt, Handlers
from raftmq.client.worker.outcome import Outcome
from raftmq.errors import InvalidArgumentError
from raftmq.types import Record

Hook = Callable[[], Awaitable[object]] | Callable[[], object]
"""A function of the program that is called at the start or at the end."""
ExecutorName = Literal["async", "thread", "process"]
EXECUTORS: Final[tuple[ExecutorName, ...]] = ("async", "thread", "process")


class Executor(Protocol):
    """Runs handlers. The caller limits how many run concurrently."""

    can_cancel: ClassVar[bool]
    """Whether cancelling `run` ends the handler. Otherwise the handler keeps running unobserved."""

    async def start(self) -> None:
        """Prepare to run handlers. Raises `InvalidArgumentError` when the handler cannot run there."""

    async def call(self, hook: Hook) -> None:
        """Call a function once, on the event loop of async handlers, else on the worker's. Its exception is raised."""

    async def run(self, record: Record, attempt: Attempt) -> Outcome:
        """Run the handler and return its outcome. An exception of the handler is an outcome.

        An exception raised here concerns the executor itself, such as a process that cannot be started, or a handler that can never work
        (`check_has_run`). No other record would succeed either.
        """

    async def close(self) -> None:
        """Stop everything that can be stopped, without waiting for the rest."""


def was_cancelled(task: asyncio.Task[object] | None) -> bool:
    """Return whether a worker's task was cancelled. At the end of a program all tasks are cancelled at once, also those of its handlers."""
    return task is not None and task.cancelling() > 0


async def shut_down(executor: Executor, hook: Hook | None) -> BaseException | None:
    """Call the program's shutdown hook, for a bounded time, and return its exception. Then close an executor on an event loop.

    Other executors were closed before, since their handlers cannot be cancelled. An event loop is closed last, because the hook runs on it.
    """
    try:
        return None if hook is None else await _call_within_limit(executor, hook)
    finally:
        if executor.can_cancel:
            await executor.close()


async def _call_within_limit(executor: Executor, hook: Hook) -> BaseException | None:
    calling = asyncio.ensure_future(executor.call(hook))
    await asyncio.wait((calling,), timeout=settings.WORKER_SHUTDOWN_HOOK_SECONDS)
    if not calling.done():
        log.warning("shutdown_hook_overdue timeout_seconds=%g", settings.WORKER_SHUTDOWN_HOOK_SECONDS)
        calling.cancel()
        await asyncio.sleep(0)
        calling.cancel()  # if its loop is blocked, it has not seen the first cancellation
        return None
    return None if calling.cancelled() else calling.exception()


async def call_hook(hook: Hook) -> None:
    """Call a hook on the current loop, and await its result if that is awaitable."""
    result = hook()
    if inspect.isawaitable(result):
        await result


def place_of(handlers: Handlers[object, object], wanted: ExecutorName | None) -> ExecutorName:
    """Return the executor for handlers: the event loop for async functions, threads or (on request) processes for plain ones.

    Raises:
        InvalidArgumentError: the handlers cannot run in the wanted executor.
    """
    if wanted is not None and wanted not in EXECUTORS:
        raise InvalidArgumentError(f"executor {wanted!r}: use one of {', '.join(EXECUTORS)}")
    is_async = handlers.is_async
    if is_async and wanted in ("thread", "process"):
        raise InvalidArgumentError(f"an async handler runs on the event loop, so executor={wanted!r} is not possible")
    if wanted == "async" and not is_async:
        raise InvalidArgumentError("executor='async' needs handlers that are async functions")
    return wanted or ("async" if is_async else "thread")
