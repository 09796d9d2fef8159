"""`LoopPause`: has the event loop stand still while a writer thread puts many rows into a transaction.

LMDB's binding hands the GIL over at every row. A busy loop takes it, and the writer waits for a switch interval to have it back. Beside
such a loop a transaction of 1,000 entries took 8.3 ms instead of 5.0 ms, and the loop itself stood for up to 50 ms instead of 6 ms
(`python -m bench.commits`). Must not be relied on for order or exclusion: when the loop does not come in time, the rows are written
beside it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

PAUSE_ROWS_MIN = 256
"""Fewer rows are quicker than having the loop stop: 100 took 1.0 ms instead of 0.6 ms, 256 deletions 0.8 ms instead of 1.5 ms."""
START_SECONDS_MAX = 0.005
"""So long a writer waits for the loop to stop. A callback that takes longer is waited for by nobody."""
PAUSE_SECONDS_MAX = 0.01
"""So long the loop stands still, whatever the writer does: a page of the file may have to be read from a slow disk."""


class LoopPause:
    """For any number of writer threads. `loop` may be closed before them."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    @contextmanager
    def __call__(self, rows: int) -> Iterator[None]:
        """Run a block that writes so many rows, on a writer's thread, while the loop waits."""
        if rows < PAUSE_ROWS_MIN:
            yield
            return
        has_stopped, may_go_on = threading.Event(), threading.Event()

        def stand_still() -> None:
            has_stopped.set()
            may_go_on.wait(PAUSE_SECONDS_MAX)

        try:
            self._loop.call_soon_threadsafe(stand_still)
        except RuntimeError:  # it is closed, and disturbs nobody
            yield
            return
        has_stopped.wait(START_SECONDS_MAX)
        try:
            yield
        finally:
            may_go_on.set()
