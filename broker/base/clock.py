"""Define the clocks as an argument, so that the simulator can replace them."""

from __future__ import annotations

import time
from typing import Final, Protocol

_BOOTTIME: Final[int | None] = getattr(time, "CLOCK_BOOTTIME", None)


class Clock(Protocol):
    """The clocks of a machine, only for the times of records and entries. Timers use the event loop's own clock."""

    def now_ms(self) -> int:
        """Return the wall clock's milliseconds since the epoch. It may jump."""
        ...

    def boottime_ns(self) -> int:
        """Return the nanoseconds since the machine was started. They never jump, and count the time in which it was suspended."""
        ...


class WallClock:
    """The production clocks."""

    def now_ms(self) -> int:
        """Return the wall clock's milliseconds since the epoch."""
        return time.time_ns() // 1_000_000

    def boottime_ns(self) -> int:
        """Return the nanoseconds since the machine was started.

        Only Linux has a clock that counts suspension. Elsewhere time is lost with it: the caller is late, never early.
        """
        return time.monotonic_ns() if _BOOTTIME is None else time.clock_gettime_ns(_BOOTTIME)
