"""Converts brokers' errors to the exceptions of `raftmq.errors`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from google.protobuf.any_pb2 import Any
from google.protobuf.message import DecodeError
from raftmq.errors import (
    ERROR_CLASSES,
    ErrorCode,
    NotLeaderError,
    OffsetOutOfRangeError,
    Outcome,
    OutOfOrderSequenceError,
    RaftMQError,
    SequenceOverlapError,
    UnknownErrorCodeError,
    UsageError,
)
from raftmq.proto import queue_pb2 as pb

_VARINT, _BYTES = 0, 2
"""Protobuf's wire types of the fields of a status."""
_DETAILS_FIELD = 3


def error_from_detail(detail: pb.ErrorDetail, context: str = "") -> RaftMQError:
    """Return the exception for an `ErrorDetail`. A `context` (such as ``flights/3``) precedes its message.

    The broker's answer determines its `outcome`: the same code may be definite in one place and not in another. For example, a call that
    is evicted is THROTTLED, and may have been applied.
    """
    error = _error_of_code(detail, context)
    if detail.outcome == pb.UNKNOWN_OUTCOME:
        error.outcome = Outcome.UNKNOWN
    return error


def error_of_code(code: int, context: str) -> RaftMQError:
    """Return the exception for a code without a detail, with `context` as its message."""
    return error_from_detail(pb.ErrorDetail(code=cast("pb.ErrorCode", code)), context)


def with_address(error: RaftMQError, address: str) -> RaftMQError:
    """Return the same error with the address of the broker that was asked.

    The text of a usage error is unchanged, because every broker would answer the same.
    """
    if not error.address:
        error.address = address
        message = str(error.args[0])
        if not isinstance(error, UsageError) and address not in message:
            error.args = (f"{address}: {message}",)
    return error


def _error_of_code(detail: pb.ErrorDetail, context: str) -> RaftMQError:
    message = f"{context}: {detail.message}" if context and detail.message else detail.message or context
    retry_after_ms = detail.retry_after_ms
    try:
        cls = ERROR_CLASSES[ErrorCode(detail.code)]
    except ValueError:
        number = int(detail.code)
        return UnknownErrorCodeError(f"error code {number}: {message}", number=number, retry_after_ms=retry_after_ms)
    if cls is NotLeaderError:
        leader = detail.leader
        return NotLeaderError(
            message,
            retry_after_ms=retry_after_ms,
            leader_broker_id=leader.broker_id,
            leader_address=leader.address,
            leader_epoch=leader.leader_epoch,
        )
    if cls is OffsetOutOfRangeError:
        return OffsetOutOfRangeError(
            message,
            retry_after_ms=retry_after_ms,
            log_start_offset=detail.log_start_offset,
            high_watermark=detail.high_watermark,
            kept_end_offset=detail.kept_end_offset if detail.HasField("kept_end_offset") else None,
        )
    if cls is OutOfOrderSequenceError:
        return OutOfOrderSequenceError(message, retry_after_ms=retry_after_ms, is_certain=detail.is_certain)
    if cls is SequenceOverlapError:
        return SequenceOverlapError(message, retry_after_ms=retry_after_ms, last_sequence=detail.last_sequence)
    return cls(message, retry_after_ms=retry_after_ms)


def detail_from_status(status: bytes) -> pb.ErrorDetail | None:
    """Return the `ErrorDetail` in a serialized `google.rpc.Status`, or None if there is none."""
    detail = pb.ErrorDetail()
    try:
        for packed in _status_details(status):
            if Any.FromString(packed).Unpack(detail):
                return detail
    except DecodeError:
        return None
    return None


def _status_details(status: bytes) -> Iterator[bytes]:
    """Yield the serialized ``details`` (field 3) of a `google.rpc.Status`. Raises `DecodeError`.

    The message's own class is in a package that a client does not need otherwise.
    """
    at = 0
    while at < len(status):
        tag, at = _varint(status, at)
        field, wire_type = tag >> 3, tag & 7
        if wire_type == _VARINT:
            _, at = _varint(status, at)
        elif wire_type == _BYTES:
            size, start = _varint(status, at)
            at = start + size
            if at > len(status):
                raise DecodeError("a field of the status is cut off")
            if field == _DETAILS_FIELD:
                yield status[start:at]
        else:
            raise DecodeError(f"a status has no field of wire type {wire_type}")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the number at `at` and the position after it. Raises `DecodeError`."""
    number = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            break
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
    raise DecodeError("a number of the status is cut off")


def with_doubt(error: RaftMQError) -> RaftMQError:
    """Return a definite refusal with an unknown outcome, because an earlier attempt may have written the batch."""
    doubtful = fresh_copy(error)
    doubtful.outcome = Outcome.UNKNOWN
    return doubtful


def fresh_copy(error: RaftMQError) -> RaftMQError:
    """Return a copy of an error to raise again, so that tracebacks of several raises and tasks do not mix.

    Raise it ``from error.__cause__``.
    """
    copy = type(error).__new__(type(error), *error.args)
    copy.args = error.args
    copy.__dict__.update(error.__dict__)
    return copy


def name_of(error: BaseException) -> str:
    """Return a short name for logs and counters from a closed vocabulary: the name of the code or of the class."""
    code = error.code if isinstance(error, RaftMQError) else None
    return code.name if code is not None else type(error).__name__
