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
class MembershipTarget:
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
    """Newcomer → those that had its seat, one of which may still vote. It takes the place of that one and of no other."""


def partition_target(partition: PartitionView) -> MembershipTarget:
    """What a partition's row asks of its group."""
    predecessors = {
        ReplicaId(replica.replica_id): frozenset(
            ReplicaId(gone.replica_id) for gone in partition.retiring if gone.seat == replica.seat
        )
        for replica in partition.replicas
    }
    return MembershipTarget(
        voters=frozenset(ReplicaId(replica.replica_id) for replica in partition.replicas),
        lost=frozenset(ReplicaId(replica.replica_id) for replica in partition.retiring if replica.is_lost),
        revision=partition.revision,
        predecessors={newcomer: gone for newcomer, gone in predecessors.items() if gone},
    )


def is_reached(membership: Membership, target: MembershipTarget) -> bool:
    """Whether nothing is left to do."""
    return (
        not membership.outgoing
        and target.voters == frozenset(membership.voters)
        and target.learners == frozenset(membership.learners)
    )


def plan_change(
    membership: Membership, target: MembershipTarget, caught_up: Container[ReplicaId]
) -> MembershipChange | None:
    """The next change, or None: it is as wanted, or waits for learners to catch up, or is joint (the leader leaves that
    by itself).

    Newcomers become learners first. When all that shall vote have caught up, one joint change promotes them and lets the
    others go. Until then voters are exchanged one for one, so that one slow newcomer does not hold up the others: each takes the
    place of its predecessor (or sits beside the others, if that has left) or, where none has one, of a lost one first. The number of voters
    never shrinks on the way.
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


def _plan_voters(
    voters: set[ReplicaId], target: MembershipTarget, caught_up: Container[ReplicaId]
) -> MembershipChange | None:
    missing = sorted(target.voters - voters)
    ready = [replica_id for replica_id in missing if replica_id in caught_up]
    leaving = sorted(voters - target.voters, key=lambda replica_id: (replica_id not in target.lost, replica_id))
    if len(ready) < len(missing):
        ready, leaving = _exchanges(voters, ready, leaving, target)
    steps = [(MembershipOp.ADD_VOTER, replica_id) for replica_id in ready]
    for replica_id in leaving:
        stays = replica_id in target.learners
        steps.append((MembershipOp.ADD_LEARNER if stays else MembershipOp.REMOVE, replica_id))
    return _change(steps, target) if steps else None


def _exchanges(
    voters: set[ReplicaId], ready: list[ReplicaId], leaving: list[ReplicaId], target: MembershipTarget
) -> tuple[list[ReplicaId], list[ReplicaId]]:
    """Who can be promoted now, and who goes for it. Nobody goes for one whose predecessors have left: its seat is free."""
    succeeded = frozenset[ReplicaId]().union(*target.predecessors.values())
    unclaimed = iter([replica_id for replica_id in leaving if replica_id not in succeeded])
    promoted: list[ReplicaId] = []
    going: list[ReplicaId] = []
    seated: list[ReplicaId] = []
    for newcomer in ready:
        predecessors = target.predecessors.get(newcomer)
        place = next(unclaimed if predecessors is None else iter(predecessors.intersection(leaving)), None)
        if place is not None:
            promoted.append(newcomer)
            going.append(place)
        elif predecessors is not None:
            seated.append(newcomer)
    if (len(voters) + len(seated)) % 2 == 0:
        seated = seated[:-1]  # an even number is no better than the odd one below it
    return promoted + seated, going


def _change(steps: list[tuple[MembershipOp, ReplicaId]], target: MembershipTarget) -> MembershipChange:
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
        leader: the metadata leader's replica, which is not the one to go while it is desired.
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
    newcomers = [node for node in chosen if node.metadata_replica_id not in voters]
    if newcomers and len(chosen) % 2 == 0:
        chosen.remove(newcomers[-1])  # two voters are no better than one: the loss of either would end the group
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
    So a seat counts against the majority when any of its replicas does; and it counts once, since one of them votes at most
    (`plan_change`): a lost replica whose successor is lost as well is one loss. A lost one's seat counts also while nobody is to take it;
    but there are no more seats than replicas, which rows from before there were seats would have it.
    This holds as long as a partition keeps its number of replicas.
    """
    replicas = (*partition.replicas, *partition.retiring)
    unsound = {replica.seat for replica in replicas if replica.is_lost or is_gone(replica) or not is_healthy(replica)}
    seats = {replica.seat for replica in partition.replicas} | {
        replica.seat for replica in partition.retiring if replica.is_lost
    }
    seats_max = max(len(partition.replicas), len(partition.creation_replicas))
    return 2 * len(unsound) < min(len(seats), seats_max)
