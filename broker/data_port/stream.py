"""A `PollStream` over a data connection: requests in the order of their frames, and responses while the connection takes them.

It does not know frames. Its memory is bounded by the connection, which stops reading while too many requests have no answer, and by
`ConsumerStream`, which leases nothing while much waits for the client to read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Protocol

from raftmq.broker.base.budget import Reservation
from raftmq.broker.base.request_error import RequestError
from raftmq.broker.services.call import Principal
from raftmq.broker.services.queue.stream import ConsumerStream
from raftmq.proto import queue_pb2 as pb


class StreamConnection(Protocol):
    """The connection as its streams see it."""

    @property
    def is_writable(self) -> bool:
        """Return whether the client takes responses."""
        ...

    def on_stream_changed(self, stream: DataStream) -> None:
        """Call `stream.pump` later in this turn of the event loop, or in the next one."""
        ...

    def on_request_answered(self, reservation: Reservation | None) -> None:
        """Note that a request of a stream was answered, or will never be."""
        ...

    def send_response(self, stream: DataStream, response: pb.QueueStreamResponse) -> None:
        """Write a response. Raises RequestError if there is no memory for it."""
        ...

    def end_stream(self, stream: DataStream, failure: BaseException | None) -> None:
        """Write the end of a stream, and forget it."""
        ...


class DataStream:
    """One stream of a connection."""

    def __init__(
        self,
        connection: StreamConnection,
        make_stream: Callable[[Principal, Callable[[], None]], ConsumerStream],
        principal: Principal,
        correlation_id: int,
    ) -> None:
        self.correlation_id = correlation_id
        self._connection = connection
        self._stream = make_stream(principal, partial(connection.on_stream_changed, self))
        self._opening: asyncio.Task[None] | None = None
        self._held: list[tuple[pb.QueueStreamRequest, int]] | None = []
        """Requests that wait until the stream is open. None: it is."""
        self._unanswered: dict[int, Reservation | None] = {}
        """Requests without an answer, by their number, and the budget of each that is not small."""
        self._last_number = 0

    def open(
        self,
        loop: asyncio.AbstractEventLoop,
        request: pb.QueueStreamRequest,
        reservation: Reservation | None,
        deadline: float,
    ) -> None:
        """Begin with the first request. Later ones wait until its topic is found."""
        self.request(request, reservation)
        self._opening = loop.create_task(self._open(request, deadline))

    async def _open(self, request: pb.QueueStreamRequest, deadline: float) -> None:
        try:
            await self._stream.open(request, deadline)
        except Exception as error:  # noqa: BLE001 -- the root of a task: a defect ends the stream
            self._stream.fail(error)
            return
        held, self._held = self._held or [], None
        for one, number in held:
            self._handle(one, number)

    def request(self, request: pb.QueueStreamRequest, reservation: Reservation | None) -> None:
        """Handle a request. Its budget is given back when it is answered."""
        self._last_number = number = self._last_number + 1
        self._unanswered[number] = reservation
        if self._held is None:
            self._handle(request, number)
        else:
            self._held.append((request, number))

    def _handle(self, request: pb.QueueStreamRequest, number: int) -> None:
        try:
            self._stream.on_request(request, partial(self._on_answered, number))
        except Exception as error:  # noqa: BLE001 -- a wrong request, or a defect, ends the stream and not the connection
            self._stream.fail(error)

    def _on_answered(self, number: int) -> None:
        self._connection.on_request_answered(self._unanswered.pop(number))

    def pump(self) -> None:
        """Write the responses that there are, while the client takes them."""
        stream, connection = self._stream, self._connection
        while connection.is_writable and stream.failure is None:
            response = stream.next_response()
            if response is None:
                break
            try:
                connection.send_response(self, response)
            except RequestError as error:
                stream.put_back()
                stream.fail(error)
        if stream.failure is not None or stream.is_over:
            connection.end_stream(self, stream.failure)

    def fail(self, error: RequestError) -> None:
        """End the stream with an error."""
        self._stream.fail(error)

    def leave(self) -> None:
        """Lease nothing more, and end when the requests are answered."""
        self._stream.leave()

    def close(self) -> None:
        """Give everything back."""
        if self._opening is not None:
            self._opening.cancel()
        self._stream.close()
        unanswered, self._unanswered = self._unanswered, {}
        for reservation in unanswered.values():
            self._connection.on_request_answered(reservation)
