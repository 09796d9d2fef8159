"""Answer the calls about forming a cluster: the order of an operator, and the question of another broker that has such an order."""

from __future__ import annotations

import asyncio

from raftmq.broker.base.request_error import RequestError
from raftmq.broker.services.call import Call
from raftmq.broker.services.host import ServiceHost
from raftmq.proto import peer_pb2 as peer_pb
from raftmq.proto import queue_pb2 as pb


class FormationService:
    """Answers `FormCluster` and `DescribeFormation`. Both work on a broker that belongs to no cluster."""

    def __init__(self, host: ServiceHost) -> None:
        self._host = host

    async def form_cluster(self, request: pb.FormClusterRequest, call: Call) -> pb.FormClusterResponse:
        """Form a cluster, and return its id when this broker is its first member.

        Raises:
            RequestError: A refusal of `Formation.order`. REQUEST_TIMED_OUT if the deadline passes while the cluster is being formed.
        """
        try:
            async with asyncio.timeout_at(call.deadline):
                cluster_id = await self._host.formation.order()
        except TimeoutError:
            error = RequestError(pb.REQUEST_TIMED_OUT, "the cluster was not formed in time: it may still be")
            error.detail.outcome = pb.UNKNOWN_OUTCOME
            raise error from None
        return pb.FormClusterResponse(cluster_id=cluster_id)

    async def describe_formation(
        self, request: peer_pb.DescribeFormationRequest, call: Call
    ) -> peer_pb.DescribeFormationResponse:
        """Return whether another cluster exists or may come to exist, as far as this broker knows."""
        return self._host.formation.describe()
