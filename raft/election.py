"""Elections: pre-vote, vote, stickiness, transfer's campaign, and what votes tell about commitment.

Must not replicate. Invariants: at most one vote per term, durable before the answer leaves; a pre-vote changes neither
term nor vote nor timer; the own vote counts only once it is durable; a vote is asked for only once term, own vote and the
named log end are durable; only members' answers to the current round count, each once.
Source: Ongaro's thesis 3.4, 3.6.1, 3.10, 4.2.3 (disruptive servers), 9.6 (pre-vote).
"""

from __future__ import annotations

from raftmq.raft.messages import TimeoutNow, VoteRequest, VoteResponse
from raftmq.raft.quorum import VoteResult, joint_vote
from raftmq.raft.ready import Role
from raftmq.raft.reconfiguration import Reconfiguration
from raftmq.types import NO_REPLICA, LogIndex, ReplicaId, Term


class Election(Reconfiguration):
    """How a replica becomes leader, and how it lets others."""

    __slots__ = ()

    # ---------------------------------------------------------------------------------------------------- campaigning

    def _campaign(self) -> None:
        """Start a pre-vote round: nobody's term changes before a majority would vote."""
        self.campaign_due = False
        if self.role is Role.LEADER or not self._can_campaign():
            return
        if self.role is Role.PRE_CANDIDATE:
            self._failed_pre_votes += 1
        self._become_pre_candidate()

    def _become_pre_candidate(self) -> None:
        self._reset(Role.PRE_CANDIDATE, self.term)
        # A pre-vote promises nothing, so the own one needs no disk.
        self._votes[self.replica_id] = True
        self._request_votes(Term(self.term + 1), is_pre_vote=True, is_transfer=False)
        self._evaluate_votes()

    def _become_candidate(self, *, is_transfer: bool) -> None:
        """A new term and the own vote in it, which `_on_own_vote_durable` counts. The requests wait for the same write.

        Scenario: 3 leads term 6 and has committed X with 2; 1 holds X in memory, its write is under way, when 3 goes away. If
        1 asked 2 immediately, with X as the end of its log, and were killed before anything of it is on disk, it would
        come back in term 6 without X and campaign in term 7 again. The vote that 2 gave to the longer log, arriving now,
        would make a leader without X.
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
        """Send a request: for a pre-vote immediately, for a vote once all that it names is durable.

        A pre-vote may name a log end that is not durable yet: its answer promises nothing and counts in one round only. It
        leads to a campaign, whose requests are judged again and wait for the disk. Waiting here too would cost one more
        commit in each failover.
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
        """Whether a live leader is known, so that the request is ignored (thesis 4.2.3); a transfer may pass."""
        return (
            self.leader_id != NO_REPLICA
            and self._election_elapsed < self.settings.election_ticks
            and not message.is_transfer
        )

    def _is_log_up_to_date(self, last_index: int, last_term: int) -> bool:
        """Whether a log that ends so is at least as up-to-date as the own one: term first (thesis 3.6.1)."""
        log = self.log
        return last_term > log.last_term or (last_term == log.last_term and last_index >= log.last_index)

    def _may_vote_for(self, message: VoteRequest) -> bool:
        """Whether the vote is free for the candidate in that term."""
        if message.is_pre_vote and message.term > self.term:
            return True
        return self.vote == message.source or (self.vote == NO_REPLICA and self.leader_id == NO_REPLICA)

    def _on_vote_request(self, message: VoteRequest) -> None:
        """Answer a (pre-)vote. Learners answer too: they may be voters of a configuration they do not know yet."""
        if self._may_vote_for(message) and self._is_log_up_to_date(message.last_index, message.last_term):
            if not message.is_pre_vote:
                self._election_elapsed = 0
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
        """Whether a response answers the current round.

        A replica asks for pre-votes of one term repeatedly: a grant to an earlier round, perhaps before a restart, was given
        to another log.
        """
        role = Role.PRE_CANDIDATE if message.is_pre_vote else Role.CANDIDATE
        return self.role is role and message.round == self._round

    def _count_vote(self, voter: ReplicaId, *, is_granted: bool) -> None:
        """The first answer of each voter counts."""
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
        """A (pre-)vote message names a committed entry: if the own log has it, it and all before it are committed.

        Scenario (etcd issue 12359): the change from {A, B} to {A, B, C, D} is committed by A and B, known to A only,
        applied by C and D. A dies. C and D lack votes of a majority without B; B has the longest log, but does not know
        the change is committed, so it asks only A, for ever. The commit index in the others' messages frees it.
        """
        if self.role is Role.LEADER or commit_index <= self.log.commit or not self.log.has(commit_index, commit_term):
            return
        self.log.commit_to(commit_index)
        if self.role is not Role.FOLLOWER and self.log.has_committed_membership:
            # It would count votes of a configuration that is no longer the newest: apply first, then ask again.
            self._become_follower(self.term, NO_REPLICA)

    def _on_timeout_now(self, _message: TimeoutNow) -> None:
        """The leader hands over: campaign at once, without a pre-vote, flagged to pass stickiness (thesis 3.10)."""
        if self.role is not Role.LEADER and self._can_campaign():
            self._become_candidate(is_transfer=True)
