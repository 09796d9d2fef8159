"""The methods of `peer.proto`, which brokers ask each other for, beside the methods of the client protocol."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from google.protobuf.message import Message
from raftmq import methods
from raftmq.methods import RequestT, ResponseT, UnaryMethod, described
from raftmq.proto import peer_pb2 as peer_pb

PEER_METHODS: Final = tuple(
    UnaryMethod(one.service, one.name, one.request_type, one.response_type)
    for one in map(described, peer_pb.DESCRIPTOR.services_by_name["Peers"].methods)
)
"""Every method of `peer.proto`, in its order."""
_BY_REQUEST: Final[Mapping[type[Message], UnaryMethod[Any, Any]]] = {one.request_type: one for one in PEER_METHODS}


def unary_method(request_type: type[RequestT]) -> UnaryMethod[RequestT, Any]:
    """Return the unary method with this request type, of either protocol. No two methods have the same."""
    return _BY_REQUEST.get(request_type) or methods.unary_method(request_type)


def _unary(request_type: type[RequestT], response_type: type[ResponseT]) -> UnaryMethod[RequestT, ResponseT]:
    """Return the method for its types. Type checkers need the response type, which is compared with the descriptor."""
    method: UnaryMethod[RequestT, ResponseT] = _BY_REQUEST[request_type]
    if method.response_type is not response_type:
        raise TypeError(f"{method.path} returns {method.response_type.__name__}, not {response_type.__name__}")
    return method


REGISTER_BROKER: Final = _unary(peer_pb.RegisterBrokerRequest, peer_pb.RegisterBrokerResponse)
DESCRIBE_FORMATION: Final = _unary(peer_pb.DescribeFormationRequest, peer_pb.DescribeFormationResponse)
REPORT_DAMAGE: Final = _unary(peer_pb.ReportDamageRequest, peer_pb.ReportDamageResponse)
REPORT_REPLICAS: Final = _unary(peer_pb.ReportReplicasRequest, peer_pb.ReportReplicasResponse)
DESCRIBE_PARTITIONS: Final = _unary(peer_pb.DescribePartitionsRequest, peer_pb.DescribePartitionsResponse)
DESCRIBE_REPLICAS: Final = _unary(peer_pb.DescribeReplicasRequest, peer_pb.DescribeReplicasResponse)
DESCRIBE_BROKER: Final = _unary(peer_pb.DescribeBrokerRequest, peer_pb.DescribeBrokerResponse)
WRITE_OFFSETS: Final = _unary(peer_pb.WriteOffsetsRequest, peer_pb.WriteOffsetsResponse)
SUMMARIZE_OFFSETS: Final = _unary(peer_pb.SummarizeOffsetsRequest, peer_pb.SummarizeOffsetsResponse)
