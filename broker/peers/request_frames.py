"""Encode and decode the frames of requests between nodes: REQUEST, RESPONSE and CANCEL.

A request names its method by text, so that a node of another version can answer that it does not know it. The messages within are opaque
here. Decoding checks every length, and the only error it raises is `FrameError`.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import NamedTuple

from raftmq.broker.peers.codec import FrameError, Parts

REQUEST_HEAD = struct.Struct("<QIHH")
"""Correlation id, remaining time in milliseconds, length of the method's name, length of the principal's name."""
RESPONSE_HEAD = struct.Struct("<QB")
"""Correlation id, status."""
_CANCEL = struct.Struct("<Q")
"""Correlation id."""
REMAINING_MS_MAX = 0xFFFFFFFF


class ResponseStatus(IntEnum):
    """The kind of a response. Values are on the wire: never reuse one."""

    OK = 0
    """The body is the response message."""
    ERROR = 1
    """The body is an `ErrorDetail`."""
    UNIMPLEMENTED = 2
    """The node does not know the method, because its version is another one. The body is empty."""


class RequestFrame(NamedTuple):
    """A request as it arrives."""

    correlation_id: int
    """Chosen by the caller, and not used by another unanswered request of the connection."""
    remaining_ms: int
    """Time that the caller waits from now on. 0: its deadline has passed."""
    method: str
    principal: str
    """Name of the client for which the caller asks. Empty: for itself, or for a client without a name."""
    body: bytes


class ResponseFrame(NamedTuple):
    """A response as it arrives."""

    correlation_id: int
    status: ResponseStatus
    body: bytes


def encode_request(correlation_id: int, remaining_ms: int, method: str, principal: str, body: bytes) -> Parts:
    """Return the body of a REQUEST frame."""
    method_name, principal_name = method.encode(), principal.encode()
    head = REQUEST_HEAD.pack(correlation_id, min(remaining_ms, REMAINING_MS_MAX), len(method_name), len(principal_name))
    return [head + method_name + principal_name, body]


def decode_request(body: memoryview) -> RequestFrame:
    """Decode the body of a REQUEST frame. The message is copied out of the buffer."""
    try:
        correlation_id, remaining_ms, method_size, principal_size = REQUEST_HEAD.unpack_from(body)
        at = REQUEST_HEAD.size
        end = at + method_size + principal_size
        if end > len(body):
            raise FrameError("a request's names end beyond its frame")
        method = bytes(body[at : at + method_size]).decode()
        principal = bytes(body[at + method_size : end]).decode()
    except (struct.error, UnicodeDecodeError) as error:
        raise FrameError(f"malformed request: {error}") from error
    return RequestFrame(correlation_id, remaining_ms, method, principal, bytes(body[end:]))


def encode_response(correlation_id: int, status: ResponseStatus, body: bytes = b"") -> Parts:
    """Return the body of a RESPONSE frame."""
    return [RESPONSE_HEAD.pack(correlation_id, status), body]


def decode_response(body: memoryview) -> ResponseFrame:
    """Decode the body of a RESPONSE frame."""
    try:
        correlation_id, status = RESPONSE_HEAD.unpack_from(body)
        return ResponseFrame(correlation_id, ResponseStatus(status), bytes(body[RESPONSE_HEAD.size :]))
    except (struct.error, ValueError) as error:
        raise FrameError(f"malformed response: {error}") from error


def encode_cancel(correlation_id: int) -> Parts:
    """Return the body of a CANCEL frame."""
    return [_CANCEL.pack(correlation_id)]


def decode_cancel(body: memoryview) -> int:
    """Return the correlation id of a CANCEL frame."""
    if len(body) != _CANCEL.size:
        raise FrameError(f"a CANCEL must have {_CANCEL.size} bytes, not {len(body)}")
    (correlation_id,) = _CANCEL.unpack(body)
    return int(correlation_id)
