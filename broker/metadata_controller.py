"""Keeps the metadata group's own membership right: every node a member, an odd number of them voters.

Runs on the metadata leader. The plan is a pure function of what the group and the metadata say, so a controller that
dies in the middle is simply continued by the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from raftmq.fsm.metadata_views import NodeView
from raftmq.raft.membership import Membership, MembershipChange, MembershipOp
from raftmq.types import LogIndex, NodeId, ReplicaId

CAUGHT_UP_ENTRIES = 100
"""A learner this close to the leader's commit is promoted: the rest comes within a heartbeat."""


def plan_membership(
    membership: Membership,
    nodes: Sequence[NodeView],
    match_indexes: Mapping[ReplicaId, LogIndex],
    commit_index: LogIndex,
    voters_max: int,
    is_connected: Callable[[NodeId], bool],
    revision: int,
) -> MembershipChange | None:
    """The next change of group 0, or None when it is as it should be (or joint: the leader leaves that by itself)."""
    if membership.is_joint:
        return None
    members = {*membership.voters, *membership.learners}
    active = [node for node in nodes if node.state in ("active", "draining") and node.metadata_replica_id]
    wanted = {ReplicaId(node.metadata_replica_id) for node in active}
    newcomers = sorted(wanted - members)
    if newcomers:
        return MembershipChange(((MembershipOp.ADD_LEARNER, newcomers[0]),), revision)
    gone_learners = sorted(set(membership.learners) - wanted)
    if gone_learners:
        return MembershipChange(((MembershipOp.REMOVE, gone_learners[0]),), revision)
    return _plan_voters(membership, active, match_indexes, commit_index, voters_max, is_connected, revision)


def _plan_voters(
    membership: Membership,
    active: Sequence[NodeView],
    match_indexes: Mapping[ReplicaId, LogIndex],
    commit_index: LogIndex,
    voters_max: int,
    is_connected: Callable[[NodeId], bool],
    revision: int,
) -> MembershipChange | None:
    wanted = {ReplicaId(node.metadata_replica_id) for node in active}
    count = min(voters_max, len(active))
    count -= 1 - count % 2
    staying = [replica for replica in membership.voters if replica in wanted]
    if len(staying) == len(membership.voters) >= count:
        return None
    caught_up = [
        ReplicaId(node.metadata_replica_id)
        for node in _spread(active, staying)
        if node.metadata_replica_id in membership.learners
        and is_connected(NodeId(node.node_id))
        and match_indexes.get(ReplicaId(node.metadata_replica_id), 0) + CAUGHT_UP_ENTRIES >= commit_index
    ]
    chosen = caught_up[: max(0, count - len(staying))]
    if (len(staying) + len(chosen)) % 2 == 0 and chosen:
        chosen.pop()
    leaving = [replica for replica in membership.voters if replica not in wanted]
    if not chosen and not (leaving and staying):
        return None
    steps = [(MembershipOp.ADD_VOTER, replica) for replica in chosen]
    steps += [(MembershipOp.REMOVE, replica) for replica in leaving]
    return MembershipChange(tuple(steps), revision)


def _spread(active: Sequence[NodeView], staying: Sequence[ReplicaId]) -> list[NodeView]:
    """Candidates, those on racks and hosts that have no voter yet first."""
    voters = [node for node in active if node.metadata_replica_id in staying]
    hosts = {node.host for node in voters}
    racks = {node.rack for node in voters}
    return sorted(active, key=lambda node: (node.host in hosts, node.rack in racks, node.node_id))
