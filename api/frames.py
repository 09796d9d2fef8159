"""Cut the byte stream of a data connection into frames, and make frames. Clients and brokers share this module. It does no I/O.

A data connection carries the calls that come by the thousand, Append, Poll and Queue.PollStream, beside gRPC (ADR 0012). It also carries
InitProducer, for clients that have one open. The client asks a broker over gRPC for a port and a token (`OpenDataConnection`), connects,
and says HELLO with the token. Each later frame of the client is a call, the cancellation of one, or a further request of a call that is a
stream. Each frame of the broker answers a call, in any order. A frame is a header of `HEADER_BYTES` and a body.

Invariants: only a whole frame is handed on. The buffer is enlarged only for a frame of an allowed size.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from struct import Struct
from typing import Any, Final

from raftmq.methods import APPEND, INIT_PRODUCER, POLL, POLL_STREAM, Method

DATA_VERSION_MIN: Final = 1
"""The oldest version of the data connection's frames that is spoken: calls of `Append` and `Poll`."""
DATA_VERSION: Final = 3
"""The newest version: also streams (2), and `InitProducer` (3).

A broker names its newest version with the token, and the client says HELLO with the newest that both speak. A broker refuses a HELLO of a version that it does not speak with UNSUPPORTED_VERSION.
"""
_HEADER: Final = Struct("<IBBxxIQ")
HEADER_BYTES: Final = _HEADER.size
"""Length of the body, frame type, method number, timeout in milliseconds, correlation id: little-endian."""
BUFFER_BYTES: Final = 64 * 1024
"""Size of a connection's read buffer while no frame needs a larger one."""
DATA_METHODS: Final[tuple[Method[Any, Any], ...]] = (APPEND, POLL, POLL_STREAM, INIT_PRODUCER)  # of any messages
"""Methods that a data connection carries. A method's number in a frame is its place here, from 0."""
METHOD_VERSIONS: Final = (1, 1, 2, 3)
"""The version of the frames from which on each of these methods is carried."""
STREAMS_MAX: Final = 512
"""Streams of one connection. A client opens further ones over gRPC."""


class FrameType(IntEnum):
    """Name the kinds of frames. Values are on the wire."""

    HELLO = 1
    """The client's first frame: a `DataHello`."""
    WELCOME = 2
    """The broker accepts the connection. No body."""
    CALL = 3
    """A request of the method, to be answered within the timeout."""
    CANCEL = 4
    """The client does not want the answer any more. No body, and no answer if there was none yet. It ends a stream."""
    ANSWER = 5
    """The response to a call. The end of a stream: without a body."""
    ERROR = 6
    """A call failed as a whole: an `ErrorDetail`. With correlation id 0 it is about the connection, which ends with it."""
    GOODBYE = 7
    """The broker accepts no more calls here. Calls after the correlation id were not looked at. Earlier calls will be answered.

    It also accepts no more requests of streams. It answers those that it has accepted, and ends the streams.
    """
    REQUEST = 8
    """A further request of the stream with this correlation id, whose CALL has the first one. Ignored if the stream has ended."""
    RESPONSE = 9
    """A response of the stream with this correlation id. Others, or its end, follow."""


FRAME_TYPES: Final = {frame_type.value: frame_type for frame_type in FrameType}

OnFrame = Callable[[FrameType, int, int, int, memoryview], bool | None]
"""Called with type, method number, timeout in milliseconds, correlation id and body. The body is valid during the call only.

It returns True to stop: later frames stay in the buffer, and `FrameReader.received` with a count of 0 goes on with them.
"""


class FrameError(Exception):
    """Raised for bytes that are no frame: the connection cannot be read any further."""


def frame_header(
    frame_type: FrameType, body_bytes: int, correlation_id: int = 0, method_number: int = 0, timeout_ms: int = 0
) -> bytes:
    """Return the header of a frame, which its body follows."""
    return _HEADER.pack(body_bytes, frame_type, method_number, timeout_ms, correlation_id)


class FrameReader:
    """Hold the bytes of a connection that are not handed on yet. For an `asyncio.BufferedProtocol`."""

    __slots__ = ("_buffer", "_filled", "_start", "body_bytes_max", "wanted")

    def __init__(self, body_bytes_max: int) -> None:
        self.body_bytes_max = body_bytes_max
        """The largest body that a frame may have."""
        self._buffer = bytearray(BUFFER_BYTES)
        self._start = 0
        """Bytes at the beginning of the buffer that were handed on. 0 unless `on_frame` has stopped."""
        self._filled = 0
        """Bytes in the buffer, with those that were handed on."""
        self.wanted = 0
        """Size of the frame that has begun to arrive, or 0 before its header has arrived. The next `get_buffer` makes room for it."""

    @property
    def needs_growth(self) -> bool:
        """Return whether the next `get_buffer` will enlarge the buffer."""
        return self.wanted > len(self._buffer)

    @property
    def wanted_size(self) -> int:
        """Return the size of the buffer that the frame needs: a power of two, so that frames of about one size share a buffer."""
        return max(BUFFER_BYTES, 1 << (self.wanted - 1).bit_length())

    @property
    def is_large(self) -> bool:
        """Return whether the buffer is larger than usual."""
        return len(self._buffer) > BUFFER_BYTES

    def shrink(self) -> bool:
        """Give back a large buffer if it is empty. Return whether the buffer has its usual size, and will keep it.

        A large buffer is kept until then: to allocate and clear it for each frame costs more than the frame's copy.
        """
        if self._filled == 0 and self.is_large:
            self._buffer = bytearray(BUFFER_BYTES)
        return not self.is_large and not self.needs_growth

    def get_buffer(self) -> memoryview:
        """Return room for at least one byte."""
        if self.wanted > len(self._buffer):
            grown = bytearray(self.wanted_size)
            grown[: self._filled] = memoryview(self._buffer)[: self._filled]
            self._buffer = grown
        return memoryview(self._buffer)[self._filled :]

    def keep(self, count: int) -> None:
        """Take `count` more bytes and hand nothing on. `received` must follow before the next `get_buffer`, as after a stop."""
        self._filled += count

    def received(self, count: int, on_frame: OnFrame) -> None:
        """Hand on every frame that is whole after `count` more bytes, unless `on_frame` stops before.

        Raises:
            FrameError: The next bytes are no frame, or one with a body that is too large.
        """
        filled = self._filled = self._filled + count
        view = memoryview(self._buffer)
        at = self._start
        self.wanted = 0
        is_stopped = False
        while filled - at >= HEADER_BYTES and not is_stopped:
            body_bytes, type_number, method_number, timeout_ms, correlation_id = _HEADER.unpack_from(view, at)
            if body_bytes > self.body_bytes_max:
                raise FrameError(
                    f"a frame with a body of {body_bytes} bytes: at most {self.body_bytes_max} are allowed"
                )
            frame_type = FRAME_TYPES.get(type_number)
            if frame_type is None:
                raise FrameError(f"there is no frame type {type_number}")
            end = at + HEADER_BYTES + body_bytes
            if end > filled:
                self.wanted = end - at
                break
            is_stopped = bool(
                on_frame(frame_type, method_number, timeout_ms, correlation_id, view[at + HEADER_BYTES : end])
            )
            at = end
        if at == filled:
            self._start = self._filled = 0
        elif is_stopped:  # a large buffer of small frames would be moved for each of them
            self._start = at
        else:
            self._start, self._filled = 0, filled - at
            if at:
                self._buffer[: filled - at] = view[at:filled]
