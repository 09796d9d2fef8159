"""Changes of membership: proposing them, and making them active when they are applied.

Must not decide what a change means (`membership.py` does). Invariants: at most one change is appended and unapplied; it
is proposed only by a leader that committed an entry of its own term; a configuration is active from its application on.
Source: Ongaro's thesis 4.1-4.3, and its correction of 2015 (an own-term commit comes first). Deviation: active when
applied, not when appended, as in etcd: nothing to roll back, but no campaign with a committed, unapplied change, and the
commit index travels in votes, so that a live majority of the new configuration can always elect.
"""

from __future__ import annotations

from raftmq.raft.entry import EntryKind, Proposal
from raftmq.raft.following import Following
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
from raftmq.types import NO_REPLICA

_LEAVE = MembershipChange(steps=())


class Reconfiguration(Following):
    """How the set of members changes."""

    __slots__ = ()

    # ------------------------------------------------------------------------------------------------------ proposing

    def _membership_refusal(self, change: MembershipChange) -> RefusalReason | None:
        """Why the change may not be proposed now. The last word is spoken at apply."""
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
        """One change at a time, and none before this term committed (or two could be two steps apart)."""
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
        """The leader leaves a joint configuration by itself; not during a transfer, as proposals are closed then."""
        leadership = self.leadership
        if (
            leadership is not None
            and self.membership.auto_leave
            and leadership.transferee == NO_REPLICA
            and self._may_change_membership()
        ):
            proposal = Proposal(EntryKind.MEMBERSHIP, encode_change(_LEAVE))
            self._append_own(leadership, (proposal,), self.log.append_time_ms)

    # ------------------------------------------------------------------------------------------------------- applying

    def _apply_memberships(self, index: int) -> None:
        """The changes among the entries applied up to `index` take effect, in order.

        Entries at or below the floor are part of the membership that came with the snapshot or from storage. That a change is committed
        is written at once. Scenario: {1} has become {1, 2, 3}, and nothing else happens; 1 is lost, then 2 and 3 are restarted. If no
        disk said that the joint configuration was left, both would need a vote of 1, for ever.
        """
        while self._applying_membership and self._applying_membership[0][0] <= index:
            entry_index, payload = self._applying_membership.popleft()
            if entry_index > self.state_floor:
                self._apply_membership(payload)
                self._commit_due = entry_index

    def _apply_membership(self, payload: bytes) -> None:
        """One change; what cannot be done from here does nothing, on every replica alike."""
        try:
            change = decode_change(payload)
            if change.steps and change.revision < self.membership.revision:
                return
            target = apply_change(self.membership, change)
        except MembershipError:
            return
        self._switch_membership(target)

    def _switch_membership(self, membership: Membership) -> None:
        check_membership(membership)
        self.membership = membership
        leadership = self.leadership
        if leadership is None:
            return
        self._flush(leadership)
        if self.replica_id not in membership.voters and self.replica_id not in membership.outgoing:
            # Removed or demoted: it led until the change was committed and told, without a vote from now on.
            self._become_follower(self.term, NO_REPLICA)
            return
        self._sync_progress(leadership, membership)
        # The quorum may have become smaller: what is there may be enough now, for entries and for reads.
        self._maybe_commit(leadership)
        self._confirm_rounds(leadership)
        leadership.flush_due = True
        for peer, progress in leadership.progress.items():
            if peer != self.replica_id and not progress.match_index:
                self._send_append(peer, progress, may_be_empty=True)
