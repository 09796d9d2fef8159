"""Define the wall clock as an argument, so that the simulator can replace it."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """A wall clock, only for the times of records and entries. Timers use the event loop's own clock."""

    def now_ms(self) -> int:
        """Return the milliseconds since the epoch."""
        ...


class WallClock:
    """The production clock."""

    def now_ms(self) -> int:
        """Return the milliseconds since the epoch."""
        return time.time_ns() // 1_000_000
