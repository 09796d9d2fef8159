"""Whether it is time to log again what lasts: said at once when it is new, then once in a while.

So that a condition that everything here runs into does not fill the log while it lasts. Must not log itself.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Hashable
from typing import Final

SAID_AGAIN_SECONDS: Final = 60.0
_REMEMBERED_MAX: Final = 256
"""Different things said; beyond it the oldest is forgotten, and may be said again early."""


def _loop_time() -> float:
    """Seconds of the running loop, whose time may be virtual; the process's own without one."""
    try:
        return asyncio.get_running_loop().time()
    except RuntimeError:
        return time.monotonic()


class LogThrottle:
    """One kind of event. Not for several threads."""

    def __init__(self, interval_seconds: float = SAID_AGAIN_SECONDS, clock: Callable[[], float] = _loop_time) -> None:
        self._interval_seconds = interval_seconds
        self._clock = clock
        self._said_at: dict[Hashable, float] = {}

    def is_due(self, what: Hashable = None) -> bool:
        """True when `what` was not said in the last interval; it counts as said then."""
        now = self._clock()
        said_at = self._said_at.get(what)
        if said_at is not None and now - said_at < self._interval_seconds:
            return False
        self._said_at.pop(what, None)  # the dict is in the order of the times
        while len(self._said_at) >= _REMEMBERED_MAX:
            del self._said_at[next(iter(self._said_at))]
        self._said_at[what] = now
        return True

    def forget(self, what: Hashable = None) -> None:
        """It is over: when it begins again it is new."""
        self._said_at.pop(what, None)
