"""Counts values by size, as a Prometheus histogram shows them: one bisection and two additions, no lock.

Written by one thread only; whoever else reads it may see a value counted and not yet summed, which a later read corrects.
Must not know what is measured.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from typing import Final

LATENCY_SECONDS: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
"""From one commit on a fast disk to a call's default deadline."""
SHORT_SECONDS: Final = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)
"""Of what should take a fraction of a millisecond, up to what is a stall."""
COUNTS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
SIZES_BYTES: Final = tuple(1024 * 4**power for power in range(8))
"""1 KiB to 16 MiB."""


class Histogram:
    """See the module."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        """`bounds` ascend; a value that equals one belongs below it."""
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        """One for each bound (not cumulative), and the last for what is above them all."""
        self.total = 0.0
        """Sum of the values."""

    def observe(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    @property
    def count(self) -> int:
        """How many values there were."""
        return sum(self.counts)

    def buckets(self) -> list[tuple[str, float]]:
        """Return each bound, and ``+Inf``, with the number of values up to it."""
        return list(zip(map(str, (*self.bounds, "+Inf")), accumulate(self.counts), strict=True))

    def copy(self) -> Histogram:
        """As it is now."""
        other = Histogram(self.bounds)
        other.counts = self.counts.copy()
        other.total = self.total
        return other
