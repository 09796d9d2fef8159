"""One timer of the loop for the earliest of many deadlines. It is finer than the engine's tick, and cheap to move."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class DeadlineTimer:
    """Calls a function at a deadline. A later deadline keeps the armed timer, which then fires early and is set again."""

    __slots__ = ("_at", "_handle", "_is_closed", "_loop", "_on_due")

    def __init__(self, loop: asyncio.AbstractEventLoop, on_due: Callable[[], None]) -> None:
        """Take `on_due`, which must look at its own deadlines: the timer may fire before any is reached."""
        self._loop = loop
        self._on_due = on_due
        self._at = 0.0
        self._handle: asyncio.TimerHandle | None = None
        self._is_closed = False

    def set(self, at: float) -> None:
        """Fire at this loop time, or earlier."""
        if self._is_closed:
            return
        if self._handle is not None:
            if self._at <= at:
                return
            self._handle.cancel()
        self._at = at
        self._handle = self._loop.call_at(at, self._fire)

    def cancel(self) -> None:
        """Forget the deadline."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def close(self) -> None:
        """Forget the deadline, and every later one."""
        self._is_closed = True
        self.cancel()

    def _fire(self) -> None:
        self._handle = None
        self._on_due()
