"""Pause the event loop while a writer thread puts many rows into a transaction.

LMDB's binding releases the GIL at every row. A busy event loop takes it, and the writer waits for a switch interval to get it back.
Beside such a loop a transaction of 1,000 entries took 8.3 ms instead of 5.0 ms, and the loop itself stalled for up to 50 ms instead of
6 ms (`python -m bench.commits`). This must not be relied on for order or exclusion: if the loop does not pause in time, the rows are
written while it runs.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

PAUSE_ROWS_MIN = 256
"""For fewer rows pausing the loop takes longer than it saves: 100 rows took 1.0 ms instead of 0.6 ms, 256 deletions 0.8 ms instead of
1.5 ms."""
START_SECONDS_MAX = 0.005
"""The longest time that a writer waits for the loop to pause. The writer does not wait for a longer callback to end."""
PAUSE_SECONDS_MAX = 0.01
"""The longest pause of the loop, even if the writer takes longer: a page of the file may have to be read from a slow disk."""


class LoopPause:
    """Pauses one event loop for any number of writer threads. The loop may be closed before them."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    @contextmanager
    def __call__(self, rows: int) -> Iterator[None]:
        """Run a block that writes this many rows, on a writer's thread, while the loop pauses."""
        if rows < PAUSE_ROWS_MIN:
            yield
            return
        has_stopped, may_go_on = threading.Event(), threading.Event()

        def stand_still() -> None:
            has_stopped.set()
            may_go_on.wait(PAUSE_SECONDS_MAX)

        try:
            self._loop.call_soon_threadsafe(stand_still)
        except RuntimeError:  # the loop is closed, so it cannot interfere
            yield
            return
        has_stopped.wait(START_SECONDS_MAX)
        try:
            yield
        finally:
            may_go_on.set()
