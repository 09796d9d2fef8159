"""Bugs of elections: who gets a vote, when it counts, and which term is obeyed."""

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
    """Votes for everybody who asks in a term (thesis 3.4)."""

    __slots__ = ()

    def _may_vote_for(self, message: VoteRequest) -> bool:
        return True


class ComparesIndexFirst(RaftCore):
    """Compares logs by index before term (thesis 3.6.1)."""

    __slots__ = ()

    def _is_log_up_to_date(self, last_index: int, last_term: int) -> bool:
        return (last_index, last_term) >= (self.log.last_index, self.log.last_term)


class CountsVotesByNumber(RaftCore):
    """Counts votes without asking whose they are: a repeated answer counts again (PySyncObj)."""

    __slots__ = ()

    def _count_vote(self, voter: ReplicaId, *, is_granted: bool) -> None:
        if is_granted and voter in self._votes:
            voter = next((other for other in self.membership.voters if other not in self._votes), voter)
        super()._count_vote(voter, is_granted=is_granted)


class OwnVoteBeforeDurable(RaftCore):
    """Counts its own vote before it is durable, which matters where it needs no other one (thesis 3.8)."""

    __slots__ = ()

    def _become_candidate(self, *, is_transfer: bool) -> None:
        super()._become_candidate(is_transfer=is_transfer)
        self._count_vote(self.replica_id, is_granted=True)


class AsksBeforeDurable(RaftCore):
    """Asks for votes before term, own vote and the named log end are durable (etcd's async storage writes)."""

    __slots__ = ()

    def _ask(self, request: VoteRequest) -> None:
        self._send(request)


class CountsLateAnswers(RaftCore):
    """Counts answers to an earlier asking for (pre-)votes, also of before a restart: rounds have no number (etcd)."""

    __slots__ = ()

    def _is_of_this_round(self, message: VoteResponse) -> bool:
        return super()._is_of_this_round(replace(message, round=self._round))


class AsksEarlyCountsLate(AsksBeforeDurable, CountsLateAnswers):
    """Asks for votes before anything of it is durable and counts late answers, unseen: a leader without a committed entry."""

    __slots__ = ()


class PreVoteRaisesTerm(RaftCore):
    """Enters a new term to ask a pre-vote: a replica that was cut off deposes the leader (thesis 9.6)."""

    __slots__ = ()

    def _become_pre_candidate(self) -> None:
        self._reset(self.role, Term(self.term + 1))
        super()._become_pre_candidate()


class TransfersPutCheckOff(RaftCore):
    """Begins the time of the quorum check again with each transfer: a leader cut off goes on while it is told to hand over."""

    __slots__ = ()

    def _begin_transfer(self, target: ReplicaId) -> Refused | None:
        leadership = self.leadership
        before = leadership.transferee if leadership else None
        refused = super()._begin_transfer(target)
        if leadership and leadership.transferee != before:
            leadership.quorum_check_elapsed = 0
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
