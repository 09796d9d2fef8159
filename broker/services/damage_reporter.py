"""Send a node's reports about replicas to the nodes that act on them."""

from __future__ import annotations

import asyncio
from typing import Final

from raftmq.broker.services.call import Call
from raftmq.broker.services.forwarder import Forwarder
from raftmq.broker.services.nodes import NodesService
from raftmq.methods import REPORT_DAMAGE
from raftmq.proto import queue_pb2 as pb

_TIMEOUT_SECONDS: Final = 10.0


class DamageReporter:
    """Implements `Reporter`: it calls a group's leader directly, and the metadata leader through this node's own service."""

    def __init__(self, loop: asyncio.AbstractEventLoop, forwarder: Forwarder, nodes: NodesService) -> None:
        self._loop = loop
        self._forwarder = forwarder
        self._nodes = nodes

    async def report_damage(self, address: str, request: pb.ReportDamageRequest) -> None:
        """Send the report. See `Reporter`."""
        await self._forwarder.forward(address, REPORT_DAMAGE, request, _TIMEOUT_SECONDS)

    async def report_replicas(self, request: pb.ReportReplicasRequest) -> None:
        """Send the report. See `Reporter`."""
        await self._nodes.report_replicas(request, Call(self._loop.time() + _TIMEOUT_SECONDS))
