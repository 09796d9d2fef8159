"""Define the members of a group and their changes: joint consensus with learners (thesis 4.3), active when applied.

Must not know logs, roles or time: values in, values out. The decisions are deterministic, as every replica makes them
when it applies the entry. Invariants: those of `Membership`, checked by `find_defect`.
Source: Ongaro's thesis 4.2.1 (learners), 4.3 (joint consensus). The rules of a change are those of etcd's confchange.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum

from raftmq.errors import violated
from raftmq.types import ReplicaId


@dataclass(frozen=True, slots=True)
class Membership:
    """Hold one configuration. Tuples are sorted and without repeats.

    Invariants: voters and learners are disjoint. `learners_next` is a subset of `outgoing`. When the configuration is not
    joint, `outgoing` and `learners_next` are empty and `auto_leave` is False.
    """

    voters: tuple[ReplicaId, ...]
    """The (incoming) voters."""
    learners: tuple[ReplicaId, ...] = ()
    outgoing: tuple[ReplicaId, ...] = ()
    """The voters of the old configuration while joint, else empty."""
    learners_next: tuple[ReplicaId, ...] = ()
    """Outgoing voters that become learners when the joint configuration is left."""
    auto_leave: bool = False
    """Whether the leader leaves the joint configuration by itself once it has applied it."""
    revision: int = 0
    """The metadata revision that this configuration serves. A leader ignores a target with an older one."""

    @property
    def is_joint(self) -> bool:
        """Return whether decisions need two majorities."""
        return bool(self.outgoing)

    @property
    def voter_ids(self) -> tuple[ReplicaId, ...]:
        """Return the voters of both halves, sorted."""
        if not self.outgoing:
            return self.voters
        return tuple(sorted({*self.voters, *self.outgoing}))

    @property
    def member_ids(self) -> tuple[ReplicaId, ...]:
        """Return every member: voters of both halves and learners, sorted."""
        return tuple(sorted({*self.voters, *self.outgoing, *self.learners}))


EMPTY_MEMBERSHIP = Membership(voters=())
"""The configuration of a replica before its first snapshot. Without voters, it neither votes for itself nor campaigns."""


class MembershipOp(IntEnum):
    """Name one step of a change. Values are on disk and on the wire."""

    ADD_VOTER = 1
    ADD_LEARNER = 2
    """Adds a learner, or demotes a voter to one."""
    REMOVE = 3


@dataclass(frozen=True, slots=True)
class MembershipChange:
    """Describe a change to propose. A change without steps leaves the joint configuration."""

    steps: tuple[tuple[MembershipOp, ReplicaId], ...]
    revision: int = 0
    is_explicit: bool = False
    """True: stay joint until a change without steps is proposed. False: the leader leaves the joint configuration by itself."""


class MembershipError(ValueError):
    """Raised when a change is impossible from the current membership, or its bytes do not decode."""


def find_defect(membership: Membership) -> str | None:
    """Return a description of the invariant of `Membership` that is broken, or None when all hold."""
    voters, learners = set(membership.voters), set(membership.learners)
    outgoing, learners_next = set(membership.outgoing), set(membership.learners_next)
    for name in ("voters", "learners", "outgoing", "learners_next"):
        ids: tuple[ReplicaId, ...] = getattr(membership, name)
        if list(ids) != sorted(set(ids)) or (ids and ids[0] < 1):
            return f"{name} are not sorted, distinct and positive"
    if (voters | outgoing) & learners:
        return "a voter is a learner too"
    if not learners_next <= outgoing:
        return "a learner-to-be is not an outgoing voter"
    if learners_next & voters:
        return "a learner-to-be is an incoming voter"
    if not membership.is_joint and (learners_next or membership.auto_leave):
        return "not joint, yet something of a joint configuration is set"
    if membership.is_joint and not voters:
        return "joint without incoming voters"
    return None


def check_membership(membership: Membership) -> None:
    """Stop the replica unless the sets of a configuration fit together. Called when it changes."""
    defect = find_defect(membership)
    if defect:
        violated("membership", defect=defect, membership=membership)


def apply_change(membership: Membership, change: MembershipChange) -> Membership:
    """Return the membership after `change`: not joint if it has no steps, in one simple step where that is safe, else joint.

    Raises:
        MembershipError: the change is impossible from `membership`.
    """
    if not change.steps:
        return leave_joint(membership)
    if not change.is_explicit and not membership.is_joint:
        target = _with_steps(membership, change)
        # Two majorities of sets that differ by one voter always overlap (thesis 4.1), so one step is enough.
        if len(set(target.voters) ^ set(membership.voters)) <= 1:
            return target
    return enter_joint(membership, change)


def enter_joint(membership: Membership, change: MembershipChange) -> Membership:
    """Return the joint configuration: the old voters become `outgoing`, and the steps change the incoming ones.

    Raises:
        MembershipError: the membership is joint already or has no voters, or no voter would remain.
    """
    if membership.is_joint:
        raise MembershipError("the configuration is joint already")
    if not membership.voters:
        raise MembershipError("a configuration without voters cannot become joint")
    started = Membership(
        voters=membership.voters,
        learners=membership.learners,
        outgoing=membership.voters,
        auto_leave=not change.is_explicit,
        revision=membership.revision,
    )
    return _with_steps(started, change)


def leave_joint(membership: Membership) -> Membership:
    """Return the incoming half alone. Outgoing voters that were demoted become learners.

    Raises:
        MembershipError: the membership is not joint.
    """
    if not membership.is_joint:
        raise MembershipError("the configuration is not joint")
    return Membership(
        voters=membership.voters,
        learners=tuple(sorted({*membership.learners, *membership.learners_next})),
        revision=membership.revision,
    )


def _with_steps(membership: Membership, change: MembershipChange) -> Membership:
    voters, learners = set(membership.voters), set(membership.learners)
    learners_next = set(membership.learners_next)
    for op, replica_id in change.steps:
        if replica_id < 1:
            raise MembershipError(f"replica id {replica_id} is not positive")
        voters.discard(replica_id)
        learners.discard(replica_id)
        learners_next.discard(replica_id)
        if op is MembershipOp.ADD_VOTER:
            voters.add(replica_id)
        elif op is MembershipOp.ADD_LEARNER:
            # While the replica votes in the old half it cannot be a learner. It becomes one when the joint configuration is left.
            (learners_next if replica_id in membership.outgoing else learners).add(replica_id)
    if not voters:
        raise MembershipError("no voter would remain")
    return Membership(
        voters=tuple(sorted(voters)),
        learners=tuple(sorted(learners)),
        outgoing=membership.outgoing,
        learners_next=tuple(sorted(learners_next)),
        auto_leave=membership.auto_leave,
        revision=max(membership.revision, change.revision),
    )


# ---------------------------------------------------------------------------------------------------------------- codec

_FORMAT = 1
_CHANGE_HEADER = struct.Struct("<BBQH")  # format, is_explicit, revision, step count
_STEP = struct.Struct("<BQ")  # op, replica id


def encode_change(change: MembershipChange) -> bytes:
    """Return the payload of a MEMBERSHIP entry (little-endian, on disk and on the wire)."""
    header = _CHANGE_HEADER.pack(_FORMAT, change.is_explicit, change.revision, len(change.steps))
    return header + b"".join(_STEP.pack(op, replica_id) for op, replica_id in change.steps)


def decode_change(payload: bytes) -> MembershipChange:
    """Return the change in a MEMBERSHIP entry.

    Raises:
        MembershipError: the bytes do not encode a change.
    """
    try:
        format_number, is_explicit, revision, count = _CHANGE_HEADER.unpack_from(payload)
        if format_number != _FORMAT or len(payload) != _CHANGE_HEADER.size + count * _STEP.size:
            raise MembershipError("unknown format or wrong length of a membership change")
        steps = tuple(
            (MembershipOp(op), ReplicaId(replica_id))
            for op, replica_id in _STEP.iter_unpack(payload[_CHANGE_HEADER.size :])
        )
    except (struct.error, ValueError) as error:
        raise MembershipError(f"not a membership change: {error}") from error
    return MembershipChange(steps, revision, bool(is_explicit))
