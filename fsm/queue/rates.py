"""Bound how many messages of each tenant are leased per second: one token bucket per tenant, in integers of queue time.

A bucket begins full with `burst` messages and gains `per_second` messages per second up to that again. A message is
`MESSAGE_UNITS` units, so that each millisecond adds exactly `per_second` units and nothing is rounded.

A tenant whose bucket holds less than a message is **blocked** until an entry reaches the time of its next message. The state machine
asks `take_unblocked` with each entry, and the leader's timer waits for `next_at`. Must not read a clock: time is the append time
of entries. Invariants: equal histories give equal buckets, and a bucket that would be full again has the same effect as none.
"""

from __future__ import annotations

import heapq
from typing import Final, NamedTuple

import msgspec
from raftmq.errors import invariant

MESSAGE_UNITS: Final = 1000
"""Units of one message. It is the number of milliseconds in a second."""
_STALE_MAX: Final = 16
"""Outdated entries of the heap of blocked tenants beyond their number before they are removed."""


class Rate(NamedTuple):
    """The setting of a topic: the same for each of its tenants."""

    per_second: int
    """At least 1."""
    burst: int
    """Messages that may be leased immediately after a pause. At least 1."""


class BucketRow(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The part of a tenant's row that belongs to its rate. A tenant without one has a full bucket."""

    units: int
    at_ms: int
    """Queue time at which the bucket held `units`."""


class TenantRates:
    """The buckets of one queue partition. Without a rate every tenant may always be leased, and nothing is kept."""

    __slots__ = ("_blocked", "_buckets", "_changed", "_until", "rate")

    def __init__(self, rate: Rate | None = None) -> None:
        self.rate = rate
        self._buckets: dict[int, BucketRow] = {}
        self._blocked: list[tuple[int, int]] = []
        """(time of its next message, tenant) of each blocked tenant, as a heap, and outdated entries that are skipped."""
        self._until: dict[int, int] = {}
        """The time of the next message of each blocked tenant."""
        self._changed: set[int] = set()

    def configure(self, rate: Rate | None, now_ms: int) -> list[int]:
        """Take another rate, and return the tenants that are not blocked any more. Full buckets stay full."""
        before, settled = self.rate, {number: self._settled(number, now_ms) for number in self._buckets}
        blocked = set(self._until)
        self.rate = rate
        self._changed.update(self._buckets)
        self._buckets.clear()
        self._until.clear()
        self._blocked.clear()
        if rate is not None and before is not None:
            for number, bucket in settled.items():
                is_full = bucket.units >= before.burst * MESSAGE_UNITS
                if not is_full and bucket.units < rate.burst * MESSAGE_UNITS:
                    self._put(number, bucket)
        return sorted(blocked - self._until.keys())

    def available(self, number: int, now_ms: int) -> int | None:
        """Return how many messages of the tenant may be leased now. None means any number."""
        if self.rate is None:
            return None
        return self._settled(number, now_ms).units // MESSAGE_UNITS

    def is_blocked(self, number: int) -> bool:
        """Return whether the tenant waits for its next message."""
        return number in self._until

    def take(self, number: int, count: int, now_ms: int) -> None:
        """Take `count` messages, which must be `available`, from the tenant's bucket."""
        if self.rate is None:
            return
        bucket = self._settled(number, now_ms)
        units = bucket.units - count * MESSAGE_UNITS
        invariant(units >= 0, "rate_available", tenant=number, count=count, units=bucket.units)
        self._put(number, BucketRow(units, bucket.at_ms))
        self._changed.add(number)

    def next_at(self) -> int | None:
        """Return the queue time at which the first blocked tenant gets its next message, or None if none is blocked."""
        self._skip_outdated()
        return self._blocked[0][0] if self._blocked else None

    def take_unblocked(self, now_ms: int, count_max: int) -> list[int]:
        """Return tenants that are not blocked any more, by time and number, and forget that they were. At most `count_max`."""
        unblocked: list[int] = []
        while len(unblocked) < count_max:
            self._skip_outdated()
            if not self._blocked or self._blocked[0][0] > now_ms:
                break
            _, number = heapq.heappop(self._blocked)
            del self._until[number]
            self._put(number, self._settled(number, now_ms))
            self._changed.add(number)
            unblocked.append(number)
        return unblocked

    def forget(self, number: int) -> None:
        """Remove a tenant's bucket, because the tenant itself is removed (`is_full`)."""
        self._buckets.pop(number, None)
        self._until.pop(number, None)
        self._changed.discard(number)

    def is_full(self, number: int, now_ms: int) -> bool:
        """Return whether the tenant's bucket could be forgotten without any effect."""
        return self.rate is None or self._settled(number, now_ms).units >= self.rate.burst * MESSAGE_UNITS

    # ---------------------------------------------------------------------------------------------------- rows

    def row(self, number: int) -> BucketRow | None:
        """Return a tenant's part of its row. None means a full bucket."""
        return self._buckets.get(number)

    def take_changed(self) -> set[int]:
        """Return the tenants whose `row` may have changed since the last call, in no particular order."""
        changed, self._changed = self._changed, set()
        return changed

    def load(self, number: int, row: BucketRow | None) -> None:
        """Load a tenant's bucket as it was stored under the present rate."""
        if row is not None and self.rate is not None:
            self._put(number, row)

    # ---------------------------------------------------------------------------------------------------- buckets

    def _settled(self, number: int, now_ms: int) -> BucketRow:
        """Return the bucket with the units gained up to now. Time before the bucket's own adds nothing."""
        assert self.rate is not None
        full = self.rate.burst * MESSAGE_UNITS
        bucket = self._buckets.get(number)
        if bucket is None:
            return BucketRow(full, now_ms)
        elapsed_ms = max(0, now_ms - bucket.at_ms)
        return BucketRow(min(full, bucket.units + elapsed_ms * self.rate.per_second), bucket.at_ms + elapsed_ms)

    def _put(self, number: int, bucket: BucketRow) -> None:
        assert self.rate is not None
        self._buckets[number] = bucket
        missing = MESSAGE_UNITS - bucket.units
        if missing <= 0:
            self._until.pop(number, None)
            return
        at_ms = bucket.at_ms - (-missing // self.rate.per_second)  # rounded up: never a message too early
        if self._until.get(number) != at_ms:
            self._until[number] = at_ms
            heapq.heappush(self._blocked, (at_ms, number))
            if len(self._blocked) > 2 * len(self._until) + _STALE_MAX:
                self._blocked = sorted((at_ms, number) for number, at_ms in self._until.items())

    def _skip_outdated(self) -> None:
        blocked = self._blocked
        while blocked and self._until.get(blocked[0][1]) != blocked[0][0]:
            heapq.heappop(blocked)
