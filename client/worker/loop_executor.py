"""`LoopExecutor`: runs async handlers on the worker's own event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import ClassVar

from raftmq.client.worker.outcome import Failure, Outcome
from raftmq.types import Record


class LoopExecutor:
    """A handler that takes too long is cancelled; its try is over when it has ended."""

    can_cancel: ClassVar[bool] = True

    def __init__(self, handler: Callable[[Record], Awaitable[object]], timeout_seconds: float | None) -> None:
        self._handler = handler
        self._timeout_seconds = timeout_seconds

    async def start(self) -> None:
        """Nothing to do."""

    async def run(self, record: Record) -> Outcome:
        """As `Executor.run`. Cancelling cancels the handler."""
        timeout = asyncio.timeout(self._timeout_seconds)
        try:
            async with timeout:
                await self._handler(record)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            return Failure.of(error)  # the handler's own: something that it waited for was cancelled
        except TimeoutError as error:
            if timeout.expired() and self._timeout_seconds is not None:
                return Failure.overdue(self._timeout_seconds)
            return Failure.of(error)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the root of the user's code: whatever it raises is its failure
            return Failure.of(error)
        return None

    async def close(self) -> None:
        """Nothing to do: who cancels `run` has ended its handler."""
