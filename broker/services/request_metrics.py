"""Count the answered calls of the client port by method and code, their times, and the open streams.

Counters change only on the event loop, so there are no locks. A call costs two dictionary look-ups and a bisection. Labels are bounded:
methods are those of the protocol, codes those of `ErrorCode` and the two constants here.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from raftmq.broker.base.histogram import LATENCY_SECONDS, Histogram
from raftmq.broker.services.slow_requests import SlowRequests
from raftmq.methods import APPEND, APPEND_STREAM, METHODS, POLL, UnaryMethod
from raftmq.proto import queue_pb2 as pb

if TYPE_CHECKING:
    from raftmq.broker.base.tracing import Tracing

OK: Final = "OK"
INTERNAL: Final = pb.ErrorCode.Name(pb.INTERNAL)
THROTTLED: Final = pb.ErrorCode.Name(pb.THROTTLED)
CANCELLED: Final = "CANCELLED"
"""The client cancelled the call, or its connection ended."""

STREAMS: Final = tuple(method.name for method in METHODS if not isinstance(method, UnaryMethod))
"""Methods whose calls are streams. Each request of an AppendStream is counted as a request."""
KINDS: Final = ("append", "poll", "other")
_KIND_OF_METHOD: Final = {APPEND.name: "append", APPEND_STREAM.name: "append", POLL.name: "poll"}


class RequestMetrics:
    """Counters of the client port."""

    def __init__(self, slow: SlowRequests | None = None, tracing: Tracing | None = None) -> None:
        self.slow = slow or SlowRequests()
        """The log of slow requests. By default none is slow."""
        self.tracing = tracing
        """Creates their spans. None: they have none."""
        throttled = {(APPEND.name, THROTTLED): 0}
        self.requests: Counter[tuple[str, str]] = Counter(
            {(method.name, INTERNAL): 0 for method in METHODS} | throttled
        )
        """Answered requests, by (method, code). Defects are counted from 0 on: a series that begins with 1 has no increase to alert on."""
        self.seconds = {kind: Histogram(LATENCY_SECONDS) for kind in KINDS}
        self.refusals: Counter[tuple[str, str]] = Counter(throttled)
        """Partitions refused within answered requests, by (method, code). The alert on throttling adds these to `requests`, and a sum with a
        side that does not exist is nothing: so both exist from the start."""
        self.streams: Counter[str] = Counter(dict.fromkeys(STREAMS, 0))
        """Open streams, by method."""

    def observe(self, method: str, code: str, seconds: float) -> None:
        """Count an answered request and its time."""
        self.requests[method, code] += 1
        self.seconds[_KIND_OF_METHOD.get(method, "other")].observe(seconds)

    def count(self, method: str, code: str) -> None:
        """Count a call without a time: it was refused before it reached a handler, or it was a stream."""
        self.requests[method, code] += 1

    def observe_refusal(self, method: str, code: str) -> None:
        """Count a refused partition of a request."""
        self.refusals[method, code] += 1

    def stream_started(self, method: str) -> None:
        """Count an opened stream."""
        self.streams[method] += 1

    def stream_ended(self, method: str) -> None:
        """Count an ended stream."""
        self.streams[method] -= 1
