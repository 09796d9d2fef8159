"""Bound an orderly shutdown as a whole: each phase gets the remaining time, and none can delay the exit.

A writer thread may wait for a hanging disk, and a call for a hanging client. A phase that overruns is logged and abandoned.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from math import inf
from pathlib import Path
from typing import Any

import structlog

log = structlog.get_logger(__name__)


class Shutdown:
    """One orderly shutdown. Create it when the shutdown begins."""

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds_max: float) -> None:
        self._loop = loop
        self._deadline = loop.time() + seconds_max
        self.overdue: list[str] = []
        """Phases that overran."""
        self.failure: Exception | None = None
        """The error of the first phase that failed."""

    @property
    def seconds_left(self) -> float:
        """Return the remaining time of the whole shutdown."""
        return max(0.0, self._deadline - self._loop.time())

    @property
    def is_clean(self) -> bool:
        """Return whether every phase so far ended in time and without an error."""
        return not self.overdue and self.failure is None

    def finish(self, data_dir: Path, end_process: Callable[[], None]) -> None:
        """End the process if a phase overran, and raise the error of the first phase that failed."""
        if self.overdue:
            # a thread that hangs would keep the process, and what it still does must not count as an orderly end
            log.critical("broker_exits", reason=f"not over in time: {', '.join(self.overdue)}", path=str(data_dir))
            end_process()
        if self.failure is not None:
            raise self.failure

    async def phase(self, name: str, work: Awaitable[Any], seconds_max: float = inf) -> bool:
        """Wait for the work, at most `seconds_max` and the remaining time. Return False if it overran or failed."""
        future = asyncio.ensure_future(work)
        began_at = self._loop.time()
        await asyncio.wait((future,), timeout=min(seconds_max, self.seconds_left))
        if not future.done():
            future.cancel()
            self.overdue.append(name)
            log.error("shutdown_overdue", phase=name, elapsed_seconds=round(self._loop.time() - began_at, 1))
            return False
        error = None if future.cancelled() else future.exception()
        if error is None:
            return True
        if not isinstance(error, Exception):
            raise error
        log.error("shutdown_phase_failed", phase=name, reason=repr(error), exc_info=error)
        self.failure = self.failure or error
        return False
