"""Read ahead: fill the windows that run low before an entry needs them. Results do not depend on it."""

from __future__ import annotations

from typing import Final

from raftmq.fsm.queue.state import QueueState
from raftmq.fsm.queue.windows import Window
from raftmq.fsm.row_reads import RowsFound, RowsNeeded

WINDOWS_MAX: Final = 16
"""Windows that one read ahead fills."""


class Prefetcher:
    """Find low windows of one partition, and take the rows that were read for them."""

    def __init__(self, state: QueueState) -> None:
        self._state = state
        self._asked: list[tuple[Window, int]] = []
        """The windows of the read that is under way, and how many ranges each has in it."""

    def prefetch(self) -> RowsNeeded | None:
        """Return the reads that fill low windows, or None."""
        store, bounds = self._state.store, self._state.bounds
        if self._asked:
            return None
        chosen = [window for window in (store.delayed, store.expiry, self._state.ids.ends) if self._is_low(window)]
        for tenant, window in store.used.items():
            if store.ready.get(tenant) is window and self._is_low(window) and len(chosen) < WINDOWS_MAX:
                chosen.append(window)
        store.used.clear()
        if not chosen:
            return None
        wanted = [(window, window.next_ranges(bounds.read_rows)) for window in chosen]
        self._asked = [(window, len(ranges)) for window, ranges in wanted]
        return RowsNeeded(tuple(range_ for _, ranges in wanted for range_ in ranges))

    def on_prefetched(self, needed: RowsNeeded, found: RowsFound) -> None:
        """Add the rows to their windows, unless a window has moved in the meantime. Without any rows the read has failed."""
        store, ids, rows_max = self._state.store, self._state.ids, self._state.bounds.read_rows
        asked, self._asked = self._asked, []
        first = 0
        for window, count in asked if found else ():
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

    def _is_low(self, window: Window) -> bool:
        return not window.is_complete and len(window.heap) < self._state.bounds.low_mark

    def _is_present(self, window: Window) -> bool:
        store = self._state.store
        return window in (store.delayed, store.expiry, self._state.ids.ends, store.ready_of(window.prefix))
