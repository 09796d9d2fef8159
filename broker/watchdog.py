"""A thread that watches the loop from outside: measures its lag and dumps every stack when it stands still.

A thread, because a coroutine of a loop that hangs cannot say so.
"""

from __future__ import annotations

import asyncio
import faulthandler
import sys
import threading
import time

import structlog

log = structlog.get_logger(__name__)

_PROBE_SECONDS = 0.1


class Watchdog:
    """Probes the loop ten times a second."""

    def __init__(self, loop: asyncio.AbstractEventLoop, stall_seconds: float) -> None:
        self._loop = loop
        self._stall_seconds = stall_seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="raftmq-watchdog", daemon=True)
        self.lag_seconds = 0.0
        """The loop's latest measured lag."""
        self.lag_seconds_max = 0.0
        self.last_turn_monotonic = time.monotonic()
        """When the loop last ran a probe: liveness is judged by it."""

    def start(self) -> None:
        """Begin to probe."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._stop.set()
        if self._thread.is_alive():  # a node that could not bind its ports never started it
            self._thread.join(timeout=1)

    def _run(self) -> None:
        while not self._stop.wait(_PROBE_SECONDS):
            turned = threading.Event()
            asked_at = time.monotonic()
            try:
                self._loop.call_soon_threadsafe(turned.set)
            except RuntimeError:  # the loop is closed
                return
            if not turned.wait(self._stall_seconds) and not self._stop.is_set():
                log.warning("loop_blocked", elapsed_seconds=round(time.monotonic() - asked_at, 3))
                faulthandler.dump_traceback(file=sys.stderr, all_threads=True)
                while not turned.wait(_PROBE_SECONDS) and not self._stop.is_set():
                    pass
            self.last_turn_monotonic = time.monotonic()
            self.lag_seconds = self.last_turn_monotonic - asked_at
            self.lag_seconds_max = max(self.lag_seconds_max, self.lag_seconds)
