"""Remove a node from the cluster permanently, on an operator's order.

Everything that can be refused is refused before proposing, with a sentence that names the remedy. The controller rebuilds the node's
replicas elsewhere (`replacement_plan`). Invariant: a reachable node is never given up.
"""

from __future__ import annotations

import structlog
from raftmq.broker.base.request_error import RequestError
from raftmq.broker.cluster.membership_plan import has_healthy_majority
from raftmq.broker.services.call import Call
from raftmq.broker.services.host import ServiceHost
from raftmq.broker.services.metadata_leader import MetadataLeader, on_metadata_leader
from raftmq.fsm.metadata import Metadata
from raftmq.fsm.metadata_commands import Done, RemoveNode
from raftmq.fsm.metadata_nodes import DRAINING
from raftmq.fsm.metadata_views import NodeView, PartitionView
from raftmq.proto import queue_pb2 as pb
from raftmq.types import METADATA_GROUP_ID, NodeId

log = structlog.get_logger(__name__)

_NAMED_MAX = 100
"""Partitions named in an answer: enough to see the topics concerned."""


class NodeRemovalService:
    """Answers the RPC that removes a node."""

    def __init__(self, host: ServiceHost, leader: MetadataLeader) -> None:
        self._host = host
        self.leader = leader

    @property
    def _metadata(self) -> Metadata:
        return self._host.metadata.state_machine

    @on_metadata_leader
    async def remove_node(self, request: pb.RemoveBrokerRequest, call: Call) -> pb.RemoveBrokerResponse:
        """Remove a node. With `force` also a dead one that held replicas, which then count as lost.

        Partitions without a healthy majority do not prevent the removal of a dead node: they are as unavailable without it as with it.
        The answer names them, because only their other nodes can restore them.

        Raises:
            RequestError: UNKNOWN_BROKER, BROKER_IN_USE or NOT_READY (nothing changed), or any error of `MetadataLeader`.
        """
        deadline = call.within(request.timeout_ms, self._host.loop.time())
        node = self._removable(request.broker_id, is_forced=request.force)
        partitions = self._metadata.partitions_of_node(node.node_id)
        without_majority = [partition for partition in partitions if not self._has_majority_without(node, partition)]
        done = await self.leader.execute(RemoveNode(node.node_id, request.force), Done, deadline)
        log.warning("broker_removed", peer_id=node.node_id, replicas=len(partitions))
        return pb.RemoveBrokerResponse(
            metadata_revision=done.revision,
            replica_count=len(partitions),
            without_majority_count=len(without_majority),
            without_majority=[self._name(partition) for partition in without_majority[:_NAMED_MAX]],
        )

    def _removable(self, node_id: int, *, is_forced: bool) -> NodeView:
        metadata = self._metadata
        node = metadata.node(node_id)
        if node is None:
            raise RequestError(
                pb.UNKNOWN_BROKER, f"the cluster has no broker {node_id} (raftmq cluster status lists them)"
            )
        if node.state == "removed":
            raise RequestError(pb.UNKNOWN_BROKER, f"broker {node_id} was already removed")
        is_wanted = node.metadata_replica_id in metadata.metadata_voters
        # another voter may be wanted already and still have to catch up: until then the group counts this vote
        is_voter = is_wanted or node.metadata_replica_id in self._host.metadata.core.membership.voter_ids
        if is_wanted and len(metadata.metadata_voters) == 1:
            raise RequestError(
                pb.BROKER_IN_USE,
                f"broker {node_id} is the only metadata voter: add brokers, or end the draining of others (raftmq cluster undrain), until "
                "others vote, then remove it",
            )
        if is_forced:
            self._check_gone(node)
            return node
        replica_count = metadata.replica_count_of_node(node_id)
        if replica_count or is_voter:
            noun = "partition replica" if replica_count == 1 else "partition replicas"
            parts = [f"holds {replica_count} {noun}"] if replica_count else []
            parts += ["votes on metadata"] if is_voter else []
            raise RequestError(
                pb.BROKER_IN_USE,
                f"broker {node_id} still {' and '.join(parts)}: {self._remedy(node)}",
            )
        return node

    def _remedy(self, node: NodeView) -> str:
        if not self._host.is_connected(NodeId(node.node_id)):
            return (
                "if it is permanently lost, remove it with --force (force=True), and the others rebuild its replicas; otherwise drain it first "
                f"(raftmq cluster drain {node.node_id})"
            )
        if node.state == DRAINING:
            return "it is being drained: wait until it is empty, then remove it"
        return f"drain it first (raftmq cluster drain {node.node_id}), then remove it"

    def _check_gone(self, node: NodeView) -> None:
        """Refuse to remove a running node by force, which gives up its data: a typing error must not cost a replica."""
        if self._host.is_connected(NodeId(node.node_id)):
            raise RequestError(
                pb.BROKER_IN_USE,
                f"broker {node.node_id} is running at {node.client_address}: if you mean this one, stop it first, "
                "then remove it",
            )
        if self._host.unreachable_seconds(NodeId(node.node_id)) < self._host.timing.election_seconds(METADATA_GROUP_ID):
            raise RequestError(
                pb.NOT_READY,
                f"broker {node.node_id} at {node.client_address} was connected until a moment ago, and may be reconnecting: wait, then repeat "
                "the call",
                retry_after_ms=500,
            )

    def _has_majority_without(self, node: NodeView, partition: PartitionView) -> bool:
        return has_healthy_majority(
            partition,
            lambda replica: replica.node_id == node.node_id,
            lambda replica: self._host.is_connected(NodeId(replica.node_id)),
        )

    def _name(self, partition: PartitionView) -> pb.PartitionName:
        topic = self._metadata.topic(partition.topic_id)
        return pb.PartitionName(topic=topic.name if topic is not None else "?", partition=partition.partition)
