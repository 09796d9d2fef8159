from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ErrorCode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OK: _ClassVar[ErrorCode]
    INVALID_ARGUMENT: _ClassVar[ErrorCode]
    UNKNOWN_TOPIC: _ClassVar[ErrorCode]
    UNKNOWN_PARTITION: _ClassVar[ErrorCode]
    TOPIC_ALREADY_EXISTS: _ClassVar[ErrorCode]
    INVALID_TOPIC_NAME: _ClassVar[ErrorCode]
    INVALID_CONFIG: _ClassVar[ErrorCode]
    INVALID_REPLICATION_FACTOR: _ClassVar[ErrorCode]
    INVALID_PARTITIONS: _ClassVar[ErrorCode]
    RECORD_TOO_LARGE: _ClassVar[ErrorCode]
    CORRUPT_BATCH: _ClassVar[ErrorCode]
    UNSUPPORTED_COMPRESSION: _ClassVar[ErrorCode]
    UNSUPPORTED_VERSION: _ClassVar[ErrorCode]
    WRONG_CLUSTER: _ClassVar[ErrorCode]
    PERMISSION_DENIED: _ClassVar[ErrorCode]
    TOPIC_KIND_MISMATCH: _ClassVar[ErrorCode]
    TOO_MANY_PARTITIONS: _ClassVar[ErrorCode]
    OFFSET_OUT_OF_RANGE: _ClassVar[ErrorCode]
    OFFSET_NOT_AVAILABLE: _ClassVar[ErrorCode]
    NOT_LEADER: _ClassVar[ErrorCode]
    LEADERSHIP_LOST: _ClassVar[ErrorCode]
    REQUEST_TIMED_OUT: _ClassVar[ErrorCode]
    THROTTLED: _ClassVar[ErrorCode]
    DISK_FULL: _ClassVar[ErrorCode]
    NOT_READY: _ClassVar[ErrorCode]
    NO_LEADER: _ClassVar[ErrorCode]
    SHUTTING_DOWN: _ClassVar[ErrorCode]
    REPLICA_QUARANTINED: _ClassVar[ErrorCode]
    NOT_FORMED: _ClassVar[ErrorCode]
    CLUSTER_ALREADY_FORMED: _ClassVar[ErrorCode]
    OUT_OF_ORDER_SEQUENCE: _ClassVar[ErrorCode]
    SEQUENCE_OVERLAP: _ClassVar[ErrorCode]
    PRODUCER_FENCED: _ClassVar[ErrorCode]
    UNKNOWN_PRODUCER: _ClassVar[ErrorCode]
    TOO_MANY_PRODUCERS: _ClassVar[ErrorCode]
    TOO_MANY_NAMES: _ClassVar[ErrorCode]
    FENCED: _ClassVar[ErrorCode]
    UNKNOWN_MEMBER: _ClassVar[ErrorCode]
    STALE_EPOCH: _ClassVar[ErrorCode]
    UNKNOWN_GROUP: _ClassVar[ErrorCode]
    GROUP_NOT_EMPTY: _ClassVar[ErrorCode]
    TOO_MANY_MEMBERS: _ClassVar[ErrorCode]
    CONFLICT: _ClassVar[ErrorCode]
    UNKNOWN_BROKER: _ClassVar[ErrorCode]
    BROKER_ID_TAKEN: _ClassVar[ErrorCode]
    BROKER_REMOVED: _ClassVar[ErrorCode]
    BROKER_IN_USE: _ClassVar[ErrorCode]
    STALE_DIRECTORY: _ClassVar[ErrorCode]
    ADDRESS_TAKEN: _ClassVar[ErrorCode]
    FAILED_PRECONDITION: _ClassVar[ErrorCode]
    INTERNAL: _ClassVar[ErrorCode]
    QUEUE_FULL: _ClassVar[ErrorCode]
    TENANT_FULL: _ClassVar[ErrorCode]
    LEASE_LOST: _ClassVar[ErrorCode]
    LEASE_UNKNOWN: _ClassVar[ErrorCode]
    ATTEMPTS_EXHAUSTED: _ClassVar[ErrorCode]
    NO_SUCH_MESSAGE: _ClassVar[ErrorCode]
    VERSION_CONFLICT: _ClassVar[ErrorCode]
    MESSAGE_LEASED: _ClassVar[ErrorCode]
    WRONG_MESSAGE_STATE: _ClassVar[ErrorCode]
    UNKNOWN_SESSION: _ClassVar[ErrorCode]
    TOO_MANY_SESSIONS: _ClassVar[ErrorCode]
    TOO_MANY_TENANTS: _ClassVar[ErrorCode]
    UNKNOWN_SCHEDULE: _ClassVar[ErrorCode]
    TOO_MANY_SCHEDULES: _ClassVar[ErrorCode]
    UNKNOWN_JOB: _ClassVar[ErrorCode]
    TOO_MANY_JOBS: _ClassVar[ErrorCode]

class Outcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    NOT_APPLIED: _ClassVar[Outcome]
    UNKNOWN_OUTCOME: _ClassVar[Outcome]

class TimeKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    APPEND_TIME: _ClassVar[TimeKind]
    TIMESTAMP: _ClassVar[TimeKind]

class MessageState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ANY_STATE: _ClassVar[MessageState]
    READY: _ClassVar[MessageState]
    DELAYED: _ClassVar[MessageState]
    LEASED: _ClassVar[MessageState]
    DEAD: _ClassVar[MessageState]
    BLOCKED: _ClassVar[MessageState]

class AckOperation(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    NO_OPERATION: _ClassVar[AckOperation]
    ACCEPT: _ClassVar[AckOperation]
    RELEASE: _ClassVar[AckOperation]
    REJECT: _ClassVar[AckOperation]
    RENEW: _ClassVar[AckOperation]

class ChangeOperation(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    NO_CHANGE: _ClassVar[ChangeOperation]
    MOVE: _ClassVar[ChangeOperation]
    CANCEL: _ClassVar[ChangeOperation]
    REDRIVE: _ClassVar[ChangeOperation]

class JobKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    NO_JOB: _ClassVar[JobKind]
    PURGE_JOB: _ClassVar[JobKind]
    REDRIVE_JOB: _ClassVar[JobKind]

class CatchUp(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SKIP_MISSED: _ClassVar[CatchUp]
    FIRE_ONCE: _ClassVar[CatchUp]
    FIRE_ALL: _ClassVar[CatchUp]

class ReplicaCondition(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    UNREACHABLE: _ClassVar[ReplicaCondition]
    SERVED: _ClassVar[ReplicaCondition]
    STARTING: _ClassVar[ReplicaCondition]
    NOT_SERVED: _ClassVar[ReplicaCondition]
    QUARANTINED: _ClassVar[ReplicaCondition]
    REBUILDING: _ClassVar[ReplicaCondition]
    LOST: _ClassVar[ReplicaCondition]

class MoveReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REQUESTED: _ClassVar[MoveReason]
    DRAIN: _ClassVar[MoveReason]
    REPLICATION_FACTOR: _ClassVar[MoveReason]
    SPREAD: _ClassVar[MoveReason]
    EVEN_REPLICAS: _ClassVar[MoveReason]
    EVEN_LEADERS: _ClassVar[MoveReason]
    EVEN_BYTES: _ClassVar[MoveReason]
OK: ErrorCode
INVALID_ARGUMENT: ErrorCode
UNKNOWN_TOPIC: ErrorCode
UNKNOWN_PARTITION: ErrorCode
TOPIC_ALREADY_EXISTS: ErrorCode
INVALID_TOPIC_NAME: ErrorCode
INVALID_CONFIG: ErrorCode
INVALID_REPLICATION_FACTOR: ErrorCode
INVALID_PARTITIONS: ErrorCode
RECORD_TOO_LARGE: ErrorCode
CORRUPT_BATCH: ErrorCode
UNSUPPORTED_COMPRESSION: ErrorCode
UNSUPPORTED_VERSION: ErrorCode
WRONG_CLUSTER: ErrorCode
PERMISSION_DENIED: ErrorCode
TOPIC_KIND_MISMATCH: ErrorCode
TOO_MANY_PARTITIONS: ErrorCode
OFFSET_OUT_OF_RANGE: ErrorCode
OFFSET_NOT_AVAILABLE: ErrorCode
NOT_LEADER: ErrorCode
LEADERSHIP_LOST: ErrorCode
REQUEST_TIMED_OUT: ErrorCode
THROTTLED: ErrorCode
DISK_FULL: ErrorCode
NOT_READY: ErrorCode
NO_LEADER: ErrorCode
SHUTTING_DOWN: ErrorCode
REPLICA_QUARANTINED: ErrorCode
NOT_FORMED: ErrorCode
CLUSTER_ALREADY_FORMED: ErrorCode
OUT_OF_ORDER_SEQUENCE: ErrorCode
SEQUENCE_OVERLAP: ErrorCode
PRODUCER_FENCED: ErrorCode
UNKNOWN_PRODUCER: ErrorCode
TOO_MANY_PRODUCERS: ErrorCode
TOO_MANY_NAMES: ErrorCode
FENCED: ErrorCode
UNKNOWN_MEMBER: ErrorCode
STALE_EPOCH: ErrorCode
UNKNOWN_GROUP: ErrorCode
GROUP_NOT_EMPTY: ErrorCode
TOO_MANY_MEMBERS: ErrorCode
CONFLICT: ErrorCode
UNKNOWN_BROKER: ErrorCode
BROKER_ID_TAKEN: ErrorCode
BROKER_REMOVED: ErrorCode
BROKER_IN_USE: ErrorCode
STALE_DIRECTORY: ErrorCode
ADDRESS_TAKEN: ErrorCode
FAILED_PRECONDITION: ErrorCode
INTERNAL: ErrorCode
QUEUE_FULL: ErrorCode
TENANT_FULL: ErrorCode
LEASE_LOST: ErrorCode
LEASE_UNKNOWN: ErrorCode
ATTEMPTS_EXHAUSTED: ErrorCode
NO_SUCH_MESSAGE: ErrorCode
VERSION_CONFLICT: ErrorCode
MESSAGE_LEASED: ErrorCode
WRONG_MESSAGE_STATE: ErrorCode
UNKNOWN_SESSION: ErrorCode
TOO_MANY_SESSIONS: ErrorCode
TOO_MANY_TENANTS: ErrorCode
UNKNOWN_SCHEDULE: ErrorCode
TOO_MANY_SCHEDULES: ErrorCode
UNKNOWN_JOB: ErrorCode
TOO_MANY_JOBS: ErrorCode
NOT_APPLIED: Outcome
UNKNOWN_OUTCOME: Outcome
APPEND_TIME: TimeKind
TIMESTAMP: TimeKind
ANY_STATE: MessageState
READY: MessageState
DELAYED: MessageState
LEASED: MessageState
DEAD: MessageState
BLOCKED: MessageState
NO_OPERATION: AckOperation
ACCEPT: AckOperation
RELEASE: AckOperation
REJECT: AckOperation
RENEW: AckOperation
NO_CHANGE: ChangeOperation
MOVE: ChangeOperation
CANCEL: ChangeOperation
REDRIVE: ChangeOperation
NO_JOB: JobKind
PURGE_JOB: JobKind
REDRIVE_JOB: JobKind
SKIP_MISSED: CatchUp
FIRE_ONCE: CatchUp
FIRE_ALL: CatchUp
UNREACHABLE: ReplicaCondition
SERVED: ReplicaCondition
STARTING: ReplicaCondition
NOT_SERVED: ReplicaCondition
QUARANTINED: ReplicaCondition
REBUILDING: ReplicaCondition
LOST: ReplicaCondition
REQUESTED: MoveReason
DRAIN: MoveReason
REPLICATION_FACTOR: MoveReason
SPREAD: MoveReason
EVEN_REPLICAS: MoveReason
EVEN_LEADERS: MoveReason
EVEN_BYTES: MoveReason

class LeaderHint(_message.Message):
    __slots__ = ("broker_id", "address", "leader_epoch")
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    broker_id: int
    address: str
    leader_epoch: int
    def __init__(self, broker_id: _Optional[int] = ..., address: _Optional[str] = ..., leader_epoch: _Optional[int] = ...) -> None: ...

class ErrorDetail(_message.Message):
    __slots__ = ("code", "message", "retriable", "outcome", "leader", "retry_after_ms", "log_start_offset", "high_watermark", "last_sequence", "kept_end_offset", "is_certain")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    RETRIABLE_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    LOG_START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    HIGH_WATERMARK_FIELD_NUMBER: _ClassVar[int]
    LAST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    KEPT_END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    IS_CERTAIN_FIELD_NUMBER: _ClassVar[int]
    code: ErrorCode
    message: str
    retriable: bool
    outcome: Outcome
    leader: LeaderHint
    retry_after_ms: int
    log_start_offset: int
    high_watermark: int
    last_sequence: int
    kept_end_offset: int
    is_certain: bool
    def __init__(self, code: _Optional[_Union[ErrorCode, str]] = ..., message: _Optional[str] = ..., retriable: bool = ..., outcome: _Optional[_Union[Outcome, str]] = ..., leader: _Optional[_Union[LeaderHint, _Mapping]] = ..., retry_after_ms: _Optional[int] = ..., log_start_offset: _Optional[int] = ..., high_watermark: _Optional[int] = ..., last_sequence: _Optional[int] = ..., kept_end_offset: _Optional[int] = ..., is_certain: bool = ...) -> None: ...

class OpenDataConnectionRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class OpenDataConnectionResponse(_message.Message):
    __slots__ = ("port", "token", "version")
    PORT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    port: int
    token: bytes
    version: int
    def __init__(self, port: _Optional[int] = ..., token: _Optional[bytes] = ..., version: _Optional[int] = ...) -> None: ...

class DataHello(_message.Message):
    __slots__ = ("version", "token")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    version: int
    token: bytes
    def __init__(self, version: _Optional[int] = ..., token: _Optional[bytes] = ...) -> None: ...

class InitProducerRequest(_message.Message):
    __slots__ = ("name", "epoch", "metadata_revision", "stamp", "replaces", "then")
    NAME_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    METADATA_REVISION_FIELD_NUMBER: _ClassVar[int]
    STAMP_FIELD_NUMBER: _ClassVar[int]
    REPLACES_FIELD_NUMBER: _ClassVar[int]
    THEN_FIELD_NUMBER: _ClassVar[int]
    name: str
    epoch: int
    metadata_revision: int
    stamp: bytes
    replaces: bytes
    then: StampClaim
    def __init__(self, name: _Optional[str] = ..., epoch: _Optional[int] = ..., metadata_revision: _Optional[int] = ..., stamp: _Optional[bytes] = ..., replaces: _Optional[bytes] = ..., then: _Optional[_Union[StampClaim, _Mapping]] = ...) -> None: ...

class StampClaim(_message.Message):
    __slots__ = ("name", "epoch", "stamp", "replaces", "shared_bytes")
    NAME_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STAMP_FIELD_NUMBER: _ClassVar[int]
    REPLACES_FIELD_NUMBER: _ClassVar[int]
    SHARED_BYTES_FIELD_NUMBER: _ClassVar[int]
    name: str
    epoch: int
    stamp: bytes
    replaces: bytes
    shared_bytes: int
    def __init__(self, name: _Optional[str] = ..., epoch: _Optional[int] = ..., stamp: _Optional[bytes] = ..., replaces: _Optional[bytes] = ..., shared_bytes: _Optional[int] = ...) -> None: ...

class InitProducerResponse(_message.Message):
    __slots__ = ("producer_id", "epoch", "stamp", "metadata_revision", "time_ms", "then")
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STAMP_FIELD_NUMBER: _ClassVar[int]
    METADATA_REVISION_FIELD_NUMBER: _ClassVar[int]
    TIME_MS_FIELD_NUMBER: _ClassVar[int]
    THEN_FIELD_NUMBER: _ClassVar[int]
    producer_id: int
    epoch: int
    stamp: bytes
    metadata_revision: int
    time_ms: int
    then: ClaimedStamp
    def __init__(self, producer_id: _Optional[int] = ..., epoch: _Optional[int] = ..., stamp: _Optional[bytes] = ..., metadata_revision: _Optional[int] = ..., time_ms: _Optional[int] = ..., then: _Optional[_Union[ClaimedStamp, _Mapping]] = ...) -> None: ...

class ClaimedStamp(_message.Message):
    __slots__ = ("stamp", "error")
    STAMP_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    stamp: bytes
    error: ErrorDetail
    def __init__(self, stamp: _Optional[bytes] = ..., error: _Optional[_Union[ErrorDetail, _Mapping]] = ...) -> None: ...

class FenceProducerRequest(_message.Message):
    __slots__ = ("producer_id", "epoch", "metadata_revision")
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    METADATA_REVISION_FIELD_NUMBER: _ClassVar[int]
    producer_id: int
    epoch: int
    metadata_revision: int
    def __init__(self, producer_id: _Optional[int] = ..., epoch: _Optional[int] = ..., metadata_revision: _Optional[int] = ...) -> None: ...

class FenceProducerResponse(_message.Message):
    __slots__ = ("addresses",)
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    addresses: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, addresses: _Optional[_Iterable[str]] = ...) -> None: ...

class AppendRequest(_message.Message):
    __slots__ = ("correlation_id", "metadata_revision", "timeout_ms", "partitions", "trace_contexts")
    CORRELATION_ID_FIELD_NUMBER: _ClassVar[int]
    METADATA_REVISION_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    TRACE_CONTEXTS_FIELD_NUMBER: _ClassVar[int]
    correlation_id: int
    metadata_revision: int
    timeout_ms: int
    partitions: _containers.RepeatedCompositeFieldContainer[PartitionAppend]
    trace_contexts: bytes
    def __init__(self, correlation_id: _Optional[int] = ..., metadata_revision: _Optional[int] = ..., timeout_ms: _Optional[int] = ..., partitions: _Optional[_Iterable[_Union[PartitionAppend, _Mapping]]] = ..., trace_contexts: _Optional[bytes] = ...) -> None: ...

class PartitionAppend(_message.Message):
    __slots__ = ("topic_id", "partition", "batches")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    topic_id: int
    partition: int
    batches: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, topic_id: _Optional[int] = ..., partition: _Optional[int] = ..., batches: _Optional[_Iterable[bytes]] = ...) -> None: ...

class AppendResponse(_message.Message):
    __slots__ = ("correlation_id", "partitions", "error")
    CORRELATION_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    correlation_id: int
    partitions: _containers.RepeatedCompositeFieldContainer[PartitionAppendResult]
    error: ErrorDetail
    def __init__(self, correlation_id: _Optional[int] = ..., partitions: _Optional[_Iterable[_Union[PartitionAppendResult, _Mapping]]] = ..., error: _Optional[_Union[ErrorDetail, _Mapping]] = ...) -> None: ...

class PartitionAppendResult(_message.Message):
    __slots__ = ("error", "base_offsets", "leader_epoch", "log_start_offset", "append_time_ms", "known_messages")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    BASE_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    LOG_START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    APPEND_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    KNOWN_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    error: ErrorDetail
    base_offsets: _containers.RepeatedScalarFieldContainer[int]
    leader_epoch: int
    log_start_offset: int
    append_time_ms: int
    known_messages: _containers.RepeatedCompositeFieldContainer[KnownMessage]
    def __init__(self, error: _Optional[_Union[ErrorDetail, _Mapping]] = ..., base_offsets: _Optional[_Iterable[int]] = ..., leader_epoch: _Optional[int] = ..., log_start_offset: _Optional[int] = ..., append_time_ms: _Optional[int] = ..., known_messages: _Optional[_Iterable[_Union[KnownMessage, _Mapping]]] = ...) -> None: ...

class KnownMessage(_message.Message):
    __slots__ = ("batch", "position", "sequence", "is_replaced")
    BATCH_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    IS_REPLACED_FIELD_NUMBER: _ClassVar[int]
    batch: int
    position: int
    sequence: int
    is_replaced: bool
    def __init__(self, batch: _Optional[int] = ..., position: _Optional[int] = ..., sequence: _Optional[int] = ..., is_replaced: bool = ...) -> None: ...

class PollRequest(_message.Message):
    __slots__ = ("metadata_revision", "max_wait_ms", "min_bytes", "max_bytes", "partitions")
    METADATA_REVISION_FIELD_NUMBER: _ClassVar[int]
    MAX_WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    MIN_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    metadata_revision: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    partitions: _containers.RepeatedCompositeFieldContainer[PartitionPoll]
    def __init__(self, metadata_revision: _Optional[int] = ..., max_wait_ms: _Optional[int] = ..., min_bytes: _Optional[int] = ..., max_bytes: _Optional[int] = ..., partitions: _Optional[_Iterable[_Union[PartitionPoll, _Mapping]]] = ...) -> None: ...

class PartitionPoll(_message.Message):
    __slots__ = ("topic_id", "partition", "offset", "max_bytes", "group_id")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    topic_id: int
    partition: int
    offset: int
    max_bytes: int
    group_id: int
    def __init__(self, topic_id: _Optional[int] = ..., partition: _Optional[int] = ..., offset: _Optional[int] = ..., max_bytes: _Optional[int] = ..., group_id: _Optional[int] = ...) -> None: ...

class PollResponse(_message.Message):
    __slots__ = ("partitions",)
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedCompositeFieldContainer[PartitionPollResult]
    def __init__(self, partitions: _Optional[_Iterable[_Union[PartitionPollResult, _Mapping]]] = ...) -> None: ...

class PartitionPollResult(_message.Message):
    __slots__ = ("topic_id", "partition", "error", "high_watermark", "log_start_offset", "leader_epoch", "base_offsets", "batches", "append_times_ms", "group_id")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    HIGH_WATERMARK_FIELD_NUMBER: _ClassVar[int]
    LOG_START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    BASE_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    APPEND_TIMES_MS_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    topic_id: int
    partition: int
    error: ErrorDetail
    high_watermark: int
    log_start_offset: int
    leader_epoch: int
    base_offsets: _containers.RepeatedScalarFieldContainer[int]
    batches: _containers.RepeatedScalarFieldContainer[bytes]
    append_times_ms: _containers.RepeatedScalarFieldContainer[int]
    group_id: int
    def __init__(self, topic_id: _Optional[int] = ..., partition: _Optional[int] = ..., error: _Optional[_Union[ErrorDetail, _Mapping]] = ..., high_watermark: _Optional[int] = ..., log_start_offset: _Optional[int] = ..., leader_epoch: _Optional[int] = ..., base_offsets: _Optional[_Iterable[int]] = ..., batches: _Optional[_Iterable[bytes]] = ..., append_times_ms: _Optional[_Iterable[int]] = ..., group_id: _Optional[int] = ...) -> None: ...

class ListOffsetsRequest(_message.Message):
    __slots__ = ("metadata_revision", "partitions")
    METADATA_REVISION_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    metadata_revision: int
    partitions: _containers.RepeatedCompositeFieldContainer[PartitionTime]
    def __init__(self, metadata_revision: _Optional[int] = ..., partitions: _Optional[_Iterable[_Union[PartitionTime, _Mapping]]] = ...) -> None: ...

class PartitionTime(_message.Message):
    __slots__ = ("topic_id", "partition", "time_ms", "time_kind", "from_offset")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    TIME_MS_FIELD_NUMBER: _ClassVar[int]
    TIME_KIND_FIELD_NUMBER: _ClassVar[int]
    FROM_OFFSET_FIELD_NUMBER: _ClassVar[int]
    topic_id: int
    partition: int
    time_ms: int
    time_kind: TimeKind
    from_offset: int
    def __init__(self, topic_id: _Optional[int] = ..., partition: _Optional[int] = ..., time_ms: _Optional[int] = ..., time_kind: _Optional[_Union[TimeKind, str]] = ..., from_offset: _Optional[int] = ...) -> None: ...

class ListOffsetsResponse(_message.Message):
    __slots__ = ("partitions",)
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedCompositeFieldContainer[PartitionOffset]
    def __init__(self, partitions: _Optional[_Iterable[_Union[PartitionOffset, _Mapping]]] = ...) -> None: ...

class PartitionOffset(_message.Message):
    __slots__ = ("topic_id", "partition", "error", "offset", "append_time_ms", "leader_epoch", "time_kind")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    APPEND_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    TIME_KIND_FIELD_NUMBER: _ClassVar[int]
    topic_id: int
    partition: int
    error: ErrorDetail
    offset: int
    append_time_ms: int
    leader_epoch: int
    time_kind: TimeKind
    def __init__(self, topic_id: _Optional[int] = ..., partition: _Optional[int] = ..., error: _Optional[_Union[ErrorDetail, _Mapping]] = ..., offset: _Optional[int] = ..., append_time_ms: _Optional[int] = ..., leader_epoch: _Optional[int] = ..., time_kind: _Optional[_Union[TimeKind, str]] = ...) -> None: ...

class DeleteRecordsRequest(_message.Message):
    __slots__ = ("metadata_revision", "timeout_ms", "partitions")
    METADATA_REVISION_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    metadata_revision: int
    timeout_ms: int
    partitions: _containers.RepeatedCompositeFieldContainer[PartitionTrim]
    def __init__(self, metadata_revision: _Optional[int] = ..., timeout_ms: _Optional[int] = ..., partitions: _Optional[_Iterable[_Union[PartitionTrim, _Mapping]]] = ...) -> None: ...

class PartitionTrim(_message.Message):
    __slots__ = ("topic_id", "partition", "before_offset")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    BEFORE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    topic_id: int
    partition: int
    before_offset: int
    def __init__(self, topic_id: _Optional[int] = ..., partition: _Optional[int] = ..., before_offset: _Optional[int] = ...) -> None: ...

class DeleteRecordsResponse(_message.Message):
    __slots__ = ("partitions",)
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedCompositeFieldContainer[PartitionTrimResult]
    def __init__(self, partitions: _Optional[_Iterable[_Union[PartitionTrimResult, _Mapping]]] = ...) -> None: ...

class PartitionTrimResult(_message.Message):
    __slots__ = ("topic_id", "partition", "error", "log_start_offset")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    LOG_START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    topic_id: int
    partition: int
    error: ErrorDetail
    log_start_offset: int
    def __init__(self, topic_id: _Optional[int] = ..., partition: _Optional[int] = ..., error: _Optional[_Union[ErrorDetail, _Mapping]] = ..., log_start_offset: _Optional[int] = ...) -> None: ...

class OpenPartitionsRequest(_message.Message):
    __slots__ = ("metadata_revision", "group", "member_id", "timeout_ms", "partitions")
    METADATA_REVISION_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    metadata_revision: int
    group: str
    member_id: str
    timeout_ms: int
    partitions: _containers.RepeatedCompositeFieldContainer[PartitionOpen]
    def __init__(self, metadata_revision: _Optional[int] = ..., group: _Optional[str] = ..., member_id: _Optional[str] = ..., timeout_ms: _Optional[int] = ..., partitions: _Optional[_Iterable[_Union[PartitionOpen, _Mapping]]] = ...) -> None: ...

class PartitionOpen(_message.Message):
    __slots__ = ("topic_id", "partition", "owner_epoch")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OWNER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    topic_id: int
    partition: int
    owner_epoch: int
    def __init__(self, topic_id: _Optional[int] = ..., partition: _Optional[int] = ..., owner_epoch: _Optional[int] = ...) -> None: ...

class OpenPartitionsResponse(_message.Message):
    __slots__ = ("partitions",)
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedCompositeFieldContainer[PartitionOpenResult]
    def __init__(self, partitions: _Optional[_Iterable[_Union[PartitionOpenResult, _Mapping]]] = ...) -> None: ...

class PartitionOpenResult(_message.Message):
    __slots__ = ("error", "offset", "note", "log_start_offset", "high_watermark", "leader_epoch", "finished")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    LOG_START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    HIGH_WATERMARK_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    error: ErrorDetail
    offset: int
    note: str
    log_start_offset: int
    high_watermark: int
    leader_epoch: int
    finished: bytes
    def __init__(self, error: _Optional[_Union[ErrorDetail, _Mapping]] = ..., offset: _Optional[int] = ..., note: _Optional[str] = ..., log_start_offset: _Optional[int] = ..., high_watermark: _Optional[int] = ..., leader_epoch: _Optional[int] = ..., finished: _Optional[bytes] = ...) -> None: ...

class CommitOffsetsRequest(_message.Message):
    __slots__ = ("metadata_revision", "group", "member_id", "timeout_ms", "partitions")
    METADATA_REVISION_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    metadata_revision: int
    group: str
    member_id: str
    timeout_ms: int
    partitions: _containers.RepeatedCompositeFieldContainer[PartitionCommit]
    def __init__(self, metadata_revision: _Optional[int] = ..., group: _Optional[str] = ..., member_id: _Optional[str] = ..., timeout_ms: _Optional[int] = ..., partitions: _Optional[_Iterable[_Union[PartitionCommit, _Mapping]]] = ...) -> None: ...

class PartitionCommit(_message.Message):
    __slots__ = ("topic_id", "partition", "owner_epoch", "offset", "note", "finished", "group_id")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OWNER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    topic_id: int
    partition: int
    owner_epoch: int
    offset: int
    note: str
    finished: bytes
    group_id: int
    def __init__(self, topic_id: _Optional[int] = ..., partition: _Optional[int] = ..., owner_epoch: _Optional[int] = ..., offset: _Optional[int] = ..., note: _Optional[str] = ..., finished: _Optional[bytes] = ..., group_id: _Optional[int] = ...) -> None: ...

class CommitOffsetsResponse(_message.Message):
    __slots__ = ("partitions",)
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedCompositeFieldContainer[PartitionCommitResult]
    def __init__(self, partitions: _Optional[_Iterable[_Union[PartitionCommitResult, _Mapping]]] = ...) -> None: ...

class PartitionCommitResult(_message.Message):
    __slots__ = ("error",)
    ERROR_FIELD_NUMBER: _ClassVar[int]
    error: ErrorDetail
    def __init__(self, error: _Optional[_Union[ErrorDetail, _Mapping]] = ...) -> None: ...

class FetchOffsetsRequest(_message.Message):
    __slots__ = ("metadata_revision", "group", "partitions")
    METADATA_REVISION_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    metadata_revision: int
    group: str
    partitions: _containers.RepeatedCompositeFieldContainer[PartitionId]
    def __init__(self, metadata_revision: _Optional[int] = ..., group: _Optional[str] = ..., partitions: _Optional[_Iterable[_Union[PartitionId, _Mapping]]] = ...) -> None: ...

class PartitionId(_message.Message):
    __slots__ = ("topic_id", "partition")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    topic_id: int
    partition: int
    def __init__(self, topic_id: _Optional[int] = ..., partition: _Optional[int] = ...) -> None: ...

class FetchOffsetsResponse(_message.Message):
    __slots__ = ("partitions",)
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedCompositeFieldContainer[CommittedOffset]
    def __init__(self, partitions: _Optional[_Iterable[_Union[CommittedOffset, _Mapping]]] = ...) -> None: ...

class CommittedOffset(_message.Message):
    __slots__ = ("topic_id", "partition", "error", "offset", "note", "member_id", "owner_epoch", "log_start_offset", "high_watermark", "lag_records", "lag_ms", "leader_epoch", "finished_records")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    OWNER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    LOG_START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    HIGH_WATERMARK_FIELD_NUMBER: _ClassVar[int]
    LAG_RECORDS_FIELD_NUMBER: _ClassVar[int]
    LAG_MS_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    FINISHED_RECORDS_FIELD_NUMBER: _ClassVar[int]
    topic_id: int
    partition: int
    error: ErrorDetail
    offset: int
    note: str
    member_id: str
    owner_epoch: int
    log_start_offset: int
    high_watermark: int
    lag_records: int
    lag_ms: int
    leader_epoch: int
    finished_records: int
    def __init__(self, topic_id: _Optional[int] = ..., partition: _Optional[int] = ..., error: _Optional[_Union[ErrorDetail, _Mapping]] = ..., offset: _Optional[int] = ..., note: _Optional[str] = ..., member_id: _Optional[str] = ..., owner_epoch: _Optional[int] = ..., log_start_offset: _Optional[int] = ..., high_watermark: _Optional[int] = ..., lag_records: _Optional[int] = ..., lag_ms: _Optional[int] = ..., leader_epoch: _Optional[int] = ..., finished_records: _Optional[int] = ...) -> None: ...

class HeartbeatRequest(_message.Message):
    __slots__ = ("group", "member_id", "member_epoch", "instance_id", "client_id", "rack", "session_timeout_ms", "rebalance_timeout_ms", "subscription", "owned")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    MEMBER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    RACK_FIELD_NUMBER: _ClassVar[int]
    SESSION_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    REBALANCE_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    OWNED_FIELD_NUMBER: _ClassVar[int]
    group: str
    member_id: str
    member_epoch: int
    instance_id: str
    client_id: str
    rack: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    subscription: Subscription
    owned: _containers.RepeatedCompositeFieldContainer[TopicPartitions]
    def __init__(self, group: _Optional[str] = ..., member_id: _Optional[str] = ..., member_epoch: _Optional[int] = ..., instance_id: _Optional[str] = ..., client_id: _Optional[str] = ..., rack: _Optional[str] = ..., session_timeout_ms: _Optional[int] = ..., rebalance_timeout_ms: _Optional[int] = ..., subscription: _Optional[_Union[Subscription, _Mapping]] = ..., owned: _Optional[_Iterable[_Union[TopicPartitions, _Mapping]]] = ...) -> None: ...

class Subscription(_message.Message):
    __slots__ = ("topics", "pattern", "assignor")
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    PATTERN_FIELD_NUMBER: _ClassVar[int]
    ASSIGNOR_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedScalarFieldContainer[str]
    pattern: str
    assignor: str
    def __init__(self, topics: _Optional[_Iterable[str]] = ..., pattern: _Optional[str] = ..., assignor: _Optional[str] = ...) -> None: ...

class TopicPartitions(_message.Message):
    __slots__ = ("topic_id", "partitions")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    topic_id: int
    partitions: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, topic_id: _Optional[int] = ..., partitions: _Optional[_Iterable[int]] = ...) -> None: ...

class HeartbeatResponse(_message.Message):
    __slots__ = ("member_epoch", "has_assignment", "assignment", "next_heartbeat_ms", "metadata_revision", "is_rebalancing", "coordinator")
    MEMBER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    HAS_ASSIGNMENT_FIELD_NUMBER: _ClassVar[int]
    ASSIGNMENT_FIELD_NUMBER: _ClassVar[int]
    NEXT_HEARTBEAT_MS_FIELD_NUMBER: _ClassVar[int]
    METADATA_REVISION_FIELD_NUMBER: _ClassVar[int]
    IS_REBALANCING_FIELD_NUMBER: _ClassVar[int]
    COORDINATOR_FIELD_NUMBER: _ClassVar[int]
    member_epoch: int
    has_assignment: bool
    assignment: _containers.RepeatedCompositeFieldContainer[TopicAssignment]
    next_heartbeat_ms: int
    metadata_revision: int
    is_rebalancing: bool
    coordinator: Broker
    def __init__(self, member_epoch: _Optional[int] = ..., has_assignment: bool = ..., assignment: _Optional[_Iterable[_Union[TopicAssignment, _Mapping]]] = ..., next_heartbeat_ms: _Optional[int] = ..., metadata_revision: _Optional[int] = ..., is_rebalancing: bool = ..., coordinator: _Optional[_Union[Broker, _Mapping]] = ...) -> None: ...

class TopicAssignment(_message.Message):
    __slots__ = ("topic_id", "topic", "partitions", "owner_epochs")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    OWNER_EPOCHS_FIELD_NUMBER: _ClassVar[int]
    topic_id: int
    topic: str
    partitions: _containers.RepeatedScalarFieldContainer[int]
    owner_epochs: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, topic_id: _Optional[int] = ..., topic: _Optional[str] = ..., partitions: _Optional[_Iterable[int]] = ..., owner_epochs: _Optional[_Iterable[int]] = ...) -> None: ...

class LeaveRequest(_message.Message):
    __slots__ = ("group", "member_id", "instance_id")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    group: str
    member_id: str
    instance_id: str
    def __init__(self, group: _Optional[str] = ..., member_id: _Optional[str] = ..., instance_id: _Optional[str] = ...) -> None: ...

class LeaveResponse(_message.Message):
    __slots__ = ("metadata_revision",)
    METADATA_REVISION_FIELD_NUMBER: _ClassVar[int]
    metadata_revision: int
    def __init__(self, metadata_revision: _Optional[int] = ...) -> None: ...

class ListGroupsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListGroupsResponse(_message.Message):
    __slots__ = ("groups", "metadata_revision")
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    METADATA_REVISION_FIELD_NUMBER: _ClassVar[int]
    groups: _containers.RepeatedCompositeFieldContainer[GroupListing]
    metadata_revision: int
    def __init__(self, groups: _Optional[_Iterable[_Union[GroupListing, _Mapping]]] = ..., metadata_revision: _Optional[int] = ...) -> None: ...

class GroupListing(_message.Message):
    __slots__ = ("group", "state", "members", "group_epoch", "assignor", "partitions", "lag_records")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    GROUP_EPOCH_FIELD_NUMBER: _ClassVar[int]
    ASSIGNOR_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    LAG_RECORDS_FIELD_NUMBER: _ClassVar[int]
    group: str
    state: str
    members: int
    group_epoch: int
    assignor: str
    partitions: int
    lag_records: int
    def __init__(self, group: _Optional[str] = ..., state: _Optional[str] = ..., members: _Optional[int] = ..., group_epoch: _Optional[int] = ..., assignor: _Optional[str] = ..., partitions: _Optional[int] = ..., lag_records: _Optional[int] = ...) -> None: ...

class DescribeGroupRequest(_message.Message):
    __slots__ = ("group", "without_offsets")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    WITHOUT_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    group: str
    without_offsets: bool
    def __init__(self, group: _Optional[str] = ..., without_offsets: bool = ...) -> None: ...

class DescribeGroupResponse(_message.Message):
    __slots__ = ("group", "members", "offsets", "topics", "metadata_revision", "is_partial")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    METADATA_REVISION_FIELD_NUMBER: _ClassVar[int]
    IS_PARTIAL_FIELD_NUMBER: _ClassVar[int]
    group: GroupListing
    members: _containers.RepeatedCompositeFieldContainer[GroupMember]
    offsets: _containers.RepeatedCompositeFieldContainer[CommittedOffset]
    topics: _containers.RepeatedCompositeFieldContainer[Topic]
    metadata_revision: int
    is_partial: bool
    def __init__(self, group: _Optional[_Union[GroupListing, _Mapping]] = ..., members: _Optional[_Iterable[_Union[GroupMember, _Mapping]]] = ..., offsets: _Optional[_Iterable[_Union[CommittedOffset, _Mapping]]] = ..., topics: _Optional[_Iterable[_Union[Topic, _Mapping]]] = ..., metadata_revision: _Optional[int] = ..., is_partial: bool = ...) -> None: ...

class GroupMember(_message.Message):
    __slots__ = ("member_id", "instance_id", "client_id", "rack", "member_epoch", "subscription", "session_timeout_ms", "rebalance_timeout_ms", "owned", "target", "session_left_ms")
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    RACK_FIELD_NUMBER: _ClassVar[int]
    MEMBER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    SESSION_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    REBALANCE_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    OWNED_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    SESSION_LEFT_MS_FIELD_NUMBER: _ClassVar[int]
    member_id: str
    instance_id: str
    client_id: str
    rack: str
    member_epoch: int
    subscription: Subscription
    session_timeout_ms: int
    rebalance_timeout_ms: int
    owned: _containers.RepeatedCompositeFieldContainer[TopicAssignment]
    target: _containers.RepeatedCompositeFieldContainer[TopicPartitions]
    session_left_ms: int
    def __init__(self, member_id: _Optional[str] = ..., instance_id: _Optional[str] = ..., client_id: _Optional[str] = ..., rack: _Optional[str] = ..., member_epoch: _Optional[int] = ..., subscription: _Optional[_Union[Subscription, _Mapping]] = ..., session_timeout_ms: _Optional[int] = ..., rebalance_timeout_ms: _Optional[int] = ..., owned: _Optional[_Iterable[_Union[TopicAssignment, _Mapping]]] = ..., target: _Optional[_Iterable[_Union[TopicPartitions, _Mapping]]] = ..., session_left_ms: _Optional[int] = ...) -> None: ...

class PartitionOffsetReset(_message.Message):
    __slots__ = ("topic_id", "partition", "offset")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    topic_id: int
    partition: int
    offset: int
    def __init__(self, topic_id: _Optional[int] = ..., partition: _Optional[int] = ..., offset: _Optional[int] = ...) -> None: ...

class PartitionResetResult(_message.Message):
    __slots__ = ("topic_id", "partition", "error")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    topic_id: int
    partition: int
    error: ErrorDetail
    def __init__(self, topic_id: _Optional[int] = ..., partition: _Optional[int] = ..., error: _Optional[_Union[ErrorDetail, _Mapping]] = ...) -> None: ...

class ResetOffsetsRequest(_message.Message):
    __slots__ = ("group", "partitions", "fence_members")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    FENCE_MEMBERS_FIELD_NUMBER: _ClassVar[int]
    group: str
    partitions: _containers.RepeatedCompositeFieldContainer[PartitionOffsetReset]
    fence_members: bool
    def __init__(self, group: _Optional[str] = ..., partitions: _Optional[_Iterable[_Union[PartitionOffsetReset, _Mapping]]] = ..., fence_members: bool = ...) -> None: ...

class ResetOffsetsResponse(_message.Message):
    __slots__ = ("partitions", "owner_epoch")
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    OWNER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedCompositeFieldContainer[PartitionResetResult]
    owner_epoch: int
    def __init__(self, partitions: _Optional[_Iterable[_Union[PartitionResetResult, _Mapping]]] = ..., owner_epoch: _Optional[int] = ...) -> None: ...

class DeleteGroupRequest(_message.Message):
    __slots__ = ("group",)
    GROUP_FIELD_NUMBER: _ClassVar[int]
    group: str
    def __init__(self, group: _Optional[str] = ...) -> None: ...

class DeleteGroupResponse(_message.Message):
    __slots__ = ("metadata_revision", "partitions")
    METADATA_REVISION_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    metadata_revision: int
    partitions: int
    def __init__(self, metadata_revision: _Optional[int] = ..., partitions: _Optional[int] = ...) -> None: ...

class WatchRequest(_message.Message):
    __slots__ = ("cluster_id",)
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    cluster_id: str
    def __init__(self, cluster_id: _Optional[str] = ...) -> None: ...

class TopologyUpdate(_message.Message):
    __slots__ = ("cluster_id", "metadata_revision", "is_full", "brokers", "has_brokers", "topics", "deleted_topic_ids", "leaders")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    METADATA_REVISION_FIELD_NUMBER: _ClassVar[int]
    IS_FULL_FIELD_NUMBER: _ClassVar[int]
    BROKERS_FIELD_NUMBER: _ClassVar[int]
    HAS_BROKERS_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    DELETED_TOPIC_IDS_FIELD_NUMBER: _ClassVar[int]
    LEADERS_FIELD_NUMBER: _ClassVar[int]
    cluster_id: str
    metadata_revision: int
    is_full: bool
    brokers: _containers.RepeatedCompositeFieldContainer[Broker]
    has_brokers: bool
    topics: _containers.RepeatedCompositeFieldContainer[Topic]
    deleted_topic_ids: _containers.RepeatedScalarFieldContainer[int]
    leaders: _containers.RepeatedCompositeFieldContainer[PartitionLeader]
    def __init__(self, cluster_id: _Optional[str] = ..., metadata_revision: _Optional[int] = ..., is_full: bool = ..., brokers: _Optional[_Iterable[_Union[Broker, _Mapping]]] = ..., has_brokers: bool = ..., topics: _Optional[_Iterable[_Union[Topic, _Mapping]]] = ..., deleted_topic_ids: _Optional[_Iterable[int]] = ..., leaders: _Optional[_Iterable[_Union[PartitionLeader, _Mapping]]] = ...) -> None: ...

class Broker(_message.Message):
    __slots__ = ("broker_id", "address", "host", "rack", "version", "state", "http_address", "peer_address")
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    RACK_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    HTTP_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    PEER_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    broker_id: int
    address: str
    host: str
    rack: str
    version: str
    state: str
    http_address: str
    peer_address: str
    def __init__(self, broker_id: _Optional[int] = ..., address: _Optional[str] = ..., host: _Optional[str] = ..., rack: _Optional[str] = ..., version: _Optional[str] = ..., state: _Optional[str] = ..., http_address: _Optional[str] = ..., peer_address: _Optional[str] = ...) -> None: ...

class Topic(_message.Message):
    __slots__ = ("topic_id", "name", "kind", "replication_factor", "config", "partitions", "schedule_partitions")
    class ConfigEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    REPLICATION_FACTOR_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    SCHEDULE_PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    topic_id: int
    name: str
    kind: str
    replication_factor: int
    config: _containers.ScalarMap[str, str]
    partitions: _containers.RepeatedCompositeFieldContainer[Partition]
    schedule_partitions: int
    def __init__(self, topic_id: _Optional[int] = ..., name: _Optional[str] = ..., kind: _Optional[str] = ..., replication_factor: _Optional[int] = ..., config: _Optional[_Mapping[str, str]] = ..., partitions: _Optional[_Iterable[_Union[Partition, _Mapping]]] = ..., schedule_partitions: _Optional[int] = ...) -> None: ...

class Partition(_message.Message):
    __slots__ = ("partition", "group_id", "replica_brokers", "is_pinned")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    REPLICA_BROKERS_FIELD_NUMBER: _ClassVar[int]
    IS_PINNED_FIELD_NUMBER: _ClassVar[int]
    partition: int
    group_id: int
    replica_brokers: _containers.RepeatedScalarFieldContainer[int]
    is_pinned: bool
    def __init__(self, partition: _Optional[int] = ..., group_id: _Optional[int] = ..., replica_brokers: _Optional[_Iterable[int]] = ..., is_pinned: bool = ...) -> None: ...

class PartitionLeader(_message.Message):
    __slots__ = ("group_id", "broker_id", "leader_epoch")
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    group_id: int
    broker_id: int
    leader_epoch: int
    def __init__(self, group_id: _Optional[int] = ..., broker_id: _Optional[int] = ..., leader_epoch: _Optional[int] = ...) -> None: ...

class QueuePollRequest(_message.Message):
    __slots__ = ("metadata_revision", "topic_id", "partitions", "max_messages", "max_bytes", "lease_ms", "max_wait_ms", "tenants", "key", "auto_accept")
    METADATA_REVISION_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    MAX_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    LEASE_MS_FIELD_NUMBER: _ClassVar[int]
    MAX_WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    TENANTS_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    AUTO_ACCEPT_FIELD_NUMBER: _ClassVar[int]
    metadata_revision: int
    topic_id: int
    partitions: _containers.RepeatedScalarFieldContainer[int]
    max_messages: int
    max_bytes: int
    lease_ms: int
    max_wait_ms: int
    tenants: _containers.RepeatedScalarFieldContainer[str]
    key: bytes
    auto_accept: bool
    def __init__(self, metadata_revision: _Optional[int] = ..., topic_id: _Optional[int] = ..., partitions: _Optional[_Iterable[int]] = ..., max_messages: _Optional[int] = ..., max_bytes: _Optional[int] = ..., lease_ms: _Optional[int] = ..., max_wait_ms: _Optional[int] = ..., tenants: _Optional[_Iterable[str]] = ..., key: _Optional[bytes] = ..., auto_accept: bool = ...) -> None: ...

class QueuePollResponse(_message.Message):
    __slots__ = ("partitions",)
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedCompositeFieldContainer[LeasedMessages]
    def __init__(self, partitions: _Optional[_Iterable[_Union[LeasedMessages, _Mapping]]] = ...) -> None: ...

class LeasedMessages(_message.Message):
    __slots__ = ("topic_id", "partition", "error", "block")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    BLOCK_FIELD_NUMBER: _ClassVar[int]
    topic_id: int
    partition: int
    error: ErrorDetail
    block: bytes
    def __init__(self, topic_id: _Optional[int] = ..., partition: _Optional[int] = ..., error: _Optional[_Union[ErrorDetail, _Mapping]] = ..., block: _Optional[bytes] = ...) -> None: ...

class QueueStreamRequest(_message.Message):
    __slots__ = ("open", "messages_limit", "bytes_limit", "acks", "correlation_id", "goodbye", "trace_contexts")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_LIMIT_FIELD_NUMBER: _ClassVar[int]
    BYTES_LIMIT_FIELD_NUMBER: _ClassVar[int]
    ACKS_FIELD_NUMBER: _ClassVar[int]
    CORRELATION_ID_FIELD_NUMBER: _ClassVar[int]
    GOODBYE_FIELD_NUMBER: _ClassVar[int]
    TRACE_CONTEXTS_FIELD_NUMBER: _ClassVar[int]
    open: QueueStreamOpen
    messages_limit: int
    bytes_limit: int
    acks: _containers.RepeatedCompositeFieldContainer[PartitionAck]
    correlation_id: int
    goodbye: bool
    trace_contexts: bytes
    def __init__(self, open: _Optional[_Union[QueueStreamOpen, _Mapping]] = ..., messages_limit: _Optional[int] = ..., bytes_limit: _Optional[int] = ..., acks: _Optional[_Iterable[_Union[PartitionAck, _Mapping]]] = ..., correlation_id: _Optional[int] = ..., goodbye: bool = ..., trace_contexts: _Optional[bytes] = ...) -> None: ...

class QueueStreamOpen(_message.Message):
    __slots__ = ("metadata_revision", "topic_id", "lease_ms", "tenants", "auto_accept")
    METADATA_REVISION_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    LEASE_MS_FIELD_NUMBER: _ClassVar[int]
    TENANTS_FIELD_NUMBER: _ClassVar[int]
    AUTO_ACCEPT_FIELD_NUMBER: _ClassVar[int]
    metadata_revision: int
    topic_id: int
    lease_ms: int
    tenants: _containers.RepeatedScalarFieldContainer[str]
    auto_accept: bool
    def __init__(self, metadata_revision: _Optional[int] = ..., topic_id: _Optional[int] = ..., lease_ms: _Optional[int] = ..., tenants: _Optional[_Iterable[str]] = ..., auto_accept: bool = ...) -> None: ...

class QueueStreamResponse(_message.Message):
    __slots__ = ("messages", "results", "correlation_id", "ready", "error")
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    CORRELATION_ID_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[LeasedMessages]
    results: _containers.RepeatedCompositeFieldContainer[PartitionAckResult]
    correlation_id: int
    ready: int
    error: ErrorDetail
    def __init__(self, messages: _Optional[_Iterable[_Union[LeasedMessages, _Mapping]]] = ..., results: _Optional[_Iterable[_Union[PartitionAckResult, _Mapping]]] = ..., correlation_id: _Optional[int] = ..., ready: _Optional[int] = ..., error: _Optional[_Union[ErrorDetail, _Mapping]] = ...) -> None: ...

class AckRequest(_message.Message):
    __slots__ = ("metadata_revision", "timeout_ms", "partitions")
    METADATA_REVISION_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    metadata_revision: int
    timeout_ms: int
    partitions: _containers.RepeatedCompositeFieldContainer[PartitionAck]
    def __init__(self, metadata_revision: _Optional[int] = ..., timeout_ms: _Optional[int] = ..., partitions: _Optional[_Iterable[_Union[PartitionAck, _Mapping]]] = ...) -> None: ...

class PartitionAck(_message.Message):
    __slots__ = ("topic_id", "partition", "session", "request", "operations", "first_sequences", "counts", "lease_numbers", "detail_numbers", "details", "put", "put_counts", "group_id")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    OPERATIONS_FIELD_NUMBER: _ClassVar[int]
    FIRST_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    LEASE_NUMBERS_FIELD_NUMBER: _ClassVar[int]
    DETAIL_NUMBERS_FIELD_NUMBER: _ClassVar[int]
    DETAILS_FIELD_NUMBER: _ClassVar[int]
    PUT_FIELD_NUMBER: _ClassVar[int]
    PUT_COUNTS_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    topic_id: int
    partition: int
    session: int
    request: int
    operations: _containers.RepeatedScalarFieldContainer[AckOperation]
    first_sequences: _containers.RepeatedScalarFieldContainer[int]
    counts: _containers.RepeatedScalarFieldContainer[int]
    lease_numbers: _containers.RepeatedScalarFieldContainer[int]
    detail_numbers: _containers.RepeatedScalarFieldContainer[int]
    details: _containers.RepeatedCompositeFieldContainer[AckDetail]
    put: bytes
    put_counts: _containers.RepeatedScalarFieldContainer[int]
    group_id: int
    def __init__(self, topic_id: _Optional[int] = ..., partition: _Optional[int] = ..., session: _Optional[int] = ..., request: _Optional[int] = ..., operations: _Optional[_Iterable[_Union[AckOperation, str]]] = ..., first_sequences: _Optional[_Iterable[int]] = ..., counts: _Optional[_Iterable[int]] = ..., lease_numbers: _Optional[_Iterable[int]] = ..., detail_numbers: _Optional[_Iterable[int]] = ..., details: _Optional[_Iterable[_Union[AckDetail, _Mapping]]] = ..., put: _Optional[bytes] = ..., put_counts: _Optional[_Iterable[int]] = ..., group_id: _Optional[int] = ...) -> None: ...

class AckDetail(_message.Message):
    __slots__ = ("delay_ms", "priority", "error", "is_uncounted", "lease_ms", "progress")
    DELAY_MS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    IS_UNCOUNTED_FIELD_NUMBER: _ClassVar[int]
    LEASE_MS_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    delay_ms: int
    priority: int
    error: str
    is_uncounted: bool
    lease_ms: int
    progress: str
    def __init__(self, delay_ms: _Optional[int] = ..., priority: _Optional[int] = ..., error: _Optional[str] = ..., is_uncounted: bool = ..., lease_ms: _Optional[int] = ..., progress: _Optional[str] = ...) -> None: ...

class AckResponse(_message.Message):
    __slots__ = ("partitions",)
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedCompositeFieldContainer[PartitionAckResult]
    def __init__(self, partitions: _Optional[_Iterable[_Union[PartitionAckResult, _Mapping]]] = ...) -> None: ...

class PartitionAckResult(_message.Message):
    __slots__ = ("topic_id", "partition", "error", "codes", "counts", "granted_ms")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    CODES_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    GRANTED_MS_FIELD_NUMBER: _ClassVar[int]
    topic_id: int
    partition: int
    error: ErrorDetail
    codes: _containers.RepeatedScalarFieldContainer[ErrorCode]
    counts: _containers.RepeatedScalarFieldContainer[int]
    granted_ms: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, topic_id: _Optional[int] = ..., partition: _Optional[int] = ..., error: _Optional[_Union[ErrorDetail, _Mapping]] = ..., codes: _Optional[_Iterable[_Union[ErrorCode, str]]] = ..., counts: _Optional[_Iterable[int]] = ..., granted_ms: _Optional[_Iterable[int]] = ...) -> None: ...

class OpenSessionRequest(_message.Message):
    __slots__ = ("metadata_revision", "timeout_ms", "topic_id", "partitions")
    METADATA_REVISION_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    metadata_revision: int
    timeout_ms: int
    topic_id: int
    partitions: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, metadata_revision: _Optional[int] = ..., timeout_ms: _Optional[int] = ..., topic_id: _Optional[int] = ..., partitions: _Optional[_Iterable[int]] = ...) -> None: ...

class OpenSessionResponse(_message.Message):
    __slots__ = ("partitions",)
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedCompositeFieldContainer[PartitionSession]
    def __init__(self, partitions: _Optional[_Iterable[_Union[PartitionSession, _Mapping]]] = ...) -> None: ...

class PartitionSession(_message.Message):
    __slots__ = ("partition", "error", "session")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    partition: int
    error: ErrorDetail
    session: int
    def __init__(self, partition: _Optional[int] = ..., error: _Optional[_Union[ErrorDetail, _Mapping]] = ..., session: _Optional[int] = ...) -> None: ...

class BrowseRequest(_message.Message):
    __slots__ = ("metadata_revision", "topic_id", "partition", "state", "tenant", "id", "sequence", "is_single", "enqueued_before_ms", "cursor", "limit", "with_bodies")
    METADATA_REVISION_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    IS_SINGLE_FIELD_NUMBER: _ClassVar[int]
    ENQUEUED_BEFORE_MS_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    WITH_BODIES_FIELD_NUMBER: _ClassVar[int]
    metadata_revision: int
    topic_id: int
    partition: int
    state: MessageState
    tenant: str
    id: str
    sequence: int
    is_single: bool
    enqueued_before_ms: int
    cursor: bytes
    limit: int
    with_bodies: bool
    def __init__(self, metadata_revision: _Optional[int] = ..., topic_id: _Optional[int] = ..., partition: _Optional[int] = ..., state: _Optional[_Union[MessageState, str]] = ..., tenant: _Optional[str] = ..., id: _Optional[str] = ..., sequence: _Optional[int] = ..., is_single: bool = ..., enqueued_before_ms: _Optional[int] = ..., cursor: _Optional[bytes] = ..., limit: _Optional[int] = ..., with_bodies: bool = ...) -> None: ...

class BrowseResponse(_message.Message):
    __slots__ = ("block", "statuses", "cursor")
    BLOCK_FIELD_NUMBER: _ClassVar[int]
    STATUSES_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    block: bytes
    statuses: _containers.RepeatedCompositeFieldContainer[MessageStatus]
    cursor: bytes
    def __init__(self, block: _Optional[bytes] = ..., statuses: _Optional[_Iterable[_Union[MessageStatus, _Mapping]]] = ..., cursor: _Optional[bytes] = ...) -> None: ...

class MessageStatus(_message.Message):
    __slots__ = ("state", "version", "due_in_ms", "lease_left_ms", "expires_in_ms", "error", "progress", "dead_reason", "dead_since_ms")
    STATE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DUE_IN_MS_FIELD_NUMBER: _ClassVar[int]
    LEASE_LEFT_MS_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_IN_MS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    DEAD_REASON_FIELD_NUMBER: _ClassVar[int]
    DEAD_SINCE_MS_FIELD_NUMBER: _ClassVar[int]
    state: MessageState
    version: int
    due_in_ms: int
    lease_left_ms: int
    expires_in_ms: int
    error: str
    progress: str
    dead_reason: str
    dead_since_ms: int
    def __init__(self, state: _Optional[_Union[MessageState, str]] = ..., version: _Optional[int] = ..., due_in_ms: _Optional[int] = ..., lease_left_ms: _Optional[int] = ..., expires_in_ms: _Optional[int] = ..., error: _Optional[str] = ..., progress: _Optional[str] = ..., dead_reason: _Optional[str] = ..., dead_since_ms: _Optional[int] = ...) -> None: ...

class QueueStatsRequest(_message.Message):
    __slots__ = ("metadata_revision", "topic_id", "partitions", "tenants_max")
    METADATA_REVISION_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    TENANTS_MAX_FIELD_NUMBER: _ClassVar[int]
    metadata_revision: int
    topic_id: int
    partitions: _containers.RepeatedScalarFieldContainer[int]
    tenants_max: int
    def __init__(self, metadata_revision: _Optional[int] = ..., topic_id: _Optional[int] = ..., partitions: _Optional[_Iterable[int]] = ..., tenants_max: _Optional[int] = ...) -> None: ...

class QueueStatsResponse(_message.Message):
    __slots__ = ("partitions",)
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedCompositeFieldContainer[PartitionQueueStats]
    def __init__(self, partitions: _Optional[_Iterable[_Union[PartitionQueueStats, _Mapping]]] = ...) -> None: ...

class PartitionQueueStats(_message.Message):
    __slots__ = ("partition", "error", "counts", "oldest_ready_age_ms", "waiting_bytes", "enqueued_total", "leased_total", "accepted_total", "released_total", "expired_leases_total", "dead_total", "clock_difference_ms", "tenants", "paused", "consumers", "dwell")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    OLDEST_READY_AGE_MS_FIELD_NUMBER: _ClassVar[int]
    WAITING_BYTES_FIELD_NUMBER: _ClassVar[int]
    ENQUEUED_TOTAL_FIELD_NUMBER: _ClassVar[int]
    LEASED_TOTAL_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_TOTAL_FIELD_NUMBER: _ClassVar[int]
    RELEASED_TOTAL_FIELD_NUMBER: _ClassVar[int]
    EXPIRED_LEASES_TOTAL_FIELD_NUMBER: _ClassVar[int]
    DEAD_TOTAL_FIELD_NUMBER: _ClassVar[int]
    CLOCK_DIFFERENCE_MS_FIELD_NUMBER: _ClassVar[int]
    TENANTS_FIELD_NUMBER: _ClassVar[int]
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    CONSUMERS_FIELD_NUMBER: _ClassVar[int]
    DWELL_FIELD_NUMBER: _ClassVar[int]
    partition: int
    error: ErrorDetail
    counts: StateCounts
    oldest_ready_age_ms: int
    waiting_bytes: int
    enqueued_total: int
    leased_total: int
    accepted_total: int
    released_total: int
    expired_leases_total: int
    dead_total: int
    clock_difference_ms: int
    tenants: _containers.RepeatedCompositeFieldContainer[TenantStats]
    paused: _containers.RepeatedCompositeFieldContainer[PausedTenant]
    consumers: int
    dwell: DwellTimes
    def __init__(self, partition: _Optional[int] = ..., error: _Optional[_Union[ErrorDetail, _Mapping]] = ..., counts: _Optional[_Union[StateCounts, _Mapping]] = ..., oldest_ready_age_ms: _Optional[int] = ..., waiting_bytes: _Optional[int] = ..., enqueued_total: _Optional[int] = ..., leased_total: _Optional[int] = ..., accepted_total: _Optional[int] = ..., released_total: _Optional[int] = ..., expired_leases_total: _Optional[int] = ..., dead_total: _Optional[int] = ..., clock_difference_ms: _Optional[int] = ..., tenants: _Optional[_Iterable[_Union[TenantStats, _Mapping]]] = ..., paused: _Optional[_Iterable[_Union[PausedTenant, _Mapping]]] = ..., consumers: _Optional[int] = ..., dwell: _Optional[_Union[DwellTimes, _Mapping]] = ...) -> None: ...

class DwellTimes(_message.Message):
    __slots__ = ("bounds_seconds", "counts", "total_seconds")
    BOUNDS_SECONDS_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_SECONDS_FIELD_NUMBER: _ClassVar[int]
    bounds_seconds: _containers.RepeatedScalarFieldContainer[float]
    counts: _containers.RepeatedScalarFieldContainer[int]
    total_seconds: float
    def __init__(self, bounds_seconds: _Optional[_Iterable[float]] = ..., counts: _Optional[_Iterable[int]] = ..., total_seconds: _Optional[float] = ...) -> None: ...

class StateCounts(_message.Message):
    __slots__ = ("ready", "delayed", "leased", "dead", "blocked")
    READY_FIELD_NUMBER: _ClassVar[int]
    DELAYED_FIELD_NUMBER: _ClassVar[int]
    LEASED_FIELD_NUMBER: _ClassVar[int]
    DEAD_FIELD_NUMBER: _ClassVar[int]
    BLOCKED_FIELD_NUMBER: _ClassVar[int]
    ready: int
    delayed: int
    leased: int
    dead: int
    blocked: int
    def __init__(self, ready: _Optional[int] = ..., delayed: _Optional[int] = ..., leased: _Optional[int] = ..., dead: _Optional[int] = ..., blocked: _Optional[int] = ...) -> None: ...

class TenantStats(_message.Message):
    __slots__ = ("tenant", "counts")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    counts: StateCounts
    def __init__(self, tenant: _Optional[str] = ..., counts: _Optional[_Union[StateCounts, _Mapping]] = ...) -> None: ...

class PausedTenant(_message.Message):
    __slots__ = ("tenant", "left_ms")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    LEFT_MS_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    left_ms: int
    def __init__(self, tenant: _Optional[str] = ..., left_ms: _Optional[int] = ...) -> None: ...

class ChangeRequest(_message.Message):
    __slots__ = ("metadata_revision", "timeout_ms", "topic_id", "partition", "changes")
    METADATA_REVISION_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    metadata_revision: int
    timeout_ms: int
    topic_id: int
    partition: int
    changes: _containers.RepeatedCompositeFieldContainer[MessageChange]
    def __init__(self, metadata_revision: _Optional[int] = ..., timeout_ms: _Optional[int] = ..., topic_id: _Optional[int] = ..., partition: _Optional[int] = ..., changes: _Optional[_Iterable[_Union[MessageChange, _Mapping]]] = ...) -> None: ...

class MessageChange(_message.Message):
    __slots__ = ("operation", "sequence", "id", "version", "delay_ms", "not_before_ms", "priority")
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DELAY_MS_FIELD_NUMBER: _ClassVar[int]
    NOT_BEFORE_MS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    operation: ChangeOperation
    sequence: int
    id: str
    version: int
    delay_ms: int
    not_before_ms: int
    priority: int
    def __init__(self, operation: _Optional[_Union[ChangeOperation, str]] = ..., sequence: _Optional[int] = ..., id: _Optional[str] = ..., version: _Optional[int] = ..., delay_ms: _Optional[int] = ..., not_before_ms: _Optional[int] = ..., priority: _Optional[int] = ...) -> None: ...

class ChangeResponse(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[ChangeResult]
    def __init__(self, results: _Optional[_Iterable[_Union[ChangeResult, _Mapping]]] = ...) -> None: ...

class ChangeResult(_message.Message):
    __slots__ = ("code", "version")
    CODE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    code: ErrorCode
    version: int
    def __init__(self, code: _Optional[_Union[ErrorCode, str]] = ..., version: _Optional[int] = ...) -> None: ...

class WaitFinishedRequest(_message.Message):
    __slots__ = ("metadata_revision", "topic_id", "partition", "id", "max_wait_ms")
    METADATA_REVISION_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    MAX_WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    metadata_revision: int
    topic_id: int
    partition: int
    id: str
    max_wait_ms: int
    def __init__(self, metadata_revision: _Optional[int] = ..., topic_id: _Optional[int] = ..., partition: _Optional[int] = ..., id: _Optional[str] = ..., max_wait_ms: _Optional[int] = ...) -> None: ...

class WaitFinishedResponse(_message.Message):
    __slots__ = ("is_finished", "state")
    IS_FINISHED_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    is_finished: bool
    state: MessageState
    def __init__(self, is_finished: bool = ..., state: _Optional[_Union[MessageState, str]] = ...) -> None: ...

class StartJobRequest(_message.Message):
    __slots__ = ("metadata_revision", "timeout_ms", "topic_id", "partition", "kind", "states", "tenants", "before_ms", "messages_per_second")
    METADATA_REVISION_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    STATES_FIELD_NUMBER: _ClassVar[int]
    TENANTS_FIELD_NUMBER: _ClassVar[int]
    BEFORE_MS_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    metadata_revision: int
    timeout_ms: int
    topic_id: int
    partition: int
    kind: JobKind
    states: _containers.RepeatedScalarFieldContainer[MessageState]
    tenants: _containers.RepeatedScalarFieldContainer[str]
    before_ms: int
    messages_per_second: int
    def __init__(self, metadata_revision: _Optional[int] = ..., timeout_ms: _Optional[int] = ..., topic_id: _Optional[int] = ..., partition: _Optional[int] = ..., kind: _Optional[_Union[JobKind, str]] = ..., states: _Optional[_Iterable[_Union[MessageState, str]]] = ..., tenants: _Optional[_Iterable[str]] = ..., before_ms: _Optional[int] = ..., messages_per_second: _Optional[int] = ...) -> None: ...

class StartJobResponse(_message.Message):
    __slots__ = ("job", "done_count")
    JOB_FIELD_NUMBER: _ClassVar[int]
    DONE_COUNT_FIELD_NUMBER: _ClassVar[int]
    job: int
    done_count: int
    def __init__(self, job: _Optional[int] = ..., done_count: _Optional[int] = ...) -> None: ...

class ListJobsRequest(_message.Message):
    __slots__ = ("metadata_revision", "topic_id", "partitions")
    METADATA_REVISION_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    metadata_revision: int
    topic_id: int
    partitions: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, metadata_revision: _Optional[int] = ..., topic_id: _Optional[int] = ..., partitions: _Optional[_Iterable[int]] = ...) -> None: ...

class ListJobsResponse(_message.Message):
    __slots__ = ("jobs",)
    JOBS_FIELD_NUMBER: _ClassVar[int]
    jobs: _containers.RepeatedCompositeFieldContainer[QueueJob]
    def __init__(self, jobs: _Optional[_Iterable[_Union[QueueJob, _Mapping]]] = ...) -> None: ...

class QueueJob(_message.Message):
    __slots__ = ("partition", "job", "kind", "done_count", "is_finished")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    DONE_COUNT_FIELD_NUMBER: _ClassVar[int]
    IS_FINISHED_FIELD_NUMBER: _ClassVar[int]
    partition: int
    job: int
    kind: JobKind
    done_count: int
    is_finished: bool
    def __init__(self, partition: _Optional[int] = ..., job: _Optional[int] = ..., kind: _Optional[_Union[JobKind, str]] = ..., done_count: _Optional[int] = ..., is_finished: bool = ...) -> None: ...

class CancelJobRequest(_message.Message):
    __slots__ = ("metadata_revision", "timeout_ms", "topic_id", "partition", "job")
    METADATA_REVISION_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    metadata_revision: int
    timeout_ms: int
    topic_id: int
    partition: int
    job: int
    def __init__(self, metadata_revision: _Optional[int] = ..., timeout_ms: _Optional[int] = ..., topic_id: _Optional[int] = ..., partition: _Optional[int] = ..., job: _Optional[int] = ...) -> None: ...

class CancelJobResponse(_message.Message):
    __slots__ = ("done_count",)
    DONE_COUNT_FIELD_NUMBER: _ClassVar[int]
    done_count: int
    def __init__(self, done_count: _Optional[int] = ...) -> None: ...

class PauseRequest(_message.Message):
    __slots__ = ("metadata_revision", "timeout_ms", "topic_id", "partitions", "tenant", "pause_ms")
    METADATA_REVISION_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    PAUSE_MS_FIELD_NUMBER: _ClassVar[int]
    metadata_revision: int
    timeout_ms: int
    topic_id: int
    partitions: _containers.RepeatedScalarFieldContainer[int]
    tenant: str
    pause_ms: int
    def __init__(self, metadata_revision: _Optional[int] = ..., timeout_ms: _Optional[int] = ..., topic_id: _Optional[int] = ..., partitions: _Optional[_Iterable[int]] = ..., tenant: _Optional[str] = ..., pause_ms: _Optional[int] = ...) -> None: ...

class PauseResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PutScheduleRequest(_message.Message):
    __slots__ = ("metadata_revision", "timeout_ms", "topic_id", "partition", "name", "rule", "message", "is_paused", "version")
    METADATA_REVISION_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    RULE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    IS_PAUSED_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    metadata_revision: int
    timeout_ms: int
    topic_id: int
    partition: int
    name: str
    rule: ScheduleRule
    message: bytes
    is_paused: bool
    version: int
    def __init__(self, metadata_revision: _Optional[int] = ..., timeout_ms: _Optional[int] = ..., topic_id: _Optional[int] = ..., partition: _Optional[int] = ..., name: _Optional[str] = ..., rule: _Optional[_Union[ScheduleRule, _Mapping]] = ..., message: _Optional[bytes] = ..., is_paused: bool = ..., version: _Optional[int] = ...) -> None: ...

class ScheduleRule(_message.Message):
    __slots__ = ("cron", "timezone", "every_ms", "at_ms", "catch_up")
    CRON_FIELD_NUMBER: _ClassVar[int]
    TIMEZONE_FIELD_NUMBER: _ClassVar[int]
    EVERY_MS_FIELD_NUMBER: _ClassVar[int]
    AT_MS_FIELD_NUMBER: _ClassVar[int]
    CATCH_UP_FIELD_NUMBER: _ClassVar[int]
    cron: str
    timezone: str
    every_ms: int
    at_ms: int
    catch_up: CatchUp
    def __init__(self, cron: _Optional[str] = ..., timezone: _Optional[str] = ..., every_ms: _Optional[int] = ..., at_ms: _Optional[int] = ..., catch_up: _Optional[_Union[CatchUp, str]] = ...) -> None: ...

class PutScheduleResponse(_message.Message):
    __slots__ = ("version", "next_due_ms", "is_paused")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    NEXT_DUE_MS_FIELD_NUMBER: _ClassVar[int]
    IS_PAUSED_FIELD_NUMBER: _ClassVar[int]
    version: int
    next_due_ms: int
    is_paused: bool
    def __init__(self, version: _Optional[int] = ..., next_due_ms: _Optional[int] = ..., is_paused: bool = ...) -> None: ...

class ChangeScheduleRequest(_message.Message):
    __slots__ = ("metadata_revision", "timeout_ms", "topic_id", "partition", "name", "version", "pause", "resume", "run_now")
    METADATA_REVISION_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PAUSE_FIELD_NUMBER: _ClassVar[int]
    RESUME_FIELD_NUMBER: _ClassVar[int]
    RUN_NOW_FIELD_NUMBER: _ClassVar[int]
    metadata_revision: int
    timeout_ms: int
    topic_id: int
    partition: int
    name: str
    version: int
    pause: bool
    resume: bool
    run_now: bool
    def __init__(self, metadata_revision: _Optional[int] = ..., timeout_ms: _Optional[int] = ..., topic_id: _Optional[int] = ..., partition: _Optional[int] = ..., name: _Optional[str] = ..., version: _Optional[int] = ..., pause: bool = ..., resume: bool = ..., run_now: bool = ...) -> None: ...

class ChangeScheduleResponse(_message.Message):
    __slots__ = ("version", "next_due_ms")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    NEXT_DUE_MS_FIELD_NUMBER: _ClassVar[int]
    version: int
    next_due_ms: int
    def __init__(self, version: _Optional[int] = ..., next_due_ms: _Optional[int] = ...) -> None: ...

class DeleteScheduleRequest(_message.Message):
    __slots__ = ("metadata_revision", "timeout_ms", "topic_id", "partition", "name", "version")
    METADATA_REVISION_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    metadata_revision: int
    timeout_ms: int
    topic_id: int
    partition: int
    name: str
    version: int
    def __init__(self, metadata_revision: _Optional[int] = ..., timeout_ms: _Optional[int] = ..., topic_id: _Optional[int] = ..., partition: _Optional[int] = ..., name: _Optional[str] = ..., version: _Optional[int] = ...) -> None: ...

class DeleteScheduleResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListSchedulesRequest(_message.Message):
    __slots__ = ("metadata_revision", "topic_id", "partitions", "name", "after_name", "limit")
    METADATA_REVISION_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    AFTER_NAME_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    metadata_revision: int
    topic_id: int
    partitions: _containers.RepeatedScalarFieldContainer[int]
    name: str
    after_name: str
    limit: int
    def __init__(self, metadata_revision: _Optional[int] = ..., topic_id: _Optional[int] = ..., partitions: _Optional[_Iterable[int]] = ..., name: _Optional[str] = ..., after_name: _Optional[str] = ..., limit: _Optional[int] = ...) -> None: ...

class ListSchedulesResponse(_message.Message):
    __slots__ = ("schedules",)
    SCHEDULES_FIELD_NUMBER: _ClassVar[int]
    schedules: _containers.RepeatedCompositeFieldContainer[Schedule]
    def __init__(self, schedules: _Optional[_Iterable[_Union[Schedule, _Mapping]]] = ...) -> None: ...

class Schedule(_message.Message):
    __slots__ = ("partition", "name", "rule", "is_paused", "version", "next_due_ms", "last_fired_ms", "skipped", "error")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    RULE_FIELD_NUMBER: _ClassVar[int]
    IS_PAUSED_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    NEXT_DUE_MS_FIELD_NUMBER: _ClassVar[int]
    LAST_FIRED_MS_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    partition: int
    name: str
    rule: ScheduleRule
    is_paused: bool
    version: int
    next_due_ms: int
    last_fired_ms: int
    skipped: int
    error: ErrorDetail
    def __init__(self, partition: _Optional[int] = ..., name: _Optional[str] = ..., rule: _Optional[_Union[ScheduleRule, _Mapping]] = ..., is_paused: bool = ..., version: _Optional[int] = ..., next_due_ms: _Optional[int] = ..., last_fired_ms: _Optional[int] = ..., skipped: _Optional[int] = ..., error: _Optional[_Union[ErrorDetail, _Mapping]] = ...) -> None: ...

class StepClockRequest(_message.Message):
    __slots__ = ("metadata_revision", "timeout_ms", "topic_id", "partitions")
    METADATA_REVISION_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    metadata_revision: int
    timeout_ms: int
    topic_id: int
    partitions: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, metadata_revision: _Optional[int] = ..., timeout_ms: _Optional[int] = ..., topic_id: _Optional[int] = ..., partitions: _Optional[_Iterable[int]] = ...) -> None: ...

class StepClockResponse(_message.Message):
    __slots__ = ("partitions",)
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedCompositeFieldContainer[PartitionClock]
    def __init__(self, partitions: _Optional[_Iterable[_Union[PartitionClock, _Mapping]]] = ...) -> None: ...

class PartitionClock(_message.Message):
    __slots__ = ("partition", "error", "stepped_ms")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    STEPPED_MS_FIELD_NUMBER: _ClassVar[int]
    partition: int
    error: ErrorDetail
    stepped_ms: int
    def __init__(self, partition: _Optional[int] = ..., error: _Optional[_Union[ErrorDetail, _Mapping]] = ..., stepped_ms: _Optional[int] = ...) -> None: ...

class CreateTopicRequest(_message.Message):
    __slots__ = ("name", "partitions", "replication_factor", "config", "timeout_ms", "kind")
    class ConfigEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    REPLICATION_FACTOR_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    name: str
    partitions: int
    replication_factor: int
    config: _containers.ScalarMap[str, str]
    timeout_ms: int
    kind: str
    def __init__(self, name: _Optional[str] = ..., partitions: _Optional[int] = ..., replication_factor: _Optional[int] = ..., config: _Optional[_Mapping[str, str]] = ..., timeout_ms: _Optional[int] = ..., kind: _Optional[str] = ...) -> None: ...

class CreateTopicResponse(_message.Message):
    __slots__ = ("topic_id", "metadata_revision", "topic")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    METADATA_REVISION_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    topic_id: int
    metadata_revision: int
    topic: Topic
    def __init__(self, topic_id: _Optional[int] = ..., metadata_revision: _Optional[int] = ..., topic: _Optional[_Union[Topic, _Mapping]] = ...) -> None: ...

class DeleteTopicRequest(_message.Message):
    __slots__ = ("name", "metadata_revision")
    NAME_FIELD_NUMBER: _ClassVar[int]
    METADATA_REVISION_FIELD_NUMBER: _ClassVar[int]
    name: str
    metadata_revision: int
    def __init__(self, name: _Optional[str] = ..., metadata_revision: _Optional[int] = ...) -> None: ...

class DeleteTopicResponse(_message.Message):
    __slots__ = ("metadata_revision",)
    METADATA_REVISION_FIELD_NUMBER: _ClassVar[int]
    metadata_revision: int
    def __init__(self, metadata_revision: _Optional[int] = ...) -> None: ...

class ListTopicsRequest(_message.Message):
    __slots__ = ("metadata_revision",)
    METADATA_REVISION_FIELD_NUMBER: _ClassVar[int]
    metadata_revision: int
    def __init__(self, metadata_revision: _Optional[int] = ...) -> None: ...

class ListTopicsResponse(_message.Message):
    __slots__ = ("topics", "metadata_revision", "is_unconfirmed")
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    METADATA_REVISION_FIELD_NUMBER: _ClassVar[int]
    IS_UNCONFIRMED_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedCompositeFieldContainer[Topic]
    metadata_revision: int
    is_unconfirmed: bool
    def __init__(self, topics: _Optional[_Iterable[_Union[Topic, _Mapping]]] = ..., metadata_revision: _Optional[int] = ..., is_unconfirmed: bool = ...) -> None: ...

class DescribeTopicRequest(_message.Message):
    __slots__ = ("name", "metadata_revision", "with_states")
    NAME_FIELD_NUMBER: _ClassVar[int]
    METADATA_REVISION_FIELD_NUMBER: _ClassVar[int]
    WITH_STATES_FIELD_NUMBER: _ClassVar[int]
    name: str
    metadata_revision: int
    with_states: bool
    def __init__(self, name: _Optional[str] = ..., metadata_revision: _Optional[int] = ..., with_states: bool = ...) -> None: ...

class DescribeTopicResponse(_message.Message):
    __slots__ = ("topic", "leaders", "effective_config", "metadata_revision", "states", "is_unconfirmed")
    class EffectiveConfigEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    LEADERS_FIELD_NUMBER: _ClassVar[int]
    EFFECTIVE_CONFIG_FIELD_NUMBER: _ClassVar[int]
    METADATA_REVISION_FIELD_NUMBER: _ClassVar[int]
    STATES_FIELD_NUMBER: _ClassVar[int]
    IS_UNCONFIRMED_FIELD_NUMBER: _ClassVar[int]
    topic: Topic
    leaders: _containers.RepeatedCompositeFieldContainer[PartitionLeader]
    effective_config: _containers.ScalarMap[str, str]
    metadata_revision: int
    states: _containers.RepeatedCompositeFieldContainer[PartitionState]
    is_unconfirmed: bool
    def __init__(self, topic: _Optional[_Union[Topic, _Mapping]] = ..., leaders: _Optional[_Iterable[_Union[PartitionLeader, _Mapping]]] = ..., effective_config: _Optional[_Mapping[str, str]] = ..., metadata_revision: _Optional[int] = ..., states: _Optional[_Iterable[_Union[PartitionState, _Mapping]]] = ..., is_unconfirmed: bool = ...) -> None: ...

class PartitionState(_message.Message):
    __slots__ = ("topic_id", "partition", "error", "leader_epoch", "in_sync_brokers", "log_start_offset", "high_watermark", "size_bytes", "copied_bytes")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    IN_SYNC_BROKERS_FIELD_NUMBER: _ClassVar[int]
    LOG_START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    HIGH_WATERMARK_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    COPIED_BYTES_FIELD_NUMBER: _ClassVar[int]
    topic_id: int
    partition: int
    error: ErrorDetail
    leader_epoch: int
    in_sync_brokers: _containers.RepeatedScalarFieldContainer[int]
    log_start_offset: int
    high_watermark: int
    size_bytes: int
    copied_bytes: int
    def __init__(self, topic_id: _Optional[int] = ..., partition: _Optional[int] = ..., error: _Optional[_Union[ErrorDetail, _Mapping]] = ..., leader_epoch: _Optional[int] = ..., in_sync_brokers: _Optional[_Iterable[int]] = ..., log_start_offset: _Optional[int] = ..., high_watermark: _Optional[int] = ..., size_bytes: _Optional[int] = ..., copied_bytes: _Optional[int] = ...) -> None: ...

class AlterTopicRequest(_message.Message):
    __slots__ = ("name", "set", "unset", "metadata_revision")
    class SetEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    SET_FIELD_NUMBER: _ClassVar[int]
    UNSET_FIELD_NUMBER: _ClassVar[int]
    METADATA_REVISION_FIELD_NUMBER: _ClassVar[int]
    name: str
    set: _containers.ScalarMap[str, str]
    unset: _containers.RepeatedScalarFieldContainer[str]
    metadata_revision: int
    def __init__(self, name: _Optional[str] = ..., set: _Optional[_Mapping[str, str]] = ..., unset: _Optional[_Iterable[str]] = ..., metadata_revision: _Optional[int] = ...) -> None: ...

class AlterTopicResponse(_message.Message):
    __slots__ = ("metadata_revision",)
    METADATA_REVISION_FIELD_NUMBER: _ClassVar[int]
    metadata_revision: int
    def __init__(self, metadata_revision: _Optional[int] = ...) -> None: ...

class AddPartitionsRequest(_message.Message):
    __slots__ = ("name", "total", "metadata_revision", "timeout_ms", "rehash")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    METADATA_REVISION_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    REHASH_FIELD_NUMBER: _ClassVar[int]
    name: str
    total: int
    metadata_revision: int
    timeout_ms: int
    rehash: bool
    def __init__(self, name: _Optional[str] = ..., total: _Optional[int] = ..., metadata_revision: _Optional[int] = ..., timeout_ms: _Optional[int] = ..., rehash: bool = ...) -> None: ...

class AddPartitionsResponse(_message.Message):
    __slots__ = ("metadata_revision", "topic")
    METADATA_REVISION_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    metadata_revision: int
    topic: Topic
    def __init__(self, metadata_revision: _Optional[int] = ..., topic: _Optional[_Union[Topic, _Mapping]] = ...) -> None: ...

class DescribeClusterRequest(_message.Message):
    __slots__ = ("with_health",)
    WITH_HEALTH_FIELD_NUMBER: _ClassVar[int]
    with_health: bool
    def __init__(self, with_health: bool = ...) -> None: ...

class DescribeClusterResponse(_message.Message):
    __slots__ = ("cluster_id", "answering_broker_id", "metadata_leader_broker_id", "metadata_term", "metadata_revision", "brokers", "topic_count", "partition_count", "partitions_without_leader", "health", "feature_level", "feature_level_max")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    ANSWERING_BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    METADATA_LEADER_BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    METADATA_TERM_FIELD_NUMBER: _ClassVar[int]
    METADATA_REVISION_FIELD_NUMBER: _ClassVar[int]
    BROKERS_FIELD_NUMBER: _ClassVar[int]
    TOPIC_COUNT_FIELD_NUMBER: _ClassVar[int]
    PARTITION_COUNT_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_WITHOUT_LEADER_FIELD_NUMBER: _ClassVar[int]
    HEALTH_FIELD_NUMBER: _ClassVar[int]
    FEATURE_LEVEL_FIELD_NUMBER: _ClassVar[int]
    FEATURE_LEVEL_MAX_FIELD_NUMBER: _ClassVar[int]
    cluster_id: str
    answering_broker_id: int
    metadata_leader_broker_id: int
    metadata_term: int
    metadata_revision: int
    brokers: _containers.RepeatedCompositeFieldContainer[ClusterBroker]
    topic_count: int
    partition_count: int
    partitions_without_leader: int
    health: ClusterHealth
    feature_level: int
    feature_level_max: int
    def __init__(self, cluster_id: _Optional[str] = ..., answering_broker_id: _Optional[int] = ..., metadata_leader_broker_id: _Optional[int] = ..., metadata_term: _Optional[int] = ..., metadata_revision: _Optional[int] = ..., brokers: _Optional[_Iterable[_Union[ClusterBroker, _Mapping]]] = ..., topic_count: _Optional[int] = ..., partition_count: _Optional[int] = ..., partitions_without_leader: _Optional[int] = ..., health: _Optional[_Union[ClusterHealth, _Mapping]] = ..., feature_level: _Optional[int] = ..., feature_level_max: _Optional[int] = ...) -> None: ...

class ClusterBroker(_message.Message):
    __slots__ = ("broker", "is_metadata_voter", "is_connected", "replica_count", "leader_count", "health", "feature_level_max")
    BROKER_FIELD_NUMBER: _ClassVar[int]
    IS_METADATA_VOTER_FIELD_NUMBER: _ClassVar[int]
    IS_CONNECTED_FIELD_NUMBER: _ClassVar[int]
    REPLICA_COUNT_FIELD_NUMBER: _ClassVar[int]
    LEADER_COUNT_FIELD_NUMBER: _ClassVar[int]
    HEALTH_FIELD_NUMBER: _ClassVar[int]
    FEATURE_LEVEL_MAX_FIELD_NUMBER: _ClassVar[int]
    broker: Broker
    is_metadata_voter: bool
    is_connected: bool
    replica_count: int
    leader_count: int
    health: BrokerHealth
    feature_level_max: int
    def __init__(self, broker: _Optional[_Union[Broker, _Mapping]] = ..., is_metadata_voter: bool = ..., is_connected: bool = ..., replica_count: _Optional[int] = ..., leader_count: _Optional[int] = ..., health: _Optional[_Union[BrokerHealth, _Mapping]] = ..., feature_level_max: _Optional[int] = ...) -> None: ...

class PartitionNames(_message.Message):
    __slots__ = ("count", "first")
    COUNT_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    count: int
    first: _containers.RepeatedCompositeFieldContainer[PartitionName]
    def __init__(self, count: _Optional[int] = ..., first: _Optional[_Iterable[_Union[PartitionName, _Mapping]]] = ...) -> None: ...

class ClusterHealth(_message.Message):
    __slots__ = ("leaderless", "unknown", "metadata_voters_behind", "is_metadata_led", "stuck", "stuck_count")
    LEADERLESS_FIELD_NUMBER: _ClassVar[int]
    UNKNOWN_FIELD_NUMBER: _ClassVar[int]
    METADATA_VOTERS_BEHIND_FIELD_NUMBER: _ClassVar[int]
    IS_METADATA_LED_FIELD_NUMBER: _ClassVar[int]
    STUCK_FIELD_NUMBER: _ClassVar[int]
    STUCK_COUNT_FIELD_NUMBER: _ClassVar[int]
    leaderless: PartitionNames
    unknown: PartitionNames
    metadata_voters_behind: _containers.RepeatedScalarFieldContainer[int]
    is_metadata_led: bool
    stuck: _containers.RepeatedCompositeFieldContainer[StuckReplica]
    stuck_count: int
    def __init__(self, leaderless: _Optional[_Union[PartitionNames, _Mapping]] = ..., unknown: _Optional[_Union[PartitionNames, _Mapping]] = ..., metadata_voters_behind: _Optional[_Iterable[int]] = ..., is_metadata_led: bool = ..., stuck: _Optional[_Iterable[_Union[StuckReplica, _Mapping]]] = ..., stuck_count: _Optional[int] = ...) -> None: ...

class BrokerHealth(_message.Message):
    __slots__ = ("not_ready", "under_replicated", "not_served", "quarantined", "warnings")
    NOT_READY_FIELD_NUMBER: _ClassVar[int]
    UNDER_REPLICATED_FIELD_NUMBER: _ClassVar[int]
    NOT_SERVED_FIELD_NUMBER: _ClassVar[int]
    QUARANTINED_FIELD_NUMBER: _ClassVar[int]
    WARNINGS_FIELD_NUMBER: _ClassVar[int]
    not_ready: _containers.RepeatedScalarFieldContainer[str]
    under_replicated: PartitionNames
    not_served: PartitionNames
    quarantined: PartitionNames
    warnings: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, not_ready: _Optional[_Iterable[str]] = ..., under_replicated: _Optional[_Union[PartitionNames, _Mapping]] = ..., not_served: _Optional[_Union[PartitionNames, _Mapping]] = ..., quarantined: _Optional[_Union[PartitionNames, _Mapping]] = ..., warnings: _Optional[_Iterable[str]] = ...) -> None: ...

class RemoveBrokerRequest(_message.Message):
    __slots__ = ("broker_id", "force", "timeout_ms")
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    FORCE_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    broker_id: int
    force: bool
    timeout_ms: int
    def __init__(self, broker_id: _Optional[int] = ..., force: bool = ..., timeout_ms: _Optional[int] = ...) -> None: ...

class RemoveBrokerResponse(_message.Message):
    __slots__ = ("metadata_revision", "replica_count", "without_majority_count", "without_majority")
    METADATA_REVISION_FIELD_NUMBER: _ClassVar[int]
    REPLICA_COUNT_FIELD_NUMBER: _ClassVar[int]
    WITHOUT_MAJORITY_COUNT_FIELD_NUMBER: _ClassVar[int]
    WITHOUT_MAJORITY_FIELD_NUMBER: _ClassVar[int]
    metadata_revision: int
    replica_count: int
    without_majority_count: int
    without_majority: _containers.RepeatedCompositeFieldContainer[PartitionName]
    def __init__(self, metadata_revision: _Optional[int] = ..., replica_count: _Optional[int] = ..., without_majority_count: _Optional[int] = ..., without_majority: _Optional[_Iterable[_Union[PartitionName, _Mapping]]] = ...) -> None: ...

class FormClusterRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class FormClusterResponse(_message.Message):
    __slots__ = ("cluster_id",)
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    cluster_id: str
    def __init__(self, cluster_id: _Optional[str] = ...) -> None: ...

class RaiseFeatureLevelRequest(_message.Message):
    __slots__ = ("level",)
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    level: int
    def __init__(self, level: _Optional[int] = ...) -> None: ...

class RaiseFeatureLevelResponse(_message.Message):
    __slots__ = ("metadata_revision", "level")
    METADATA_REVISION_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    metadata_revision: int
    level: int
    def __init__(self, metadata_revision: _Optional[int] = ..., level: _Optional[int] = ...) -> None: ...

class ReplicaKnowledge(_message.Message):
    __slots__ = ("broker_id", "replica_id", "condition", "reason", "term", "last_index", "commit_index", "log_start_offset", "log_end_offset", "high_watermark", "leader_broker_id", "unreachable_ms", "last_term")
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    REPLICA_ID_FIELD_NUMBER: _ClassVar[int]
    CONDITION_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    LAST_INDEX_FIELD_NUMBER: _ClassVar[int]
    COMMIT_INDEX_FIELD_NUMBER: _ClassVar[int]
    LOG_START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LOG_END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    HIGH_WATERMARK_FIELD_NUMBER: _ClassVar[int]
    LEADER_BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    UNREACHABLE_MS_FIELD_NUMBER: _ClassVar[int]
    LAST_TERM_FIELD_NUMBER: _ClassVar[int]
    broker_id: int
    replica_id: int
    condition: ReplicaCondition
    reason: str
    term: int
    last_index: int
    commit_index: int
    log_start_offset: int
    log_end_offset: int
    high_watermark: int
    leader_broker_id: int
    unreachable_ms: int
    last_term: int
    def __init__(self, broker_id: _Optional[int] = ..., replica_id: _Optional[int] = ..., condition: _Optional[_Union[ReplicaCondition, str]] = ..., reason: _Optional[str] = ..., term: _Optional[int] = ..., last_index: _Optional[int] = ..., commit_index: _Optional[int] = ..., log_start_offset: _Optional[int] = ..., log_end_offset: _Optional[int] = ..., high_watermark: _Optional[int] = ..., leader_broker_id: _Optional[int] = ..., unreachable_ms: _Optional[int] = ..., last_term: _Optional[int] = ...) -> None: ...

class LostPartition(_message.Message):
    __slots__ = ("topic", "partition", "group_id", "replicas")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    group_id: int
    replicas: _containers.RepeatedCompositeFieldContainer[ReplicaKnowledge]
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., group_id: _Optional[int] = ..., replicas: _Optional[_Iterable[_Union[ReplicaKnowledge, _Mapping]]] = ...) -> None: ...

class PartitionRecovery(_message.Message):
    __slots__ = ("topic", "partition", "kept_broker_id", "log_end_offset", "known_end_offset", "other_broker_ids", "recovered_at_ms", "leader_epoch")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    KEPT_BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    LOG_END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    KNOWN_END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    OTHER_BROKER_IDS_FIELD_NUMBER: _ClassVar[int]
    RECOVERED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    kept_broker_id: int
    log_end_offset: int
    known_end_offset: int
    other_broker_ids: _containers.RepeatedScalarFieldContainer[int]
    recovered_at_ms: int
    leader_epoch: int
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., kept_broker_id: _Optional[int] = ..., log_end_offset: _Optional[int] = ..., known_end_offset: _Optional[int] = ..., other_broker_ids: _Optional[_Iterable[int]] = ..., recovered_at_ms: _Optional[int] = ..., leader_epoch: _Optional[int] = ...) -> None: ...

class ListLostPartitionsRequest(_message.Message):
    __slots__ = ("topic",)
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    topic: str
    def __init__(self, topic: _Optional[str] = ...) -> None: ...

class ListLostPartitionsResponse(_message.Message):
    __slots__ = ("count", "partitions", "recoveries")
    COUNT_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    RECOVERIES_FIELD_NUMBER: _ClassVar[int]
    count: int
    partitions: _containers.RepeatedCompositeFieldContainer[LostPartition]
    recoveries: _containers.RepeatedCompositeFieldContainer[PartitionRecovery]
    def __init__(self, count: _Optional[int] = ..., partitions: _Optional[_Iterable[_Union[LostPartition, _Mapping]]] = ..., recoveries: _Optional[_Iterable[_Union[PartitionRecovery, _Mapping]]] = ...) -> None: ...

class RecoverPartitionRequest(_message.Message):
    __slots__ = ("topic", "partition", "keep_broker_id", "unsafe", "dry_run", "group_id", "metadata_revision")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    KEEP_BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    UNSAFE_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    METADATA_REVISION_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    keep_broker_id: int
    unsafe: bool
    dry_run: bool
    group_id: int
    metadata_revision: int
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., keep_broker_id: _Optional[int] = ..., unsafe: bool = ..., dry_run: bool = ..., group_id: _Optional[int] = ..., metadata_revision: _Optional[int] = ...) -> None: ...

class RecoverPartitionResponse(_message.Message):
    __slots__ = ("metadata_revision", "recovery", "replicas")
    METADATA_REVISION_FIELD_NUMBER: _ClassVar[int]
    RECOVERY_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    metadata_revision: int
    recovery: PartitionRecovery
    replicas: _containers.RepeatedCompositeFieldContainer[ReplicaKnowledge]
    def __init__(self, metadata_revision: _Optional[int] = ..., recovery: _Optional[_Union[PartitionRecovery, _Mapping]] = ..., replicas: _Optional[_Iterable[_Union[ReplicaKnowledge, _Mapping]]] = ...) -> None: ...

class PartitionName(_message.Message):
    __slots__ = ("topic", "partition")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ...) -> None: ...

class PartitionMove(_message.Message):
    __slots__ = ("topic", "partition", "from_broker_ids", "to_broker_ids", "reason", "bytes", "copied_bytes")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    FROM_BROKER_IDS_FIELD_NUMBER: _ClassVar[int]
    TO_BROKER_IDS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    COPIED_BYTES_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    from_broker_ids: _containers.RepeatedScalarFieldContainer[int]
    to_broker_ids: _containers.RepeatedScalarFieldContainer[int]
    reason: MoveReason
    bytes: int
    copied_bytes: int
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., from_broker_ids: _Optional[_Iterable[int]] = ..., to_broker_ids: _Optional[_Iterable[int]] = ..., reason: _Optional[_Union[MoveReason, str]] = ..., bytes: _Optional[int] = ..., copied_bytes: _Optional[int] = ...) -> None: ...

class DrainBrokerRequest(_message.Message):
    __slots__ = ("broker_id", "is_ended", "dry_run")
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    IS_ENDED_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    broker_id: int
    is_ended: bool
    dry_run: bool
    def __init__(self, broker_id: _Optional[int] = ..., is_ended: bool = ..., dry_run: bool = ...) -> None: ...

class DrainBrokerResponse(_message.Message):
    __slots__ = ("metadata_revision", "replica_count", "leader_count", "is_metadata_voter", "moves", "without_place_count", "without_place", "was_active")
    METADATA_REVISION_FIELD_NUMBER: _ClassVar[int]
    REPLICA_COUNT_FIELD_NUMBER: _ClassVar[int]
    LEADER_COUNT_FIELD_NUMBER: _ClassVar[int]
    IS_METADATA_VOTER_FIELD_NUMBER: _ClassVar[int]
    MOVES_FIELD_NUMBER: _ClassVar[int]
    WITHOUT_PLACE_COUNT_FIELD_NUMBER: _ClassVar[int]
    WITHOUT_PLACE_FIELD_NUMBER: _ClassVar[int]
    WAS_ACTIVE_FIELD_NUMBER: _ClassVar[int]
    metadata_revision: int
    replica_count: int
    leader_count: int
    is_metadata_voter: bool
    moves: _containers.RepeatedCompositeFieldContainer[PartitionMove]
    without_place_count: int
    without_place: _containers.RepeatedCompositeFieldContainer[PartitionName]
    was_active: bool
    def __init__(self, metadata_revision: _Optional[int] = ..., replica_count: _Optional[int] = ..., leader_count: _Optional[int] = ..., is_metadata_voter: bool = ..., moves: _Optional[_Iterable[_Union[PartitionMove, _Mapping]]] = ..., without_place_count: _Optional[int] = ..., without_place: _Optional[_Iterable[_Union[PartitionName, _Mapping]]] = ..., was_active: bool = ...) -> None: ...

class RebalanceRequest(_message.Message):
    __slots__ = ("dry_run", "leaders_only")
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    LEADERS_ONLY_FIELD_NUMBER: _ClassVar[int]
    dry_run: bool
    leaders_only: bool
    def __init__(self, dry_run: bool = ..., leaders_only: bool = ...) -> None: ...

class RebalanceResponse(_message.Message):
    __slots__ = ("metadata_revision", "replica_move_count", "leader_move_count", "moves", "without_place_count", "without_place", "pin_count")
    METADATA_REVISION_FIELD_NUMBER: _ClassVar[int]
    REPLICA_MOVE_COUNT_FIELD_NUMBER: _ClassVar[int]
    LEADER_MOVE_COUNT_FIELD_NUMBER: _ClassVar[int]
    MOVES_FIELD_NUMBER: _ClassVar[int]
    WITHOUT_PLACE_COUNT_FIELD_NUMBER: _ClassVar[int]
    WITHOUT_PLACE_FIELD_NUMBER: _ClassVar[int]
    PIN_COUNT_FIELD_NUMBER: _ClassVar[int]
    metadata_revision: int
    replica_move_count: int
    leader_move_count: int
    moves: _containers.RepeatedCompositeFieldContainer[PartitionMove]
    without_place_count: int
    without_place: _containers.RepeatedCompositeFieldContainer[PartitionName]
    pin_count: int
    def __init__(self, metadata_revision: _Optional[int] = ..., replica_move_count: _Optional[int] = ..., leader_move_count: _Optional[int] = ..., moves: _Optional[_Iterable[_Union[PartitionMove, _Mapping]]] = ..., without_place_count: _Optional[int] = ..., without_place: _Optional[_Iterable[_Union[PartitionName, _Mapping]]] = ..., pin_count: _Optional[int] = ...) -> None: ...

class MovePartitionRequest(_message.Message):
    __slots__ = ("topic", "partition", "broker_ids", "dry_run", "metadata_revision", "unpin")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    BROKER_IDS_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    METADATA_REVISION_FIELD_NUMBER: _ClassVar[int]
    UNPIN_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    broker_ids: _containers.RepeatedScalarFieldContainer[int]
    dry_run: bool
    metadata_revision: int
    unpin: bool
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., broker_ids: _Optional[_Iterable[int]] = ..., dry_run: bool = ..., metadata_revision: _Optional[int] = ..., unpin: bool = ...) -> None: ...

class MovePartitionResponse(_message.Message):
    __slots__ = ("metadata_revision", "move", "had_no_pin")
    METADATA_REVISION_FIELD_NUMBER: _ClassVar[int]
    MOVE_FIELD_NUMBER: _ClassVar[int]
    HAD_NO_PIN_FIELD_NUMBER: _ClassVar[int]
    metadata_revision: int
    move: PartitionMove
    had_no_pin: bool
    def __init__(self, metadata_revision: _Optional[int] = ..., move: _Optional[_Union[PartitionMove, _Mapping]] = ..., had_no_pin: bool = ...) -> None: ...

class TransferLeaderRequest(_message.Message):
    __slots__ = ("topic", "partition", "broker_id", "metadata_revision", "timeout_ms")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    METADATA_REVISION_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    broker_id: int
    metadata_revision: int
    timeout_ms: int
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., broker_id: _Optional[int] = ..., metadata_revision: _Optional[int] = ..., timeout_ms: _Optional[int] = ...) -> None: ...

class TransferLeaderResponse(_message.Message):
    __slots__ = ("leader_broker_id", "leader_epoch")
    LEADER_BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    leader_broker_id: int
    leader_epoch: int
    def __init__(self, leader_broker_id: _Optional[int] = ..., leader_epoch: _Optional[int] = ...) -> None: ...

class SetReplicationFactorRequest(_message.Message):
    __slots__ = ("topic", "replication_factor", "dry_run", "metadata_revision")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    REPLICATION_FACTOR_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    METADATA_REVISION_FIELD_NUMBER: _ClassVar[int]
    topic: str
    replication_factor: int
    dry_run: bool
    metadata_revision: int
    def __init__(self, topic: _Optional[str] = ..., replication_factor: _Optional[int] = ..., dry_run: bool = ..., metadata_revision: _Optional[int] = ...) -> None: ...

class SetReplicationFactorResponse(_message.Message):
    __slots__ = ("metadata_revision", "moves", "move_count")
    METADATA_REVISION_FIELD_NUMBER: _ClassVar[int]
    MOVES_FIELD_NUMBER: _ClassVar[int]
    MOVE_COUNT_FIELD_NUMBER: _ClassVar[int]
    metadata_revision: int
    moves: _containers.RepeatedCompositeFieldContainer[PartitionMove]
    move_count: int
    def __init__(self, metadata_revision: _Optional[int] = ..., moves: _Optional[_Iterable[_Union[PartitionMove, _Mapping]]] = ..., move_count: _Optional[int] = ...) -> None: ...

class DescribeMovesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DescribeMovesResponse(_message.Message):
    __slots__ = ("metadata_revision", "auto_balance", "moves_max", "bytes_per_second", "moves", "waiting_count", "rebuilding_count", "without_place", "without_place_count", "given_up", "stuck", "stuck_count")
    METADATA_REVISION_FIELD_NUMBER: _ClassVar[int]
    AUTO_BALANCE_FIELD_NUMBER: _ClassVar[int]
    MOVES_MAX_FIELD_NUMBER: _ClassVar[int]
    BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    MOVES_FIELD_NUMBER: _ClassVar[int]
    WAITING_COUNT_FIELD_NUMBER: _ClassVar[int]
    REBUILDING_COUNT_FIELD_NUMBER: _ClassVar[int]
    WITHOUT_PLACE_FIELD_NUMBER: _ClassVar[int]
    WITHOUT_PLACE_COUNT_FIELD_NUMBER: _ClassVar[int]
    GIVEN_UP_FIELD_NUMBER: _ClassVar[int]
    STUCK_FIELD_NUMBER: _ClassVar[int]
    STUCK_COUNT_FIELD_NUMBER: _ClassVar[int]
    metadata_revision: int
    auto_balance: bool
    moves_max: int
    bytes_per_second: int
    moves: _containers.RepeatedCompositeFieldContainer[PartitionMove]
    waiting_count: int
    rebuilding_count: int
    without_place: _containers.RepeatedCompositeFieldContainer[PartitionName]
    without_place_count: int
    given_up: _containers.RepeatedCompositeFieldContainer[GivenUpMove]
    stuck: _containers.RepeatedCompositeFieldContainer[StuckReplica]
    stuck_count: int
    def __init__(self, metadata_revision: _Optional[int] = ..., auto_balance: bool = ..., moves_max: _Optional[int] = ..., bytes_per_second: _Optional[int] = ..., moves: _Optional[_Iterable[_Union[PartitionMove, _Mapping]]] = ..., waiting_count: _Optional[int] = ..., rebuilding_count: _Optional[int] = ..., without_place: _Optional[_Iterable[_Union[PartitionName, _Mapping]]] = ..., without_place_count: _Optional[int] = ..., given_up: _Optional[_Iterable[_Union[GivenUpMove, _Mapping]]] = ..., stuck: _Optional[_Iterable[_Union[StuckReplica, _Mapping]]] = ..., stuck_count: _Optional[int] = ...) -> None: ...

class StuckReplica(_message.Message):
    __slots__ = ("topic", "partition", "broker_id", "reason", "advice")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    ADVICE_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    broker_id: int
    reason: str
    advice: str
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., broker_id: _Optional[int] = ..., reason: _Optional[str] = ..., advice: _Optional[str] = ...) -> None: ...

class GivenUpMove(_message.Message):
    __slots__ = ("topic", "partition", "to_broker_ids", "reason", "at_ms", "retry_at_ms", "count")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    TO_BROKER_IDS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    AT_MS_FIELD_NUMBER: _ClassVar[int]
    RETRY_AT_MS_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    to_broker_ids: _containers.RepeatedScalarFieldContainer[int]
    reason: str
    at_ms: int
    retry_at_ms: int
    count: int
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., to_broker_ids: _Optional[_Iterable[int]] = ..., reason: _Optional[str] = ..., at_ms: _Optional[int] = ..., retry_at_ms: _Optional[int] = ..., count: _Optional[int] = ...) -> None: ...

class ForgetProducerNamesRequest(_message.Message):
    __slots__ = ("prefix", "unused_ms", "dry_run", "names_max")
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    UNUSED_MS_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    NAMES_MAX_FIELD_NUMBER: _ClassVar[int]
    prefix: str
    unused_ms: int
    dry_run: bool
    names_max: int
    def __init__(self, prefix: _Optional[str] = ..., unused_ms: _Optional[int] = ..., dry_run: bool = ..., names_max: _Optional[int] = ...) -> None: ...

class ForgetProducerNamesResponse(_message.Message):
    __slots__ = ("metadata_revision", "forgotten_count", "left_count", "limit", "names")
    METADATA_REVISION_FIELD_NUMBER: _ClassVar[int]
    FORGOTTEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    LEFT_COUNT_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    metadata_revision: int
    forgotten_count: int
    left_count: int
    limit: int
    names: _containers.RepeatedCompositeFieldContainer[ProducerNameView]
    def __init__(self, metadata_revision: _Optional[int] = ..., forgotten_count: _Optional[int] = ..., left_count: _Optional[int] = ..., limit: _Optional[int] = ..., names: _Optional[_Iterable[_Union[ProducerNameView, _Mapping]]] = ...) -> None: ...

class ProducerNameView(_message.Message):
    __slots__ = ("name", "epoch", "unused_ms")
    NAME_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    UNUSED_MS_FIELD_NUMBER: _ClassVar[int]
    name: str
    epoch: int
    unused_ms: int
    def __init__(self, name: _Optional[str] = ..., epoch: _Optional[int] = ..., unused_ms: _Optional[int] = ...) -> None: ...

class SetBalancingRequest(_message.Message):
    __slots__ = ("auto_balance", "moves_max", "bytes_per_second")
    AUTO_BALANCE_FIELD_NUMBER: _ClassVar[int]
    MOVES_MAX_FIELD_NUMBER: _ClassVar[int]
    BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    auto_balance: bool
    moves_max: int
    bytes_per_second: int
    def __init__(self, auto_balance: bool = ..., moves_max: _Optional[int] = ..., bytes_per_second: _Optional[int] = ...) -> None: ...

class SetBalancingResponse(_message.Message):
    __slots__ = ("metadata_revision", "auto_balance", "moves_max", "bytes_per_second")
    METADATA_REVISION_FIELD_NUMBER: _ClassVar[int]
    AUTO_BALANCE_FIELD_NUMBER: _ClassVar[int]
    MOVES_MAX_FIELD_NUMBER: _ClassVar[int]
    BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    metadata_revision: int
    auto_balance: bool
    moves_max: int
    bytes_per_second: int
    def __init__(self, metadata_revision: _Optional[int] = ..., auto_balance: bool = ..., moves_max: _Optional[int] = ..., bytes_per_second: _Optional[int] = ...) -> None: ...

class AlterConfigRequest(_message.Message):
    __slots__ = ("broker_id", "set", "unset")
    class SetEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    SET_FIELD_NUMBER: _ClassVar[int]
    UNSET_FIELD_NUMBER: _ClassVar[int]
    broker_id: int
    set: _containers.ScalarMap[str, str]
    unset: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, broker_id: _Optional[int] = ..., set: _Optional[_Mapping[str, str]] = ..., unset: _Optional[_Iterable[str]] = ...) -> None: ...

class AlterConfigResponse(_message.Message):
    __slots__ = ("metadata_revision",)
    METADATA_REVISION_FIELD_NUMBER: _ClassVar[int]
    metadata_revision: int
    def __init__(self, metadata_revision: _Optional[int] = ...) -> None: ...

class ListConfigRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListConfigResponse(_message.Message):
    __slots__ = ("metadata_revision", "settings")
    METADATA_REVISION_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    metadata_revision: int
    settings: _containers.RepeatedCompositeFieldContainer[RuntimeSetting]
    def __init__(self, metadata_revision: _Optional[int] = ..., settings: _Optional[_Iterable[_Union[RuntimeSetting, _Mapping]]] = ...) -> None: ...

class RuntimeSetting(_message.Message):
    __slots__ = ("key", "value", "broker_values", "scope", "meaning")
    class BrokerValuesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: str
        def __init__(self, key: _Optional[int] = ..., value: _Optional[str] = ...) -> None: ...
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    BROKER_VALUES_FIELD_NUMBER: _ClassVar[int]
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    MEANING_FIELD_NUMBER: _ClassVar[int]
    key: str
    value: str
    broker_values: _containers.ScalarMap[int, str]
    scope: str
    meaning: str
    def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ..., broker_values: _Optional[_Mapping[int, str]] = ..., scope: _Optional[str] = ..., meaning: _Optional[str] = ...) -> None: ...

class DescribeConfigRequest(_message.Message):
    __slots__ = ("broker_id", "metadata_revision")
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    METADATA_REVISION_FIELD_NUMBER: _ClassVar[int]
    broker_id: int
    metadata_revision: int
    def __init__(self, broker_id: _Optional[int] = ..., metadata_revision: _Optional[int] = ...) -> None: ...

class DescribeConfigResponse(_message.Message):
    __slots__ = ("broker_id", "values")
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    broker_id: int
    values: _containers.RepeatedCompositeFieldContainer[ConfigValue]
    def __init__(self, broker_id: _Optional[int] = ..., values: _Optional[_Iterable[_Union[ConfigValue, _Mapping]]] = ...) -> None: ...

class ConfigValue(_message.Message):
    __slots__ = ("key", "value", "source", "meaning")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    MEANING_FIELD_NUMBER: _ClassVar[int]
    key: str
    value: str
    source: str
    meaning: str
    def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ..., source: _Optional[str] = ..., meaning: _Optional[str] = ...) -> None: ...
