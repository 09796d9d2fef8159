"""Ask brokers whether they are ready before they are given replicas or leaderships. Answers are remembered for a moment."""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from raftmq.broker.base.readiness import Reason
from raftmq.broker.base.request_error import RequestError
from raftmq.proto import peer_pb2 as peer_pb
from raftmq.types import NodeId

_REMEMBERED_SECONDS: Final = 5.0


class NodeAsker(Protocol):
    """Calls other nodes."""

    async def describe_node(self, node_id: NodeId) -> peer_pb.DescribeBrokerResponse:
        """Return a node's description of itself. Raises RequestError."""
        ...


class PeerReadiness:
    """The readiness of other nodes by their own account: a full disk, a wrong clock, replicas that do not serve yet."""

    def __init__(self, loop: asyncio.AbstractEventLoop, asker: NodeAsker) -> None:
        self._loop = loop
        self._asker = asker
        self._known: dict[NodeId, tuple[float, bool]] = {}
        """Node → the loop time of its answer, and whether it is ready."""

    async def is_ready(self, node_id: NodeId) -> bool:
        """Return whether the node says that it is ready. One that does not answer is not."""
        now = self._loop.time()
        known = self._known.get(node_id)
        if known is not None and now - known[0] < _REMEMBERED_SECONDS:
            return known[1]
        try:
            answer = await self._asker.describe_node(node_id)
        except RequestError:
            is_ready = False
        else:
            is_ready = all(_is_passing(reason) for reason in answer.health.not_ready)
        self._known = {one: (at, said) for one, (at, said) in self._known.items() if now - at < _REMEMBERED_SECONDS}
        self._known[node_id] = (now, is_ready)
        return is_ready


def _is_passing(reason: str) -> bool:
    """Return whether a reason passes by itself within a moment."""
    return reason.startswith(f"{Reason.LOOP_STALLED}:")
