"""Bugs of elections: granting and counting of votes, and obedience to terms."""

from __future__ import annotations

from dataclasses import replace

from raftmq.raft.core import RaftCore
from raftmq.raft.messages import (
    AppendRequest,
    Heartbeat,
    Message,
    VoteRequest,
    VoteResponse,
)
from raftmq.raft.ready import Refused, Role
from raftmq.types import ReplicaId, Term


class VotesTwice(RaftCore):
    """Votes for every candidate of a term (thesis 3.4)."""

    __slots__ = ()

    def _may_vote_for(self, message: VoteRequest) -> bool:
        return True


class ComparesIndexFirst(RaftCore):
    """Compares logs by index before term (thesis 3.6.1)."""

    __slots__ = ()

    def _is_log_up_to_date(self, last_index: int, last_term: int) -> bool:
        return (last_index, last_term) >= (self.log.last_index, self.log.last_term)


class CountsVotesByNumber(RaftCore):
    """Counts votes without looking at the voter: a repeated answer counts twice (PySyncObj)."""

    __slots__ = ()

    def _count_vote(self, voter: ReplicaId, *, is_granted: bool) -> None:
        if is_granted and voter in self._votes:
            voter = next((other for other in self.membership.voters if other not in self._votes), voter)
        super()._count_vote(voter, is_granted=is_granted)


class OwnVoteBeforeDurable(RaftCore):
    """Counts its own vote before it is durable, which matters if it needs no other vote (thesis 3.8)."""

    __slots__ = ()

    def _become_candidate(self, *, is_transfer: bool) -> None:
        super()._become_candidate(is_transfer=is_transfer)
        self._count_vote(self.replica_id, is_granted=True)


class AsksBeforeDurable(RaftCore):
    """Asks for votes before its term, its own vote and the named log end are durable (etcd's async storage writes)."""

    __slots__ = ()

    def _ask(self, request: VoteRequest) -> None:
        self._send(request)


class CountsLateAnswers(RaftCore):
    """Counts answers to earlier (pre-)vote requests, even from before a restart: rounds have no number (etcd)."""

    __slots__ = ()

    def _is_of_this_round(self, message: VoteResponse) -> bool:
        return super()._is_of_this_round(replace(message, round=self._round))


class AsksEarlyCountsLate(AsksBeforeDurable, CountsLateAnswers):
    """Asks for votes before its candidacy is durable and counts late answers, hidden from the checker: a leader lacks a committed entry."""

    __slots__ = ()


class PreVoteRaisesTerm(RaftCore):
    """Enters a new term to ask for a pre-vote: a replica that was cut off deposes the leader (thesis 9.6)."""

    __slots__ = ()

    def _become_pre_candidate(self) -> None:
        self._reset(self.role, Term(self.term + 1))
        super()._become_pre_candidate()


class TransfersPutCheckOff(RaftCore):
    """Restarts the timer of the quorum check with each transfer: a leader that is cut off keeps leading while it is told to transfer."""

    __slots__ = ()

    def _begin_transfer(self, target: ReplicaId) -> Refused | None:
        leadership = self.leadership
        before = leadership.transferee if leadership else None
        refused = super()._begin_transfer(target)
        if leadership and leadership.transferee != before:
            leadership.quorum_checked_at = self.ticks.now
        return refused


class AcceptsLowerTerm(RaftCore):
    """Obeys a leader of an earlier term (thesis, figure 3.1, rule 1)."""

    __slots__ = ()

    def _pass_term(self, message: Message) -> bool:
        is_leaders = isinstance(message, AppendRequest | Heartbeat)
        if is_leaders and message.term < self.term and self.role is Role.FOLLOWER:
            seen = self.leader_id, self.term
            self.leader_id, self.term = message.source, message.term
            self._dispatch(message)
            self.leader_id, self.term = seen
            return False
        return super()._pass_term(message)
