"""Slow, hanging, failing and lying disks: `disk_shim.c`, compiled when needed, and the page by which it is ordered.

Second best, where there is no compiler: `tests/e2e/test_failures.py` makes a commit fail by a limit of file sizes, and a frozen process
stands for a disk that hangs.
"""

from __future__ import annotations

import errno
import struct
from pathlib import Path

from tests.chaos.shim import ShimOrders

ORDERS = struct.Struct("<IIiiI")
"""As in `disk_shim.c`: swallow_syncs, delay_millis, sync_errno, write_errno, hang."""
COUNTS = struct.Struct("<IIII")
"""After the orders: synced, swallowed, delayed, failed."""


class DiskOrders(ShimOrders):
    """The disk of one broker, as its process sees it; outlives the process. Faults hold until `work`."""

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
        """As a disk should."""
        self._order()

    def swallow_syncs(self) -> None:
        """Say that everything is on disk, and put nothing there: as an fsync that was forgotten."""
        self._order(swallow=True)

    def be_slow(self, milliseconds: int) -> None:
        """So long for each synchronisation."""
        self._order(delay_millis=milliseconds)

    def hang(self) -> None:
        """No synchronisation returns."""
        self._order(hang=True)

    def fail_syncs(self, code: int = errno.EIO) -> None:
        """Every synchronisation fails."""
        self._order(sync_errno=code)

    def fail_writes(self, code: int = errno.EIO) -> None:
        """Every pwrite fails."""
        self._order(write_errno=code)

    def counts(self) -> tuple[int, int, int, int]:
        """How often it synchronised, swallowed, delayed, failed."""
        synced, swallowed, delayed, failed = COUNTS.unpack_from(self._page, ORDERS.size)
        return synced, swallowed, delayed, failed
