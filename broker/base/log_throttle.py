"""Throttle repeated log events: a condition is logged immediately when it is new, and then at intervals while it lasts.

Without it a condition that affects everything would fill the log. This module must not log anything itself.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Hashable
from typing import Final

SAID_AGAIN_SECONDS: Final = 60.0
_REMEMBERED_MAX: Final = 256
"""Conditions remembered. Beyond it the oldest one is forgotten, and may be logged again early."""


def _loop_time() -> float:
    """Return the time of the running loop, which may be virtual, or the process's monotonic time without a loop."""
    try:
        return asyncio.get_running_loop().time()
    except RuntimeError:
        return time.monotonic()


class LogThrottle:
    """Throttles one kind of event. It must not be shared between threads."""

    def __init__(self, interval_seconds: float = SAID_AGAIN_SECONDS, clock: Callable[[], float] = _loop_time) -> None:
        self._interval_seconds = interval_seconds
        self._clock = clock
        self._said_at: dict[Hashable, float] = {}

    def is_due(self, what: Hashable = None) -> bool:
        """Return whether `what` was not logged within the last interval. If so, it counts as logged now."""
        now = self._clock()
        said_at = self._said_at.get(what)
        if said_at is not None and now - said_at < self._interval_seconds:
            return False
        self._said_at.pop(what, None)  # the dict is ordered by time
        while len(self._said_at) >= _REMEMBERED_MAX:
            del self._said_at[next(iter(self._said_at))]
        self._said_at[what] = now
        return True

    def forget(self, what: Hashable = None) -> None:
        """Forget a condition that has ended, so that it is logged immediately when it begins again."""
        self._said_at.pop(what, None)
