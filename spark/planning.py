"""Arithmetic of offset ranges: how much of a backlog one trigger takes, and how ranges are cut into tasks. Pure.

Invariants (each a property in the tests): shares never exceed a partition's backlog and add up to exactly what was asked for or all
there is; while there are shares enough, every partition that has something gets one; the pieces of a range are that range.
Source: the Kafka connector's ``KafkaMicroBatchStream.rateLimit`` and ``KafkaOffsetRangeCalculator``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Records of one partition, from `start` (inclusive) to `end` (exclusive)."""

    topic: str
    topic_id: int
    partition: int
    start: int
    end: int

    @property
    def count(self) -> int:
        """Number of records."""
        return self.end - self.start


def apportion(sizes: Sequence[int], total: int, turn: int = 0) -> list[int]:
    """Divide `total` over `sizes` in proportion, none beyond its size.

    With fewer shares than there are sizes above zero, one goes to each of `total` neighbours, beginning at number `turn`: a caller
    that counts on makes everybody's turn come.

    Deviation: Kafka's rounds each share up, so that many small partitions take more than was asked for; here the rest of the division
    goes to the largest remainders, and the sum is exact.
    """
    if total >= sum(sizes):
        return list(sizes)
    filled = [number for number, size in enumerate(sizes) if size > 0]
    shares = [0] * len(sizes)
    if total <= len(filled):
        for step in range(total):
            shares[filled[(turn + step) % len(filled)]] = 1
        return shares
    # One each, then the rest in proportion to what is left of each.
    spare, left = total - len(filled), sum(sizes) - len(filled)
    remainders = []
    for number in filled:
        whole, remainder = divmod(spare * (sizes[number] - 1), left)
        shares[number] = 1 + whole
        remainders.append((-remainder, number))
    for _, number in sorted(remainders)[: total - sum(shares)]:
        shares[number] += 1
    return shares


def cap(ranges: Sequence[OffsetRange], rows_max: int) -> list[OffsetRange]:
    """The ranges shortened to `rows_max` records together, in proportion to their lengths."""
    # Starts grow by what was read before: with fewer records per trigger than partitions, the turn goes round.
    turn = sum(range_.start for range_ in ranges)
    shares = apportion([range_.count for range_ in ranges], rows_max, turn)
    return [replace(range_, end=range_.start + share) for range_, share in zip(ranges, shares, strict=True)]


def split(ranges: Sequence[OffsetRange], minimum: int | None) -> list[OffsetRange]:
    """The ranges that hold records, the large ones cut so that there are at least `minimum` (or as many as there are records)."""
    filled = [range_ for range_ in ranges if range_.count > 0]
    if minimum is None or len(filled) >= minimum:
        return filled
    pieces = apportion([range_.count for range_ in filled], minimum)
    return [piece for range_, count in zip(filled, pieces, strict=True) for piece in _cut(range_, count)]


def _cut(range_: OffsetRange, pieces: int) -> list[OffsetRange]:
    bounds = [range_.start + range_.count * number // pieces for number in range(pieces + 1)]
    return [replace(range_, start=bounds[number], end=bounds[number + 1]) for number in range(pieces)]
