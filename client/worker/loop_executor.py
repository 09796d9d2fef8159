"""`LoopExecutor`: runs async handlers on the worker's own event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable
from typing import ClassVar, cast

from raftmq.client.worker.executor import Hook, call_hook
from raftmq.client.worker.handlers import FIRST, Attempt, Handlers, check_has_run
from raftmq.client.worker.outcome import Failure, Outcome
from raftmq.types import Record


class LoopExecutor:
    """Runs handlers as coroutines. A handler that exceeds its time limit is cancelled, and its attempt ends when it has ended."""

    can_cancel: ClassVar[bool] = True

    def __init__(self, handlers: Handlers[object, object], timeout_seconds: float | None) -> None:
        self._handlers = handlers
        self._timeout_seconds = timeout_seconds

    async def start(self) -> None:
        """Do nothing: the loop is running."""

    async def call(self, hook: Hook) -> None:
        """Implement `Executor.call`."""
        await call_hook(hook)

    async def run(self, record: Record, attempt: Attempt = FIRST) -> Outcome:
        """Implement `Executor.run`. Cancelling it cancels the handler."""
        timeout = asyncio.timeout(self._timeout_seconds)
        try:
            async with timeout:
                result = await cast("Awaitable[object]", self._handlers(record, attempt))
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            return Failure.of(error)  # the handler's own: something that it awaited was cancelled
        except TimeoutError as error:
            if timeout.expired() and self._timeout_seconds is not None:
                return Failure.overdue(self._timeout_seconds)
            return Failure.of(error)
        except GeneratorExit:
            raise  # the coroutine itself is being closed
        except KeyboardInterrupt as error:
            if threading.current_thread() is threading.main_thread():
                raise  # it may be a real Ctrl-C
            return Failure.of(error)
        except BaseException as error:  # noqa: BLE001 - the root of the user's code: whatever it raises is its failure
            return Failure.of(error)
        check_has_run(result)
        return None

    async def close(self) -> None:
        """Do nothing: cancelling `run` has ended its handler."""
