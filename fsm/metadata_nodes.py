"""Commands about the cluster and its nodes: forming, its feature level, registering, replacing a lost disk, removing, and
metadata voters.

All are pure functions over `MetadataTables`. A command gives a result, and changes nothing when that is `Rejected`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec
from raftmq.fsm import codes
from raftmq.fsm.metadata_commands import (
    Done,
    InitializeCluster,
    NodeRegistered,
    RaiseFeatureLevel,
    RegisterNode,
    Rejected,
    RemoveNode,
    ReplaceReplica,
    SetMetadataMembership,
    SetNodeState,
)
from raftmq.fsm.metadata_replicas import retire_lost_replicas
from raftmq.fsm.metadata_tables import BOOTSTRAP_METADATA_REPLICA_ID, METADATA_GROUP, MetadataTables, RetiredUuid
from raftmq.fsm.metadata_views import NodeView, ReplicaView, TopicView
from raftmq.fsm.node_lineage import Boot, Lineage
from raftmq.fsm.tables import is_key_text

NODE_ID_MAX: Final = (1 << 31) - 1
"""Node ids travel as uint32 and are small numbers that people type."""
ACTIVE: Final = "active"
DRAINING: Final = "draining"
NODE_STATES: Final = (ACTIVE, DRAINING)
"""The states of a node that can be set. A removed node keeps its state."""
_NAMED_MAX: Final = 5
"""Nodes named in a refusal."""


def initialize_cluster(tables: MetadataTables, command: InitializeCluster) -> Done | Rejected:
    """Form the cluster once. The same command again is `Done`, because its proposer may not have seen the answer."""
    cluster = tables.cluster
    if cluster.cluster_id == command.cluster_id != "":
        return Done(cluster.revision)
    if cluster.cluster_id:
        return Rejected(codes.CLUSTER_ALREADY_FORMED, f"this cluster is {cluster.cluster_id}")
    if not is_key_text(command.cluster_id) or command.feature_level < 0:
        return Rejected(codes.INVALID_ARGUMENT, "a cluster needs an id and a feature level")
    tables.update_cluster(
        cluster_id=command.cluster_id,
        feature_level=command.feature_level,
        bootstrap_uuid=command.bootstrap_uuid,
        metadata_voters=(BOOTSTRAP_METADATA_REPLICA_ID,),
    )
    return Done(tables.cluster.revision)


def raise_feature_level(tables: MetadataTables, command: RaiseFeatureLevel) -> Done | Rejected:
    """Raise the cluster's feature level. The same command again is `Done`."""
    nodes = [node for node in tables.nodes() if node.state != "removed"]
    refusal = feature_level_refusal(tables.cluster.feature_level, nodes, command.level)
    if refusal is not None:
        return refusal
    if command.level != tables.cluster.feature_level:
        tables.update_cluster(feature_level=command.level)
    return Done(tables.cluster.revision)


def feature_level_max(nodes: Iterable[NodeView]) -> int:
    """Return the highest feature level that all of these nodes support, or 0 without nodes."""
    return min((node.feature_level_max for node in nodes), default=0)


def feature_level_refusal(current: int, nodes: Iterable[NodeView], level: int) -> Rejected | None:
    """Return why a cluster of these nodes cannot go from feature level `current` to `level`, or None if it can."""
    if level < current:
        return Rejected(
            codes.FAILED_PRECONDITION, f"the cluster is at feature level {current}, which cannot be lowered to {level}"
        )
    nodes = tuple(nodes)
    if level <= max(current, feature_level_max(nodes)):
        return None
    behind = [node for node in nodes if node.feature_level_max < level]
    named = ", ".join(f"broker {node.node_id} ({node.feature_level_max})" for node in behind[:_NAMED_MAX])
    more = f" and {len(behind) - _NAMED_MAX} more" if len(behind) > _NAMED_MAX else ""
    return Rejected(
        codes.UNSUPPORTED_VERSION,
        f"feature level {level} is above the highest level of {named or 'any broker'}{more}: upgrade these brokers first, and "
        "remove those that are gone for good",
    )


def register_node(tables: MetadataTables, command: RegisterNode) -> NodeRegistered | Rejected:
    """Admit a node, update its addresses, or let it take over the node id of a lost disk."""
    refusal = _registration_refusal(tables, command)
    if refusal is not None:
        return refusal
    known = tables.node_by_uuid(command.uuid)
    if known is not None:
        return _announce(tables, command, known)
    taken = _address_refusal(tables, command)
    if taken is not None:
        return taken
    node_id = command.node_id or _free_node_id(tables)
    holder = tables.node(node_id)
    if holder is not None and holder.state != "removed":
        if not command.replaces_lost:
            return Rejected(codes.BROKER_ID_TAKEN, f"broker id {node_id} belongs to the broker with uuid {holder.uuid}")
        return _replace_lost(tables, command, holder)
    return _admit(tables, command, node_id, _metadata_replica_id(tables, command.uuid))


def remove_node(tables: MetadataTables, command: RemoveNode) -> Done | Rejected:
    """Remove a node and refuse its uuid permanently."""
    node = tables.node(command.node_id)
    if node is None or node.state == "removed":
        return Rejected(codes.UNKNOWN_BROKER, f"there is no broker {command.node_id}")
    voters = tuple(voter for voter in tables.cluster.metadata_voters if voter != node.metadata_replica_id)
    if not voters:
        return Rejected(codes.CONFLICT, f"broker {node.node_id} is the only metadata voter")
    if not command.is_forced:
        groups = tables.groups_of_node(node.node_id)
        if groups:
            return Rejected(codes.CONFLICT, f"broker {node.node_id} still holds {len(groups)} replicas: drain it first")
        if voters != tables.cluster.metadata_voters:
            return Rejected(codes.CONFLICT, f"broker {node.node_id} is a metadata voter")
    retire_lost_replicas(tables, node.node_id, is_replaced=False)
    _retire_metadata_replica(tables, node, voters)
    tables.retire_uuid(node.uuid, RetiredUuid(node.node_id, "removed", tables.index))
    tables.put_node(msgspec.structs.replace(node, state="removed", revision=tables.index))
    if tables.config(node.node_id):
        tables.put_config(node.node_id, {})
    return Done(tables.cluster.revision)


def set_node_state(tables: MetadataTables, command: SetNodeState) -> Done | Rejected:
    """Begin or end the draining of a node. The same command again is `Done`."""
    node = tables.node(command.node_id)
    if node is None or node.state == "removed":
        return Rejected(codes.UNKNOWN_BROKER, f"there is no broker {command.node_id}")
    if command.state not in NODE_STATES:
        return Rejected(codes.INVALID_ARGUMENT, f"a broker is {' or '.join(NODE_STATES)}, not {command.state}")
    if command.state == node.state:
        return Done(tables.cluster.revision)
    refusal = drain_refusal(tables.nodes(), tables.topics(), node.node_id) if command.state == DRAINING else None
    if refusal is not None:
        return refusal
    tables.put_node(msgspec.structs.replace(node, state=command.state, revision=tables.index))
    tables.mark_membership_changed()
    return Done(tables.cluster.revision)


def drain_refusal(nodes: Iterable[NodeView], topics: Iterable[TopicView], node_id: int) -> Rejected | None:
    """Return why a node cannot be drained, or None: each topic's replicas need as many other active nodes."""
    others = sum(1 for node in nodes if node.state == ACTIVE and node.node_id != node_id)
    if others == 0:
        return Rejected(codes.CONFLICT, f"broker {node_id} is the only active broker: add another one first")
    widest = max(topics, key=lambda topic: topic.replication_factor, default=None)
    if widest is None or widest.replication_factor <= others:
        return None
    return Rejected(
        codes.CONFLICT,
        f"topic {widest.name} wants {widest.replication_factor} replicas, and only {others} active "
        f"{'broker remains' if others == 1 else 'brokers remain'} without broker {node_id}: add a broker first, or lower the replication factor",
    )


def replace_metadata_replica(tables: MetadataTables, command: ReplaceReplica) -> Done | Rejected:
    """Retire a node's damaged metadata replica as lost, and give the node a new one. The same command again is `Done`."""
    node_id = tables.replica_node(METADATA_GROUP, command.replica_id)
    node = tables.node(node_id) if node_id is not None else None
    if node is None:
        return Done(tables.cluster.revision)
    metadata_replica_id = _next_replica_id(tables)
    _retire_metadata_replica(tables, node, _voters_with(tables, node.metadata_replica_id, metadata_replica_id))
    tables.put_node(msgspec.structs.replace(node, metadata_replica_id=metadata_replica_id, revision=tables.index))
    return Done(tables.cluster.revision)


def set_metadata_membership(tables: MetadataTables, command: SetMetadataMembership) -> Done | Rejected:
    """Set the desired voters of group 0."""
    cluster = tables.cluster
    voters = tuple(sorted(set(command.voters)))
    if not voters or len(voters) != len(command.voters):
        return Rejected(codes.INVALID_ARGUMENT, "metadata voters must be at least one, each named once")
    if cluster.metadata_membership_revision > command.expected_revision:
        return Rejected(codes.CONFLICT, f"metadata membership changed at {cluster.metadata_membership_revision}")
    unknown = [voter for voter in voters if tables.replica_node(METADATA_GROUP, voter) is None]
    if unknown:
        return Rejected(codes.UNKNOWN_BROKER, f"no broker has metadata replica {unknown[0]}")
    if voters != cluster.metadata_voters:
        tables.update_cluster(metadata_voters=voters)
    return Done(tables.cluster.revision)


def _registration_refusal(tables: MetadataTables, command: RegisterNode) -> Rejected | None:
    if not is_key_text(command.uuid):
        return Rejected(codes.INVALID_ARGUMENT, "a broker needs a uuid")
    if not 0 <= command.node_id <= NODE_ID_MAX:
        return Rejected(codes.INVALID_ARGUMENT, f"a broker id is between 1 and {NODE_ID_MAX}, or 0 for a free one")
    if command.replaces_lost and command.node_id == 0:
        return Rejected(codes.INVALID_ARGUMENT, "replacing a lost broker needs its broker id")
    retired = tables.retired_uuid(command.uuid)
    if retired is not None:
        return Rejected(codes.BROKER_REMOVED, f"this uuid was broker {retired.node_id} and is {retired.reason}")
    if command.boot:
        lineage = Lineage(command.boot, command.lineage)
        defect = lineage.defect()
        if defect is not None:
            return Rejected(codes.INVALID_ARGUMENT, f"malformed lineage: {defect}")
        known = tables.node_by_uuid(command.uuid)
        stale = lineage.contradiction(Boot(known.boot, known.boot_mark)) if known is not None else None
        if stale is not None:
            return Rejected(codes.STALE_DIRECTORY, f"the data directory is not the newest one of this broker: {stale}")
    if command.feature_level_max < tables.cluster.feature_level:
        return Rejected(
            codes.UNSUPPORTED_VERSION,
            f"the cluster is at feature level {tables.cluster.feature_level}, and the broker supports only "
            f"{command.feature_level_max}: start a newer version of the broker",
        )
    return None


def _address_refusal(tables: MetadataTables, command: RegisterNode) -> Rejected | None:
    """Refuse a new uuid with the address of another node: it is that node without its disk, or a mistake.

    Known nodes may announce any address, because hosts swap theirs, and each node corrects its own row.
    """
    mine = {command.client_address, command.peer_address}
    for node in tables.nodes():
        if node.state == "removed" or node.node_id == command.node_id:
            continue
        shared = sorted(mine & {node.client_address, node.peer_address})
        if shared:
            return Rejected(
                codes.ADDRESS_TAKEN,
                f"the address {shared[0]} belongs to broker {node.node_id}. If that broker's disk was replaced, start with --broker-id "
                f"{node.node_id}. Otherwise remove it (raftmq cluster remove {node.node_id}), or choose another address",
            )
    return None


def _announce(tables: MetadataTables, command: RegisterNode, known: NodeView) -> NodeRegistered:
    """Update the attributes that a node announces. The same uuid keeps node id and replicas, even if it asks for
    another node id.
    """
    announced = _node(command, known.node_id, known.metadata_replica_id, known.state, known.revision)
    if announced != known:
        tables.put_node(msgspec.structs.replace(announced, revision=tables.index))
    return NodeRegistered(tables.cluster.revision, known.node_id, known.metadata_replica_id)


def _replace_lost(tables: MetadataTables, command: RegisterNode, lost: NodeView) -> NodeRegistered:
    """Replace a lost node in one command, so that at no moment half of the lost disk's replicas still count.

    The desired metadata voter is replaced in place, not dropped: group 0 keeps its quorum size while the new replica
    catches up.
    """
    tables.retire_uuid(lost.uuid, RetiredUuid(lost.node_id, "lost", tables.index))
    metadata_replica_id = _next_replica_id(tables)
    _retire_metadata_replica(tables, lost, _voters_with(tables, lost.metadata_replica_id, metadata_replica_id))
    registered = _admit(tables, command, lost.node_id, metadata_replica_id, lost.state)
    retire_lost_replicas(tables, lost.node_id, is_replaced=True)
    return registered


def _admit(
    tables: MetadataTables, command: RegisterNode, node_id: int, metadata_replica_id: int, state: str = ACTIVE
) -> NodeRegistered:
    tables.put_node(_node(command, node_id, metadata_replica_id, state, tables.index))
    tables.mark_membership_changed()
    return NodeRegistered(tables.cluster.revision, node_id, metadata_replica_id)


def _node(command: RegisterNode, node_id: int, metadata_replica_id: int, state: str, revision: int) -> NodeView:
    return NodeView(
        node_id=node_id,
        uuid=command.uuid,
        client_address=command.client_address,
        peer_address=command.peer_address,
        http_address=command.http_address,
        host=command.host,
        rack=command.rack,
        version=command.version,
        feature_level_max=command.feature_level_max,
        metadata_replica_id=metadata_replica_id,
        state=state,
        revision=revision,
        partitions_max=command.partitions_max,
        boot=command.boot,
        boot_mark=Lineage(command.boot, command.lineage).current.mark if command.boot else b"",
    )


def _voters_with(tables: MetadataTables, old_replica_id: int, new_replica_id: int) -> tuple[int, ...]:
    """Return the desired voters after one metadata replica replaced another."""
    voters = tables.cluster.metadata_voters
    if old_replica_id not in voters:
        return voters
    return tuple(sorted({*voters, new_replica_id} - {old_replica_id}))


def _retire_metadata_replica(tables: MetadataTables, node: NodeView, voters: tuple[int, ...]) -> None:
    lost = ReplicaView(node.metadata_replica_id, node.node_id, is_lost=True)
    tables.update_cluster(metadata_voters=voters, metadata_retiring=(*tables.cluster.metadata_retiring, lost))


def _free_node_id(tables: MetadataTables) -> int:
    node_id = tables.cluster.next_node_id
    while tables.node(node_id) is not None:
        node_id += 1
    tables.update_cluster(next_node_id=node_id + 1)
    return node_id


def _metadata_replica_id(tables: MetadataTables, uuid: str) -> int:
    """Return the id of a node's metadata replica: 1 for the bootstrapping node, a new id for every other node."""
    cluster = tables.cluster
    if not cluster.is_bootstrap_replica_given and cluster.bootstrap_uuid in ("", uuid):
        tables.update_cluster(is_bootstrap_replica_given=True)
        return BOOTSTRAP_METADATA_REPLICA_ID
    return _next_replica_id(tables)


def _next_replica_id(tables: MetadataTables) -> int:
    replica_id = tables.cluster.next_replica_id
    tables.update_cluster(next_replica_id=replica_id + 1)
    return replica_id
