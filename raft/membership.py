"""Who takes part in a group, and how that changes: joint consensus with learners (thesis 4.3), active when applied."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from raftmq.types import ReplicaId


@dataclass(frozen=True, slots=True)
class Membership:
    """A configuration. Tuples are sorted and without repeats.

    Invariants: voters and learners are disjoint; `learners_next` is a subset of `outgoing`; when not joint,
    `outgoing` and `learners_next` are empty and `auto_leave` is False.
    """

    voters: tuple[ReplicaId, ...]
    """The (incoming) voters."""
    learners: tuple[ReplicaId, ...] = ()
    outgoing: tuple[ReplicaId, ...] = ()
    """The voters of the old configuration while joint; empty otherwise."""
    learners_next: tuple[ReplicaId, ...] = ()
    """Outgoing voters that become learners when the joint configuration is left."""
    auto_leave: bool = False
    """The leader leaves the joint configuration by itself once it has applied it."""
    revision: int = 0
    """The metadata revision this configuration serves; a leader ignores a target with an older one."""

    @property
    def is_joint(self) -> bool:
        """Whether two majorities are needed."""
        return bool(self.outgoing)


EMPTY_MEMBERSHIP = Membership(voters=())
"""What a replica knows before its first snapshot: nothing, so it neither votes for itself nor campaigns."""


class MembershipOp(IntEnum):
    """One step of a change. Values are on disk and on the wire."""

    ADD_VOTER = 1
    ADD_LEARNER = 2
    """Adds a learner, or demotes a voter to one."""
    REMOVE = 3


@dataclass(frozen=True, slots=True)
class MembershipChange:
    """A change to propose. No steps: leave the joint configuration."""

    steps: tuple[tuple[MembershipOp, ReplicaId], ...]
    revision: int = 0
    is_explicit: bool = False
    """True: stay joint until a change without steps is proposed; False: leave by itself."""
