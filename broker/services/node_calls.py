"""Call other nodes, such as the leaders of partitions, on behalf of one request."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from raftmq.broker.base.peer_methods import DESCRIBE_BROKER, unary_method
from raftmq.broker.base.request_error import RequestError
from raftmq.broker.services.call import Call
from raftmq.broker.services.forwarder import Forwarder
from raftmq.broker.services.host import ServiceHost
from raftmq.fsm.consumer_groups import PartitionId
from raftmq.methods import RequestT, ResponseT, UnaryMethod
from raftmq.proto import peer_pb2 as peer_pb
from raftmq.proto import queue_pb2 as pb
from raftmq.types import NO_NODE, GroupId, NodeId

PartT = TypeVar("PartT", pb.CommittedOffset, pb.PartitionResetResult, pb.PartitionState)


class NodeCalls:
    """Calls the services of all nodes, this one included."""

    def __init__(self, host: ServiceHost, forwarder: Forwarder) -> None:
        self._host = host
        self._forwarder = forwarder

    def by_leader(
        self, parts: Iterable[PartitionId]
    ) -> tuple[dict[NodeId, list[PartitionId]], list[tuple[PartitionId, RequestError]]]:
        """Return the partitions by leading node, and an error for each that has no leader or does not exist."""
        machine = self._host.metadata.state_machine
        by_node: dict[NodeId, list[PartitionId]] = {}
        others: list[tuple[PartitionId, RequestError]] = []
        for part in parts:
            topic = machine.topic(part[0])
            if topic is None or part[1] >= len(topic.group_ids):
                code = pb.UNKNOWN_TOPIC if topic is None else pb.UNKNOWN_PARTITION
                others.append((part, RequestError(code, f"there is no partition {part[1]} of topic {part[0]}")))
                continue
            node_id = self._host.leadership.get(GroupId(topic.group_ids[part[1]])).node_id
            if node_id == NO_NODE:
                message = f"partition {part[1]} of topic {topic.name} has no leader at the moment"
                others.append((part, RequestError(pb.NO_LEADER, message, retry_after_ms=200)))
            else:
                by_node.setdefault(node_id, []).append(part)
        return by_node, others

    async def ask(
        self,
        node_id: NodeId,
        request: RequestT,
        here: Callable[[RequestT, Call], Awaitable[ResponseT]],
        call: Call,
    ) -> ResponseT:
        """Ask a node by the method of the protocol that takes such a request, and return its answer.

        Args:
            node_id: The node, which may be this one.
            request: The request.
            here: The service's method that answers for this node.
            call: The call on behalf of which the node is asked.

        Raises:
            RequestError: The node's error, or one for a failed hop.
        """
        if node_id == self._host.node_id:
            return await here(request, call)
        method: UnaryMethod[RequestT, ResponseT] = unary_method(type(request))
        return await self._forwarder.forward(node_id, method, request, call)

    async def describe_node(self, node_id: NodeId) -> peer_pb.DescribeBrokerResponse:
        """Return a node's description of itself, as far as its readiness needs it. Raises RequestError."""
        if node_id == self._host.node_id:  # a node has no connection to itself
            reasons = [f"{one.reason}: {one.message}" for one in self._host.standing.not_ready_reasons()]
            return peer_pb.DescribeBrokerResponse(health=pb.BrokerHealth(not_ready=reasons))
        call = Call(self._host.loop.time() + self._host.timing.describe_seconds)
        return await self._forwarder.forward(node_id, DESCRIBE_BROKER, peer_pb.DescribeBrokerRequest(), call)


def failed_part(result: PartT, part: PartitionId, error: RequestError) -> PartT:
    """Return the result for a partition whose leader gave none."""
    result.topic_id, result.partition = part
    result.error.CopyFrom(error.detail)
    return result
