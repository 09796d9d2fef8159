"""Turns what a broker answers into the exceptions of `raftmq.errors`."""

from __future__ import annotations

from google.protobuf.message import DecodeError
from google.rpc import status_pb2
from raftmq.errors import (
    ERROR_CLASSES,
    ErrorCode,
    NotLeaderError,
    OffsetOutOfRangeError,
    RaftMQError,
    SequenceOverlapError,
    UnknownErrorCodeError,
)
from raftmq.proto import queue_pb2 as pb

STATUS_DETAILS_KEY = "grpc-status-details-bin"
"""The trailing metadata in which gRPC carries a `google.rpc.Status`; our `ErrorDetail` is in its details."""


def error_from_detail(detail: pb.ErrorDetail, context: str = "") -> RaftMQError:
    """The exception for an `ErrorDetail`; `context` (such as ``flights/3``) is put before its message."""
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
