"""RaftMQ: a partitioned, replicated message broker. This is the package that programs import.

Names are loaded at their first use (PEP 562), so ``import raftmq`` costs nothing and needs no gRPC.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING

# gRPC's core reads these variables once, when it is first imported, so they must be set here. The user's values take precedence.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # otherwise it writes a line to stderr whenever a broker disappears
os.environ.setdefault(
    "GRPC_ENABLE_FORK_SUPPORT", "0"
)  # otherwise one in ten forked children dies by SIGSEGV, even if it does nothing

if TYPE_CHECKING:
    from raftmq import errors as errors
    from raftmq import serializers as serializers
    from raftmq import sync as sync
    from raftmq.client.admin.admin import Admin as Admin
    from raftmq.client.admin.cluster_health import BrokerHealth as BrokerHealth
    from raftmq.client.admin.cluster_health import ClusterHealth as ClusterHealth
    from raftmq.client.admin.cluster_health import PartitionNames as PartitionNames
    from raftmq.client.admin.cluster_health import PartitionState as PartitionState
    from raftmq.client.admin.configuration import ConfigValue as ConfigValue
    from raftmq.client.admin.configuration import RuntimeSetting as RuntimeSetting
    from raftmq.client.admin.descriptions import BrokerDescription as BrokerDescription
    from raftmq.client.admin.descriptions import BrokerRemoval as BrokerRemoval
    from raftmq.client.admin.descriptions import ClusterDescription as ClusterDescription
    from raftmq.client.admin.descriptions import NewTopic as NewTopic
    from raftmq.client.admin.descriptions import PartitionDescription as PartitionDescription
    from raftmq.client.admin.descriptions import TopicDescription as TopicDescription
    from raftmq.client.admin.group_admin import GroupDescription as GroupDescription
    from raftmq.client.admin.group_admin import GroupListing as GroupListing
    from raftmq.client.admin.group_admin import GroupMemberDescription as GroupMemberDescription
    from raftmq.client.admin.group_admin import GroupOffset as GroupOffset
    from raftmq.client.admin.group_admin import OffsetChange as OffsetChange
    from raftmq.client.admin.move_descriptions import BalancingSettings as BalancingSettings
    from raftmq.client.admin.move_descriptions import BrokerDrain as BrokerDrain
    from raftmq.client.admin.move_descriptions import GivenUpMove as GivenUpMove
    from raftmq.client.admin.move_descriptions import LeaderTransfer as LeaderTransfer
    from raftmq.client.admin.move_descriptions import MovesDescription as MovesDescription
    from raftmq.client.admin.move_descriptions import PartitionMove as PartitionMove
    from raftmq.client.admin.move_descriptions import RebalancePlan as RebalancePlan
    from raftmq.client.admin.move_descriptions import ReplicationChange as ReplicationChange
    from raftmq.client.admin.move_descriptions import StuckReplica as StuckReplica
    from raftmq.client.admin.producer_names import ForgottenNames as ForgottenNames
    from raftmq.client.admin.producer_names import ProducerNameDescription as ProducerNameDescription
    from raftmq.client.admin.recovery import LostPartition as LostPartition
    from raftmq.client.admin.recovery import LostPartitions as LostPartitions
    from raftmq.client.admin.recovery import PartitionRecovery as PartitionRecovery
    from raftmq.client.admin.recovery import ReplicaKnowledge as ReplicaKnowledge
    from raftmq.client.admin.schedules import ScheduleDescription as ScheduleDescription
    from raftmq.client.base.metrics import ConsumerMetrics as ConsumerMetrics
    from raftmq.client.base.metrics import ProducerMetrics as ProducerMetrics
    from raftmq.client.base.metrics import WorkerMetrics as WorkerMetrics
    from raftmq.client.connection.time_search import OffsetAndTimestamp as OffsetAndTimestamp
    from raftmq.client.consumer.consumer import Consumer as Consumer
    from raftmq.client.consumer.rebalance_listener import RebalanceListener as RebalanceListener
    from raftmq.client.producer.batch import AppendedSpan as AppendedSpan
    from raftmq.client.producer.batch import BulkDelivery as BulkDelivery
    from raftmq.client.producer.batch import Delivery as Delivery
    from raftmq.client.producer.batch import FailedRecords as FailedRecords
    from raftmq.client.producer.partitioner import Partitioner as Partitioner
    from raftmq.client.producer.producer import Producer as Producer
    from raftmq.client.queue.dwell_times import DwellTimes as DwellTimes
    from raftmq.client.queue.job_view import QueueJob as QueueJob
    from raftmq.client.queue.message import Message as Message
    from raftmq.client.queue.new_message import NewMessage as NewMessage
    from raftmq.client.queue.put_batch import PutResult as PutResult
    from raftmq.client.queue.queue import Queue as Queue
    from raftmq.client.queue.views import BrowsedMessage as BrowsedMessage
    from raftmq.client.queue.views import MessageCounts as MessageCounts
    from raftmq.client.queue.views import QueueStats as QueueStats
    from raftmq.client.transformer.output import Output as Output
    from raftmq.client.transformer.transformer import Transformer as Transformer
    from raftmq.client.worker.failure_reports import HandlerFailure as HandlerFailure
    from raftmq.client.worker.handlers import Attempt as Attempt
    from raftmq.client.worker.signals import Reject as Reject
    from raftmq.client.worker.signals import Retry as Retry
    from raftmq.client.worker.worker import Worker as Worker
    from raftmq.errors import Outcome as Outcome
    from raftmq.errors import RaftMQError as RaftMQError
    from raftmq.types import QueueRecord as QueueRecord
    from raftmq.types import Record as Record
    from raftmq.types import RecordMetadata as RecordMetadata
    from raftmq.types import TopicPartition as TopicPartition

_HOMES = {
    "ScheduleDescription": "raftmq.client.admin.schedules",
    "BrowsedMessage": "raftmq.client.queue.views",
    "Message": "raftmq.client.queue.message",
    "NewMessage": "raftmq.client.queue.new_message",
    "PutResult": "raftmq.client.queue.put_batch",
    "Queue": "raftmq.client.queue.queue",
    "DwellTimes": "raftmq.client.queue.dwell_times",
    "QueueJob": "raftmq.client.queue.job_view",
    "QueueStats": "raftmq.client.queue.views",
    "MessageCounts": "raftmq.client.queue.views",
    "Admin": "raftmq.client.admin.admin",
    "AppendedSpan": "raftmq.client.producer.batch",
    "Attempt": "raftmq.client.worker.handlers",
    "BrokerRemoval": "raftmq.client.admin.descriptions",
    "BulkDelivery": "raftmq.client.producer.batch",
    "ConfigValue": "raftmq.client.admin.configuration",
    "RuntimeSetting": "raftmq.client.admin.configuration",
    "ClusterDescription": "raftmq.client.admin.descriptions",
    "ClusterHealth": "raftmq.client.admin.cluster_health",
    "Consumer": "raftmq.client.consumer.consumer",
    "ConsumerMetrics": "raftmq.client.base.metrics",
    "Delivery": "raftmq.client.producer.batch",
    "FailedRecords": "raftmq.client.producer.batch",
    "GroupDescription": "raftmq.client.admin.group_admin",
    "GroupListing": "raftmq.client.admin.group_admin",
    "GroupMemberDescription": "raftmq.client.admin.group_admin",
    "GroupOffset": "raftmq.client.admin.group_admin",
    "HandlerFailure": "raftmq.client.worker.failure_reports",
    "NewTopic": "raftmq.client.admin.descriptions",
    "BrokerDescription": "raftmq.client.admin.descriptions",
    "BrokerHealth": "raftmq.client.admin.cluster_health",
    "BalancingSettings": "raftmq.client.admin.move_descriptions",
    "GivenUpMove": "raftmq.client.admin.move_descriptions",
    "BrokerDrain": "raftmq.client.admin.move_descriptions",
    "LeaderTransfer": "raftmq.client.admin.move_descriptions",
    "LostPartition": "raftmq.client.admin.recovery",
    "LostPartitions": "raftmq.client.admin.recovery",
    "PartitionRecovery": "raftmq.client.admin.recovery",
    "ReplicaKnowledge": "raftmq.client.admin.recovery",
    "MovesDescription": "raftmq.client.admin.move_descriptions",
    "ForgottenNames": "raftmq.client.admin.producer_names",
    "ProducerNameDescription": "raftmq.client.admin.producer_names",
    "PartitionMove": "raftmq.client.admin.move_descriptions",
    "RebalancePlan": "raftmq.client.admin.move_descriptions",
    "ReplicationChange": "raftmq.client.admin.move_descriptions",
    "StuckReplica": "raftmq.client.admin.move_descriptions",
    "OffsetAndTimestamp": "raftmq.client.connection.time_search",
    "OffsetChange": "raftmq.client.admin.group_admin",
    "Outcome": "raftmq.errors",
    "Output": "raftmq.client.transformer.output",
    "PartitionDescription": "raftmq.client.admin.descriptions",
    "PartitionNames": "raftmq.client.admin.cluster_health",
    "PartitionState": "raftmq.client.admin.cluster_health",
    "Partitioner": "raftmq.client.producer.partitioner",
    "Producer": "raftmq.client.producer.producer",
    "ProducerMetrics": "raftmq.client.base.metrics",
    "RaftMQError": "raftmq.errors",
    "RebalanceListener": "raftmq.client.consumer.rebalance_listener",
    "QueueRecord": "raftmq.types",
    "Record": "raftmq.types",
    "RecordMetadata": "raftmq.types",
    "Reject": "raftmq.client.worker.signals",
    "Retry": "raftmq.client.worker.signals",
    "TopicDescription": "raftmq.client.admin.descriptions",
    "TopicPartition": "raftmq.types",
    "Transformer": "raftmq.client.transformer.transformer",
    "Worker": "raftmq.client.worker.worker",
    "WorkerMetrics": "raftmq.client.base.metrics",
}
_MODULES = ("errors", "serializers", "sync", "testing", "types")

__all__ = [
    "Admin",
    "AppendedSpan",
    "Attempt",
    "BalancingSettings",
    "BrokerDescription",
    "BrokerDrain",
    "BrokerHealth",
    "BrokerRemoval",
    "BrowsedMessage",
    "BulkDelivery",
    "ClusterDescription",
    "ClusterHealth",
    "Consumer",
    "ConsumerMetrics",
    "Delivery",
    "DwellTimes",
    "FailedRecords",
    "ForgottenNames",
    "GivenUpMove",
    "GroupDescription",
    "GroupListing",
    "GroupMemberDescription",
    "GroupOffset",
    "HandlerFailure",
    "LeaderTransfer",
    "LostPartition",
    "LostPartitions",
    "Message",
    "MessageCounts",
    "MovesDescription",
    "NewMessage",
    "NewTopic",
    "OffsetAndTimestamp",
    "OffsetChange",
    "Outcome",
    "Output",
    "PartitionDescription",
    "PartitionMove",
    "PartitionNames",
    "PartitionRecovery",
    "PartitionState",
    "Partitioner",
    "Producer",
    "ProducerMetrics",
    "ProducerNameDescription",
    "PutResult",
    "Queue",
    "QueueJob",
    "QueueRecord",
    "QueueStats",
    "RaftMQError",
    "RebalanceListener",
    "RebalancePlan",
    "Record",
    "RecordMetadata",
    "Reject",
    "ReplicaKnowledge",
    "ReplicationChange",
    "Retry",
    "ScheduleDescription",
    "StuckReplica",
    "TopicDescription",
    "TopicPartition",
    "Transformer",
    "Worker",
    "WorkerMetrics",
    "errors",
    "serializers",
    "sync",
]


def __getattr__(name: str) -> object:
    if name in _HOMES:
        found: object = getattr(import_module(_HOMES[name]), name)
    elif name in _MODULES:
        found = import_module(f"raftmq.{name}")
    else:
        raise AttributeError(f"module 'raftmq' has no attribute {name!r}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES, *_MODULES})
