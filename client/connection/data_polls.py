"""Polls over a data connection. Must not open connections, nor choose between them and gRPC."""

from __future__ import annotations

import asyncio
from typing import Final

from raftmq.client.base import settings
from raftmq.client.base.error_details import error_from_detail, fresh_copy, with_address
from raftmq.client.connection.data_connection import DataConnection
from raftmq.client.connection.pending_poll import OnPolled
from raftmq.errors import RaftMQError, RequestTimedOutError, UnreachableError, WrongClusterError
from raftmq.frames import DATA_METHODS, FrameError
from raftmq.methods import POLL
from raftmq.proto import queue_pb2 as pb

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

    def on_response(self, correlation_id: int, body: memoryview) -> None:
        """See `CallHandler`."""
        raise FrameError("a response of a stream to a poll")

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
