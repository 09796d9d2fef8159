"""Share a number of bytes, or of slots, between calls. When it is exhausted, the call that stood still longest is evicted.

Must know nothing of what a call means, nor of its transport. Invariant: what was acquired is counted until it is released: for a call
that is evicted while it sends, until its transport has given it up.
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
"""Who has not moved for so long may be asked to make room."""
_PACE_SECONDS: Final = 0.05
"""Those that wait may ask one to make room so often. Slower than newcomers come: there is always one left for a newcomer,
who need not wait then, however many others do."""
_LOOKED_AT_MAX: Final = 32
"""Of those that wait, to find one that the free room is enough for."""
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
    """Budget that a holder has acquired."""

    __slots__ = ("holder", "is_evicted", "is_sending", "moved_at", "size")

    def __init__(self, size: int, holder: Holder, moved_at: float) -> None:
        self.size = size
        self.holder = holder
        self.moved_at = moved_at
        """Loop time of the last sign of life."""
        self.is_evicted = False
        self.is_sending = False
        """The transport has an answer of the holder that was not taken: whatever else is sent would queue after it."""


class Budget:
    """A number of bytes, or of places, that calls share. In the order of their last sign of life."""

    def __init__(self, loop: asyncio.AbstractEventLoop, size_max: int, what: str) -> None:
        self._loop = loop
        self.size_max = size_max
        self._what = what
        self._reservations: OrderedDict[Reservation, None] = OrderedDict()
        self._leaving: set[Reservation] = set()
        """Evicted, and not free yet: the memory is gone when the transport has given the call up, not before."""
        self._waiting: dict[asyncio.Future[None], int] = {}
        """What each needs."""
        self._timer: asyncio.TimerHandle | None = None
        """Runs while anybody waits."""
        self.size = 0
        """Taken now."""
        self.evictions = 0
        """Calls that had to make room, ever."""

    def acquire(self, holder: Holder, size: int = 1) -> Reservation:
        """Budget for the current task. Raises RequestError THROTTLED when there is none and nobody stands still."""
        self.check(size)
        reservation = Reservation(size, holder, self._loop.time())
        self._reservations[reservation] = None
        self.size += size
        if self._waiting:
            self._wake_one_that_fits()  # of what was given back there may be more than one can use
        return reservation

    async def wait(self, holder: Holder, size: int = 1) -> Reservation:
        """`take`, as soon as there is room. Whoever came last goes first: under attack the old ones are the attackers'."""
        await self.wait_possible(size)
        return self.acquire(holder, size)

    async def wait_possible(self, size: int) -> None:
        """`wait` without taking the room: what needs it is not known exactly yet, and is not begun in vain."""
        while True:
            try:
                self.check(size)
            except RequestError:
                await self._changed(size)
            else:
                return

    async def _changed(self, size: int) -> None:
        """Return when there may be room for so much, or somebody who may be asked to make it."""
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
            # not at once: who was evicted may need a moment to leave
            self._timer = self._loop.call_at(max(since + STANDSTILL_SECONDS, now + _PACE_SECONDS), self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        if self._waiting and not self._wake_one_that_fits():
            _wake(self._waiting.popitem()[0])  # it will ask somebody to make room
        self._arm()

    def _wake_one_that_fits(self) -> bool:
        """The newest of those that wait for no more than there is."""
        for woken in islice(reversed(self._waiting), _LOOKED_AT_MAX):
            if not self.size or self.size + self._waiting[woken] <= self.size_max:
                del self._waiting[woken]
                _wake(woken)
                return True
        return False

    @property
    def waiting(self) -> int:
        """Calls that wait for room."""
        return len(self._waiting)

    def check(self, size: int) -> None:
        """Make room without taking it. Raises as `take`."""
        if self.size + size <= self.size_max:
            return  # room enough, whoever is leaving
        now = self._loop.time()
        leaving = sum(reservation.size for reservation in self._leaving)
        while self._reservations and self.size - leaving + size > self.size_max:
            longest = next(iter(self._reservations))
            if now - longest.moved_at < STANDSTILL_SECONDS:
                break
            if longest.is_sending:
                leaving += longest.size
            self._evict(longest)
        if self.size and self.size + size > self.size_max:
            raise self.refusal()

    def _evict(self, reservation: Reservation) -> None:
        reservation.is_evicted = True
        self.evictions += 1
        del self._reservations[reservation]
        self._leaving.add(reservation)
        if reservation.holder.evict(reservation):
            self._remove(reservation)  # it is the asker's: nobody else is woken

    def holders(self) -> Iterator[Holder]:
        """Return those that hold budget."""
        return (reservation.holder for reservation in (*self._reservations, *self._leaving))

    def keepalive(self, reservation: Reservation) -> None:
        """A sign of life."""
        if reservation in self._reservations:
            reservation.moved_at = self._loop.time()
            self._reservations.move_to_end(reservation)

    def release(self, reservation: Reservation) -> None:
        """The call does not need it any more. Safe to call again."""
        if self._remove(reservation) and self._waiting:
            self._wake_one_that_fits()

    def _remove(self, reservation: Reservation) -> bool:
        """Whether it had room."""
        if reservation in self._reservations:
            del self._reservations[reservation]
        elif reservation in self._leaving:
            self._leaving.remove(reservation)
        else:
            return False
        self.size -= reservation.size
        return True

    def refusal(self) -> RequestError:
        """Why a call was refused, or had to make room."""
        return RequestError(pb.THROTTLED, f"this broker has no room for more {self._what} now", retry_after_ms=RETRY_MS)


def _wake(woken: asyncio.Future[None]) -> None:
    if not woken.done():
        woken.set_result(None)
