"""The methods of the protocol, for clients and brokers.

All properties of a method in `queue.proto` (path, messages, streams) are derived from its descriptor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from raftmq.proto import queue_pb2 as pb

RequestT = TypeVar("RequestT", bound=Message)
ResponseT = TypeVar("ResponseT", bound=Message)


@dataclass(frozen=True, slots=True)
class Method(Generic[RequestT, ResponseT]):
    """A method of the protocol."""

    service: str
    """Full name of the service, such as ``raftmq.v1.Log``."""
    name: str
    request_type: type[RequestT]
    response_type: type[ResponseT]

    @property
    def path(self) -> str:
        """Return gRPC's name of the method, such as ``/raftmq.v1.Log/Append``."""
        return f"/{self.service}/{self.name}"


class UnaryMethod(Method[RequestT, ResponseT]):
    """A method with one request and one response."""

    __slots__ = ()


class ResponseStreamMethod(Method[RequestT, ResponseT]):
    """A method that answers one request with a stream of responses."""

    __slots__ = ()


class StreamMethod(Method[RequestT, ResponseT]):
    """A method with a stream in both directions."""

    __slots__ = ()


def described(descriptor: MethodDescriptor) -> Method[Any, Any]:
    """Return the method of a descriptor."""
    kinds: dict[tuple[bool, bool], type[Method[Any, Any]]] = {
        (False, False): UnaryMethod,
        (False, True): ResponseStreamMethod,
        (True, True): StreamMethod,
    }
    return kinds[descriptor.client_streaming, descriptor.server_streaming](
        descriptor.containing_service.full_name,
        descriptor.name,
        GetMessageClass(descriptor.input_type),
        GetMessageClass(descriptor.output_type),
    )


METHODS: Final[tuple[Method[Any, Any], ...]] = tuple(  # Any: each method has its own message types
    described(method) for service in pb.DESCRIPTOR.services_by_name.values() for method in service.methods
)
"""Every method of the protocol, in the order of `queue.proto`."""
_UNARY: Final[Mapping[type[Message], UnaryMethod[Any, Any]]] = {
    method.request_type: method for method in METHODS if isinstance(method, UnaryMethod)
}


def unary_method(request_type: type[RequestT]) -> UnaryMethod[RequestT, Any]:
    """Return the unary method with this request type. No two methods have the same."""
    return _UNARY[request_type]


def _unary(request_type: type[RequestT], response_type: type[ResponseT]) -> UnaryMethod[RequestT, ResponseT]:
    """Return the method for its types. Type checkers need the response type, which is compared with the descriptor."""
    method: UnaryMethod[RequestT, ResponseT] = unary_method(request_type)
    if method.response_type is not response_type:
        raise TypeError(f"{method.path} returns {method.response_type.__name__}, not {response_type.__name__}")
    return method


INIT_PRODUCER: Final = _unary(pb.InitProducerRequest, pb.InitProducerResponse)
FENCE_PRODUCER: Final = _unary(pb.FenceProducerRequest, pb.FenceProducerResponse)
APPEND: Final = _unary(pb.AppendRequest, pb.AppendResponse)
APPEND_STREAM: Final[StreamMethod[pb.AppendRequest, pb.AppendResponse]] = next(
    method for method in METHODS if isinstance(method, StreamMethod) and method.request_type is pb.AppendRequest
)
POLL: Final = _unary(pb.PollRequest, pb.PollResponse)
OPEN_DATA_CONNECTION: Final = _unary(pb.OpenDataConnectionRequest, pb.OpenDataConnectionResponse)
LIST_OFFSETS: Final = _unary(pb.ListOffsetsRequest, pb.ListOffsetsResponse)
DELETE_RECORDS: Final = _unary(pb.DeleteRecordsRequest, pb.DeleteRecordsResponse)
OPEN_PARTITIONS: Final = _unary(pb.OpenPartitionsRequest, pb.OpenPartitionsResponse)
COMMIT_OFFSETS: Final = _unary(pb.CommitOffsetsRequest, pb.CommitOffsetsResponse)
FETCH_OFFSETS: Final = _unary(pb.FetchOffsetsRequest, pb.FetchOffsetsResponse)

QUEUE_POLL: Final = _unary(pb.QueuePollRequest, pb.QueuePollResponse)
POLL_STREAM: Final[StreamMethod[pb.QueueStreamRequest, pb.QueueStreamResponse]] = next(
    method for method in METHODS if isinstance(method, StreamMethod) and method.request_type is pb.QueueStreamRequest
)
ACK: Final = _unary(pb.AckRequest, pb.AckResponse)
OPEN_SESSION: Final = _unary(pb.OpenSessionRequest, pb.OpenSessionResponse)
BROWSE: Final = _unary(pb.BrowseRequest, pb.BrowseResponse)
QUEUE_STATS: Final = _unary(pb.QueueStatsRequest, pb.QueueStatsResponse)
CHANGE: Final = _unary(pb.ChangeRequest, pb.ChangeResponse)
WAIT_FINISHED: Final = _unary(pb.WaitFinishedRequest, pb.WaitFinishedResponse)
START_JOB: Final = _unary(pb.StartJobRequest, pb.StartJobResponse)
LIST_JOBS: Final = _unary(pb.ListJobsRequest, pb.ListJobsResponse)
CANCEL_JOB: Final = _unary(pb.CancelJobRequest, pb.CancelJobResponse)
PAUSE: Final = _unary(pb.PauseRequest, pb.PauseResponse)
PUT_SCHEDULE: Final = _unary(pb.PutScheduleRequest, pb.PutScheduleResponse)
CHANGE_SCHEDULE: Final = _unary(pb.ChangeScheduleRequest, pb.ChangeScheduleResponse)
DELETE_SCHEDULE: Final = _unary(pb.DeleteScheduleRequest, pb.DeleteScheduleResponse)
LIST_SCHEDULES: Final = _unary(pb.ListSchedulesRequest, pb.ListSchedulesResponse)
STEP_CLOCK: Final = _unary(pb.StepClockRequest, pb.StepClockResponse)

HEARTBEAT: Final = _unary(pb.HeartbeatRequest, pb.HeartbeatResponse)
LEAVE: Final = _unary(pb.LeaveRequest, pb.LeaveResponse)
LIST_GROUPS: Final = _unary(pb.ListGroupsRequest, pb.ListGroupsResponse)
DESCRIBE_GROUP: Final = _unary(pb.DescribeGroupRequest, pb.DescribeGroupResponse)
RESET_OFFSETS: Final = _unary(pb.ResetOffsetsRequest, pb.ResetOffsetsResponse)
DELETE_GROUP: Final = _unary(pb.DeleteGroupRequest, pb.DeleteGroupResponse)

WATCH: Final[ResponseStreamMethod[pb.WatchRequest, pb.TopologyUpdate]] = next(
    method for method in METHODS if isinstance(method, ResponseStreamMethod) and method.request_type is pb.WatchRequest
)

CREATE_TOPIC: Final = _unary(pb.CreateTopicRequest, pb.CreateTopicResponse)
DELETE_TOPIC: Final = _unary(pb.DeleteTopicRequest, pb.DeleteTopicResponse)
LIST_TOPICS: Final = _unary(pb.ListTopicsRequest, pb.ListTopicsResponse)
DESCRIBE_TOPIC: Final = _unary(pb.DescribeTopicRequest, pb.DescribeTopicResponse)
ALTER_TOPIC: Final = _unary(pb.AlterTopicRequest, pb.AlterTopicResponse)
ADD_PARTITIONS: Final = _unary(pb.AddPartitionsRequest, pb.AddPartitionsResponse)
DESCRIBE_CLUSTER: Final = _unary(pb.DescribeClusterRequest, pb.DescribeClusterResponse)
FORM_CLUSTER: Final = _unary(pb.FormClusterRequest, pb.FormClusterResponse)
REMOVE_BROKER: Final = _unary(pb.RemoveBrokerRequest, pb.RemoveBrokerResponse)
RAISE_FEATURE_LEVEL: Final = _unary(pb.RaiseFeatureLevelRequest, pb.RaiseFeatureLevelResponse)
DRAIN_BROKER: Final = _unary(pb.DrainBrokerRequest, pb.DrainBrokerResponse)
REBALANCE: Final = _unary(pb.RebalanceRequest, pb.RebalanceResponse)
MOVE_PARTITION: Final = _unary(pb.MovePartitionRequest, pb.MovePartitionResponse)
TRANSFER_LEADER: Final = _unary(pb.TransferLeaderRequest, pb.TransferLeaderResponse)
SET_REPLICATION_FACTOR: Final = _unary(pb.SetReplicationFactorRequest, pb.SetReplicationFactorResponse)
DESCRIBE_MOVES: Final = _unary(pb.DescribeMovesRequest, pb.DescribeMovesResponse)
FORGET_PRODUCER_NAMES: Final = _unary(pb.ForgetProducerNamesRequest, pb.ForgetProducerNamesResponse)
SET_BALANCING: Final = _unary(pb.SetBalancingRequest, pb.SetBalancingResponse)
ALTER_CONFIG: Final = _unary(pb.AlterConfigRequest, pb.AlterConfigResponse)
LIST_CONFIG: Final = _unary(pb.ListConfigRequest, pb.ListConfigResponse)
DESCRIBE_CONFIG: Final = _unary(pb.DescribeConfigRequest, pb.DescribeConfigResponse)
LIST_LOST_PARTITIONS: Final = _unary(pb.ListLostPartitionsRequest, pb.ListLostPartitionsResponse)
RECOVER_PARTITION: Final = _unary(pb.RecoverPartitionRequest, pb.RecoverPartitionResponse)
