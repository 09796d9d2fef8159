"""Wrong clocks: `clock_shim.c`, compiled when needed, and the page by which it is ordered. Monotonic clocks stay right."""

from __future__ import annotations

import struct
from pathlib import Path

from tests.chaos.shim import ShimOrders

ORDERS = struct.Struct("<q")
"""As in `clock_shim.c`: offset_millis."""
COUNTS = struct.Struct("<I")
"""After the orders: shifted."""


class ClockOrders(ShimOrders):
    """The wall clock of one broker, as its process sees it; outlives the process. It is wrong until `work`."""

    SOURCE = Path(__file__).with_name("clock_shim.c")
    VARIABLE = "CHAOS_CLOCK_ORDERS"

    def be_off(self, seconds: float) -> None:
        """Ahead by so much; behind when it is negative."""
        ORDERS.pack_into(self._page, 0, int(seconds * 1000))

    def work(self) -> None:
        """As a clock should."""
        self.be_off(0)

    def shifted(self) -> int:
        """How often somebody was told another time."""
        count: int = COUNTS.unpack_from(self._page, ORDERS.size)[0]
        return count
