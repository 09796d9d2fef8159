"""Calls with one answer over data connections: polls, appends without a stream, and the registration of producers.

Must not open connections, nor choose between them and gRPC.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, Generic

from raftmq.client.base import settings
from raftmq.client.base.error_details import error_from_detail, fresh_copy, with_address
from raftmq.client.connection.data_connection import DataConnection
from raftmq.errors import RaftMQError, RequestTimedOutError, UnreachableError, WrongClusterError
from raftmq.frames import DATA_METHODS, FrameError
from raftmq.methods import APPEND, INIT_PRODUCER, POLL, RequestT, ResponseT, UnaryMethod
from raftmq.proto import queue_pb2 as pb

APPEND_NUMBER: Final = DATA_METHODS.index(APPEND)
INIT_PRODUCER_NUMBER: Final = DATA_METHODS.index(INIT_PRODUCER)
POLL_NUMBER: Final = DATA_METHODS.index(POLL)


class DataCall(Generic[ResponseT]):
    """A call under way (`PendingPoll`). Its outcome is passed on in the turn of the event loop in which it arrives. Created by `DataCalls`."""

    __slots__ = (
        "_calls",
        "_connection",
        "_correlation_id",
        "_on_outcome",
        "_response_type",
        "_timeout_seconds",
        "expires_at",
    )

    def __init__(
        self,
        calls: DataCalls,
        connection: DataConnection,
        method: UnaryMethod[RequestT, ResponseT],
        body: bytes,
        timeout_seconds: float,
        on_outcome: Callable[[ResponseT | BaseException], None],
    ) -> None:
        """Send the request. Raises `UnreachableError` on a connection that takes no more."""
        self._calls = calls
        self._connection = connection
        self._response_type = method.response_type
        self._timeout_seconds = timeout_seconds
        self._on_outcome = on_outcome
        self.expires_at = calls.loop.time() + timeout_seconds + settings.DATA_TIMEOUT_GRACE_SECONDS
        """Loop time after which no answer is waited for."""
        self._correlation_id = connection.call(DATA_METHODS.index(method), body, int(timeout_seconds * 1000), self)

    def cancel(self) -> None:
        """See `PendingPoll`."""
        if self._calls.forget(self):
            self._connection.cancel(self._correlation_id)

    def fail(self, error: RaftMQError) -> None:
        """Give the call up, with an error as its outcome."""
        self._connection.cancel(self._correlation_id)
        self._end(error)

    def expire(self) -> None:
        """Give the call up, because its time is over."""
        self.fail(RequestTimedOutError(f"{self._calls.address}: no answer within {self._timeout_seconds:g} s"))

    def on_answer(self, correlation_id: int, body: memoryview) -> None:
        """See `CallHandler`."""
        self._end(self._response_type.FromString(bytes(body)))

    def on_response(self, correlation_id: int, body: memoryview) -> None:
        """See `CallHandler`."""
        raise FrameError("a response of a stream to another call")

    def on_refused(self, correlation_id: int, detail: pb.ErrorDetail) -> None:
        """See `CallHandler`."""
        error = error_from_detail(detail)
        if isinstance(error, WrongClusterError):  # as over gRPC: where another cluster answers, ours cannot be reached
            error = UnreachableError(str(error.args[0]))
        self._end(with_address(error, self._calls.address))

    def on_lost(self, correlation_id: int, error: RaftMQError) -> None:
        """See `CallHandler`."""
        copy = fresh_copy(error)
        copy.__cause__ = error.__cause__
        self._end(copy)

    def _end(self, outcome: ResponseT | RaftMQError) -> None:
        if self._calls.forget(self):
            self._on_outcome(outcome)


class DataCalls:
    """The calls of one client over data connections to one broker. One timer ends those whose answer does not come."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.loop = asyncio.get_running_loop()
        self._pending: dict[DataCall[Any], None] = {}  # Any: responses of all methods
        self._expiry: asyncio.TimerHandle | None = None
        """Runs until the earliest `expires_at`, or before it: a timer for each call would cost as much as a poll's frame."""
        self._expires_at = 0.0

    def begin(
        self,
        connection: DataConnection,
        method: UnaryMethod[RequestT, ResponseT],
        body: bytes,
        timeout_seconds: float,
        on_outcome: Callable[[ResponseT | BaseException], None],
    ) -> DataCall[ResponseT]:
        """Send a serialized request. Raises `UnreachableError` on a connection that takes no more.

        Args:
            connection: The method's connection.
            method: One of `DATA_METHODS`.
            body: The request.
            timeout_seconds: How long to wait for the answer.
            on_outcome: Takes the answer, or a `RaftMQError`. As `OnPolled`.
        """
        call: DataCall[ResponseT] = DataCall(self, connection, method, body, timeout_seconds, on_outcome)
        self._pending[call] = None
        if self._expiry is None or call.expires_at < self._expires_at:
            self._arm(call.expires_at)
        return call

    def forget(self, call: DataCall[Any]) -> bool:
        """Forget a call that has ended. Return whether it was under way."""
        if call not in self._pending:
            return False
        del self._pending[call]
        return True

    def close(self, error: RaftMQError) -> None:
        """Fail every call."""
        if self._expiry is not None:
            self._expiry.cancel()
        for call in list(self._pending):
            call.fail(fresh_copy(error))

    def _arm(self, when: float) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
        self._expires_at = when
        self._expiry = self.loop.call_at(when, self._expire)

    def _expire(self) -> None:
        self._expiry = None
        now = self.loop.time()
        for call in [call for call in self._pending if call.expires_at <= now]:
            call.expire()
        if self._pending:
            self._arm(min(call.expires_at for call in self._pending))
