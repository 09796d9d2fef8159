"""One data connection: frames over TCP that carry calls to a broker, beside gRPC (`raftmq.frames`, ADR 0012).

It must not choose connections, nor repeat calls. Invariants: a call is answered, refused, lost or cancelled, once. After the end of the
connection nothing is called back any more.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final, Protocol, cast

from google.protobuf.message import DecodeError
from raftmq.client.base import settings
from raftmq.client.base.error_details import error_from_detail
from raftmq.client.base.fork_guard import current_generation
from raftmq.errors import BrokenConnectionError, RaftMQError, UnreachableError
from raftmq.frames import BUFFER_BYTES, DATA_VERSION, FrameError, FrameReader, FrameType, frame_header
from raftmq.proto import queue_pb2 as pb
from raftmq.sockets import tune

_TIMEOUT_MS_MAX: Final = 0xFFFF_FFFF
_UNGATHERED_CALLS_MAX: Final = 4
"""Unanswered calls up to which frames are written one by one."""


class CallHandler(Protocol):
    """The owner of a call. Exactly one of its methods but `on_response` is called, once, unless the call is cancelled.

    None may raise but `DecodeError` and `FrameError`.
    """

    def on_answer(self, correlation_id: int, body: memoryview) -> None:
        """Take the response, whose bytes are valid during this call only. `DecodeError` ends the connection."""
        ...

    def on_response(self, correlation_id: int, body: memoryview) -> None:
        """Take one response of a stream, which goes on. May be called many times. `FrameError`, for a call that is none, ends the connection."""
        ...

    def on_refused(self, correlation_id: int, detail: pb.ErrorDetail) -> None:
        """Note that the broker refused this call. Others go on."""
        ...

    def on_lost(self, correlation_id: int, error: RaftMQError) -> None:
        """Note that the call will not be answered. The error's `outcome` says whether the broker may have looked at it."""
        ...


class ConnectionUser(Protocol):
    """Something that makes many calls over a connection and must know how it fares. Its methods must not raise."""

    def on_writable(self) -> None:
        """Note that the connection takes calls again. Called once for each `wait_writable`."""
        ...

    def on_closing(self, error: RaftMQError) -> None:
        """Note that the connection takes no more calls. Called after `CallHandler.on_lost` of those that are lost, at most twice."""
        ...


class DataConnection(asyncio.BufferedProtocol):
    """An open connection. `open_data_connection` makes it."""

    def __init__(self, address: str) -> None:
        self.version = 0
        """The version of the frames, of which METHOD_VERSIONS says what they carry. 0 before the greeting."""
        self._address = address
        self._loop = asyncio.get_running_loop()
        self._generation = current_generation()
        self._reader = FrameReader(settings.MESSAGE_BYTES_MAX)
        self._large_at = 0.0
        """Loop time of the last answer that needed more than the usual read buffer."""
        self._shrinking: asyncio.TimerHandle | None = None
        """Runs while the read buffer is large."""
        self._transport: asyncio.Transport | None = None
        self._gathered: list[bytes] | None = None
        """Small frames after the first of this turn of the event loop. None: this turn gathers none."""
        self._calls: dict[int, CallHandler] = {}
        self._users: dict[ConnectionUser, None] = {}
        self._waiters: deque[ConnectionUser] = deque()
        """Users that wait for flow control, in the order in which they came."""
        self._last_correlation_id = 0
        self._welcomed: asyncio.Future[RaftMQError | None] = self._loop.create_future()
        """The refusal, or None. An error is a result: nobody would take an exception when opening was cancelled."""
        self._closed: asyncio.Future[None] = self._loop.create_future()
        """Done when the socket is closed."""
        self._error: RaftMQError | None = None
        """Why it ended."""
        self._is_leaving = False
        """The broker said GOODBYE, and answers the calls that it has accepted."""
        self._is_paused = False

    @property
    def is_open(self) -> bool:
        """Return whether it takes calls."""
        return self._error is None and not self._is_leaving

    @property
    def user_count(self) -> int:
        """Return the number of users."""
        return len(self._users)

    @property
    def is_closed(self) -> bool:
        """Return whether the socket is closed."""
        return self._closed.done()

    @property
    def is_writable(self) -> bool:
        """Return whether the next call would leave soon. If not, use `wait_writable`."""
        return not self._is_paused

    # ---------------------------------------------------------------------------------------------------------- calling

    def call(self, method_number: int, body: bytes, timeout_ms: int, handler: CallHandler) -> int:
        """Send a call and return its correlation id. Does not wait, and calls nothing back.

        Raises:
            UnreachableError: The connection takes no more calls. Nothing was sent.
        """
        if self._transport is None or not self.is_open:
            raise UnreachableError(f"{self._address}: the data connection is closed")
        self._last_correlation_id = correlation_id = self._last_correlation_id + 1
        self._calls[correlation_id] = handler
        timeout_ms = min(max(1, timeout_ms), _TIMEOUT_MS_MAX)
        self._write_with_body(frame_header(FrameType.CALL, len(body), correlation_id, method_number, timeout_ms), body)
        return correlation_id

    def request(self, correlation_id: int, body: bytes) -> None:
        """Send a further request of a stream. Only on a connection that takes calls. Does not wait, and calls nothing back."""
        self._write_with_body(frame_header(FrameType.REQUEST, len(body), correlation_id), body)

    def _write_with_body(self, header: bytes, body: bytes) -> None:
        if len(body) <= settings.DATA_JOIN_BYTES_MAX:
            self._write(header + body)
        elif self._transport is not None:
            self._write_gathered()
            self._transport.write(header)
            self._transport.write(body)

    def _write(self, frame: bytes) -> None:
        """Write a small frame now, or with the others of this turn of the event loop: hundreds of producers share a connection.

        To gather frames costs a turn, which one call at a time does not pay.
        """
        if self._gathered is not None:
            self._gathered.append(frame)
        elif self._transport is not None:
            self._transport.write(frame)
            if len(self._calls) > _UNGATHERED_CALLS_MAX:
                self._gathered = []
                self._loop.call_soon(self._end_turn)

    def _write_gathered(self) -> None:
        if self._gathered and self._transport is not None:
            self._transport.write(b"".join(self._gathered))
            self._gathered.clear()

    def _end_turn(self) -> None:
        if self._error is None:
            self._write_gathered()
        self._gathered = None

    def cancel(self, correlation_id: int) -> None:
        """Give a call up: its handler is not called any more. Has no effect on a call that has ended."""
        if self._calls.pop(correlation_id, None) is None or self._transport is None:
            return
        self._write(frame_header(FrameType.CANCEL, 0, correlation_id))
        self._close_if_left()

    def add_user(self, user: ConnectionUser) -> None:
        """Tell `user` of the connection's state until `remove_user`."""
        self._users[user] = None

    def remove_user(self, user: ConnectionUser) -> None:
        """Tell `user` nothing any more."""
        self._users.pop(user, None)
        if user in self._waiters:
            self._waiters.remove(user)

    def wait_writable(self, user: ConnectionUser) -> None:
        """Have `user.on_writable` called when the connection takes calls again. First come, first served."""
        self._waiters.append(user)

    # ---------------------------------------------------------------------------------------------------------- closing

    def close(self) -> None:
        """End the connection: every unanswered call is lost."""
        self._end(BrokenConnectionError(f"{self._address}: the data connection was closed"))

    async def wait_closed(self) -> None:
        """Return when the socket is closed, after `close`. Cancelling stops the waiting only."""
        await asyncio.wait((self._closed,))

    def abandon(self) -> None:
        """Close the connection of clients that nobody refers to any more. May be called on any thread, in a forked child, and after the loop was closed."""
        if not self._loop.is_closed() and self._generation == current_generation():
            try:
                self._loop.call_soon_threadsafe(self.close)
            except RuntimeError:  # it was closed just now
                return

    def _end(self, error: RaftMQError) -> None:
        if self._error is not None:
            return
        self._error = error
        if not self._welcomed.done():
            self._welcomed.set_result(error)
        calls, self._calls = self._calls, {}
        users, self._users = self._users, {}
        self._waiters.clear()
        if self._transport is not None:
            if self._transport.get_write_buffer_size():
                self._transport.abort()  # unsent bytes could wait for a frozen broker without end
            else:
                self._transport.close()
        for correlation_id, handler in calls.items():
            handler.on_lost(correlation_id, error)
        for user in users:
            user.on_closing(error)

    def _close_if_left(self) -> None:
        """Close a connection that the broker leaves, once everything is answered."""
        if self._is_leaving and not self._calls:
            self.close()

    # --------------------------------------------------------------------------------------------------------- protocol

    async def greet(self, token: bytes, version: int) -> None:
        """Say HELLO for a version of the frames, and wait for WELCOME.

        Raises:
            RaftMQError: The broker refused, or the connection ended.
        """
        assert self._transport is not None
        self.version = version
        hello = pb.DataHello(version=version, token=token).SerializeToString()
        self._transport.write(frame_header(FrameType.HELLO, len(hello)) + hello)
        refusal = await self._welcomed
        if refusal is not None:
            raise refusal

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.BufferedProtocol`."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is one in all but the class
        self._transport.set_write_buffer_limits(high=settings.DATA_WRITE_BUFFER_BYTES)
        tune(self._transport.get_extra_info("socket"), settings.DATA_UNACKED_SECONDS)

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.BufferedProtocol`."""
        self._end(BrokenConnectionError(f"{self._address}: the data connection broke{f' ({exc})' if exc else ''}"))
        self._transport = None
        if self._shrinking is not None:
            self._shrinking.cancel()
        if not self._closed.done():
            self._closed.set_result(None)

    def pause_writing(self) -> None:
        """See `asyncio.BufferedProtocol`."""
        self._is_paused = True

    def resume_writing(self) -> None:
        """See `asyncio.BufferedProtocol`."""
        self._is_paused = False
        while self._waiters and not self._is_paused:  # each may fill it again
            self._waiters.popleft().on_writable()

    def get_buffer(self, sizehint: int) -> memoryview:
        """See `asyncio.BufferedProtocol`."""
        return self._reader.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """See `asyncio.BufferedProtocol`."""
        if self._error is not None:
            return
        try:
            self._reader.received(nbytes, self._on_frame)
        except (FrameError, DecodeError) as error:
            self._end(BrokenConnectionError(f"{self._address}: the broker sent bytes that are no frame ({error})"))
        if self._reader.is_large and self._shrinking is None:
            self._shrinking = self._loop.call_later(settings.DATA_LARGE_BUFFER_SECONDS, self._shrink)

    def _shrink(self) -> None:
        """Give back a large read buffer that has not been used for a while, or look again later."""
        self._shrinking = None
        is_due = self._loop.time() - self._large_at >= settings.DATA_LARGE_BUFFER_SECONDS
        if not (is_due and self._reader.shrink()) and self._transport is not None:
            self._shrinking = self._loop.call_later(settings.DATA_LARGE_BUFFER_SECONDS, self._shrink)

    def eof_received(self) -> None:
        """Close too: a broker says so that it will send nothing more."""
        self._end(BrokenConnectionError(f"{self._address}: the broker closed the data connection"))

    def _on_frame(
        self, frame_type: FrameType, method_number: int, timeout_ms: int, correlation_id: int, body: memoryview
    ) -> None:
        if len(body) > BUFFER_BYTES:
            self._large_at = self._loop.time()
        if frame_type is FrameType.ANSWER:
            handler = self._calls.get(correlation_id)
            if handler is not None:  # else it was cancelled
                handler.on_answer(correlation_id, body)
                self._calls.pop(correlation_id, None)  # only now: an answer that cannot be read loses the call
                self._close_if_left()
        elif frame_type is FrameType.RESPONSE:
            handler = self._calls.get(correlation_id)
            if handler is not None:
                handler.on_response(correlation_id, body)
        elif frame_type is FrameType.ERROR:
            self._on_error(correlation_id, pb.ErrorDetail.FromString(bytes(body)))
        elif frame_type is FrameType.GOODBYE:
            self._on_goodbye(correlation_id)
        elif frame_type is FrameType.WELCOME:
            if not self._welcomed.done():
                self._welcomed.set_result(None)
        else:
            raise FrameError(f"a broker does not send {frame_type.name}")

    def _on_error(self, correlation_id: int, detail: pb.ErrorDetail) -> None:
        if correlation_id:
            handler = self._calls.pop(correlation_id, None)
            if handler is not None:
                handler.on_refused(correlation_id, detail)
                self._close_if_left()
        elif not self._welcomed.done():
            self._end(error_from_detail(detail))
        else:  # whatever the code is, the calls that were sent may have been looked at
            error = BrokenConnectionError(f"{self._address}: the broker ended the data connection ({detail.message})")
            error.__cause__ = error_from_detail(detail)
            self._end(error)

    def _on_goodbye(self, last_correlation_id: int) -> None:
        if self._error is not None:
            return
        self._is_leaving = True
        error = UnreachableError(f"{self._address}: the broker takes no more calls on this connection")
        for correlation_id in [each for each in self._calls if each > last_correlation_id]:
            handler = self._calls.pop(correlation_id, None)
            if handler is not None:
                handler.on_lost(correlation_id, error)
        for user in list(self._users):
            user.on_closing(error)
        self._close_if_left()


async def open_data_connection(address: str, port: int, token: bytes, version: int = DATA_VERSION) -> DataConnection:
    """Connect to `port` of the host of `address` (``host:port``), and be welcomed there.

    Cancelled, it leaves nothing open.

    Raises:
        OSError: Nobody can be reached there.
        RaftMQError: The broker refused the connection, or it ended.
    """
    host = address.rpartition(":")[0].strip("[]")
    loop = asyncio.get_running_loop()
    _, connection = await loop.create_connection(lambda: DataConnection(address), host, port)
    try:
        await connection.greet(token, version)
    except BaseException:
        connection.close()
        raise
    return connection
