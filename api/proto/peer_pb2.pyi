from raftmq.proto import queue_pb2 as _queue_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

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
    __slots__ = ("broker_id", "uuid", "damaged", "left", "joined", "stuck")
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    UUID_FIELD_NUMBER: _ClassVar[int]
    DAMAGED_FIELD_NUMBER: _ClassVar[int]
    LEFT_FIELD_NUMBER: _ClassVar[int]
    JOINED_FIELD_NUMBER: _ClassVar[int]
    STUCK_FIELD_NUMBER: _ClassVar[int]
    broker_id: int
    uuid: str
    damaged: _containers.RepeatedCompositeFieldContainer[ReplicaReport]
    left: _containers.RepeatedCompositeFieldContainer[ReplicaReport]
    joined: _containers.RepeatedCompositeFieldContainer[ReplicaReport]
    stuck: _containers.RepeatedCompositeFieldContainer[ReplicaReport]
    def __init__(self, broker_id: _Optional[int] = ..., uuid: _Optional[str] = ..., damaged: _Optional[_Iterable[_Union[ReplicaReport, _Mapping]]] = ..., left: _Optional[_Iterable[_Union[ReplicaReport, _Mapping]]] = ..., joined: _Optional[_Iterable[_Union[ReplicaReport, _Mapping]]] = ..., stuck: _Optional[_Iterable[_Union[ReplicaReport, _Mapping]]] = ...) -> None: ...

class ReplicaReport(_message.Message):
    __slots__ = ("group_id", "replica_id", "reason", "revision")
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    REPLICA_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    group_id: int
    replica_id: int
    reason: str
    revision: int
    def __init__(self, group_id: _Optional[int] = ..., replica_id: _Optional[int] = ..., reason: _Optional[str] = ..., revision: _Optional[int] = ...) -> None: ...

class ReportReplicasResponse(_message.Message):
    __slots__ = ("metadata_revision",)
    METADATA_REVISION_FIELD_NUMBER: _ClassVar[int]
    metadata_revision: int
    def __init__(self, metadata_revision: _Optional[int] = ...) -> None: ...

class DescribePartitionsRequest(_message.Message):
    __slots__ = ("metadata_revision", "partitions")
    METADATA_REVISION_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    metadata_revision: int
    partitions: _containers.RepeatedCompositeFieldContainer[_queue_pb2.PartitionId]
    def __init__(self, metadata_revision: _Optional[int] = ..., partitions: _Optional[_Iterable[_Union[_queue_pb2.PartitionId, _Mapping]]] = ...) -> None: ...

class DescribePartitionsResponse(_message.Message):
    __slots__ = ("partitions",)
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedCompositeFieldContainer[_queue_pb2.PartitionState]
    def __init__(self, partitions: _Optional[_Iterable[_Union[_queue_pb2.PartitionState, _Mapping]]] = ...) -> None: ...

class DescribeReplicasRequest(_message.Message):
    __slots__ = ("group_ids",)
    GROUP_IDS_FIELD_NUMBER: _ClassVar[int]
    group_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, group_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class DescribeReplicasResponse(_message.Message):
    __slots__ = ("replicas",)
    class Replica(_message.Message):
        __slots__ = ("group_id", "replica")
        GROUP_ID_FIELD_NUMBER: _ClassVar[int]
        REPLICA_FIELD_NUMBER: _ClassVar[int]
        group_id: int
        replica: _queue_pb2.ReplicaKnowledge
        def __init__(self, group_id: _Optional[int] = ..., replica: _Optional[_Union[_queue_pb2.ReplicaKnowledge, _Mapping]] = ...) -> None: ...
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    replicas: _containers.RepeatedCompositeFieldContainer[DescribeReplicasResponse.Replica]
    def __init__(self, replicas: _Optional[_Iterable[_Union[DescribeReplicasResponse.Replica, _Mapping]]] = ...) -> None: ...

class DescribeBrokerRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DescribeBrokerResponse(_message.Message):
    __slots__ = ("health", "led_group_ids", "metadata_voters_behind", "not_served", "without_progress")
    HEALTH_FIELD_NUMBER: _ClassVar[int]
    LED_GROUP_IDS_FIELD_NUMBER: _ClassVar[int]
    METADATA_VOTERS_BEHIND_FIELD_NUMBER: _ClassVar[int]
    NOT_SERVED_FIELD_NUMBER: _ClassVar[int]
    WITHOUT_PROGRESS_FIELD_NUMBER: _ClassVar[int]
    health: _queue_pb2.BrokerHealth
    led_group_ids: _containers.RepeatedScalarFieldContainer[int]
    metadata_voters_behind: _containers.RepeatedScalarFieldContainer[int]
    not_served: _containers.RepeatedCompositeFieldContainer[ReplicaReport]
    without_progress: _containers.RepeatedCompositeFieldContainer[ReplicaReport]
    def __init__(self, health: _Optional[_Union[_queue_pb2.BrokerHealth, _Mapping]] = ..., led_group_ids: _Optional[_Iterable[int]] = ..., metadata_voters_behind: _Optional[_Iterable[int]] = ..., not_served: _Optional[_Iterable[_Union[ReplicaReport, _Mapping]]] = ..., without_progress: _Optional[_Iterable[_Union[ReplicaReport, _Mapping]]] = ...) -> None: ...

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
    resets: _containers.RepeatedCompositeFieldContainer[_queue_pb2.PartitionOffsetReset]
    forget: bool
    def __init__(self, metadata_revision: _Optional[int] = ..., group: _Optional[str] = ..., owner_epoch: _Optional[int] = ..., resets: _Optional[_Iterable[_Union[_queue_pb2.PartitionOffsetReset, _Mapping]]] = ..., forget: bool = ...) -> None: ...

class WriteOffsetsResponse(_message.Message):
    __slots__ = ("partitions", "forgotten")
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    FORGOTTEN_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedCompositeFieldContainer[_queue_pb2.PartitionResetResult]
    forgotten: int
    def __init__(self, partitions: _Optional[_Iterable[_Union[_queue_pb2.PartitionResetResult, _Mapping]]] = ..., forgotten: _Optional[int] = ...) -> None: ...

class SummarizeOffsetsRequest(_message.Message):
    __slots__ = ("metadata_revision",)
    METADATA_REVISION_FIELD_NUMBER: _ClassVar[int]
    metadata_revision: int
    def __init__(self, metadata_revision: _Optional[int] = ...) -> None: ...

class SummarizeOffsetsResponse(_message.Message):
    __slots__ = ("groups",)
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    groups: _containers.RepeatedCompositeFieldContainer[GroupSummary]
    def __init__(self, groups: _Optional[_Iterable[_Union[GroupSummary, _Mapping]]] = ...) -> None: ...

class GroupSummary(_message.Message):
    __slots__ = ("group", "partitions", "lag_records")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    LAG_RECORDS_FIELD_NUMBER: _ClassVar[int]
    group: str
    partitions: int
    lag_records: int
    def __init__(self, group: _Optional[str] = ..., partitions: _Optional[int] = ..., lag_records: _Optional[int] = ...) -> None: ...

class RegisterBrokerRequest(_message.Message):
    __slots__ = ("uuid", "broker_id", "client_address", "peer_address", "http_address", "host", "rack", "version", "feature_level_max", "cluster_id", "damaged_metadata_replica_id", "replaces_lost", "partitions_max", "boot", "lineage", "process_mark")
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
    PROCESS_MARK_FIELD_NUMBER: _ClassVar[int]
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
    process_mark: bytes
    def __init__(self, uuid: _Optional[str] = ..., broker_id: _Optional[int] = ..., client_address: _Optional[str] = ..., peer_address: _Optional[str] = ..., http_address: _Optional[str] = ..., host: _Optional[str] = ..., rack: _Optional[str] = ..., version: _Optional[str] = ..., feature_level_max: _Optional[int] = ..., cluster_id: _Optional[str] = ..., damaged_metadata_replica_id: _Optional[int] = ..., replaces_lost: bool = ..., partitions_max: _Optional[int] = ..., boot: _Optional[int] = ..., lineage: _Optional[bytes] = ..., process_mark: _Optional[bytes] = ...) -> None: ...

class DescribeFormationRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DescribeFormationResponse(_message.Message):
    __slots__ = ("cluster_id", "is_forming")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    IS_FORMING_FIELD_NUMBER: _ClassVar[int]
    cluster_id: str
    is_forming: bool
    def __init__(self, cluster_id: _Optional[str] = ..., is_forming: bool = ...) -> None: ...

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
    brokers: _containers.RepeatedCompositeFieldContainer[_queue_pb2.Broker]
    metadata_replicas: _containers.RepeatedCompositeFieldContainer[MetadataReplica]
    def __init__(self, cluster_id: _Optional[str] = ..., broker_id: _Optional[int] = ..., metadata_replica_id: _Optional[int] = ..., metadata_revision: _Optional[int] = ..., brokers: _Optional[_Iterable[_Union[_queue_pb2.Broker, _Mapping]]] = ..., metadata_replicas: _Optional[_Iterable[_Union[MetadataReplica, _Mapping]]] = ...) -> None: ...

class MetadataReplica(_message.Message):
    __slots__ = ("replica_id", "broker_id")
    REPLICA_ID_FIELD_NUMBER: _ClassVar[int]
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    replica_id: int
    broker_id: int
    def __init__(self, replica_id: _Optional[int] = ..., broker_id: _Optional[int] = ...) -> None: ...
