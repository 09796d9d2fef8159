"""Bugs of changes of membership."""

from __future__ import annotations

from collections.abc import Callable

from raftmq.raft.core import RaftCore
from raftmq.raft.leadership import Leadership
from raftmq.raft.membership import Membership
from raftmq.raft.progress import Progress
from raftmq.raft.quorum import VoteResult, joint_index, joint_vote
from raftmq.raft.ready import Role


class IgnoresOutgoing(RaftCore):
    """Uses only the incoming half for decisions while joint (thesis 4.3)."""

    __slots__ = ()

    def _quorum_of(self, leadership: Leadership, value: Callable[[Progress], int]) -> int:
        return joint_index([value(leadership.progress[voter]) for voter in self.membership.voters], [])

    def _evaluate_votes(self) -> None:
        membership = self.membership
        if joint_vote(membership.voters, (), self._votes) is VoteResult.WON and membership.outgoing:
            self._votes.update(dict.fromkeys(membership.voter_ids, True))
        super()._evaluate_votes()


class SkipsJoint(RaftCore):
    """Switches to the new voters in one step, however many change (thesis 4.3)."""

    __slots__ = ()

    def _switch_membership(self, membership: Membership) -> None:
        if membership.auto_leave:
            learners = tuple(sorted({*membership.learners, *membership.learners_next}))
            membership = Membership(membership.voters, learners, revision=membership.revision)
        super()._switch_membership(membership)


class ManyPendingChanges(RaftCore):
    """Accepts a change before the previous one is applied, and before an entry of its term is committed (thesis 4.1)."""

    __slots__ = ()

    def _may_change_membership(self) -> bool:
        return True


class RemovedLeaderStays(RaftCore):
    """A removed leader keeps leading the members it knew, itself included (thesis 4.2.2)."""

    __slots__ = ()

    def _switch_membership(self, membership: Membership) -> None:
        if self.role is Role.LEADER and self.replica_id not in membership.voter_ids:
            return
        super()._switch_membership(membership)
