"""Virtual time: a heap of events with a stable order among equal times. It knows nothing about Raft."""

from __future__ import annotations

import heapq
from collections.abc import Callable


class EventHeap:
    """Runs callbacks in the order of their times. Callbacks of equal times run in the order of their scheduling."""

    def __init__(self) -> None:
        self.now = 0
        """Virtual time. `options.TICK` units are one nominal tick."""
        self.count = 0
        """Number of events run so far."""
        self._sequence = 0
        self._heap: list[tuple[int, int, Callable[..., object], tuple[object, ...]]] = []

    def after(self, delay: int, action: Callable[..., object], *arguments: object) -> int:
        """Schedule `action(*arguments)` in `delay` units of time. Return the resulting time."""
        self._sequence += 1
        time = self.now + delay
        heapq.heappush(self._heap, (time, self._sequence, action, arguments))
        return time

    def run_until(self, end: int) -> None:
        """Run every event up to and including time `end`."""
        heap = self._heap
        while heap and heap[0][0] <= end:
            self.now, _, action, arguments = heapq.heappop(heap)
            self.count += 1
            action(*arguments)
        self.now = max(self.now, end)
