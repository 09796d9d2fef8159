"""Read ahead: fill the windows that run low before an entry needs them. Results do not depend on it."""

from __future__ import annotations

from typing import Final

from raftmq.fsm.queue.limits import WINDOWS_TOGETHER_MAX
from raftmq.fsm.queue.state import QueueState
from raftmq.fsm.queue.windows import Window
from raftmq.fsm.row_reads import RowsFound, RowsNeeded

LEASES_PER_LOOK: Final = WINDOWS_TOGETHER_MAX // 2
"""Leased messages after which the windows of the next tenants are looked at. A look costs two microseconds for each of those tenants."""


class Prefetcher:
    """Find low windows of one partition, and take the rows that were read for them."""

    def __init__(self, state: QueueState) -> None:
        self._state = state
        self._asked: list[tuple[Window, int, int]] = []
        """The windows of the read that is under way, how many ranges each has in it, and the rows of each window."""
        self._looked_at = 0
        """The count of leased messages when the windows of the next tenants were looked at."""

    def prefetch(self) -> RowsNeeded | None:
        """Return the reads that fill low windows, or None."""
        store, bounds = self._state.store, self._state.bounds
        if self._asked:
            return None
        single = (store.delayed, store.expiry, self._state.ids.ends)
        chosen = [(window, bounds.read_rows) for window in single if _is_low(window, bounds.low_mark)]
        ready = self._next_ready()
        if ready:
            count = len(ready)
            rows_max = store.rows_of_each(count, len(self._state.tenants.by_number))
            low_mark = max(1, min(bounds.low_mark // count, rows_max))
            chosen += [(window, rows_max) for window in ready if _is_low(window, low_mark)]
        if not chosen:
            return None
        wanted = [(window, rows_max, window.next_ranges(rows_max)) for window, rows_max in chosen]
        self._asked = [(window, len(ranges), rows_max) for window, rows_max, ranges in wanted]
        return RowsNeeded(tuple(range_ for _, _, ranges in wanted for range_ in ranges))

    def _next_ready(self) -> list[Window]:
        """Return the windows from which messages were taken, if there are few tenants, and now and then those of the next tenants.

        With many tenants, it takes long until the turn of a tenant comes again.
        """
        store, tenants, leased = self._state.store, self._state.tenants, self._state.tallies.leased
        numbers: list[int] = []
        if len(tenants.by_number) <= WINDOWS_TOGETHER_MAX:
            numbers += store.used
        store.used.clear()
        if leased - self._looked_at >= LEASES_PER_LOOK and len(store.messages) < tenants.message_count:
            self._looked_at = leased
            numbers += tenants.tree.upcoming(WINDOWS_TOGETHER_MAX)
        return [
            store.ready_window(number, tenants.by_number[number].ready)
            for number in dict.fromkeys(numbers)
            if number in tenants.by_number
        ]

    def on_prefetched(self, needed: RowsNeeded, found: RowsFound) -> None:
        """Add the rows to their windows, unless a window has moved in the meantime. Without any rows the read has failed."""
        store, ids = self._state.store, self._state.ids
        asked, self._asked = self._asked, []
        first = 0
        for window, count, rows_max in asked if found else ():
            ranges, rows = needed.ranges[first : first + count], found[first : first + count]
            first += count
            if not self._is_present(window) or window.is_complete or window.next_ranges(rows_max) != ranges:
                continue
            if window is store.expiry:
                store.admit_expiry(rows, rows_max)
            elif window is ids.ends:
                ids.admit(rows, rows_max)
            else:
                store.admit(window, rows, rows_max)
        store.trim()

    def _is_present(self, window: Window) -> bool:
        store = self._state.store
        return window in (store.delayed, store.expiry, self._state.ids.ends, store.ready_of(window.prefix))


def _is_low(window: Window, low_mark: int) -> bool:
    return not window.is_complete and len(window.heap) < low_mark
