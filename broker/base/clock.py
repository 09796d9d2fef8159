"""The wall clock, handed in so that the simulator can hand in another."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Wall time, for record and entry times only; timers use the loop's own clock."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch."""
        ...


class WallClock:
    """The production clock."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch."""
        return time.time_ns() // 1_000_000
