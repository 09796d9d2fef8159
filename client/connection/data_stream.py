"""Streams over a data connection, of appends and of messages of queue topics.

Must not open connections. A stream begins before its connection is open, and is a gRPC stream when none can be opened, or when the
connection has too many streams. Invariant: requests of a stream go out in order over one and the same connection.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Final, Generic, Protocol, TypeVar

from raftmq.client.base.error_details import error_from_detail, fresh_copy, with_address
from raftmq.client.connection.append_stream import AppendStream, OnEnd, OnResponse, SerializedAppend
from raftmq.client.connection.data_calls import APPEND_NUMBER
from raftmq.client.connection.data_connection import DataConnection
from raftmq.client.connection.data_port import Opened
from raftmq.client.connection.queue_stream import OnQueueResponse, QueueStream
from raftmq.errors import BrokenConnectionError, Outcome, RaftMQError, UnreachableError
from raftmq.frames import DATA_METHODS, STREAMS_MAX, FrameError
from raftmq.methods import POLL_STREAM
from raftmq.proto import queue_pb2 as pb

POLL_STREAM_NUMBER: Final = DATA_METHODS.index(POLL_STREAM)
_TOPIC_MS: Final = 30_000
"""How long a broker may wait for the topic of a stream that begins. It is as long over gRPC."""

RequestT = TypeVar("RequestT")


class _GrpcStream(Protocol):
    def cancel(self) -> None: ...


GrpcStreamT = TypeVar("GrpcStreamT", bound=_GrpcStream)


class DataStream(ABC, Generic[RequestT, GrpcStreamT]):
    """A stream over a data connection, or over gRPC if no data connection could be opened.

    When a broker leaves the connection (GOODBYE), the stream ends after its last answer, so that its final error
    concerns only requests that the broker has not looked at.
    """

    def __init__(
        self,
        opened: DataConnection | asyncio.Task[Opened],
        open_over_grpc: Callable[[], GrpcStreamT],
        address: str,
        on_end: OnEnd,
        on_writable: Callable[[], None],
    ) -> None:
        self._open_over_grpc = open_over_grpc
        self._address = address
        self._on_end = on_end
        self._on_writable = on_writable
        self._connection: DataConnection | None = None
        """None until the attempt to open it has ended."""
        self._grpc_stream: GrpcStreamT | None = None
        """Instead of a connection."""
        self._held: RequestT | None = None
        """The request that waits for the connection to open, or for flow control."""
        self._closing_error: RaftMQError | None = None
        """Why the connection takes no more requests: the error of those that are lost or come now."""
        self._is_ended = False
        if isinstance(opened, DataConnection):
            self._use(opened)
        else:
            opened.add_done_callback(self._on_opened)

    @abstractmethod
    def _write_over_grpc(self, stream: GrpcStreamT, request: RequestT) -> bool:
        """Send a request over gRPC. Return whether the stream takes another one now."""

    @abstractmethod
    def _call(self, connection: DataConnection, request: RequestT) -> None:
        """Send a request over an open connection."""

    @abstractmethod
    def _cancel_calls(self, connection: DataConnection) -> None:
        """Give up what is unanswered."""

    @abstractmethod
    def _is_answered(self) -> bool:
        """Return whether nothing more will come from a broker that leaves the connection."""

    # ---------------------------------------------------------------------------------------------------------- the seam

    def write(self, request: RequestT) -> bool:
        """See `AppendStream` and `QueueStream`."""
        if self._grpc_stream is not None:
            return self._write_over_grpc(self._grpc_stream, request)
        connection = self._connection
        if connection is not None and connection.is_writable:
            return self._send(connection, request)
        self._held = request
        if connection is not None:
            connection.wait_writable(self)
        return False

    def cancel(self) -> None:
        """See `AppendStream` and `QueueStream`."""
        self._is_ended = True
        self._held = None
        if self._grpc_stream is not None:
            self._grpc_stream.cancel()
        if self._connection is not None:
            self._connection.remove_user(self)
            self._cancel_calls(self._connection)

    def close(self) -> None:
        """End the stream because its client closes the connection."""
        if not self._is_ended:
            self.cancel()
            self._on_end(BrokenConnectionError(f"{self._address}: the stream was given up"))

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
        elif opened is None or opened.user_count >= STREAMS_MAX:
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
        if held is None or self._write_over_grpc(self._grpc_stream, held):
            self._on_writable()

    # --------------------------------------------------------------------------------------------------------------- sending

    def _send(self, connection: DataConnection, request: RequestT) -> bool:
        if self._closing_error is not None or not connection.is_open:
            return False  # it ends soon, and this request was never sent
        self._call(connection, request)
        if connection.is_writable:
            return True
        connection.wait_writable(self)
        return False

    def on_writable(self) -> None:
        """See `ConnectionUser`."""
        held, self._held = self._held, None
        if held is None or self.write(held):
            self._on_writable()

    # -------------------------------------------------------------------------------------------------------------------- end

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
        if self._closing_error is not None and self._is_answered():
            self._end(fresh_copy(self._closing_error))

    def _end(self, error: RaftMQError) -> None:
        if not self._is_ended:
            self.cancel()
            self._on_end(error)


class DataAppendStream(DataStream[SerializedAppend, AppendStream]):
    """An `AppendStream`. Each request is a call of its own.

    The broker refuses a request, or loses it, without ending the stream. A request that it refuses as a whole is answered with that
    error.
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
        self._on_response = on_response
        self._sent: dict[int, int] = {}
        """The request's correlation id by that of its frame, of each that is not answered."""
        super().__init__(opened, open_over_grpc, address, on_end, on_writable)

    def is_outdated(self) -> bool:
        """See `AppendStream`."""
        return self._grpc_stream is not None and self._grpc_stream.is_outdated()

    def is_opening(self) -> bool:
        """See `AppendStream`."""
        return self._connection is None and self._grpc_stream is None

    def _write_over_grpc(self, stream: AppendStream, request: SerializedAppend) -> bool:
        return stream.write(request)

    def _call(self, connection: DataConnection, request: SerializedAppend) -> None:
        correlation_id = connection.call(APPEND_NUMBER, request.body, request.timeout_ms, self)
        self._sent[correlation_id] = request.correlation_id

    def _cancel_calls(self, connection: DataConnection) -> None:
        sent, self._sent = self._sent, {}
        for correlation_id in sent:
            connection.cancel(correlation_id)

    def _is_answered(self) -> bool:
        return not self._sent

    def on_answer(self, correlation_id: int, body: memoryview) -> None:
        """See `CallHandler`."""
        response = pb.AppendResponse.FromString(bytes(body))
        self._sent.pop(correlation_id, None)
        self._on_response(response)
        self._end_if_left()

    def on_response(self, correlation_id: int, body: memoryview) -> None:
        """See `CallHandler`."""
        raise FrameError("a response of a stream to an append")

    def on_refused(self, correlation_id: int, detail: pb.ErrorDetail) -> None:
        """See `CallHandler`."""
        request_correlation_id = self._sent.pop(correlation_id, 0)
        self._on_response(pb.AppendResponse(correlation_id=request_correlation_id, error=detail))
        self._end_if_left()

    def on_lost(self, correlation_id: int, error: RaftMQError) -> None:
        """See `CallHandler`."""
        self._sent.pop(correlation_id, None)
        self._note_closing(error)


class DataQueueStream(DataStream[pb.QueueStreamRequest, QueueStream]):
    """A `QueueStream`. All its requests belong to one call, which ends with it."""

    def __init__(
        self,
        opened: DataConnection | asyncio.Task[Opened],
        open_over_grpc: Callable[[], QueueStream],
        address: str,
        on_response: OnQueueResponse,
        on_end: OnEnd,
        on_writable: Callable[[], None],
    ) -> None:
        self._on_response = on_response
        self._correlation_id = 0
        """Of the call, while it is under way. 0: no request was sent, or it has ended."""
        super().__init__(opened, open_over_grpc, address, on_end, on_writable)

    def _write_over_grpc(self, stream: QueueStream, request: pb.QueueStreamRequest) -> bool:
        return stream.write(request)

    def _call(self, connection: DataConnection, request: pb.QueueStreamRequest) -> None:
        body = request.SerializeToString()
        if self._correlation_id:
            connection.request(self._correlation_id, body)
        else:
            self._correlation_id = connection.call(POLL_STREAM_NUMBER, body, _TOPIC_MS, self)

    def _cancel_calls(self, connection: DataConnection) -> None:
        if self._correlation_id:
            connection.cancel(self._correlation_id)
            self._correlation_id = 0

    def _is_answered(self) -> bool:
        return not self._correlation_id

    def on_response(self, correlation_id: int, body: memoryview) -> None:
        """See `CallHandler`."""
        self._on_response(pb.QueueStreamResponse.FromString(bytes(body)))

    def on_answer(self, correlation_id: int, body: memoryview) -> None:
        """See `CallHandler`: the broker has ended the stream."""
        self._correlation_id = 0
        ended = BrokenConnectionError(f"{self._address}: the broker ended the stream")
        self._end(ended if self._closing_error is None else fresh_copy(self._closing_error))

    def on_refused(self, correlation_id: int, detail: pb.ErrorDetail) -> None:
        """See `CallHandler`."""
        self._correlation_id = 0
        self._end(with_address(error_from_detail(detail), self._address))

    def on_lost(self, correlation_id: int, error: RaftMQError) -> None:
        """See `CallHandler`."""
        self._correlation_id = 0
        self._note_closing(error)
