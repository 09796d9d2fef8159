"""Polls and streams of appends over a data connection.

Must not open connections, nor choose between them and gRPC, but for a stream of appends: it begins before its connection is open, and is
a gRPC stream when none can be opened. Invariant: requests of a stream go out in order over one and the same connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from raftmq.client.base import settings
from raftmq.client.base.error_details import error_from_detail, fresh_copy, with_address
from raftmq.client.connection.append_stream import AppendStream, OnEnd, OnResponse, SerializedAppend
from raftmq.client.connection.data_connection import DataConnection
from raftmq.client.connection.data_port import Opened
from raftmq.client.connection.pending_poll import OnPolled
from raftmq.errors import (
    BrokenConnectionError,
    Outcome,
    RaftMQError,
    RequestTimedOutError,
    UnreachableError,
    WrongClusterError,
)
from raftmq.frames import DATA_METHODS
from raftmq.methods import APPEND, POLL
from raftmq.proto import queue_pb2 as pb

APPEND_NUMBER: Final = DATA_METHODS.index(APPEND)
POLL_NUMBER: Final = DATA_METHODS.index(POLL)


class DataPoll:
    """A poll under way (`PendingPoll`). Its outcome is passed on in the turn of the event loop in which it arrives. Created by `DataPolls`."""

    __slots__ = ("_connection", "_correlation_id", "_on_outcome", "_polls", "_timeout_seconds", "expires_at")

    def __init__(
        self,
        polls: DataPolls,
        connection: DataConnection,
        request: pb.PollRequest,
        timeout_seconds: float,
        on_outcome: OnPolled,
    ) -> None:
        """Send the poll. Raises `UnreachableError` on a connection that takes no more."""
        self._polls = polls
        self._connection = connection
        self._timeout_seconds = timeout_seconds
        self._on_outcome = on_outcome
        self.expires_at = polls.loop.time() + timeout_seconds + settings.DATA_TIMEOUT_GRACE_SECONDS
        """Loop time after which no answer is waited for."""
        self._correlation_id = connection.call(
            POLL_NUMBER, request.SerializeToString(), int(timeout_seconds * 1000), self
        )

    def cancel(self) -> None:
        """See `PendingPoll`."""
        if self._polls.forget(self):
            self._connection.cancel(self._correlation_id)

    def fail(self, error: RaftMQError) -> None:
        """Give the poll up, with an error as its outcome."""
        self._connection.cancel(self._correlation_id)
        self._end(error)

    def expire(self) -> None:
        """Give the poll up, because its time is over."""
        self.fail(RequestTimedOutError(f"{self._polls.address}: no answer within {self._timeout_seconds:g} s"))

    def on_answer(self, correlation_id: int, body: memoryview) -> None:
        """See `CallHandler`."""
        self._end(pb.PollResponse.FromString(bytes(body)))

    def on_refused(self, correlation_id: int, detail: pb.ErrorDetail) -> None:
        """See `CallHandler`."""
        error = error_from_detail(detail)
        if isinstance(error, WrongClusterError):  # as over gRPC: where another cluster answers, ours cannot be reached
            error = UnreachableError(str(error.args[0]))
        self._end(with_address(error, self._polls.address))

    def on_lost(self, correlation_id: int, error: RaftMQError) -> None:
        """See `CallHandler`."""
        copy = fresh_copy(error)
        copy.__cause__ = error.__cause__
        self._end(copy)

    def _end(self, outcome: pb.PollResponse | RaftMQError) -> None:
        if self._polls.forget(self):
            self._on_outcome(outcome)


class DataPolls:
    """The polls of one client over data connections to one broker. One timer ends those whose answer does not come."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.loop = asyncio.get_running_loop()
        self._pending: dict[DataPoll, None] = {}
        self._expiry: asyncio.TimerHandle | None = None
        """Runs until the earliest `expires_at`, or before it: a timer for each poll would cost as much as the poll's frame."""
        self._expires_at = 0.0

    def begin(
        self, connection: DataConnection, request: pb.PollRequest, timeout_seconds: float, on_outcome: OnPolled
    ) -> DataPoll:
        """Send a poll. Raises `UnreachableError` on a connection that takes no more."""
        poll = DataPoll(self, connection, request, timeout_seconds, on_outcome)
        self._pending[poll] = None
        if self._expiry is None or poll.expires_at < self._expires_at:
            self._arm(poll.expires_at)
        return poll

    def forget(self, poll: DataPoll) -> bool:
        """Forget a poll that is over. Return whether it was under way."""
        if poll not in self._pending:
            return False
        del self._pending[poll]
        return True

    def close(self, error: RaftMQError) -> None:
        """Fail every poll."""
        if self._expiry is not None:
            self._expiry.cancel()
        for poll in list(self._pending):
            poll.fail(fresh_copy(error))

    def _arm(self, when: float) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
        self._expires_at = when
        self._expiry = self.loop.call_at(when, self._expire)

    def _expire(self) -> None:
        self._expiry = None
        now = self.loop.time()
        for poll in [poll for poll in self._pending if poll.expires_at <= now]:
            poll.expire()
        if self._pending:
            self._arm(min(poll.expires_at for poll in self._pending))


class DataAppendStream:
    """An `AppendStream` over a data connection, or over gRPC when its attempt to open one ends without.

    The broker refuses a request, or loses it, without ending the stream. A request that it refuses as a whole is answered with that
    error. When a broker leaves the connection (GOODBYE), the stream ends after its last answer, so that the error of its end is about
    requests which the broker has not looked at.
    """

    def __init__(
        self,
        opened: DataConnection | asyncio.Task[Opened],
        open_over_grpc: Callable[[], AppendStream],
        address: str,
        on_response: OnResponse,
        on_end: OnEnd,
        on_writable: Callable[[], None],
    ) -> None:
        self._open_over_grpc = open_over_grpc
        self._address = address
        self._on_response = on_response
        self._on_end = on_end
        self._on_writable = on_writable
        self._connection: DataConnection | None = None
        """None until the attempt to open it has ended."""
        self._grpc_stream: AppendStream | None = None
        """Instead of a connection."""
        self._sent: dict[int, int] = {}
        """The request's correlation id by that of its frame, of each that is not answered."""
        self._held: SerializedAppend | None = None
        """The request that waits for the connection to open, or for flow control."""
        self._closing_error: RaftMQError | None = None
        """Why the connection takes no more requests: the error of those that are lost or come now."""
        self._is_ended = False
        if isinstance(opened, DataConnection):
            self._use(opened)
        else:
            opened.add_done_callback(self._on_opened)

    # ---------------------------------------------------------------------------------------------------------- AppendStream

    def write(self, request: SerializedAppend) -> bool:
        """See `AppendStream`."""
        if self._grpc_stream is not None:
            return self._grpc_stream.write(request)
        connection = self._connection
        if connection is not None and connection.is_writable:
            return self._send(connection, request)
        self._held = request
        if connection is not None:
            connection.wait_writable(self)
        return False

    def is_outdated(self) -> bool:
        """See `AppendStream`."""
        return self._grpc_stream is not None and self._grpc_stream.is_outdated()

    def cancel(self) -> None:
        """See `AppendStream`."""
        self._is_ended = True
        self._held = None
        if self._grpc_stream is not None:
            self._grpc_stream.cancel()
        if self._connection is not None:
            self._connection.remove_user(self)
            sent, self._sent = self._sent, {}
            for correlation_id in sent:
                self._connection.cancel(correlation_id)

    def close(self) -> None:
        """End the stream because its client closes the connection."""
        if not self._is_ended:
            self.cancel()
            self._on_end(BrokenConnectionError(f"{self._address}: the append stream was given up"))

    # --------------------------------------------------------------------------------------------------------------- opening

    def _on_opened(self, opening: asyncio.Task[Opened]) -> None:
        if self._is_ended:
            return
        if opening.cancelled():
            self._end(UnreachableError(f"{self._address}: the connection was closed"))
            return
        opened = opening.result()
        if isinstance(opened, RaftMQError):
            self._end(fresh_copy(opened))
        elif opened is None:
            self._use_grpc()
        elif not opened.is_open:
            self._end(UnreachableError(f"{self._address}: the data connection was closed"))
        else:
            self._use(opened)
            self.on_writable()

    def _use(self, connection: DataConnection) -> None:
        self._connection = connection
        connection.add_user(self)

    def _use_grpc(self) -> None:
        try:
            self._grpc_stream = self._open_over_grpc()
        except RaftMQError as error:
            self._end(error)
            return
        held, self._held = self._held, None
        if held is None or self._grpc_stream.write(held):
            self._on_writable()

    # --------------------------------------------------------------------------------------------------------------- sending

    def _send(self, connection: DataConnection, request: SerializedAppend) -> bool:
        if self._closing_error is not None:
            return False  # it ends soon, and this request was never sent
        correlation_id = connection.call(APPEND_NUMBER, request.body, request.timeout_ms, self)
        self._sent[correlation_id] = request.correlation_id
        if connection.is_writable:
            return True
        connection.wait_writable(self)
        return False

    def on_writable(self) -> None:
        """See `ConnectionUser`."""
        held, self._held = self._held, None
        if held is None or self.write(held):
            self._on_writable()

    # --------------------------------------------------------------------------------------------------------------- answers

    def on_answer(self, correlation_id: int, body: memoryview) -> None:
        """See `CallHandler`."""
        response = pb.AppendResponse.FromString(bytes(body))
        self._sent.pop(correlation_id, None)
        self._on_response(response)
        self._end_if_left()

    def on_refused(self, correlation_id: int, detail: pb.ErrorDetail) -> None:
        """See `CallHandler`."""
        request_correlation_id = self._sent.pop(correlation_id, 0)
        self._on_response(pb.AppendResponse(correlation_id=request_correlation_id, error=detail))
        self._end_if_left()

    def on_lost(self, correlation_id: int, error: RaftMQError) -> None:
        """See `CallHandler`."""
        self._sent.pop(correlation_id, None)
        self._note_closing(error)

    def on_closing(self, error: RaftMQError) -> None:
        """See `ConnectionUser`."""
        self._note_closing(error)
        self._end_if_left()

    def _note_closing(self, error: RaftMQError) -> None:
        """Remember the worst error: when the outcome of one lost request is unknown, it is said of all."""
        known = self._closing_error
        if known is None or (known.outcome is Outcome.NOT_APPLIED and error.outcome is Outcome.UNKNOWN):
            self._closing_error = error

    def _end_if_left(self) -> None:
        if self._closing_error is not None and not self._sent:
            self._end(fresh_copy(self._closing_error))

    def _end(self, error: RaftMQError) -> None:
        if not self._is_ended:
            self.cancel()
            self._on_end(error)
