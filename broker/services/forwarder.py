"""Make a call of the protocol at another node, by one hop over its peer port."""

from __future__ import annotations

from typing import Protocol

from google.protobuf.message import DecodeError
from raftmq.broker.base.request_error import RequestError
from raftmq.broker.services.call import Call
from raftmq.methods import RequestT, ResponseT, UnaryMethod
from raftmq.proto import queue_pb2 as pb
from raftmq.types import NodeId


class Forwarder(Protocol):
    """Calls the same service of another node."""

    async def forward(
        self, node_id: NodeId, method: UnaryMethod[RequestT, ResponseT], request: RequestT, call: Call
    ) -> ResponseT:
        """Make a call there, for the same caller and with its remaining time. The other node does not forward it again.

        Raises:
            RequestError: The other node's error, or one for a failed hop as of `Transport.ask`.
        """
        ...


class RequestTransport(Protocol):
    """The connections to peers as the forwarder sees them."""

    async def ask(self, node_id: NodeId, method: str, principal: str, body: bytes, deadline: float) -> bytes:
        """See `Transport.ask`."""
        ...


class PeerForwarder:
    """Calls over the request channel of the peer protocol."""

    def __init__(self, transport: RequestTransport) -> None:
        self._transport = transport

    async def forward(
        self, node_id: NodeId, method: UnaryMethod[RequestT, ResponseT], request: RequestT, call: Call
    ) -> ResponseT:
        """See `Forwarder`."""
        body = request.SerializeToString(deterministic=True)  # a simulation must have one trace
        answer = await self._transport.ask(node_id, method.path, call.principal.name_for_peers, body, call.deadline)
        try:
            return method.response_type.FromString(answer)
        except DecodeError as error:
            wrong = RequestError(pb.INTERNAL, f"broker {node_id} answered {method.name} with another message: {error}")
            wrong.detail.outcome = pb.UNKNOWN_OUTCOME
            raise wrong from error
