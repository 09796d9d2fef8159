"""Define the refusal or failure of a request, or of one partition of it, in terms of the client protocol.

It is raised anywhere between a service and the engine. The services convert it to an `ErrorDetail`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from google.protobuf.message import DecodeError
from raftmq.proto import queue_pb2 as pb

RequestT = TypeVar("RequestT")

RETRIABLE_CODES = frozenset(
    {
        pb.OFFSET_NOT_AVAILABLE,
        pb.NOT_LEADER,
        pb.LEADERSHIP_LOST,
        pb.REQUEST_TIMED_OUT,
        pb.THROTTLED,
        pb.DISK_FULL,
        pb.NOT_READY,
        pb.NO_LEADER,
        pb.SHUTTING_DOWN,
        pb.REPLICA_QUARANTINED,
        pb.NOT_FORMED,
        pb.TOO_MANY_PRODUCERS,
        pb.TOO_MANY_MEMBERS,
        pb.CONFLICT,
        pb.QUEUE_FULL,
        pb.TENANT_FULL,
    }
)
"""Codes after which the same request, sent again, may succeed."""

UNKNOWN_OUTCOME_CODES = frozenset({pb.LEADERSHIP_LOST, pb.REQUEST_TIMED_OUT})
"""Codes of failures whose effect may have happened."""


class RequestError(Exception):
    """A failed request. `code` is an `ErrorCode`, and `detail` is ready to send."""

    def __init__(
        self,
        code: pb.ErrorCode,
        message: str,
        *,
        leader_broker_id: int = 0,
        leader_address: str = "",
        leader_epoch: int = 0,
        retry_after_ms: int = 0,
        log_start_offset: int = 0,
        high_watermark: int = 0,
        last_sequence: int = 0,
        is_certain: bool = False,
        kept_end_offset: int | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.is_counted = False
        """Whether the metrics have counted it. An error passes several functions on its way out."""
        self.detail = pb.ErrorDetail(
            code=code,
            message=message,
            retriable=code in RETRIABLE_CODES,
            outcome=pb.UNKNOWN_OUTCOME if code in UNKNOWN_OUTCOME_CODES else pb.NOT_APPLIED,
            retry_after_ms=retry_after_ms,
            log_start_offset=log_start_offset,
            high_watermark=high_watermark,
            last_sequence=last_sequence,
            is_certain=is_certain,
            kept_end_offset=kept_end_offset,
        )
        if leader_broker_id or leader_epoch:
            self.detail.leader.broker_id = leader_broker_id
            self.detail.leader.address = leader_address
            self.detail.leader.leader_epoch = leader_epoch


def timed_out() -> RequestError:
    """Return the error of a request that timed out after it was proposed: its outcome is not known yet."""
    return RequestError(
        pb.REQUEST_TIMED_OUT,
        "not committed in time; it may still be (a batch: retry with the same producer id and sequence)",
    )


def expired() -> RequestError:
    """Return the error of a request that timed out before anything was proposed: a timeout with a certain outcome."""
    error = RequestError(pb.REQUEST_TIMED_OUT, "the deadline passed before the request was processed; nothing was done")
    error.detail.outcome = pb.NOT_APPLIED
    return error


def check_cluster(mine: str, meant: str) -> None:
    """Check that a caller means this broker's cluster. An empty id is unknown and matches. Raises `RequestError` WRONG_CLUSTER."""
    if mine and meant and meant != mine:
        raise RequestError(pb.WRONG_CLUSTER, f"this broker belongs to cluster {mine}, not {meant}")


def parsed(parse: Callable[[bytes], RequestT], data: bytes) -> RequestT:
    """Return a request from its bytes. Raises `RequestError` INVALID_ARGUMENT for bytes that are no such message."""
    try:
        return parse(data)
    except (DecodeError, RecursionError) as error:  # RecursionError: by the parser in pure Python
        raise RequestError(pb.INVALID_ARGUMENT, f"the request is not a message of this method: {error}") from None
