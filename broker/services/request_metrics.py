"""Counts the calls of the client port as they are answered: by method and code, their times, and streams open now.

Changed on the loop only, so there are no locks; a call costs two dictionary look-ups and a bisection. Labels are bounded:
methods are those of the protocol, codes those of `ErrorCode` and the two words here.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from raftmq.broker.base.histogram import LATENCY_SECONDS, Histogram
from raftmq.methods import APPEND, APPEND_STREAM, METHODS, POLL, UnaryMethod

OK: Final = "OK"
CANCELLED: Final = "CANCELLED"
"""The client gave the call up, or its connection ended."""

STREAMS: Final = tuple(method.name for method in METHODS if not isinstance(method, UnaryMethod))
"""Methods whose calls are streams. Each request of an AppendStream is counted as a request."""
KINDS: Final = ("append", "poll", "other")
_KIND_OF_METHOD: Final = {APPEND.name: "append", APPEND_STREAM.name: "append", POLL.name: "poll"}


class RequestMetrics:
    """See the module."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, str]] = Counter()
        """By (method, code)."""
        self.seconds = {kind: Histogram(LATENCY_SECONDS) for kind in KINDS}
        self.refusals: Counter[tuple[str, str]] = Counter()
        """Partitions refused within requests that were answered, by (method, code)."""
        self.streams: Counter[str] = Counter(dict.fromkeys(STREAMS, 0))
        """Open now, by method."""

    def observe(self, method: str, code: str, seconds: float) -> None:
        """A request was answered."""
        self.requests[method, code] += 1
        self.seconds[_KIND_OF_METHOD.get(method, "other")].observe(seconds)

    def count(self, method: str, code: str) -> None:
        """A call ended that no handler timed: it was refused before it reached one, or it was a stream."""
        self.requests[method, code] += 1

    def observe_refusal(self, method: str, code: str) -> None:
        """One partition of a request was refused."""
        self.refusals[method, code] += 1

    def stream_started(self, method: str) -> None:
        """A stream was opened."""
        self.streams[method] += 1

    def stream_ended(self, method: str) -> None:
        """A stream ended."""
        self.streams[method] -= 1
