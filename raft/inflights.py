"""Define the window of append requests on their way to one peer, bounded by count and by bytes.

Must not know the content of a request. Invariants: last indexes strictly increase, and bytes never go below zero.
Source: Ongaro's thesis 10.2.2 (pipelining).
"""

from __future__ import annotations

from collections import deque

from raftmq.errors import violated


class Inflights:
    """Hold the append requests that were sent and not acknowledged, oldest first."""

    __slots__ = ("_bytes_max", "_count_max", "_requests", "bytes")

    def __init__(self, count_max: int, bytes_max: int) -> None:
        self._count_max = count_max
        self._bytes_max = bytes_max
        self._requests: deque[tuple[int, int]] = deque()
        """(last index, payload bytes) of each request."""
        self.bytes = 0
        """Payload bytes of all requests in the window."""

    def __len__(self) -> int:
        return len(self._requests)

    @property
    def is_full(self) -> bool:
        """Return whether no further entries may be sent. One request may exceed the bytes, so that any entry fits."""
        return len(self._requests) >= self._count_max or self.bytes >= self._bytes_max

    @property
    def last_index(self) -> int:
        """Return the last index of the newest request, or 0 when the window is empty."""
        return self._requests[-1][0] if self._requests else 0

    def add(self, last_index: int, payload_bytes: int) -> None:
        """Add a request that left, with entries up to `last_index` (inclusive)."""
        if last_index <= self.last_index:
            violated("inflights_increase", last_index=last_index, newest=self.last_index)
        self._requests.append((last_index, payload_bytes))
        self.bytes += payload_bytes

    def free_to(self, index: int) -> None:
        """Remove every request up to `index` (inclusive). One acknowledgement covers all requests before it."""
        requests = self._requests
        while requests and requests[0][0] <= index:
            self.bytes -= requests.popleft()[1]

    def clear(self) -> None:
        """Remove every request, as all of them are presumed lost."""
        self._requests.clear()
        self.bytes = 0
