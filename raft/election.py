"""Elect leaders: pre-vote, vote, stickiness, the campaign of a transfer, and commitment that votes tell of.

Must not replicate. Invariants:

- At most one vote is given in a term. It is durable before the answer leaves.
- A pre-vote changes neither term nor vote nor timer.
- The own vote counts only once it is durable.
- A request for a vote leaves only once term, own vote and the named log end are durable.
- Only members' answers to the current round count, each once.

Source: Ongaro's thesis 3.4, 3.6.1, 3.10, 4.2.3 (disruptive servers), 9.6 (pre-vote).
"""

from __future__ import annotations

from raftmq.raft.messages import AppendRequest, TimeoutNow, VoteRequest, VoteResponse
from raftmq.raft.quorum import VoteResult, joint_vote
from raftmq.raft.ready import Role
from raftmq.raft.reconfiguration import Reconfiguration
from raftmq.types import NO_REPLICA, LogIndex, ReplicaId, Term


class Election(Reconfiguration):
    """Campaign for leadership, and vote for others."""

    __slots__ = ()

    # ---------------------------------------------------------------------------------------------------- campaigning

    def _campaign(self) -> None:
        """Start a pre-vote round. No term changes before a majority would vote."""
        self.campaign_due = False
        if self.role is Role.LEADER or not self._can_campaign():
            return
        if self.role is Role.PRE_CANDIDATE:
            self._failed_pre_votes += 1
        self._become_pre_candidate()

    def _become_pre_candidate(self) -> None:
        self._reset(Role.PRE_CANDIDATE, self.term)
        # A pre-vote promises nothing, so that the own one counts without a write.
        self._votes[self.replica_id] = True
        self._request_votes(Term(self.term + 1), is_pre_vote=True, is_transfer=False)
        self._evaluate_votes()

    def _become_candidate(self, *, is_transfer: bool) -> None:
        """Enter a new term and vote for itself, which `_on_own_vote_durable` counts. The requests wait for the same write.

        Scenario, if the requests left immediately:
        1. C leads term 6 and has committed X with B. A holds X in memory, and its write is under way, when C fails.
        2. A asks B for a vote in term 7, with X as the end of its log. It is killed before anything of this is on disk.
        3. A comes back in term 6 without X, and campaigns in term 7 again.
        4. The vote that B gave to the longer log arrives now. It makes A a leader without X.
        """
        self._reset(Role.CANDIDATE, Term(self.term + 1))
        self.vote = self.replica_id
        self._request_votes(self.term, is_pre_vote=False, is_transfer=is_transfer)

    def _request_votes(self, term: Term, *, is_pre_vote: bool, is_transfer: bool) -> None:
        """Ask every other voter in a new round."""
        self._round += 1
        for voter in self.membership.voter_ids:
            if voter != self.replica_id:
                self._ask(self._vote_request(voter, term, is_pre_vote=is_pre_vote, is_transfer=is_transfer))

    def _vote_request(self, voter: ReplicaId, term: Term, *, is_pre_vote: bool, is_transfer: bool) -> VoteRequest:
        log = self.log
        return VoteRequest(
            self.replica_id,
            voter,
            term,
            self._round,
            LogIndex(log.last_index),
            Term(log.last_term),
            LogIndex(log.commit),
            Term(log.term_at(log.commit)),
            is_pre_vote,
            is_transfer,
        )

    def _ask(self, request: VoteRequest) -> None:
        """Send a request: for a pre-vote immediately, for a vote once the term, vote and log end that it names are durable.

        A pre-vote may name a log end that is not durable yet: its answer promises nothing and counts in one round only. It
        leads to a campaign, whose requests are judged again and wait for the disk. If pre-votes waited too, each failover
        would take one more commit.
        """
        if request.is_pre_vote:
            self._send(request)
        else:
            self._respond(request)

    def _become_leader(self) -> None:
        self._reset(Role.LEADER, self.term)
        self.leader_id = self.replica_id
        self._start_leadership()

    # --------------------------------------------------------------------------------------------------------- voting

    def _is_sticky(self, message: VoteRequest) -> bool:
        """Return whether the request is ignored, because a live leader is known (thesis 4.2.3). A transfer is never ignored."""
        return (
            self.leader_id != NO_REPLICA
            and self._election_elapsed < self.settings.election_ticks
            and not message.is_transfer
        )

    def _is_log_up_to_date(self, last_index: int, last_term: int) -> bool:
        """Return whether a log with this end is at least as up-to-date as the own one: term first (thesis 3.6.1)."""
        log = self.log
        return last_term > log.last_term or (last_term == log.last_term and last_index >= log.last_index)

    def _may_vote_for(self, message: VoteRequest) -> bool:
        """Return whether the vote is free for the candidate in the term of its request."""
        if message.is_pre_vote and message.term > self.term:
            return True
        return self.vote == message.source or (self.vote == NO_REPLICA and self.leader_id == NO_REPLICA)

    def _on_vote_request(self, message: VoteRequest) -> None:
        """Answer a (pre-)vote request. Learners answer too: they may be voters of a configuration that they do not know yet."""
        if self._may_vote_for(message) and self._is_log_up_to_date(message.last_index, message.last_term):
            if not message.is_pre_vote:
                self._heard_at = self.ticks.now
                self.campaign_due = False
                self.vote = message.source
            self._respond_vote(message, message.term, is_granted=True)
        else:
            self._respond_vote(message, self.term, is_granted=False)

    def _respond_vote(self, request: VoteRequest, term: Term, *, is_granted: bool) -> None:
        log = self.log
        self._respond(
            VoteResponse(
                self.replica_id,
                request.source,
                term,
                request.round,
                request.is_pre_vote,
                is_granted,
                LogIndex(log.commit),
                Term(log.term_at(log.commit)),
            )
        )

    # ------------------------------------------------------------------------------------------------------- counting

    def _on_vote_response(self, message: VoteResponse) -> None:
        if self._is_of_this_round(message):
            self._count_vote(message.source, is_granted=message.is_granted)

    def _is_of_this_round(self, message: VoteResponse) -> bool:
        """Return whether a response answers the current round.

        A replica may ask for pre-votes of one term repeatedly. A grant to an earlier round, perhaps before a restart, was given
        to another log.
        """
        role = Role.PRE_CANDIDATE if message.is_pre_vote else Role.CANDIDATE
        return self.role is role and message.round == self._round

    def _count_vote(self, voter: ReplicaId, *, is_granted: bool) -> None:
        """Count the first answer of each voter."""
        self._votes.setdefault(voter, is_granted)
        self._evaluate_votes()

    def _on_own_vote_durable(self, term: Term, vote: ReplicaId) -> None:
        if self.role is Role.CANDIDATE and term == self.term and vote == self.replica_id:
            self._count_vote(self.replica_id, is_granted=True)

    def _evaluate_votes(self) -> None:
        result = joint_vote(self.membership.voters, self.membership.outgoing, self._votes)
        if result is VoteResult.WON:
            if self.role is Role.PRE_CANDIDATE:
                self._failed_pre_votes = 0
                self._become_candidate(is_transfer=False)
            else:
                self._become_leader()
        elif result is VoteResult.LOST:
            if self.role is Role.PRE_CANDIDATE:
                self._failed_pre_votes += 1
            self._become_follower(self.term, NO_REPLICA)

    # ------------------------------------------------------------------------------- commitment by votes, transfer

    def _learn_commit(self, commit_index: int, commit_term: int) -> None:
        """Commit the entry that a (pre-)vote message names as committed, and all before it, if the own log has it.

        Scenario (etcd issue 12359), if votes did not carry the commit index:
        1. A and B commit the change from {A, B} to {A, B, C, D}. Of the two, only A knows that it is committed. C and D apply it.
        2. A dies. Without B, C and D have no majority.
        3. B has the longest log. It does not know that the change is committed, so that it asks only A, without end.
        The commit index in the messages of C and D lets B go on.
        """
        if self.role is Role.LEADER or commit_index <= self.log.commit or not self.log.has(commit_index, commit_term):
            return
        self.log.commit_to(commit_index)
        if self.role is not Role.FOLLOWER and self.log.has_committed_membership:
            # This candidate counts votes of a configuration that is no longer the newest. It applies the change, then asks again:
            # immediately, if a leader hands over to it.
            campaign_until = self._campaign_until
            self._become_follower(self.term, NO_REPLICA)
            self._campaign_until = campaign_until

    def _learn_late_commit(self, message: AppendRequest) -> None:
        """Commit entries that an append request of an earlier term names as committed, if the own log has the entry before its entries.

        Scenario, if it were dropped unread:
        1. The group {A} becomes {B}. A commits the last change. It tells B so, and then to campaign.
        2. The second message overtakes the first, on another connection. B enters the next term. It asks A, as it does not know that the
           change is committed.
        3. The first message arrives. A dies before its vote arrives, so that B asks it without end.
        """
        log = self.log
        committed = min(message.commit_index, message.prev_index)
        if committed > log.commit and log.has(message.prev_index, message.prev_term):
            self._learn_commit(committed, log.term_at(committed))

    def _on_timeout_now(self, message: TimeoutNow) -> None:
        """Campaign immediately for a leader that hands over: no pre-vote, and with the flag that passes stickiness (thesis 3.10).

        If a committed change of membership is not active yet, campaign when it is. A leader that was removed hands over right after the
        change is committed. The wish ends long before that leader, if it was not removed, gives the transfer up.
        """
        if self.role is Role.LEADER:
            return
        if self.role is Role.FOLLOWER and not self.leader_id:
            self.leader_id = message.source  # else its next message would be that of another leader, and end the wish
        if self._can_campaign():
            self._become_candidate(is_transfer=True)
        elif not self.log.has_committed_membership:
            return
        self._campaign_until = self.ticks.now + max(1, self.settings.election_ticks // 2)

    def _maybe_campaign_after_change(self) -> None:
        """Start the campaign that a leader wanted, a short time ago. It may need several: changes may be applied one after the other."""
        if self._campaign_until > self.ticks.now and self.role is Role.FOLLOWER and self._can_campaign():
            campaign_until = self._campaign_until
            self._become_candidate(is_transfer=True)
            self._campaign_until = campaign_until
