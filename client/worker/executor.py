"""`Executor`: where a handler runs, and what the three places have in common. Must not know partitions, order or retries."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import ClassVar, Final, Literal, Protocol

from raftmq.client.worker.handlers import Attempt, Handlers
from raftmq.client.worker.outcome import Outcome
from raftmq.errors import InvalidArgumentError
from raftmq.types import Record

Hook = Callable[[], Awaitable[object]] | Callable[[], object]
"""What a program wants done at the start and at the end."""
ExecutorName = Literal["async", "thread", "process"]
EXECUTORS: Final[tuple[ExecutorName, ...]] = ("async", "thread", "process")


class Executor(Protocol):
    """Runs handlers; the caller sees to it that no more than its number run at once."""

    can_cancel: ClassVar[bool]
    """Whether cancelling `run` ends the handler. Otherwise the handler goes on, and nobody knows of it any more."""

    async def start(self) -> None:
        """Get ready. Raises `InvalidArgumentError` when the handler cannot run there."""

    async def call(self, hook: Hook) -> None:
        """Call a function once, on the event loop of async handlers, else on the worker's. Raises what it raises."""

    async def run(self, record: Record, attempt: Attempt) -> Outcome:
        """Run the handler and say what became of it: what the handler raises is an outcome.

        What is raised is of the place itself, such as no process to be had, or of a handler that cannot work (`check_has_run`): no other
        record would fare better.
        """

    async def close(self) -> None:
        """End what can be ended, and wait for nothing else."""


async def call_hook(hook: Hook) -> None:
    """Call it here, and await what it returns if that is awaitable."""
    result = hook()
    if inspect.isawaitable(result):
        await result


def place_of(handlers: Handlers[object, object], wanted: ExecutorName | None) -> ExecutorName:
    """Where handlers run: coroutine functions on the event loop, plain functions in threads unless processes are asked for.

    Raises:
        InvalidArgumentError: it cannot run where it was asked to.
    """
    if wanted is not None and wanted not in EXECUTORS:
        raise InvalidArgumentError(f"executor {wanted!r}: use one of {', '.join(EXECUTORS)}")
    is_async = handlers.is_async
    if is_async and wanted in ("thread", "process"):
        raise InvalidArgumentError(f"an async handler runs on the event loop, not with executor={wanted!r}")
    if wanted == "async" and not is_async:
        raise InvalidArgumentError("executor='async' needs a handler that is an async function")
    return wanted or ("async" if is_async else "thread")
