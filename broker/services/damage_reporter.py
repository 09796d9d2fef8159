"""Send a node's reports about replicas to the nodes that act on them."""

from __future__ import annotations

from typing import Final

from raftmq.broker.base.peer_methods import REPORT_DAMAGE, REPORT_REPLICAS
from raftmq.broker.services.call import Call
from raftmq.broker.services.forwarder import Forwarder
from raftmq.broker.services.host import ServiceHost
from raftmq.broker.services.nodes import NodesService
from raftmq.proto import peer_pb2 as peer_pb
from raftmq.types import METADATA_GROUP_ID, NodeId

_TIMEOUT_SECONDS: Final = 10.0


class DamageReporter:
    """Implements `Reporter`: it asks the leaders, or records a report here if this node leads the metadata group."""

    def __init__(self, host: ServiceHost, forwarder: Forwarder, nodes: NodesService) -> None:
        self._host = host
        self._forwarder = forwarder
        self._nodes = nodes

    async def report_damage(self, leader: NodeId, request: peer_pb.ReportDamageRequest) -> None:
        """Send the report. See `Reporter`."""
        await self._forwarder.forward(leader, REPORT_DAMAGE, request, self._own_call())

    async def report_replicas(self, request: peer_pb.ReportReplicasRequest) -> None:
        """Send or record the report. See `Reporter`."""
        call = self._own_call()
        if self._host.metadata.is_leader:
            await self._nodes.record_replicas(request, call.deadline)
            return
        leader = self._host.leadership.get(METADATA_GROUP_ID).node_id
        await self._forwarder.forward(leader, REPORT_REPLICAS, request, call)

    def _own_call(self) -> Call:
        return Call(self._host.loop.time() + _TIMEOUT_SECONDS)
