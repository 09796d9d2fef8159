"""Bound the queue time of a partition from outside. Pure.

A client sees queue time only as the moment at which a delivered message was enqueued. That moment lies between the call and the answer of its
put, and queue time never goes back. So the enqueued messages bound queue time at every other moment, also when it steps forward.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from itertools import accumulate
from math import inf
from typing import Final

from sim.history.queues.operations import Put

LATEST_MS: Final = 1 << 62
"""An upper bound where nothing is known."""


class QueueClock:
    """The bounds of one partition's queue time, by moments of the machine's clock.

    Args:
        puts: Puts whose messages were enqueued in the partition. Those without a known queue time say nothing.
    """

    def __init__(self, puts: Iterable[Put]) -> None:
        known = [put for put in puts if put.append_ms]
        ended = sorted((put.ended, put.append_ms) for put in known if put.ended < inf)
        began = sorted((put.began, put.append_ms) for put in known)
        self._ended = [at for at, _ in ended]
        self._at_least = list(accumulate((ms for _, ms in ended), max))
        self._began = [at for at, _ in began]
        self._at_most = list(accumulate((ms for _, ms in reversed(began)), min))[::-1]

    def at_least(self, moment: float) -> int:
        """Return a queue time that had been reached at a moment. 0: nothing is known."""
        passed = bisect_left(self._ended, moment)
        return self._at_least[passed - 1] if passed else 0

    def at_most(self, moment: float) -> int:
        """Return a queue time that had not been passed at a moment."""
        passed = bisect_right(self._began, moment)
        return self._at_most[passed] if passed < len(self._began) else LATEST_MS
