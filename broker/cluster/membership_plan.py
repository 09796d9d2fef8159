"""Plan how a group's membership gets from its present state to the state that metadata wants. All functions are pure.

A plan is only the next single change, computed from the present state of the group and the metadata. So after a crash the next leader
continues where the previous one stopped, and no plan needs to be stored.

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
    """The membership that metadata wants for a group."""

    voters: frozenset[ReplicaId]
    learners: frozenset[ReplicaId] = frozenset()
    lost: frozenset[ReplicaId] = frozenset()
    """Replicas whose disk or data is lost. They leave first."""
    revision: int = 0
    """The metadata revision of this target."""
    predecessors: Mapping[ReplicaId, frozenset[ReplicaId]] = field(
        default_factory=dict[ReplicaId, frozenset[ReplicaId]]
    )
    """Newcomer → earlier replicas of its seat, of which at most one still votes. The newcomer replaces that one and no other."""


def partition_target(partition: PartitionView) -> MembershipTarget:
    """Return the membership that a partition's row wants for its group."""
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
    """Return whether the membership equals the target."""
    return (
        not membership.outgoing
        and target.voters == frozenset(membership.voters)
        and target.learners == frozenset(membership.learners)
    )


def plan_change(
    membership: Membership, target: MembershipTarget, caught_up: Container[ReplicaId]
) -> MembershipChange | None:
    """Return the next change, or None if the target is reached, learners must catch up, or the membership is joint.

    The leader leaves a joint membership by itself. Newcomers become learners first. When all future voters have caught up, one joint
    change promotes them and removes the others. Until then voters are exchanged one for one, so that a slow newcomer does not delay
    the others. Each newcomer replaces its predecessor. If its predecessor has left, the newcomer is added. If it has none, it replaces
    a voter without a successor, lost ones first. The number of voters never shrinks on the way.
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
    """Return the replicas to promote now, and the voters that they replace. A newcomer whose predecessors have left replaces none."""
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
        seated = seated[:-1]  # an even number of voters tolerates no more failures than the odd number below it
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
    """Choose the metadata replicas that should vote: an odd number, up to `voters_max`, on different hosts, then racks.

    A draining node loses its vote as soon as the others have taken over, and keeps it while too few of them are reachable. Scenario: of the
    voters 2, 3 and 4, 2 is down, and 4 is drained. 5 could take its place, but is down, too. Without 4, the group would be 2 and 3, and
    without 2 never have a majority.
    A node that is down keeps its vote: it may return in a moment, and only the operator knows. A desired node that went down before it
    ever voted is skipped.
    Voters that share a host, or else a rack, are exchanged for nodes that join elsewhere, while no voter is down. The leader is not.

    Args:
        nodes: The registered nodes.
        desired: The present desired voters.
        voters: The present voters.
        leader: The metadata leader's replica. It is kept while it is desired.
        voters_max: The greatest number of voters: 1, 3 or 5.
        is_connected: Returns whether the metadata leader reaches a node now.

    Returns:
        The replica ids of the chosen voters, ascending.
    """
    active = [node for node in nodes if node.state == "active"]
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
    connected = [node for node in active if is_connected(NodeId(node.node_id))]
    if all(node in connected for node in chosen):  # not during a restart, which may be about to change a label
        chosen = _spread(chosen, connected, leader)
    draining = [node for node in nodes if node.state == "draining" and node.metadata_replica_id in voters]
    draining.sort(key=lambda node: (node.metadata_replica_id != leader, not is_connected(NodeId(node.node_id))))
    chosen += draining[: max(0, count - len(chosen))]
    newcomers = [node for node in chosen if node.metadata_replica_id not in voters]
    if newcomers and len(chosen) % 2 == 0:
        # Two voters are no better than one: the loss of either would stop the group. A draining one is the last.
        chosen.remove(chosen[-1] if chosen[-1] in draining else newcomers[-1])
    reachable = {node.metadata_replica_id for node in nodes if is_connected(NodeId(node.node_id))}
    present = [node.metadata_replica_id for node in nodes if node.metadata_replica_id in voters]
    for wanted in ([node.metadata_replica_id for node in chosen], desired, present):
        if 2 * len(reachable.intersection(wanted)) > len(wanted):  # otherwise they could not take over now
            return tuple(sorted(wanted))
    return tuple(sorted(desired))


def _spread(chosen: Sequence[NodeView], candidates: Sequence[NodeView], leader: ReplicaId) -> list[NodeView]:
    """Exchange single nodes for candidates as long as the chosen nodes are then on more hosts, or on as many hosts in more racks."""
    best = list(chosen)
    for index, gone in enumerate(chosen):
        if gone.metadata_replica_id == leader:
            continue
        for node in candidates:
            exchanged = [*chosen[:index], node, *chosen[index + 1 :]]
            if node not in chosen and _breadth(exchanged) > _breadth(best):
                best = exchanged
    return best if best == chosen else _spread(best, candidates, leader)


def _breadth(nodes: Sequence[NodeView]) -> tuple[int, int]:
    return len({node.host for node in nodes}), len({node.rack for node in nodes})


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
    """Return whether a majority of the group remains healthy without the replicas that are gone.

    Only the group knows which of its replicas vote at present: a wanted replica may still be empty, and a retiring one may still be
    needed. So a seat counts against the majority if any of its replicas does. It counts once, because at most one of its replicas
    votes (`plan_change`): a lost replica and its lost successor are one loss.

    Some seats may have no voter: those of newcomers while the number of replicas grows, and those of replicas that leave without a
    successor. The answer must be right for every membership on the way. So these seats never help, and each unsound one counts as one
    more voter that does not answer. A lost replica without a successor is such a seat, too.
    """
    replicas = (*partition.replicas, *partition.retiring)
    unsound = {replica.seat for replica in replicas if replica.is_lost or is_gone(replica) or not is_healthy(replica)}
    certain = {replica.seat for replica in partition.replicas if not replica.is_newcomer}
    return 2 * len(unsound & certain) + len(unsound - certain) < len(certain)
