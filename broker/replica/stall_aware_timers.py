"""Run periodic timers that notice a stall of the loop, and let the sockets be read before they fire.

This module must not know the purpose of the timers. After a stall each of them fires once, not once per missed period: a leader's
messages that wait in the sockets must be read before an election timeout is counted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

_DRAIN_SECONDS = 0.02
"""The delay of timers after a stall, so that messages that piled up in the sockets are read first."""


class StallAwareTimers:
    """Timers of one loop. `on_stall` is called with the lateness of a timer in seconds, before that timer fires."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, stall_seconds: float, on_stall: Callable[[float], None]
    ) -> None:
        self._loop = loop
        self._stall_seconds = stall_seconds
        self._on_stall = on_stall
        self._handles: list[asyncio.TimerHandle] = []
        self._is_closed = False

    def arm(self, tick: Callable[[], None], period_seconds: float) -> None:
        """Call `tick` every `period_seconds`. A tick that raises does not end the timer.

        After a stall it is called once, not several times, and only after the sockets were read.
        """
        position = len(self._handles)
        next_at = self._loop.time() + period_seconds
        is_draining = False

        def fire() -> None:
            nonlocal next_at, is_draining
            if self._is_closed:
                return
            now = self._loop.time()
            lateness = now - next_at
            next_at = max(next_at + period_seconds, now)
            is_stalled = lateness > self._stall_seconds
            # only once: a loop that is always late must still tick
            is_draining = is_stalled and not is_draining
            if is_draining:
                next_at = now + _DRAIN_SECONDS
            # before the tick, so that an error in it does not end the timer
            self._handles[position] = self._loop.call_at(next_at, fire)
            if is_stalled:
                self._on_stall(lateness)
            if not is_draining:
                tick()

        self._handles.append(self._loop.call_at(next_at, fire))

    def close(self) -> None:
        """Stop the timers."""
        self._is_closed = True
        for handle in self._handles:
            handle.cancel()
