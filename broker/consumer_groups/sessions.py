"""Keep deadlines of many keys and find the expired ones. It knows no clock: methods receive the time or a deadline.

Source: Kafka's delayed heartbeat purgatory, as a heap whose entries are checked again when they are due.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class Sessions(Generic[K]):
    """Keys with deadlines. Extending a deadline is cheap. It costs time only when the earlier deadline is due."""

    def __init__(self) -> None:
        self._deadlines: dict[K, float] = {}
        self._heap: list[tuple[float, int, K]] = []
        self._scheduled: dict[K, float] = {}
        """The one valid heap entry of each key. It is never later than the key's deadline."""
        self._count = 0

    def __contains__(self, key: K) -> bool:
        return key in self._deadlines

    def __len__(self) -> int:
        return len(self._deadlines)

    def deadline(self, key: K) -> float | None:
        """Return the time at which the key expires, or None if it has no deadline."""
        return self._deadlines.get(key)

    def extend(self, key: K, deadline: float) -> None:
        """Set a key's deadline. It may be earlier than before."""
        self._deadlines[key] = deadline
        scheduled = self._scheduled.get(key)
        if scheduled is None or deadline < scheduled:
            self._push(key, deadline)

    def forget(self, key: K) -> None:
        """Remove a key's deadline."""
        self._deadlines.pop(key, None)

    def clear(self) -> None:
        """Remove all deadlines."""
        self._deadlines.clear()
        self._scheduled.clear()
        self._heap.clear()

    def shift(self, seconds: float) -> None:
        """Move all deadlines back by a time in which no heartbeat could be received."""
        self._deadlines = {key: deadline + seconds for key, deadline in self._deadlines.items()}
        self._scheduled.clear()
        self._heap.clear()
        for key, deadline in self._deadlines.items():
            self._push(key, deadline)

    def expired(self, now: float) -> list[K]:
        """Remove and return the keys whose deadline has passed."""
        found: list[K] = []
        heap = self._heap
        while heap and heap[0][0] <= now:
            at, _, key = heapq.heappop(heap)
            if self._scheduled.get(key) != at:
                continue  # an earlier entry replaced it
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
