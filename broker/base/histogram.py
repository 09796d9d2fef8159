"""Count values by size, in the form of a Prometheus histogram, with one bisection and two additions per value and no lock.

Only one thread may write. Another thread that reads may see a value that is counted but not yet summed. Its next read is correct.
This module must not know the meaning of the values.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from typing import Final

LATENCY_SECONDS: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
"""Bounds from one commit on a fast disk to a call's default deadline."""
SHORT_SECONDS: Final = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)
"""Bounds for work that should take a fraction of a millisecond. The largest ones are stalls."""
COUNTS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
SIZES_BYTES: Final = tuple(1024 * 4**power for power in range(8))
"""Bounds from 1 KiB to 16 MiB."""


class Histogram:
    """Counts of values between bounds."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        """Take ascending `bounds`. A value that equals a bound is counted below it."""
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        """The count for each bound (not cumulative), followed by the count of values above all bounds."""
        self.total = 0.0
        """Sum of the values."""

    def observe(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    @property
    def count(self) -> int:
        """Return the number of values."""
        return sum(self.counts)

    def buckets(self) -> list[tuple[str, float]]:
        """Return each bound, and ``+Inf``, with the number of values up to it."""
        return list(zip(map(str, (*self.bounds, "+Inf")), accumulate(self.counts), strict=True))

    def copy(self) -> Histogram:
        """Return a copy of the present state."""
        other = Histogram(self.bounds)
        other.counts = self.counts.copy()
        other.total = self.total
        return other
