"""Raise the cluster's feature level, on an operator's order after an upgrade of all brokers.

The level never falls: from then on, programs that do not know it cannot take part in the cluster.
"""

from __future__ import annotations

import structlog
from raftmq.broker.base.request_error import RequestError
from raftmq.broker.replica.commands import refused
from raftmq.broker.services.call import Call
from raftmq.broker.services.host import ServiceHost
from raftmq.broker.services.metadata_leader import MetadataLeader, on_metadata_leader
from raftmq.fsm.metadata import Metadata
from raftmq.fsm.metadata_commands import Done, RaiseFeatureLevel
from raftmq.fsm.metadata_nodes import feature_level_refusal
from raftmq.proto import queue_pb2 as pb

log = structlog.get_logger(__name__)


class FeatureLevelService:
    """Answers the RPC that raises the feature level."""

    def __init__(self, host: ServiceHost, leader: MetadataLeader) -> None:
        self._host = host
        self.leader = leader

    @on_metadata_leader
    async def raise_feature_level(
        self, request: pb.RaiseFeatureLevelRequest, call: Call
    ) -> pb.RaiseFeatureLevelResponse:
        """Raise the level to the requested one, or to the highest that every broker supports.

        Raises:
            RequestError: FAILED_PRECONDITION below the cluster's level, UNSUPPORTED_VERSION above the level of a broker (nothing changed), or
                any error of `MetadataLeader`.
        """
        metadata = self._host.metadata.state_machine
        before = metadata.feature_level
        level = request.level or max(before, metadata.feature_level_max)
        refusal = feature_level_refusal(before, metadata.nodes(), level)
        if refusal is not None:
            raise refused(refusal)
        done = await self.leader.execute(RaiseFeatureLevel(level), Done, call.deadline)
        if level > before:
            log.info("feature_level_raised", level=level)
        return pb.RaiseFeatureLevelResponse(metadata_revision=done.revision, level=level)


def require_level(metadata: Metadata, level: int, what: str) -> None:
    """Raise UNSUPPORTED_VERSION unless the cluster has a feature level. `what` names the action that needs it."""
    if metadata.feature_level < level:
        raise RequestError(
            pb.UNSUPPORTED_VERSION,
            f"{what} needs feature level {level}, and the cluster is at {metadata.feature_level}: upgrade every broker, then raise the "
            "level (raftmq cluster raise-level)",
        )
