"""Share a fixed budget of bytes or slots between calls. When it is exhausted, the longest-idle call is evicted.

This module must not know the meaning of a call, nor its transport. Invariant: a reservation is counted until it is released, or until the
transport has given up the call.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterator
from itertools import islice
from typing import Final, Protocol

from raftmq.broker.base.request_error import RequestError
from raftmq.proto import queue_pb2 as pb

STANDSTILL_SECONDS: Final = 1.0
"""A call that made no progress for this long may be evicted."""
_PACE_SECONDS: Final = 0.05
"""The least interval between two evictions for waiting calls. It is longer than the interval between newcomers, so an idle call is
always left for a newcomer, which then need not wait, however many calls do."""
_LOOKED_AT_MAX: Final = 32
"""Waiting calls that are checked to find one that fits into the free budget."""
RETRY_MS: Final = 200


class Holder(Protocol):
    """A call, or a connection, that holds budget."""

    def peer(self) -> str:
        """Return the other end of the connection, as gRPC names it (``ipv4:127.0.0.1:5``)."""
        ...

    def evict(self, reservation: Reservation) -> bool:
        """Give up a reservation. Return whether it is free now. If not, `Budget.release` must follow."""
        ...


class Reservation:
    """A part of a budget that a holder has acquired."""

    __slots__ = ("holder", "is_evicted", "is_sending", "moved_at", "size")

    def __init__(self, size: int, holder: Holder, moved_at: float) -> None:
        self.size = size
        self.holder = holder
        self.moved_at = moved_at
        """Loop time of the holder's last progress."""
        self.is_evicted = False
        self.is_sending = False
        """Whether the transport holds an answer that was not read. Further answers would queue after it."""


class Budget:
    """A number of bytes or slots that calls share. Reservations are in the order of their last progress."""

    def __init__(self, loop: asyncio.AbstractEventLoop, size_max: int, name: str) -> None:
        self._loop = loop
        self.size_max = size_max
        self._name = name
        self._reservations: OrderedDict[Reservation, None] = OrderedDict()
        self._leaving: set[Reservation] = set()
        """Reservations that were evicted and are not free yet. Their memory is freed only when the transport has given up the call."""
        self._waiting: dict[asyncio.Future[None], int] = {}
        """Waiting calls and the size that each needs."""
        self._timer: asyncio.TimerHandle | None = None
        """Active while any call waits."""
        self.size = 0
        """The size of all reservations."""
        self.evictions = 0
        """Calls evicted since the start."""

    def acquire(self, holder: Holder, size: int = 1) -> Reservation:
        """Reserve budget for a holder. Raises RequestError THROTTLED if it is exhausted and no call is idle."""
        self.check(size)
        reservation = Reservation(size, holder, self._loop.time())
        self._reservations[reservation] = None
        self.size += size
        if self._waiting:
            self._wake_one_that_fits()  # the released budget may be enough for more than one call
        return reservation

    async def wait(self, holder: Holder, size: int = 1) -> Reservation:
        """Acquire budget as soon as there is enough. The newest waiter goes first: under attack the old ones are the attackers'."""
        await self.wait_possible(size)
        return self.acquire(holder, size)

    async def wait_possible(self, size: int) -> None:
        """Wait until there is enough budget, without reserving it, so that no work starts for an answer that would be refused.

        The exact size is not known yet.
        """
        while True:
            try:
                self.check(size)
            except RequestError:
                await self._changed(size)
            else:
                return

    async def _changed(self, size: int) -> None:
        """Return when there may be enough budget for this size, or a call that may be evicted."""
        woken: asyncio.Future[None] = self._loop.create_future()
        self._waiting[woken] = size
        self._arm()
        try:
            await woken
        finally:
            self._waiting.pop(woken, None)

    def _arm(self) -> None:
        if self._timer is None and self._waiting:
            now = self._loop.time()
            oldest = next(iter(self._reservations), None)
            since = oldest.moved_at if oldest is not None else now
            # not immediately: an evicted call may need a moment to end
            self._timer = self._loop.call_at(max(since + STANDSTILL_SECONDS, now + _PACE_SECONDS), self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        if self._waiting and not self._wake_one_that_fits():
            _wake(self._waiting.popitem()[0])  # it will try to evict a call
        self._arm()

    def _wake_one_that_fits(self) -> bool:
        """Wake the newest of the checked waiters that fits into the free budget. Return whether there was one."""
        for woken in islice(reversed(self._waiting), _LOOKED_AT_MAX):
            if not self.size or self.size + self._waiting[woken] <= self.size_max:
                del self._waiting[woken]
                _wake(woken)
                return True
        return False

    @property
    def waiting(self) -> int:
        """Return the number of waiting calls."""
        return len(self._waiting)

    def has_room(self, size: int) -> bool:
        """Return whether the size fits now, without the eviction of a call."""
        return self.size + size <= self.size_max

    def check(self, size: int) -> None:
        """Evict idle calls until the size fits, without reserving it. Raises as `acquire`."""
        if self.has_room(size):
            return  # there is enough budget even if no evicted call ends
        now = self._loop.time()
        leaving = sum(reservation.size for reservation in self._leaving)
        while self._reservations and self.size - leaving + size > self.size_max:
            longest = next(iter(self._reservations))
            if now - longest.moved_at < STANDSTILL_SECONDS:
                break
            if not self._evict(longest):
                leaving += longest.size
        if self.size and self.size + size > self.size_max:
            raise self.refusal()

    def _evict(self, reservation: Reservation) -> bool:
        """Evict a holder. Return whether its budget is free now. Otherwise it is leaving."""
        reservation.is_evicted = True
        self.evictions += 1
        del self._reservations[reservation]
        self._leaving.add(reservation)
        is_free = reservation.holder.evict(reservation)
        if is_free:
            self._remove(reservation)  # the freed budget is for the caller, so no waiter is woken
        return is_free

    def holders(self) -> Iterator[Holder]:
        """Return the holders of all reservations."""
        return (reservation.holder for reservation in (*self._reservations, *self._leaving))

    def keepalive(self, reservation: Reservation) -> None:
        """Record progress of the call."""
        if reservation in self._reservations:
            reservation.moved_at = self._loop.time()
            self._reservations.move_to_end(reservation)

    def release(self, reservation: Reservation) -> None:
        """Release the call's reservation. It may be called repeatedly."""
        if self._remove(reservation) and self._waiting:
            self._wake_one_that_fits()

    def _remove(self, reservation: Reservation) -> bool:
        """Return whether the reservation still existed."""
        if reservation in self._reservations:
            del self._reservations[reservation]
        elif reservation in self._leaving:
            self._leaving.remove(reservation)
        else:
            return False
        self.size -= reservation.size
        return True

    def refusal(self) -> RequestError:
        """Return the error for a call that is refused or evicted."""
        return RequestError(pb.THROTTLED, f"this broker has reached its limit of {self._name}", retry_after_ms=RETRY_MS)


def _wake(woken: asyncio.Future[None]) -> None:
    if not woken.done():
        woken.set_result(None)
