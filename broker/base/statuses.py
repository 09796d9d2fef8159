"""Convert error codes to gRPC statuses, for clients that do not know `ErrorDetail`. The SDK reads the `ErrorDetail`.

A joining broker distinguishes refusals from failures by the status of their code: INVALID_ARGUMENT, ALREADY_EXISTS, PERMISSION_DENIED and
FAILED_PRECONDITION are final, all others may pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import grpc
import grpc.aio
from google.protobuf import any_pb2
from google.protobuf.message import DecodeError
from google.rpc import status_pb2
from raftmq.broker.base.request_error import RequestError
from raftmq.call_metadata import STATUS_DETAILS_KEY
from raftmq.proto import queue_pb2 as pb

_Code = grpc.StatusCode

STATUS_OF_CODE: Final[Mapping[pb.ErrorCode, grpc.StatusCode]] = {
    pb.INVALID_ARGUMENT: _Code.INVALID_ARGUMENT,
    pb.UNKNOWN_TOPIC: _Code.NOT_FOUND,
    pb.UNKNOWN_PARTITION: _Code.NOT_FOUND,
    pb.TOPIC_ALREADY_EXISTS: _Code.ALREADY_EXISTS,
    pb.INVALID_TOPIC_NAME: _Code.INVALID_ARGUMENT,
    pb.INVALID_CONFIG: _Code.INVALID_ARGUMENT,
    pb.INVALID_REPLICATION_FACTOR: _Code.INVALID_ARGUMENT,
    pb.INVALID_PARTITIONS: _Code.INVALID_ARGUMENT,
    pb.RECORD_TOO_LARGE: _Code.INVALID_ARGUMENT,
    pb.CORRUPT_BATCH: _Code.INVALID_ARGUMENT,
    pb.UNSUPPORTED_COMPRESSION: _Code.INVALID_ARGUMENT,
    pb.UNSUPPORTED_VERSION: _Code.FAILED_PRECONDITION,
    pb.WRONG_CLUSTER: _Code.FAILED_PRECONDITION,
    pb.PERMISSION_DENIED: _Code.PERMISSION_DENIED,
    pb.TOPIC_KIND_MISMATCH: _Code.FAILED_PRECONDITION,
    pb.TOO_MANY_PARTITIONS: _Code.RESOURCE_EXHAUSTED,
    pb.OFFSET_OUT_OF_RANGE: _Code.OUT_OF_RANGE,
    pb.OFFSET_NOT_AVAILABLE: _Code.UNAVAILABLE,
    pb.NOT_LEADER: _Code.UNAVAILABLE,
    pb.LEADERSHIP_LOST: _Code.ABORTED,
    pb.REQUEST_TIMED_OUT: _Code.DEADLINE_EXCEEDED,
    pb.THROTTLED: _Code.RESOURCE_EXHAUSTED,
    pb.DISK_FULL: _Code.RESOURCE_EXHAUSTED,
    pb.NOT_READY: _Code.UNAVAILABLE,
    pb.NO_LEADER: _Code.UNAVAILABLE,
    pb.SHUTTING_DOWN: _Code.UNAVAILABLE,
    pb.REPLICA_QUARANTINED: _Code.UNAVAILABLE,
    pb.NOT_FORMED: _Code.UNAVAILABLE,
    pb.CLUSTER_ALREADY_FORMED: _Code.FAILED_PRECONDITION,
    pb.OUT_OF_ORDER_SEQUENCE: _Code.FAILED_PRECONDITION,
    pb.SEQUENCE_OVERLAP: _Code.FAILED_PRECONDITION,
    pb.PRODUCER_FENCED: _Code.FAILED_PRECONDITION,
    pb.UNKNOWN_PRODUCER: _Code.NOT_FOUND,
    pb.TOO_MANY_PRODUCERS: _Code.RESOURCE_EXHAUSTED,
    pb.TOO_MANY_NAMES: _Code.RESOURCE_EXHAUSTED,
    pb.FENCED: _Code.FAILED_PRECONDITION,
    pb.UNKNOWN_MEMBER: _Code.NOT_FOUND,
    pb.STALE_EPOCH: _Code.FAILED_PRECONDITION,
    pb.UNKNOWN_GROUP: _Code.NOT_FOUND,
    pb.GROUP_NOT_EMPTY: _Code.FAILED_PRECONDITION,
    pb.TOO_MANY_MEMBERS: _Code.RESOURCE_EXHAUSTED,
    pb.CONFLICT: _Code.ABORTED,
    pb.UNKNOWN_BROKER: _Code.NOT_FOUND,
    pb.BROKER_ID_TAKEN: _Code.ALREADY_EXISTS,
    pb.BROKER_REMOVED: _Code.FAILED_PRECONDITION,
    pb.STALE_DIRECTORY: _Code.FAILED_PRECONDITION,
    pb.ADDRESS_TAKEN: _Code.ALREADY_EXISTS,
    pb.BROKER_IN_USE: _Code.FAILED_PRECONDITION,
    pb.FAILED_PRECONDITION: _Code.FAILED_PRECONDITION,
    pb.INTERNAL: _Code.INTERNAL,
    pb.QUEUE_FULL: _Code.RESOURCE_EXHAUSTED,
    pb.TENANT_FULL: _Code.RESOURCE_EXHAUSTED,
    pb.LEASE_LOST: _Code.FAILED_PRECONDITION,
    pb.LEASE_UNKNOWN: _Code.NOT_FOUND,
    pb.ATTEMPTS_EXHAUSTED: _Code.FAILED_PRECONDITION,
    pb.NO_SUCH_MESSAGE: _Code.NOT_FOUND,
    pb.VERSION_CONFLICT: _Code.ABORTED,
    pb.MESSAGE_LEASED: _Code.FAILED_PRECONDITION,
    pb.WRONG_MESSAGE_STATE: _Code.FAILED_PRECONDITION,
    pb.UNKNOWN_SESSION: _Code.NOT_FOUND,
    pb.TOO_MANY_SESSIONS: _Code.RESOURCE_EXHAUSTED,
    pb.TOO_MANY_TENANTS: _Code.RESOURCE_EXHAUSTED,
    pb.UNKNOWN_SCHEDULE: _Code.NOT_FOUND,
    pb.TOO_MANY_SCHEDULES: _Code.RESOURCE_EXHAUSTED,
    pb.UNKNOWN_JOB: _Code.NOT_FOUND,
    pb.TOO_MANY_JOBS: _Code.RESOURCE_EXHAUSTED,
}

_MESSAGE_CHARACTERS_MAX: Final = 1000
"""The longest message in a status. It is sent in headers, which have 8 KiB together and contain it twice."""


def status_of(code: pb.ErrorCode) -> grpc.StatusCode:
    """Return the status of a code, or UNKNOWN for one that only a newer broker knows."""
    return STATUS_OF_CODE.get(code, _Code.UNKNOWN)


def status_message(error: RequestError) -> str:
    """Return the text of a status."""
    return error.detail.message[:_MESSAGE_CHARACTERS_MAX]


def status_details(error: RequestError) -> bytes:
    """Return the serialized `google.rpc.Status` that contains the `ErrorDetail`."""
    detail = pb.ErrorDetail()
    detail.CopyFrom(error.detail)
    detail.message = status_message(error)
    packed = any_pb2.Any()
    packed.Pack(detail)
    number: int = status_of(error.code).value[0]
    status = status_pb2.Status(code=number, message=detail.message, details=[packed])
    return bytes(status.SerializeToString())


def detail_of(error: grpc.aio.AioRpcError) -> pb.ErrorDetail | None:
    """Return the ErrorDetail in a failed call's trailing metadata, or None if there is none."""
    for key, value in error.trailing_metadata() or ():
        if key == STATUS_DETAILS_KEY and isinstance(value, bytes):
            try:
                for packed in status_pb2.Status.FromString(value).details:
                    detail = pb.ErrorDetail()
                    if packed.Unpack(detail):
                        return detail
            except DecodeError:
                return None
    return None
