"""The seam between a producer and a transport: a stream of appends to one broker."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from raftmq.errors import RaftMQError
from raftmq.proto import queue_pb2 as pb


class SerializedAppend(NamedTuple):
    """A serialized `AppendRequest`, and the fields of it that a transport needs."""

    correlation_id: int
    timeout_ms: int
    body: bytes


class AppendStream(Protocol):
    """A stream of appends to one broker, which takes requests in order and answers them in any order. It never calls back from a method."""

    def write(self, request: SerializedAppend) -> bool:
        """Send a request. Neither waits nor raises: a stream that is dead says so through `on_end`.

        Returns:
            Whether the stream takes another request now. If not, the next call comes after `on_writable`.
        """
        ...

    def is_outdated(self) -> bool:
        """Return whether a new stream would be a faster one, over a data connection. It may replace this one once all is answered."""
        ...

    def is_opening(self) -> bool:
        """Return whether nothing has been sent yet, because the connection is still being opened."""
        ...

    def cancel(self) -> None:
        """Give the stream up: it calls nothing back any more. Unanswered requests have an unknown outcome."""
        ...


OnResponse = Callable[[pb.AppendResponse], None]
OnEnd = Callable[[RaftMQError], None]
