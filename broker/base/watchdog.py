"""Watch the event loop from a thread: measure its lag, and dump every stack when it stalls.

It is a thread because a coroutine cannot report that its own loop hangs. Only the thread writes the measurements. The loop reads them.
"""

from __future__ import annotations

import asyncio
import faulthandler
import sys
import threading
import time
from collections import deque
from contextlib import suppress

import structlog
from raftmq.broker.base.histogram import SHORT_SECONDS, Histogram

log = structlog.get_logger(__name__)

_PROBE_SECONDS = 0.1
MAX_WINDOW_SECONDS = 60.0
"""The largest lag is that of the last minute, so that an infrequent scrape still sees it."""
_WINDOW_PARTS = 60
_DUMPS_MIN_SECONDS = 60.0
"""The least interval between two dumps of the stacks, so that a machine that is too small does not fill the log with them."""


class Watchdog:
    """Probes the event loop ten times a second."""

    def __init__(self, loop: asyncio.AbstractEventLoop, stall_seconds: float) -> None:
        self._loop = loop
        self._stall_seconds = stall_seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="raftmq-watchdog", daemon=True)
        self.lag = Histogram(SHORT_SECONDS)
        self.lag_seconds = 0.0
        """The loop's latest measured lag."""
        self._largest: deque[tuple[float, float]] = deque(maxlen=_WINDOW_PARTS + 1)
        """(start of a second, largest lag in it), by `time.monotonic`."""
        self._turned = threading.Event()
        """Set when the loop ran the present probe."""
        self._asked_at: float | None = None
        """The time at which the present probe was sent. None between probes."""
        self._dumped_at = float("-inf")

    def start(self) -> None:
        """Begin to probe."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._stop.set()
        self._turned.set()  # the loop that calls stop cannot answer a probe now
        if self._thread.is_alive():  # it was never started if the broker could not bind its ports
            self._thread.join(timeout=1)

    def lag_seconds_max(self, window_seconds: float = MAX_WINDOW_SECONDS) -> float:
        """Return the largest lag within about the last `window_seconds`, including that of an unanswered probe."""
        now = time.monotonic()
        asked_at = self._asked_at
        pending = now - asked_at if asked_at is not None else 0.0
        return max(pending, *(lag for began_at, lag in list(self._largest) if began_at >= now - window_seconds), 0.0)

    def _run(self) -> None:
        while True:
            due_at = time.monotonic() + _PROBE_SECONDS
            if self._stop.wait(_PROBE_SECONDS):
                return
            turned = self._turned = threading.Event()
            now = time.monotonic()
            # this thread, too, stood still while the process was frozen: the probe counts from when it was due
            asked_at = self._asked_at = due_at if now - due_at > _PROBE_SECONDS else now
            try:
                self._loop.call_soon_threadsafe(turned.set)
            except RuntimeError:  # the loop is closed
                return
            if not turned.wait(self._stall_seconds) and not self._stop.is_set():
                with suppress(
                    Exception
                ):  # stderr may be closed, and without this thread no further stall would be noticed
                    self._on_blocked(asked_at)
                while not turned.wait(_PROBE_SECONDS) and not self._stop.is_set():
                    pass
            self._note(asked_at)

    def _on_blocked(self, asked_at: float) -> None:
        now = time.monotonic()
        has_dump = now - self._dumped_at >= _DUMPS_MIN_SECONDS
        log.warning("loop_blocked", elapsed_seconds=round(now - asked_at, 3), has_stacks=has_dump)
        if has_dump:
            self._dumped_at = now
            faulthandler.dump_traceback(file=sys.stderr, all_threads=True)

    def _note(self, asked_at: float) -> None:
        now = time.monotonic()
        lag = self.lag_seconds = now - asked_at
        self._asked_at = None
        self.lag.observe(lag)
        if self._largest and now - self._largest[-1][0] < MAX_WINDOW_SECONDS / _WINDOW_PARTS:
            began_at, largest = self._largest[-1]
            self._largest[-1] = (began_at, max(largest, lag))
        else:
            self._largest.append((now, lag))
