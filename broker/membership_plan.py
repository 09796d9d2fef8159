"""Plans how a group's membership gets from what it is to what metadata wants: pure functions, the same for every group.

A plan is the next single change only, made from what the group and the metadata say now. So whoever leads next goes on
where its predecessor died, and nothing of a plan needs to be remembered.

Source: Ongaro's thesis 4.2.1 (newcomers catch up as learners), 4.3 (joint consensus).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field

from raftmq.fsm.metadata_views import NodeView, PartitionView, ReplicaView
from raftmq.raft.membership import Membership, MembershipChange, MembershipOp
from raftmq.types import NodeId, ReplicaId


@dataclass(frozen=True, slots=True)
class Target:
    """What metadata wants a group's membership to be."""

    voters: frozenset[ReplicaId]
    learners: frozenset[ReplicaId] = frozenset()
    lost: frozenset[ReplicaId] = frozenset()
    """Replicas whose disk or data is gone: they leave first."""
    revision: int = 0
    """The metadata revision of this wish."""
    predecessors: Mapping[ReplicaId, frozenset[ReplicaId]] = field(
        default_factory=dict[ReplicaId, frozenset[ReplicaId]]
    )
    """Newcomer → the lost replicas of its own node, one of which may still vote. It takes the place of that one."""


def partition_target(partition: PartitionView) -> Target:
    """What a partition's row asks of its group."""
    lost = [replica for replica in partition.retiring if replica.is_lost]
    predecessors = {
        ReplicaId(replica.replica_id): frozenset(
            ReplicaId(one.replica_id) for one in lost if one.node_id == replica.node_id
        )
        for replica in partition.replicas
        if any(one.node_id == replica.node_id for one in lost)
    }
    return Target(
        voters=frozenset(ReplicaId(replica.replica_id) for replica in partition.replicas),
        lost=frozenset(ReplicaId(replica.replica_id) for replica in lost),
        revision=partition.revision,
        predecessors=predecessors,
    )


def is_reached(membership: Membership, target: Target) -> bool:
    """Whether nothing is left to do."""
    return (
        not membership.outgoing
        and target.voters == frozenset(membership.voters)
        and target.learners == frozenset(membership.learners)
    )


def plan_change(membership: Membership, target: Target, caught_up: Container[ReplicaId]) -> MembershipChange | None:
    """The next change, or None: it is as wanted, or waits for learners to catch up, or is joint (the leader leaves that
    by itself).

    Newcomers become learners first. When all that shall vote have caught up, one joint change promotes them and lets the
    others go. Until then voters are exchanged one for one, lost ones first, so that one slow newcomer does not keep a dead
    replica in the quorum; the number of voters never shrinks on the way, and no two of them are on one node.
    """
    if membership.is_joint or not target.voters or is_reached(membership, target):
        return None
    voters, learners = set(membership.voters), set(membership.learners)
    newcomers = sorted((target.voters | target.learners) - voters - learners)
    if newcomers:
        return _change([(MembershipOp.ADD_LEARNER, replica_id) for replica_id in newcomers], target)
    leaving_learners = sorted(learners - target.voters - target.learners)
    if leaving_learners:
        return _change([(MembershipOp.REMOVE, replica_id) for replica_id in leaving_learners], target)
    return _plan_voters(voters, target, caught_up)


def _plan_voters(voters: set[ReplicaId], target: Target, caught_up: Container[ReplicaId]) -> MembershipChange | None:
    missing = sorted(target.voters - voters)
    ready = [replica_id for replica_id in missing if replica_id in caught_up]
    leaving = sorted(voters - target.voters, key=lambda replica_id: (replica_id not in target.lost, replica_id))
    if len(ready) < len(missing):
        pairs = min(len(ready), len(leaving))
        ready = ready[:pairs]
        succeeded = {old for replica_id in ready for old in target.predecessors.get(replica_id, ())}
        leaving = sorted(leaving, key=lambda replica_id: replica_id not in succeeded)[:pairs]
    steps = [(MembershipOp.ADD_VOTER, replica_id) for replica_id in ready]
    for replica_id in leaving:
        stays = replica_id in target.learners
        steps.append((MembershipOp.ADD_LEARNER if stays else MembershipOp.REMOVE, replica_id))
    return _change(steps, target) if steps else None


def _change(steps: list[tuple[MembershipOp, ReplicaId]], target: Target) -> MembershipChange:
    return MembershipChange(tuple(steps), target.revision)


# ------------------------------------------------------------------------------------------------------ metadata voters


def choose_metadata_voters(
    nodes: Sequence[NodeView],
    desired: Sequence[int],
    voters: Sequence[ReplicaId],
    leader: ReplicaId,
    voters_max: int,
    is_connected: Callable[[NodeId], bool],
) -> tuple[int, ...]:
    """Which metadata replicas shall vote: an odd number, up to `voters_max`, on different hosts, then racks.

    A node that is down keeps its vote: it may be back in a moment, and only the operator knows. One that was desired, went
    away and never voted is passed over.

    Args:
        nodes: the registered nodes.
        desired: the desired voters so far.
        voters: who votes now.
        leader: the metadata leader's replica, which is never the one to go.
        voters_max: the most there may be: 1, 3 or 5.
        is_connected: whether the metadata leader reaches a node now.
    """
    active = [node for node in nodes if node.state in ("active", "draining")]
    count = min(voters_max, len(active))
    count -= 1 - count % 2
    staying = [
        node
        for node in active
        if node.metadata_replica_id in desired
        and (node.metadata_replica_id in voters or is_connected(NodeId(node.node_id)))
    ]
    staying.sort(key=lambda node: (node.metadata_replica_id != leader, not is_connected(NodeId(node.node_id))))
    chosen = staying[:count]
    while len(chosen) < count:
        candidates = [node for node in active if node not in chosen and is_connected(NodeId(node.node_id))]
        if not candidates:
            break
        chosen.append(min(candidates, key=lambda node: _closeness(node, chosen)))
    if len(chosen) % 2 == 0 and len(chosen) > len(staying):
        chosen.pop()  # two voters are no better than one
    return tuple(sorted(node.metadata_replica_id for node in chosen))


def _closeness(node: NodeView, chosen: Sequence[NodeView]) -> tuple[bool, bool, int]:
    return (
        any(node.host == other.host for other in chosen),
        any(node.rack == other.rack for other in chosen),
        node.node_id,
    )


# -------------------------------------------------------------------------------------------------------------- repair


def has_healthy_majority(
    partition: PartitionView, is_gone: Callable[[ReplicaView], bool], is_healthy: Callable[[ReplicaView], bool]
) -> bool:
    """Whether a majority of the group remains healthy without the replicas that are gone.

    Which of its replicas vote by now only the group knows: a wanted one may still be empty, a retiring one may still be needed.
    So a node counts against the majority when any of its replicas does. It counts once: two replicas of one node never vote
    together (`plan_change`), and a lost replica whose successor is lost as well is one loss.
    """
    unsound = {
        replica.node_id
        for replica in (*partition.replicas, *partition.retiring)
        if replica.is_lost or is_gone(replica) or not is_healthy(replica)
    }
    return 2 * len(unsound) < len(partition.replicas)
