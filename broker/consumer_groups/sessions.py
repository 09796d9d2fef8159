"""Deadlines of many: who has not been heard of for too long. Knows no clock: every method is told the time or a deadline.

Source: Kafka's delayed heartbeat purgatory, as a heap whose entries are looked at again when they come up.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class Sessions(Generic[K]):
    """Keys with deadlines. Extending one is cheap; it costs when the earlier deadline comes up."""

    def __init__(self) -> None:
        self._deadlines: dict[K, float] = {}
        self._heap: list[tuple[float, int, K]] = []
        self._scheduled: dict[K, float] = {}
        """Of each key, the one entry of the heap that counts; never after the key's deadline."""
        self._count = 0

    def __contains__(self, key: K) -> bool:
        return key in self._deadlines

    def __len__(self) -> int:
        return len(self._deadlines)

    def deadline(self, key: K) -> float | None:
        """When the key expires."""
        return self._deadlines.get(key)

    def extend(self, key: K, deadline: float) -> None:
        """Set a key's deadline. An earlier one than before is possible, too."""
        self._deadlines[key] = deadline
        scheduled = self._scheduled.get(key)
        if scheduled is None or deadline < scheduled:
            self._push(key, deadline)

    def forget(self, key: K) -> None:
        """The key has no deadline any more."""
        self._deadlines.pop(key, None)

    def clear(self) -> None:
        """Nobody has."""
        self._deadlines.clear()
        self._scheduled.clear()
        self._heap.clear()

    def shift(self, seconds: float) -> None:
        """All deadlines are so much later: time in which nobody could be heard does not count."""
        self._deadlines = {key: deadline + seconds for key, deadline in self._deadlines.items()}
        self._scheduled.clear()
        self._heap.clear()
        for key, deadline in self._deadlines.items():
            self._push(key, deadline)

    def expired(self, now: float) -> list[K]:
        """Take out those whose deadline is over."""
        found: list[K] = []
        heap = self._heap
        while heap and heap[0][0] <= now:
            at, _, key = heapq.heappop(heap)
            if self._scheduled.get(key) != at:
                continue  # an earlier one took its place
            del self._scheduled[key]
            deadline = self._deadlines.get(key)
            if deadline is None:
                continue
            if deadline > now:
                self._push(key, deadline)
            else:
                del self._deadlines[key]
                found.append(key)
        return found

    def _push(self, key: K, deadline: float) -> None:
        self._count += 1
        self._scheduled[key] = deadline
        heapq.heappush(self._heap, (deadline, self._count, key))
