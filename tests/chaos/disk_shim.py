"""Make a broker's disk slow, hanging, failing or lying: compile `disk_shim.c` and control it through a shared page.

Substitutes without a compiler: `tests/e2e/test_failures.py` makes a commit fail with a limit on file sizes, and a frozen process stands for
a hanging disk.
"""

from __future__ import annotations

import errno
import struct
from pathlib import Path

from tests.chaos.shim import ShimOrders

ORDERS = struct.Struct("<IIiiI")
"""The layout of `disk_shim.c`: swallow_syncs, delay_millis, sync_errno, write_errno, hang."""
COUNTS = struct.Struct("<IIII")
"""The counters after the orders: synced, swallowed, delayed, failed."""


class DiskOrders(ShimOrders):
    """The disk of one broker, as its process sees it. A fault holds until `work`, also across restarts of the broker."""

    SOURCE = Path(__file__).with_name("disk_shim.c")
    VARIABLE = "CHAOS_DISK_ORDERS"

    def _order(
        self,
        *,
        swallow: bool = False,
        delay_millis: int = 0,
        sync_errno: int = 0,
        write_errno: int = 0,
        hang: bool = False,
    ) -> None:
        ORDERS.pack_into(self._page, 0, swallow, delay_millis, sync_errno, write_errno, hang)

    def work(self) -> None:
        """End the fault."""
        self._order()

    def swallow_syncs(self) -> None:
        """Report every synchronisation as done without doing it, like a forgotten fsync."""
        self._order(swallow=True)

    def be_slow(self, milliseconds: int) -> None:
        """Delay each synchronisation."""
        self._order(delay_millis=milliseconds)

    def hang(self) -> None:
        """Let no synchronisation return."""
        self._order(hang=True)

    def fail_syncs(self, code: int = errno.EIO) -> None:
        """Let every synchronisation fail."""
        self._order(sync_errno=code)

    def fail_writes(self, code: int = errno.EIO) -> None:
        """Let every pwrite fail."""
        self._order(write_errno=code)

    def counts(self) -> tuple[int, int, int, int]:
        """Return how many calls were synchronised, swallowed, delayed and failed."""
        synced, swallowed, delayed, failed = COUNTS.unpack_from(self._page, ORDERS.size)
        return synced, swallowed, delayed, failed
