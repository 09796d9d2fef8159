"""Falsify the wall clock of a broker: compile `clock_shim.c` and control it through a shared page. Monotonic clocks stay right."""

from __future__ import annotations

import struct
from pathlib import Path

from tests.chaos.shim import ShimOrders

ORDERS = struct.Struct("<q")
"""The layout of `clock_shim.c`: offset_millis."""
COUNTS = struct.Struct("<I")
"""The counters after the orders: shifted."""


class ClockOrders(ShimOrders):
    """The wall clock of one broker, as its process sees it. An offset holds until `work`, also across restarts of the broker."""

    SOURCE = Path(__file__).with_name("clock_shim.c")
    VARIABLE = "CHAOS_CLOCK_ORDERS"

    def be_off(self, seconds: float) -> None:
        """Set the clock ahead by this many seconds (negative: behind)."""
        ORDERS.pack_into(self._page, 0, int(seconds * 1000))

    def work(self) -> None:
        """Show the right time again."""
        self.be_off(0)

    def shifted(self) -> int:
        """Return how many calls got a shifted time."""
        count: int = COUNTS.unpack_from(self._page, ORDERS.size)[0]
        return count
