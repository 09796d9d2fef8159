"""Propose changes of membership, and make them active when they are applied.

Must not decide the meaning of a change (`membership.py` does). Invariants: at most one change is appended and unapplied.
Only a leader that committed an entry of its own term proposes one. A configuration is active once it is applied.
Source: Ongaro's thesis 4.1-4.3, and its correction of 2015 (an own-term commit comes first). Deviation: a configuration is
active when it is applied, not when it is appended, as in etcd. There is nothing to roll back. In return, no replica campaigns
with a committed, unapplied change, and votes carry the commit index, so that a live majority of the new configuration can
always elect.
"""

from __future__ import annotations

from raftmq.raft.entry import EntryKind, Proposal
from raftmq.raft.following import Following
from raftmq.raft.leadership import Leadership
from raftmq.raft.membership import (
    Membership,
    MembershipChange,
    MembershipError,
    apply_change,
    check_membership,
    decode_change,
    encode_change,
)
from raftmq.raft.ready import Appended, RefusalReason, Refused
from raftmq.types import NO_REPLICA, ReplicaId

_LEAVE = MembershipChange(steps=())


class Reconfiguration(Following):
    """Change the set of members."""

    __slots__ = ()

    # ------------------------------------------------------------------------------------------------------ proposing

    def _membership_refusal(self, change: MembershipChange) -> RefusalReason | None:
        """Return the reason why the change may not be proposed now, or None. The final decision is made when it is applied."""
        if not self._may_change_membership():
            return RefusalReason.MEMBERSHIP_PENDING
        if change.steps:
            if change.revision < self.membership.revision:
                return RefusalReason.MEMBERSHIP_STALE
            if self.membership.is_joint:
                return RefusalReason.MEMBERSHIP_PENDING
        try:
            apply_change(self.membership, change)
            encode_change(change)
        except (MembershipError, OverflowError):
            return RefusalReason.MEMBERSHIP_INVALID
        return None

    def _may_change_membership(self) -> bool:
        """Return whether a change may begin: one at a time, and none before a commit of this term.

        Otherwise two leaders could have configurations that are two steps apart, without a common majority.
        """
        return self._has_committed_in_term and not self.log.membership_indexes

    def _propose_membership(self, change: MembershipChange, now_ms: int) -> Appended | Refused:
        leadership = self.leadership
        if leadership is None:
            return Refused(RefusalReason.NOT_LEADER, self.leader_id)
        refused = self._refusal(leadership, 0)
        if refused:
            return refused
        reason = self._membership_refusal(change)
        if reason:
            return Refused(reason, self.leader_id)
        return Appended(self._append_own(leadership, (Proposal(EntryKind.MEMBERSHIP, encode_change(change)),), now_ms))

    def _maybe_leave_joint(self) -> None:
        """Propose to leave a joint configuration that was applied. During a transfer wait, as proposals are closed then."""
        leadership = self.leadership
        if (
            leadership is not None
            and self.membership.auto_leave
            and leadership.transferee == NO_REPLICA
            and self._may_change_membership()
        ):
            proposal = Proposal(EntryKind.MEMBERSHIP, encode_change(_LEAVE))
            self._append_own(leadership, (proposal,), self.now_ms())

    # ------------------------------------------------------------------------------------------------------- applying

    def _apply_memberships(self, index: int) -> None:
        """Make the changes among the entries applied up to `index` active, in order.

        Entries at or below the floor are part of the membership that came with the snapshot or from storage. The commit index
        of a change is written immediately.

        Scenario, if it were not:
        1. The group {A} becomes {A, B, C} through a joint configuration. No entry follows the change.
        2. A is lost. Then B and C restart.
        3. No disk says that the joint configuration was left, so that B and C need a vote of A. They never elect a leader.
        """
        while self._applying_membership and self._applying_membership[0][0] <= index:
            entry_index, payload = self._applying_membership.popleft()
            if entry_index > self.state_floor:
                self._apply_membership(payload)
                self._commit_due = entry_index

    def _apply_membership(self, payload: bytes) -> None:
        """Make one change active. A change that is impossible from the current membership does nothing, on every replica alike."""
        try:
            change = decode_change(payload)
            if change.steps and change.revision < self.membership.revision:
                return
            target = apply_change(self.membership, change)
        except MembershipError:
            return
        self._switch_membership(target)

    def _heir(self, leadership: Leadership, membership: Membership) -> ReplicaId | None:
        """Return the voter of a configuration whose log goes furthest, as far as its leader knows.

        Among equals the target of a transfer that runs is preferred: if another voter campaigned too, the two would split the votes. Then
        the voter that answered last is preferred.
        """
        progress, transferee = leadership.progress, leadership.transferee
        voters = [voter for voter in membership.voters if voter in progress]
        return max(
            voters,
            key=lambda voter: (progress[voter].match_index, voter == transferee, -progress[voter].silent_ticks),
            default=None,
        )

    def _switch_membership(self, membership: Membership) -> None:
        check_membership(membership)
        self.membership = membership
        leadership = self.leadership
        if leadership is None:
            return
        self._flush(leadership)
        if self.replica_id not in membership.voters and self.replica_id not in membership.outgoing:
            # Removed or demoted, this leader led until the change was committed and announced. From now on it has no vote. The others
            # need not notice that by a timeout: a voter that holds the change campaigns.
            heir = self._heir(leadership, membership)
            self._become_follower(self.term, NO_REPLICA)
            if heir is not None:
                self._send_timeout_now(heir)
            return
        self._sync_progress(leadership, membership)
        # The quorum may have become smaller, so that the present acknowledgements may be enough for entries and for reads.
        self._maybe_commit(leadership)
        self._confirm_rounds(leadership)
        leadership.flush_due = True
        for peer, progress in leadership.progress.items():
            if peer != self.replica_id and not progress.match_index:
                self._send_append(peer, progress, may_be_empty=True)
