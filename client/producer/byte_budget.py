"""A bounded number of bytes that many tasks share. A task that finds it exhausted waits in a queue."""

from __future__ import annotations

import asyncio
from collections import deque


class ByteBudget:
    """Grants bytes in the order of the requests, so that small requests do not starve a large one. One event loop only.

    Invariant: 0 <= used_bytes, and used_bytes <= bytes_max unless a single request that exceeds the whole budget holds it alone.
    """

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.used_bytes = 0
        self._waiters: deque[tuple[asyncio.Future[None], int]] = deque()

    def try_acquire(self, size: int) -> bool:
        """Acquire `size` bytes if they are free and nobody waits. Return whether that succeeded."""
        if self._waiters or not self._fits(size):
            return False
        self.used_bytes += size
        return True

    async def acquire(self, size: int) -> None:
        """Wait for `size` free bytes and acquire them. If it is cancelled while waiting, it has acquired nothing."""
        if self.try_acquire(size):
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (waiter, size)
        self._waiters.append(entry)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self.release(size)  # granted in the same pass of the loop that cancelled us
            elif entry in self._waiters:
                self._waiters.remove(entry)
                self._grant()
            raise

    def release(self, size: int) -> None:
        """Release bytes and grant them to the next waiters."""
        self.used_bytes -= size
        if self._waiters:
            self._grant()

    def fail_waiters(self, error: BaseException) -> None:
        """Fail all waiters with `error`, because no bytes will be released any more."""
        waiters, self._waiters = self._waiters, deque()
        for waiter, _ in waiters:
            if not waiter.done():
                waiter.set_exception(error)

    def _fits(self, size: int) -> bool:
        return self.used_bytes + size <= self.bytes_max or self.used_bytes == 0

    def _grant(self) -> None:
        while self._waiters:
            waiter, size = self._waiters[0]
            if waiter.done():  # cancelled, but its task has not run yet
                self._waiters.popleft()
                continue
            if not self._fits(size):
                return
            self._waiters.popleft()
            self.used_bytes += size
            waiter.set_result(None)
