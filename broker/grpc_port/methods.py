"""List the protocol's methods: a row states the right for a method, the broker that answers, the resources, and the service.

Facts that `queue.proto` states are not repeated here: `raftmq.methods` derives them. The handlers, the rights and the admission of
calls come from this table, and the table of docs/internals/protocol.md is compared with it. A method without a row is not served.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from raftmq import methods
from raftmq.broker.base.limits import Limits
from raftmq.broker.consumer_groups.service import GroupsService
from raftmq.broker.grpc_port.admission import Slots
from raftmq.broker.services.admin import AdminService
from raftmq.broker.services.balancing import BalancingService
from raftmq.broker.services.call import Call, Right
from raftmq.broker.services.committed_offsets import OffsetsService
from raftmq.broker.services.configuration import ConfigurationService
from raftmq.broker.services.data_tokens import DataTokens
from raftmq.broker.services.feature_level import FeatureLevelService
from raftmq.broker.services.formation import FormationService
from raftmq.broker.services.health import HealthService
from raftmq.broker.services.log import LogService
from raftmq.broker.services.node_removal import NodeRemovalService
from raftmq.broker.services.nodes import NodesService
from raftmq.broker.services.partition_recovery import PartitionRecoveryService
from raftmq.broker.services.producer_ids import ProducerIds
from raftmq.broker.services.queue.admin import QueueAdminService
from raftmq.broker.services.queue.browse import QueueBrowseService, browse_bytes_max
from raftmq.broker.services.queue.schedules import QueueScheduleService
from raftmq.broker.services.queue.service import QueueService
from raftmq.broker.services.replica_placement import ReplicaPlacementService
from raftmq.broker.services.topology import TopologyService
from raftmq.methods import Method, RequestT, ResponseStreamMethod, ResponseT, StreamMethod, UnaryMethod
from raftmq.proto import queue_pb2 as pb


class AnsweredBy(Enum):
    """The broker that answers a method."""

    ANY_BROKER = "any broker"
    """The broker that receives the call answers it from its own knowledge."""
    METADATA_LEADER = "the metadata leader"
    """Other brokers forward the call to it, by one hop."""
    PARTITION_LEADER_FORWARDED = "the partition's leader"
    """Other brokers forward the call to it, by one hop."""
    NAMED_BROKER = "the named broker"
    """Other brokers forward the call to it, by one hop."""
    PARTITION_LEADER = "the leader of the partitions"
    """Other brokers refuse the call: the caller knows the leaders."""


@dataclass(frozen=True, slots=True)
class Services:
    """The services of one broker."""

    log: LogService
    offsets: OffsetsService
    topology: TopologyService
    admin: AdminService
    nodes: NodesService
    formation: FormationService
    removal: NodeRemovalService
    feature_level: FeatureLevelService
    balancing: BalancingService
    placement: ReplicaPlacementService
    recovery: PartitionRecoveryService
    groups: GroupsService
    health: HealthService
    data_tokens: DataTokens
    producer_ids: ProducerIds
    configuration: ConfigurationService
    queue: QueueService
    queue_browse: QueueBrowseService
    queue_admin: QueueAdminService
    queue_schedules: QueueScheduleService


@dataclass(frozen=True, slots=True)
class Row:
    """Describes how the broker serves one method. Satisfies `CallBounds`."""

    method: Method[Any, Any]  # each method has its own message types
    right: Right
    """The right that a caller needs."""
    answered_by: AnsweredBy
    service: Callable[[Services], Callable[[Any, Call], Any]]  # typed by the functions below
    """Returns the service's method."""
    slots: Slots
    """The kind of slots of which a call takes one."""
    answer_bytes_max: Callable[[Any, Limits], int] | None
    """Returns an upper bound of the answer to a request. None: answers are small."""
    is_each_request_answered: bool = True
    """Whether a stream answers each request. Its service bounds them otherwise."""


def _unary(
    method: UnaryMethod[RequestT, ResponseT],
    right: Right,
    answered_by: AnsweredBy,
    service: Callable[[Services], Callable[[RequestT, Call], Awaitable[ResponseT]]],
    slots: Slots = Slots.UNARY_CALLS,
    answer_bytes_max: Callable[[RequestT, Limits], int] | None = None,
) -> Row:
    return Row(method, right, answered_by, service, slots, answer_bytes_max)


def _response_stream(
    method: ResponseStreamMethod[RequestT, ResponseT],
    right: Right,
    answered_by: AnsweredBy,
    service: Callable[[Services], Callable[[RequestT, Call], AsyncGenerator[ResponseT, None]]],
    slots: Slots,
) -> Row:
    return Row(method, right, answered_by, service, slots, None)


def _stream(
    method: StreamMethod[RequestT, ResponseT],
    right: Right,
    answered_by: AnsweredBy,
    service: Callable[[Services], Callable[[AsyncIterator[RequestT], Call], AsyncGenerator[ResponseT, None]]],
    slots: Slots,
    *,
    is_each_request_answered: bool = True,
) -> Row:
    return Row(method, right, answered_by, service, slots, None, is_each_request_answered)


def _poll_bytes_max(request: pb.PollRequest, limits: Limits) -> int:
    return min(request.max_bytes or limits.poll_bytes_max, limits.poll_bytes_max)


def _queue_poll_bytes_max(request: pb.QueuePollRequest, limits: Limits) -> int:
    return limits.poll_bytes_max  # a message that is larger than the request allows fits alone


_PRODUCE, _CONSUME, _ADMIN, _DESCRIBE = Right.PRODUCE, Right.CONSUME, Right.ADMIN, Right.DESCRIBE
_ANY, _METADATA, _PARTITION = AnsweredBy.ANY_BROKER, AnsweredBy.METADATA_LEADER, AnsweredBy.PARTITION_LEADER

ROWS: Final[tuple[Row, ...]] = (
    _unary(methods.INIT_PRODUCER, _PRODUCE, _METADATA, lambda of: of.log.init_producer),
    _unary(methods.FENCE_PRODUCER, _PRODUCE, _ANY, lambda of: of.log.fence_producer),
    _unary(methods.APPEND, _PRODUCE, _PARTITION, lambda of: of.log.append),
    _stream(methods.APPEND_STREAM, _PRODUCE, _PARTITION, lambda of: of.log.append_stream, Slots.APPEND_STREAMS),
    _unary(methods.POLL, _CONSUME, _PARTITION, lambda of: of.log.poll, Slots.POLLS, _poll_bytes_max),
    _unary(methods.OPEN_DATA_CONNECTION, _DESCRIBE, _ANY, lambda of: of.data_tokens.open_data_connection),
    _unary(methods.LIST_OFFSETS, _CONSUME, _PARTITION, lambda of: of.log.list_offsets),
    _unary(methods.DELETE_RECORDS, _ADMIN, _PARTITION, lambda of: of.log.delete_records),
    _unary(methods.OPEN_PARTITIONS, _CONSUME, _PARTITION, lambda of: of.offsets.open_partitions),
    _unary(methods.COMMIT_OFFSETS, _CONSUME, _PARTITION, lambda of: of.offsets.commit_offsets),
    _unary(methods.FETCH_OFFSETS, _CONSUME, _PARTITION, lambda of: of.offsets.fetch_offsets),
    _unary(methods.HEARTBEAT, _CONSUME, _METADATA, lambda of: of.groups.heartbeat),
    _unary(methods.LEAVE, _CONSUME, _METADATA, lambda of: of.groups.leave),
    _unary(methods.LIST_GROUPS, _DESCRIBE, _METADATA, lambda of: of.groups.list_groups),
    _unary(methods.DESCRIBE_GROUP, _DESCRIBE, _METADATA, lambda of: of.groups.describe),
    _unary(methods.RESET_OFFSETS, _ADMIN, _METADATA, lambda of: of.groups.reset_offsets),
    _unary(methods.DELETE_GROUP, _ADMIN, _METADATA, lambda of: of.groups.delete),
    _unary(methods.QUEUE_POLL, _CONSUME, _PARTITION, lambda of: of.queue.poll, Slots.POLLS, _queue_poll_bytes_max),
    _stream(
        methods.POLL_STREAM,
        _CONSUME,
        _PARTITION,
        lambda of: of.queue.poll_stream,
        Slots.QUEUE_STREAMS,
        is_each_request_answered=False,  # credit is not
    ),
    _unary(methods.ACK, _CONSUME, _PARTITION, lambda of: of.queue.ack),
    _unary(methods.OPEN_SESSION, _CONSUME, _PARTITION, lambda of: of.queue.open_session),
    _response_stream(methods.WATCH, _DESCRIBE, _ANY, lambda of: of.topology.watch, Slots.WATCHES),
    _unary(methods.BROWSE, _CONSUME, _PARTITION, lambda of: of.queue_browse.browse, answer_bytes_max=browse_bytes_max),
    _unary(methods.QUEUE_STATS, _DESCRIBE, _PARTITION, lambda of: of.queue_browse.queue_stats),
    _unary(methods.CHANGE, _PRODUCE, _PARTITION, lambda of: of.queue_admin.change),
    _unary(methods.WAIT_FINISHED, _DESCRIBE, _PARTITION, lambda of: of.queue_admin.wait_finished, Slots.POLLS),
    _unary(methods.START_JOB, _ADMIN, _PARTITION, lambda of: of.queue_admin.start_job),
    _unary(methods.LIST_JOBS, _DESCRIBE, _PARTITION, lambda of: of.queue_admin.list_jobs),
    _unary(methods.CANCEL_JOB, _ADMIN, _PARTITION, lambda of: of.queue_admin.cancel_job),
    _unary(methods.PAUSE, _ADMIN, _PARTITION, lambda of: of.queue_admin.pause),
    _unary(methods.PUT_SCHEDULE, _ADMIN, _PARTITION, lambda of: of.queue_schedules.put_schedule),
    _unary(methods.CHANGE_SCHEDULE, _ADMIN, _PARTITION, lambda of: of.queue_schedules.change_schedule),
    _unary(methods.DELETE_SCHEDULE, _ADMIN, _PARTITION, lambda of: of.queue_schedules.delete_schedule),
    _unary(methods.LIST_SCHEDULES, _DESCRIBE, _PARTITION, lambda of: of.queue_schedules.list_schedules),
    _unary(methods.STEP_CLOCK, _ADMIN, _PARTITION, lambda of: of.queue_admin.step_clock),
    _unary(methods.CREATE_TOPIC, _ADMIN, _METADATA, lambda of: of.admin.create_topic),
    _unary(methods.DELETE_TOPIC, _ADMIN, _METADATA, lambda of: of.admin.delete_topic),
    _unary(methods.LIST_TOPICS, _DESCRIBE, _ANY, lambda of: of.admin.list_topics),
    _unary(methods.DESCRIBE_TOPIC, _DESCRIBE, _ANY, lambda of: of.admin.describe_topic),
    _unary(methods.ALTER_TOPIC, _ADMIN, _METADATA, lambda of: of.admin.alter_topic),
    _unary(methods.ADD_PARTITIONS, _ADMIN, _METADATA, lambda of: of.admin.add_partitions),
    _unary(methods.DESCRIBE_CLUSTER, _DESCRIBE, _ANY, lambda of: of.admin.describe_cluster),
    _unary(methods.FORM_CLUSTER, _ADMIN, _ANY, lambda of: of.formation.form_cluster),
    _unary(methods.REMOVE_BROKER, _ADMIN, _METADATA, lambda of: of.removal.remove_node),
    _unary(methods.RAISE_FEATURE_LEVEL, _ADMIN, _METADATA, lambda of: of.feature_level.raise_feature_level),
    _unary(methods.DRAIN_BROKER, _ADMIN, _METADATA, lambda of: of.balancing.drain_node),
    _unary(methods.REBALANCE, _ADMIN, _METADATA, lambda of: of.balancing.rebalance),
    _unary(methods.FORGET_PRODUCER_NAMES, _ADMIN, _METADATA, lambda of: of.producer_ids.forget_names),
    _unary(methods.SET_BALANCING, _ADMIN, _METADATA, lambda of: of.balancing.set_balancing),
    _unary(methods.DESCRIBE_MOVES, _DESCRIBE, _METADATA, lambda of: of.balancing.describe_moves),
    _unary(methods.MOVE_PARTITION, _ADMIN, _METADATA, lambda of: of.placement.move_partition),
    _unary(methods.SET_REPLICATION_FACTOR, _ADMIN, _METADATA, lambda of: of.placement.set_replication_factor),
    _unary(
        methods.TRANSFER_LEADER,
        _ADMIN,
        AnsweredBy.PARTITION_LEADER_FORWARDED,
        lambda of: of.placement.transfer_leader,
    ),
    _unary(methods.ALTER_CONFIG, _ADMIN, _METADATA, lambda of: of.configuration.alter_config),
    _unary(methods.LIST_CONFIG, _DESCRIBE, _METADATA, lambda of: of.configuration.list_config),
    _unary(methods.DESCRIBE_CONFIG, _DESCRIBE, AnsweredBy.NAMED_BROKER, lambda of: of.configuration.describe_config),
    _unary(methods.LIST_LOST_PARTITIONS, _DESCRIBE, _METADATA, lambda of: of.recovery.list_lost_partitions),
    _unary(methods.RECOVER_PARTITION, _ADMIN, _METADATA, lambda of: of.recovery.recover_partition),
)
