"""Compute which part of a backlog one trigger reads, and divide ranges among tasks. Pure.

Invariants, each a property in the tests: shares never exceed a partition's backlog. They add up to exactly the requested total or to
the whole backlog. While there are enough shares, every partition with a backlog gets one. The pieces of a range make up that range. Tasks
have all ranges, in order.
Source: the Kafka connector's ``KafkaMicroBatchStream.rateLimit`` and ``KafkaOffsetRangeCalculator``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Represent the records of one partition from `start` (inclusive) to `end` (exclusive)."""

    topic: str
    topic_id: int
    partition: int
    start: int
    end: int
    group_id: int = 0
    """The Raft group that served the partition when the range was planned. 0: not known."""

    @property
    def count(self) -> int:
        """Return the number of records."""
        return self.end - self.start


def apportion(sizes: Sequence[int], total: int, turn: int = 0) -> list[int]:
    """Divide `total` over `sizes` in proportion. No share exceeds its size.

    When `total` is below the number of sizes above zero, one share goes to each of `total` neighbours, beginning at number `turn`. A
    caller that advances `turn` lets every size have its turn.

    Deviation: Kafka's connector rounds each share up, so many small partitions get more than the total. Here the rest of the division
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
    # Give each one share, then divide the rest in proportion to the remaining sizes.
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
    """Shorten the ranges to `rows_max` records in all, in proportion to their lengths."""
    # Starts grow with every record read. So the turn rotates when a trigger reads fewer records than there are partitions.
    turn = sum(range_.start for range_ in ranges)
    shares = apportion([range_.count for range_ in ranges], rows_max, turn)
    return [replace(range_, end=range_.start + share) for range_, share in zip(ranges, shares, strict=True)]


def split(ranges: Sequence[OffsetRange], minimum: int | None, rows_max: int | None = None) -> list[OffsetRange]:
    """Return the ranges that hold records, cut evenly into ranges of at most `rows_max` records each.

    If these are fewer than `minimum`, cut the large ones further to have that many, or one per record.
    """
    filled = [range_ for range_ in ranges if range_.count > 0]
    if rows_max is not None:
        filled = [piece for range_ in filled for piece in _cut(range_, -(-range_.count // rows_max))]
    if minimum is None or len(filled) >= minimum:
        return filled
    pieces = apportion([range_.count for range_ in filled], minimum)
    return [piece for range_, count in zip(filled, pieces, strict=True) for piece in _cut(range_, count)]


def gather(ranges: Sequence[OffsetRange], rows_min: int, rows_max: int | None = None) -> list[tuple[OffsetRange, ...]]:
    """Divide the ranges among tasks. Neighbours are read by one task until it has `rows_min` records.

    A task of several ranges has at most `rows_max` records. If that leaves no room for the next range, and at the end, a task may have fewer
    than `rows_min`.
    """
    tasks: list[list[OffsetRange]] = []
    rows = rows_min
    for range_ in ranges:
        if rows >= rows_min or (rows_max is not None and rows + range_.count > rows_max):
            tasks.append([])
            rows = 0
        tasks[-1].append(range_)
        rows += range_.count
    return [tuple(task) for task in tasks]


def _cut(range_: OffsetRange, pieces: int) -> list[OffsetRange]:
    bounds = [range_.start + range_.count * number // pieces for number in range(pieces + 1)]
    return [replace(range_, start=bounds[number], end=bounds[number + 1]) for number in range(pieces)]
