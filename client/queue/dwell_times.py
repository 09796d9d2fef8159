"""The times for which messages of a queue topic could be leased before they were: counts by length, and quantiles. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from raftmq.errors import InvalidArgumentError
from raftmq.proto import queue_pb2 as pb


@dataclass(frozen=True, slots=True)
class DwellTimes:
    """The times between the moment from which a message could be leased and its lease, counted by length."""

    bounds_seconds: tuple[float, ...] = ()
    """Upper bounds, inclusive and ascending."""
    counts: tuple[int, ...] = (0,)
    """The leases up to each bound and above the one before it, then those above all bounds."""
    total_seconds: float = 0.0
    """The sum of all times."""

    @property
    def count(self) -> int:
        """Return the number of leases that are counted."""
        return sum(self.counts)

    @property
    def mean_seconds(self) -> float | None:
        """Return the mean time. None: nothing was leased."""
        return self.total_seconds / self.count if self.count else None

    def quantile(self, share: float) -> float | None:
        """Return the time that this share of the leases did not exceed, such as 0.99, estimated between two bounds.

        Returns:
            Seconds. The largest bound for a time above it. None: nothing was leased.

        Raises:
            InvalidArgumentError: the share is not between 0 and 1.
        """
        if not 0 <= share <= 1:
            raise InvalidArgumentError(f"share must be between 0 and 1, not {share!r}")
        if not self.count or not self.bounds_seconds:
            return None
        wanted, below, lower = share * self.count, 0, 0.0
        for bound, count in zip(self.bounds_seconds, self.counts, strict=False):
            if count and below + count >= wanted:
                return lower + (bound - lower) * max(0.0, wanted - below) / count
            below, lower = below + count, bound
        return self.bounds_seconds[-1]


def read_dwell(partitions: Iterable[pb.DwellTimes]) -> DwellTimes:
    """Return the sum over partitions, whose brokers may have different bounds."""
    within: dict[float, int] = {}
    above = 0
    total = 0.0
    for times in partitions:
        for bound, count in zip(times.bounds_seconds, times.counts, strict=False):
            within[bound] = within.get(bound, 0) + count
        above += sum(times.counts[len(times.bounds_seconds) :])
        total += times.total_seconds
    bounds = sorted(within)
    return DwellTimes(tuple(bounds), (*(within[bound] for bound in bounds), above), total)
