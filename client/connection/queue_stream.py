"""The seam between the consumers of queue topics and a transport: a stream of credit, messages and settlements to one broker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from raftmq.proto import queue_pb2 as pb


class QueueStream(Protocol):
    """A `Queue.PollStream` to one broker, which takes requests in order. It never calls back from a method."""

    def write(self, request: pb.QueueStreamRequest) -> bool:
        """Send a request. Neither waits nor raises: a stream that is dead says so through `on_end`.

        Returns:
            Whether the stream takes another request now. If not, the next call comes after `on_writable`.
        """
        ...

    def cancel(self) -> None:
        """Give the stream up: it calls nothing back any more. Unanswered settlements have an unknown outcome."""
        ...


OnQueueResponse = Callable[[pb.QueueStreamResponse], None]
