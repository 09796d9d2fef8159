"""Turns what a broker answers into the exceptions of `raftmq.errors`."""

from __future__ import annotations

from google.protobuf.message import DecodeError
from google.rpc import status_pb2
from raftmq.errors import (
    ERROR_CLASSES,
    ErrorCode,
    NotLeaderError,
    OffsetOutOfRangeError,
    Outcome,
    RaftMQError,
    SequenceOverlapError,
    UnknownErrorCodeError,
)
from raftmq.proto import queue_pb2 as pb


def error_from_detail(detail: pb.ErrorDetail, context: str = "") -> RaftMQError:
    """The exception for an `ErrorDetail`; `context` (such as ``flights/3``) is put before its message.

    Its `outcome` is what the broker says: the same code may be definite in one place and not in another (a call ended to make
    room is THROTTLED, and may have got anywhere).
    """
    error = _error_of_code(detail, context)
    if detail.outcome == pb.UNKNOWN_OUTCOME:
        error.outcome = Outcome.UNKNOWN
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
            leader_node_id=leader.node_id,
            leader_address=leader.address,
            leader_epoch=leader.leader_epoch,
        )
    if cls is OffsetOutOfRangeError:
        return OffsetOutOfRangeError(
            message,
            retry_after_ms=retry_after_ms,
            log_start_offset=detail.log_start_offset,
            high_watermark=detail.high_watermark,
        )
    if cls is SequenceOverlapError:
        return SequenceOverlapError(message, retry_after_ms=retry_after_ms, last_sequence=detail.last_sequence)
    return cls(message, retry_after_ms=retry_after_ms)


def detail_from_status(status: bytes) -> pb.ErrorDetail | None:
    """The `ErrorDetail` inside a serialized `google.rpc.Status`; None when there is none."""
    detail = pb.ErrorDetail()
    try:
        for packed in status_pb2.Status.FromString(status).details:
            if packed.Unpack(detail):
                return detail
    except DecodeError:
        return None
    return None


def fresh_copy(error: RaftMQError) -> RaftMQError:
    """The same error again, to raise it once more: tracebacks of many raises and tasks do not mix. Raise it ``from error.__cause__``."""
    copy = type(error).__new__(type(error), *error.args)
    copy.args = error.args
    copy.__dict__.update(error.__dict__)
    return copy


def name_of(error: BaseException) -> str:
    """A short name for logs and counters, from a closed vocabulary: the code's, or the class's."""
    code = error.code if isinstance(error, RaftMQError) else None
    return code.name if code is not None else type(error).__name__
