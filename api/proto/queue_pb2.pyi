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
    INTERNAL: _ClassVar[ErrorCode]

class Outcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    NOT_APPLIED: _ClassVar[Outcome]
    UNKNOWN_OUTCOME: _ClassVar[Outcome]
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
INTERNAL: ErrorCode
NOT_APPLIED: Outcome
UNKNOWN_OUTCOME: Outcome

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
    __slots__ = ("code", "message", "retriable", "outcome", "leader", "retry_after_ms", "log_start_offset", "high_watermark", "last_sequence", "is_certain")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    RETRIABLE_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    LOG_START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    HIGH_WATERMARK_FIELD_NUMBER: _ClassVar[int]
    LAST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
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
    is_certain: bool
    def __init__(self, code: _Optional[_Union[ErrorCode, str]] = ..., message: _Optional[str] = ..., retriable: bool = ..., outcome: _Optional[_Union[Outcome, str]] = ..., leader: _Optional[_Union[LeaderHint, _Mapping]] = ..., retry_after_ms: _Optional[int] = ..., log_start_offset: _Optional[int] = ..., high_watermark: _Optional[int] = ..., last_sequence: _Optional[int] = ..., is_certain: bool = ...) -> None: ...

class OpenDataConnectionRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class OpenDataConnectionResponse(_message.Message):
    __slots__ = ("port", "token")
    PORT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    port: int
    token: bytes
    def __init__(self, port: _Optional[int] = ..., token: _Optional[bytes] = ...) -> None: ...

class DataHello(_message.Message):
    __slots__ = ("version", "token")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    version: int
    token: bytes
    def __init__(self, version: _Optional[int] = ..., token: _Optional[bytes] = ...) -> None: ...

class InitProducerRequest(_message.Message):
    __slots__ = ("name", "epoch", "metadata_revision", "stamp", "replaces")
    NAME_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    METADATA_REVISION_FIELD_NUMBER: _ClassVar[int]
    STAMP_FIELD_NUMBER: _ClassVar[int]
    REPLACES_FIELD_NUMBER: _ClassVar[int]
    name: str
    epoch: int
    metadata_revision: int
    stamp: bytes
    replaces: bytes
    def __init__(self, name: _Optional[str] = ..., epoch: _Optional[int] = ..., metadata_revision: _Optional[int] = ..., stamp: _Optional[bytes] = ..., replaces: _Optional[bytes] = ...) -> None: ...

class InitProducerResponse(_message.Message):
    __slots__ = ("producer_id", "epoch", "stamp", "metadata_revision")
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STAMP_FIELD_NUMBER: _ClassVar[int]
    METADATA_REVISION_FIELD_NUMBER: _ClassVar[int]
    producer_id: int
    epoch: int
    stamp: bytes
    metadata_revision: int
    def __init__(self, producer_id: _Optional[int] = ..., epoch: _Optional[int] = ..., stamp: _Optional[bytes] = ..., metadata_revision: _Optional[int] = ...) -> None: ...

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
    __slots__ = ("correlation_id", "metadata_revision", "timeout_ms", "partitions")
    CORRELATION_ID_FIELD_NUMBER: _ClassVar[int]
    METADATA_REVISION_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    correlation_id: int
    metadata_revision: int
    timeout_ms: int
    partitions: _containers.RepeatedCompositeFieldContainer[PartitionAppend]
    def __init__(self, correlation_id: _Optional[int] = ..., metadata_revision: _Optional[int] = ..., timeout_ms: _Optional[int] = ..., partitions: _Optional[_Iterable[_Union[PartitionAppend, _Mapping]]] = ...) -> None: ...

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
    __slots__ = ("error", "base_offsets", "leader_epoch", "log_start_offset", "append_time_ms")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    BASE_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    LOG_START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    APPEND_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    error: ErrorDetail
    base_offsets: _containers.RepeatedScalarFieldContainer[int]
    leader_epoch: int
    log_start_offset: int
    append_time_ms: int
    def __init__(self, error: _Optional[_Union[ErrorDetail, _Mapping]] = ..., base_offsets: _Optional[_Iterable[int]] = ..., leader_epoch: _Optional[int] = ..., log_start_offset: _Optional[int] = ..., append_time_ms: _Optional[int] = ...) -> None: ...

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
    __slots__ = ("topic_id", "partition", "offset", "max_bytes")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    topic_id: int
    partition: int
    offset: int
    max_bytes: int
    def __init__(self, topic_id: _Optional[int] = ..., partition: _Optional[int] = ..., offset: _Optional[int] = ..., max_bytes: _Optional[int] = ...) -> None: ...

class PollResponse(_message.Message):
    __slots__ = ("partitions",)
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedCompositeFieldContainer[PartitionPollResult]
    def __init__(self, partitions: _Optional[_Iterable[_Union[PartitionPollResult, _Mapping]]] = ...) -> None: ...

class PartitionPollResult(_message.Message):
    __slots__ = ("topic_id", "partition", "error", "high_watermark", "log_start_offset", "leader_epoch", "base_offsets", "batches", "append_times_ms")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    HIGH_WATERMARK_FIELD_NUMBER: _ClassVar[int]
    LOG_START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    BASE_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    APPEND_TIMES_MS_FIELD_NUMBER: _ClassVar[int]
    topic_id: int
    partition: int
    error: ErrorDetail
    high_watermark: int
    log_start_offset: int
    leader_epoch: int
    base_offsets: _containers.RepeatedScalarFieldContainer[int]
    batches: _containers.RepeatedScalarFieldContainer[bytes]
    append_times_ms: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, topic_id: _Optional[int] = ..., partition: _Optional[int] = ..., error: _Optional[_Union[ErrorDetail, _Mapping]] = ..., high_watermark: _Optional[int] = ..., log_start_offset: _Optional[int] = ..., leader_epoch: _Optional[int] = ..., base_offsets: _Optional[_Iterable[int]] = ..., batches: _Optional[_Iterable[bytes]] = ..., append_times_ms: _Optional[_Iterable[int]] = ...) -> None: ...

class ListOffsetsRequest(_message.Message):
    __slots__ = ("metadata_revision", "partitions")
    METADATA_REVISION_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    metadata_revision: int
    partitions: _containers.RepeatedCompositeFieldContainer[PartitionTime]
    def __init__(self, metadata_revision: _Optional[int] = ..., partitions: _Optional[_Iterable[_Union[PartitionTime, _Mapping]]] = ...) -> None: ...

class PartitionTime(_message.Message):
    __slots__ = ("topic_id", "partition", "time_ms")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    TIME_MS_FIELD_NUMBER: _ClassVar[int]
    topic_id: int
    partition: int
    time_ms: int
    def __init__(self, topic_id: _Optional[int] = ..., partition: _Optional[int] = ..., time_ms: _Optional[int] = ...) -> None: ...

class ListOffsetsResponse(_message.Message):
    __slots__ = ("partitions",)
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedCompositeFieldContainer[PartitionOffset]
    def __init__(self, partitions: _Optional[_Iterable[_Union[PartitionOffset, _Mapping]]] = ...) -> None: ...

class PartitionOffset(_message.Message):
    __slots__ = ("topic_id", "partition", "error", "offset", "append_time_ms", "leader_epoch")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    APPEND_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    topic_id: int
    partition: int
    error: ErrorDetail
    offset: int
    append_time_ms: int
    leader_epoch: int
    def __init__(self, topic_id: _Optional[int] = ..., partition: _Optional[int] = ..., error: _Optional[_Union[ErrorDetail, _Mapping]] = ..., offset: _Optional[int] = ..., append_time_ms: _Optional[int] = ..., leader_epoch: _Optional[int] = ...) -> None: ...

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
    __slots__ = ("topic_id", "partition", "owner_epoch", "offset", "note", "finished")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OWNER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    topic_id: int
    partition: int
    owner_epoch: int
    offset: int
    note: str
    finished: bytes
    def __init__(self, topic_id: _Optional[int] = ..., partition: _Optional[int] = ..., owner_epoch: _Optional[int] = ..., offset: _Optional[int] = ..., note: _Optional[str] = ..., finished: _Optional[bytes] = ...) -> None: ...

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

class WriteOffsetsRequest(_message.Message):
    __slots__ = ("metadata_revision", "group", "owner_epoch", "resets", "forget")
    METADATA_REVISION_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    OWNER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    RESETS_FIELD_NUMBER: _ClassVar[int]
    FORGET_FIELD_NUMBER: _ClassVar[int]
    metadata_revision: int
    group: str
    owner_epoch: int
    resets: _containers.RepeatedCompositeFieldContainer[PartitionOffsetReset]
    forget: bool
    def __init__(self, metadata_revision: _Optional[int] = ..., group: _Optional[str] = ..., owner_epoch: _Optional[int] = ..., resets: _Optional[_Iterable[_Union[PartitionOffsetReset, _Mapping]]] = ..., forget: bool = ...) -> None: ...

class PartitionOffsetReset(_message.Message):
    __slots__ = ("topic_id", "partition", "offset")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    topic_id: int
    partition: int
    offset: int
    def __init__(self, topic_id: _Optional[int] = ..., partition: _Optional[int] = ..., offset: _Optional[int] = ...) -> None: ...

class WriteOffsetsResponse(_message.Message):
    __slots__ = ("partitions", "forgotten")
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    FORGOTTEN_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedCompositeFieldContainer[PartitionResetResult]
    forgotten: int
    def __init__(self, partitions: _Optional[_Iterable[_Union[PartitionResetResult, _Mapping]]] = ..., forgotten: _Optional[int] = ...) -> None: ...

class PartitionResetResult(_message.Message):
    __slots__ = ("topic_id", "partition", "error")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    topic_id: int
    partition: int
    error: ErrorDetail
    def __init__(self, topic_id: _Optional[int] = ..., partition: _Optional[int] = ..., error: _Optional[_Union[ErrorDetail, _Mapping]] = ...) -> None: ...

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
    __slots__ = ("group", "state", "members", "group_epoch", "assignor")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    GROUP_EPOCH_FIELD_NUMBER: _ClassVar[int]
    ASSIGNOR_FIELD_NUMBER: _ClassVar[int]
    group: str
    state: str
    members: int
    group_epoch: int
    assignor: str
    def __init__(self, group: _Optional[str] = ..., state: _Optional[str] = ..., members: _Optional[int] = ..., group_epoch: _Optional[int] = ..., assignor: _Optional[str] = ...) -> None: ...

class DescribeGroupRequest(_message.Message):
    __slots__ = ("group", "without_offsets")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    WITHOUT_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    group: str
    without_offsets: bool
    def __init__(self, group: _Optional[str] = ..., without_offsets: bool = ...) -> None: ...

class DescribeGroupResponse(_message.Message):
    __slots__ = ("group", "members", "offsets", "topics", "metadata_revision")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    METADATA_REVISION_FIELD_NUMBER: _ClassVar[int]
    group: GroupListing
    members: _containers.RepeatedCompositeFieldContainer[GroupMember]
    offsets: _containers.RepeatedCompositeFieldContainer[CommittedOffset]
    topics: _containers.RepeatedCompositeFieldContainer[Topic]
    metadata_revision: int
    def __init__(self, group: _Optional[_Union[GroupListing, _Mapping]] = ..., members: _Optional[_Iterable[_Union[GroupMember, _Mapping]]] = ..., offsets: _Optional[_Iterable[_Union[CommittedOffset, _Mapping]]] = ..., topics: _Optional[_Iterable[_Union[Topic, _Mapping]]] = ..., metadata_revision: _Optional[int] = ...) -> None: ...

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
    __slots__ = ("topic_id", "name", "kind", "replication_factor", "config", "partitions")
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
    topic_id: int
    name: str
    kind: str
    replication_factor: int
    config: _containers.ScalarMap[str, str]
    partitions: _containers.RepeatedCompositeFieldContainer[Partition]
    def __init__(self, topic_id: _Optional[int] = ..., name: _Optional[str] = ..., kind: _Optional[str] = ..., replication_factor: _Optional[int] = ..., config: _Optional[_Mapping[str, str]] = ..., partitions: _Optional[_Iterable[_Union[Partition, _Mapping]]] = ...) -> None: ...

class Partition(_message.Message):
    __slots__ = ("partition", "group_id", "replica_brokers")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    REPLICA_BROKERS_FIELD_NUMBER: _ClassVar[int]
    partition: int
    group_id: int
    replica_brokers: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, partition: _Optional[int] = ..., group_id: _Optional[int] = ..., replica_brokers: _Optional[_Iterable[int]] = ...) -> None: ...

class PartitionLeader(_message.Message):
    __slots__ = ("group_id", "broker_id", "leader_epoch")
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    group_id: int
    broker_id: int
    leader_epoch: int
    def __init__(self, group_id: _Optional[int] = ..., broker_id: _Optional[int] = ..., leader_epoch: _Optional[int] = ...) -> None: ...

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
    __slots__ = ("topics", "metadata_revision")
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    METADATA_REVISION_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedCompositeFieldContainer[Topic]
    metadata_revision: int
    def __init__(self, topics: _Optional[_Iterable[_Union[Topic, _Mapping]]] = ..., metadata_revision: _Optional[int] = ...) -> None: ...

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
    __slots__ = ("topic", "leaders", "effective_config", "metadata_revision", "states")
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
    topic: Topic
    leaders: _containers.RepeatedCompositeFieldContainer[PartitionLeader]
    effective_config: _containers.ScalarMap[str, str]
    metadata_revision: int
    states: _containers.RepeatedCompositeFieldContainer[PartitionState]
    def __init__(self, topic: _Optional[_Union[Topic, _Mapping]] = ..., leaders: _Optional[_Iterable[_Union[PartitionLeader, _Mapping]]] = ..., effective_config: _Optional[_Mapping[str, str]] = ..., metadata_revision: _Optional[int] = ..., states: _Optional[_Iterable[_Union[PartitionState, _Mapping]]] = ...) -> None: ...

class PartitionState(_message.Message):
    __slots__ = ("topic_id", "partition", "error", "leader_epoch", "in_sync_brokers", "log_start_offset", "high_watermark", "size_bytes")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    IN_SYNC_BROKERS_FIELD_NUMBER: _ClassVar[int]
    LOG_START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    HIGH_WATERMARK_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    topic_id: int
    partition: int
    error: ErrorDetail
    leader_epoch: int
    in_sync_brokers: _containers.RepeatedScalarFieldContainer[int]
    log_start_offset: int
    high_watermark: int
    size_bytes: int
    def __init__(self, topic_id: _Optional[int] = ..., partition: _Optional[int] = ..., error: _Optional[_Union[ErrorDetail, _Mapping]] = ..., leader_epoch: _Optional[int] = ..., in_sync_brokers: _Optional[_Iterable[int]] = ..., log_start_offset: _Optional[int] = ..., high_watermark: _Optional[int] = ..., size_bytes: _Optional[int] = ...) -> None: ...

class DescribePartitionsRequest(_message.Message):
    __slots__ = ("metadata_revision", "partitions")
    METADATA_REVISION_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    metadata_revision: int
    partitions: _containers.RepeatedCompositeFieldContainer[PartitionId]
    def __init__(self, metadata_revision: _Optional[int] = ..., partitions: _Optional[_Iterable[_Union[PartitionId, _Mapping]]] = ...) -> None: ...

class DescribePartitionsResponse(_message.Message):
    __slots__ = ("partitions",)
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedCompositeFieldContainer[PartitionState]
    def __init__(self, partitions: _Optional[_Iterable[_Union[PartitionState, _Mapping]]] = ...) -> None: ...

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
    __slots__ = ("name", "total", "metadata_revision", "timeout_ms")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    METADATA_REVISION_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    name: str
    total: int
    metadata_revision: int
    timeout_ms: int
    def __init__(self, name: _Optional[str] = ..., total: _Optional[int] = ..., metadata_revision: _Optional[int] = ..., timeout_ms: _Optional[int] = ...) -> None: ...

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
    __slots__ = ("leaderless", "unknown", "metadata_voters_behind", "is_metadata_led")
    LEADERLESS_FIELD_NUMBER: _ClassVar[int]
    UNKNOWN_FIELD_NUMBER: _ClassVar[int]
    METADATA_VOTERS_BEHIND_FIELD_NUMBER: _ClassVar[int]
    IS_METADATA_LED_FIELD_NUMBER: _ClassVar[int]
    leaderless: PartitionNames
    unknown: PartitionNames
    metadata_voters_behind: _containers.RepeatedScalarFieldContainer[int]
    is_metadata_led: bool
    def __init__(self, leaderless: _Optional[_Union[PartitionNames, _Mapping]] = ..., unknown: _Optional[_Union[PartitionNames, _Mapping]] = ..., metadata_voters_behind: _Optional[_Iterable[int]] = ..., is_metadata_led: bool = ...) -> None: ...

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

class DescribeBrokerRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DescribeBrokerResponse(_message.Message):
    __slots__ = ("health", "led_group_ids", "metadata_voters_behind")
    HEALTH_FIELD_NUMBER: _ClassVar[int]
    LED_GROUP_IDS_FIELD_NUMBER: _ClassVar[int]
    METADATA_VOTERS_BEHIND_FIELD_NUMBER: _ClassVar[int]
    health: BrokerHealth
    led_group_ids: _containers.RepeatedScalarFieldContainer[int]
    metadata_voters_behind: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, health: _Optional[_Union[BrokerHealth, _Mapping]] = ..., led_group_ids: _Optional[_Iterable[int]] = ..., metadata_voters_behind: _Optional[_Iterable[int]] = ...) -> None: ...

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

class PartitionName(_message.Message):
    __slots__ = ("topic", "partition")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ...) -> None: ...

class RegisterBrokerRequest(_message.Message):
    __slots__ = ("uuid", "broker_id", "client_address", "peer_address", "http_address", "host", "rack", "version", "feature_level_max", "cluster_id", "damaged_metadata_replica_id", "replaces_lost", "partitions_max", "boot", "lineage")
    UUID_FIELD_NUMBER: _ClassVar[int]
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    PEER_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    HTTP_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    RACK_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    FEATURE_LEVEL_MAX_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    DAMAGED_METADATA_REPLICA_ID_FIELD_NUMBER: _ClassVar[int]
    REPLACES_LOST_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_MAX_FIELD_NUMBER: _ClassVar[int]
    BOOT_FIELD_NUMBER: _ClassVar[int]
    LINEAGE_FIELD_NUMBER: _ClassVar[int]
    uuid: str
    broker_id: int
    client_address: str
    peer_address: str
    http_address: str
    host: str
    rack: str
    version: str
    feature_level_max: int
    cluster_id: str
    damaged_metadata_replica_id: int
    replaces_lost: bool
    partitions_max: int
    boot: int
    lineage: bytes
    def __init__(self, uuid: _Optional[str] = ..., broker_id: _Optional[int] = ..., client_address: _Optional[str] = ..., peer_address: _Optional[str] = ..., http_address: _Optional[str] = ..., host: _Optional[str] = ..., rack: _Optional[str] = ..., version: _Optional[str] = ..., feature_level_max: _Optional[int] = ..., cluster_id: _Optional[str] = ..., damaged_metadata_replica_id: _Optional[int] = ..., replaces_lost: bool = ..., partitions_max: _Optional[int] = ..., boot: _Optional[int] = ..., lineage: _Optional[bytes] = ...) -> None: ...

class RegisterBrokerResponse(_message.Message):
    __slots__ = ("cluster_id", "broker_id", "metadata_replica_id", "metadata_revision", "brokers", "metadata_replicas")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    METADATA_REPLICA_ID_FIELD_NUMBER: _ClassVar[int]
    METADATA_REVISION_FIELD_NUMBER: _ClassVar[int]
    BROKERS_FIELD_NUMBER: _ClassVar[int]
    METADATA_REPLICAS_FIELD_NUMBER: _ClassVar[int]
    cluster_id: str
    broker_id: int
    metadata_replica_id: int
    metadata_revision: int
    brokers: _containers.RepeatedCompositeFieldContainer[Broker]
    metadata_replicas: _containers.RepeatedCompositeFieldContainer[MetadataReplica]
    def __init__(self, cluster_id: _Optional[str] = ..., broker_id: _Optional[int] = ..., metadata_replica_id: _Optional[int] = ..., metadata_revision: _Optional[int] = ..., brokers: _Optional[_Iterable[_Union[Broker, _Mapping]]] = ..., metadata_replicas: _Optional[_Iterable[_Union[MetadataReplica, _Mapping]]] = ...) -> None: ...

class MetadataReplica(_message.Message):
    __slots__ = ("replica_id", "broker_id")
    REPLICA_ID_FIELD_NUMBER: _ClassVar[int]
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    replica_id: int
    broker_id: int
    def __init__(self, replica_id: _Optional[int] = ..., broker_id: _Optional[int] = ...) -> None: ...

class ReportDamageRequest(_message.Message):
    __slots__ = ("broker_id", "uuid", "replicas")
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    UUID_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    broker_id: int
    uuid: str
    replicas: _containers.RepeatedCompositeFieldContainer[ReplicaReport]
    def __init__(self, broker_id: _Optional[int] = ..., uuid: _Optional[str] = ..., replicas: _Optional[_Iterable[_Union[ReplicaReport, _Mapping]]] = ...) -> None: ...

class ReportDamageResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ReportReplicasRequest(_message.Message):
    __slots__ = ("broker_id", "uuid", "damaged", "left")
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    UUID_FIELD_NUMBER: _ClassVar[int]
    DAMAGED_FIELD_NUMBER: _ClassVar[int]
    LEFT_FIELD_NUMBER: _ClassVar[int]
    broker_id: int
    uuid: str
    damaged: _containers.RepeatedCompositeFieldContainer[ReplicaReport]
    left: _containers.RepeatedCompositeFieldContainer[ReplicaReport]
    def __init__(self, broker_id: _Optional[int] = ..., uuid: _Optional[str] = ..., damaged: _Optional[_Iterable[_Union[ReplicaReport, _Mapping]]] = ..., left: _Optional[_Iterable[_Union[ReplicaReport, _Mapping]]] = ...) -> None: ...

class ReplicaReport(_message.Message):
    __slots__ = ("group_id", "replica_id", "reason")
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    REPLICA_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    group_id: int
    replica_id: int
    reason: str
    def __init__(self, group_id: _Optional[int] = ..., replica_id: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class ReportReplicasResponse(_message.Message):
    __slots__ = ("metadata_revision",)
    METADATA_REVISION_FIELD_NUMBER: _ClassVar[int]
    metadata_revision: int
    def __init__(self, metadata_revision: _Optional[int] = ...) -> None: ...
