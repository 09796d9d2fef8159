"""Periodic timers that notice when the loop stood still, and let the sockets speak before they do.

Must not know what they tick. After a stall each of them fires once, not once per period missed: a leader's messages that
wait in the sockets must be read before an election timeout is counted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

_DRAIN_SECONDS = 0.02
"""After a stall the timers wait this long, so that what piled up in the sockets is read first."""


class StallAwareTimers:
    """Some timers of one loop. `on_stall` is told by how many seconds a timer was late, before that timer ticks."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, stall_seconds: float, on_stall: Callable[[float], None]
    ) -> None:
        self._loop = loop
        self._stall_seconds = stall_seconds
        self._on_stall = on_stall
        self._handles: list[asyncio.TimerHandle] = []
        self._is_closed = False

    def arm(self, tick: Callable[[], None], period_seconds: float) -> None:
        """Call `tick` every `period_seconds`, once (not several times) after a stall, and then only after the sockets
        had their turn. A tick that raises does not end the ticking.
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
            # once only: a loop that is late every time must tick all the same
            is_draining = is_stalled and not is_draining
            if is_draining:
                next_at = now + _DRAIN_SECONDS
            # before the tick: whatever it raises, the timer goes on
            self._handles[position] = self._loop.call_at(next_at, fire)
            if is_stalled:
                self._on_stall(lateness)
            if not is_draining:
                tick()

        self._handles.append(self._loop.call_at(next_at, fire))

    def close(self) -> None:
        """Tick no more."""
        self._is_closed = True
        for handle in self._handles:
            handle.cancel()
