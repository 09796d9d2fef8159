"""Answer the requests of other brokers with this broker's services.

This module decides nothing about data. An unexpected exception becomes INTERNAL for the caller and a log event, as on the client port.
"""

from __future__ import annotations

from raftmq.broker.base.request_error import RequestError, parsed
from raftmq.broker.grpc_port.handlers import observed
from raftmq.broker.grpc_port.methods import Services
from raftmq.broker.grpc_port.security import refusal_of
from raftmq.broker.peer_port.methods import PEER_ROWS
from raftmq.broker.peers.request_frames import RequestFrame
from raftmq.broker.peers.requests import UnknownMethodError
from raftmq.broker.services.call import CALL_SECONDS_MAX, Call, principal_of_peers
from raftmq.broker.services.host import ServiceHost
from raftmq.broker.services.request_metrics import RequestMetrics
from raftmq.proto import queue_pb2 as pb
from raftmq.types import NO_NODE, NodeId


class PeerAnswers:
    """Implements `Answerer` for one broker."""

    def __init__(self, host: ServiceHost, services: Services, metrics: RequestMetrics) -> None:
        self._host = host
        self._services = services
        self._metrics = metrics

    async def answer(self, asker: NodeId, request: RequestFrame, deadline: float) -> bytes:
        """See `Answerer`."""
        row = PEER_ROWS.get(request.method)
        if row is None:
            raise UnknownMethodError
        if asker == NO_NODE and not row.is_for_visitors:
            raise RequestError(pb.PERMISSION_DENIED, f"a broker that is no member may not ask for {request.method}")
        if asker != NO_NODE and self._is_removed(asker):
            # not BROKER_REMOVED: a broker that registers through the removed one would take it for its own removal
            raise RequestError(pb.NOT_READY, f"broker {asker} was removed from the cluster")
        principal = principal_of_peers(request.principal)
        refusal = refusal_of(principal, row.right) if row.right is not None else None
        if refusal is not None:
            raise refusal
        message = parsed(row.method.request_type.FromString, request.body)
        latest = self._host.loop.time() + CALL_SECONDS_MAX
        call = Call(min(deadline, latest), principal, is_forwarded=asker != NO_NODE)
        service = row.service(self._services)
        response = await observed(self._metrics, row.method.name, lambda: service(message, call))
        return bytes(response.SerializeToString(deterministic=True))

    def _is_removed(self, asker: NodeId) -> bool:
        """Return whether a broker was removed. Its connection may be older than its removal."""
        try:
            node = self._host.metadata.state_machine.node(asker)
        except RequestError:
            return False  # this node has no metadata yet
        return node is not None and node.state == "removed"
