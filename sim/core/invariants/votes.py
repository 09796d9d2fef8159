"""`VoteOnce`, `VoteDurable`, `VoteQuorum`, `UpToDate`, `RequestDurable`, `AnswerOfRound` (thesis 3.4, 3.6.1, 3.8).

A replica votes once in a term and remembers its vote through a crash. It never votes for a candidate whose log is less up to date
than its own. A leader has the votes of a majority. A candidate's requests name only values that are on its disk, and it counts
only answers to its latest round of requests.
"""

from __future__ import annotations

from collections.abc import Mapping

from raftmq.raft.core import RaftCore
from raftmq.raft.hard_state import HardState
from raftmq.raft.membership import Membership
from raftmq.raft.messages import Message, VoteRequest, VoteResponse
from raftmq.raft.ready import Role
from raftmq.types import ReplicaId

from sim.core.disk import SimDisk
from sim.core.invariants.violation import demand


def check_request_durable(request: VoteRequest, hard_state: HardState, term_at_end: int | None) -> None:
    """Check a leaving request against the durable hard state and the durable term at the log end that the request names.

    A pre-vote request may name values in memory, since its answer promises nothing.
    """
    if request.is_pre_vote:
        return
    source = request.source
    is_kept = hard_state.term == request.term and hard_state.vote == source
    demand(is_kept, "RequestDurable", f"r{source} asks for votes in term {request.term}, durable is {hard_state}")
    named = f"{request.last_term}/{request.last_index}"
    is_held = term_at_end == request.last_term
    demand(is_held, "RequestDurable", f"r{source} asks with a log up to {named}, its disk has term {term_at_end} there")


class Rounds:
    """`AnswerOfRound` for one replica: it counts only answers to its latest round of requests."""

    def __init__(self) -> None:
        self._latest: int | None = None
        """The highest round since the replica's start whose requests have left."""

    def on_request(self, request: VoteRequest) -> None:
        """Record a leaving request. A request of an ended campaign may leave after those of the next round."""
        self._latest = max(request.round, self._latest or 0)

    def is_late(self, message: Message) -> bool:
        """Return whether the message answers an earlier round than the latest one."""
        return isinstance(message, VoteResponse) and message.round != self._latest

    @staticmethod
    def state_of(core: RaftCore) -> tuple[Role, dict[ReplicaId, bool]]:
        """Return the values that a late answer must not change. It may only make the replica a follower."""
        return core.role, dict(core._votes)

    @staticmethod
    def check_not_counted(message: Message, before: tuple[Role, dict[ReplicaId, bool]], core: RaftCore) -> None:
        """Check that the core did not count the late answer that it just received."""
        role, votes = before
        is_counted = core._votes.items() - votes.items() or (core.role is not role and core.role is not Role.FOLLOWER)
        detail = f"r{core.replica_id} was {role.value} with votes {votes} and is {core.role.value} by {message}"
        demand(not is_counted, "AnswerOfRound", detail)


class Votes:
    """Checks vote requests and granted votes when they leave."""

    def __init__(self) -> None:
        self._granted: dict[tuple[int, int], int] = {}
        """(voter, term) -> candidate."""
        self._requests: dict[tuple[int, int], tuple[int, int]] = {}
        """(candidate, term) -> (last term, last index) in its requests."""

    def on_request(self, request: VoteRequest) -> None:
        """Record a leaving vote request."""
        if not request.is_pre_vote:
            self._requests[request.source, request.term] = (request.last_term, request.last_index)

    def on_granted(self, response: VoteResponse, last_term: int, last_index: int) -> None:
        """Check a vote that waits to leave against the end of the voter's log, which is unchanged since it voted."""
        if response.is_pre_vote or not response.is_granted:
            return
        request = self._requests.get((response.target, response.term))
        demand(
            request is None or request >= (last_term, last_index),
            "UpToDate",
            f"r{response.source} ends at {last_term}/{last_index} and votes for r{response.target} at {request}",
        )

    def on_response(self, response: VoteResponse, hard_state: HardState) -> None:
        """Check a leaving response against the voter's earlier votes and its durable state."""
        if response.is_pre_vote or not response.is_granted:
            return
        voter, term, candidate = response.source, response.term, response.target
        first = self._granted.setdefault((voter, term), candidate)
        demand(first == candidate, "VoteOnce", f"r{voter} votes for r{first} and r{candidate} in term {term}")
        is_kept = hard_state.term > term or (hard_state.term == term and hard_state.vote == candidate)
        demand(is_kept, "VoteDurable", f"r{voter} votes for r{candidate} in term {term}, durable is {hard_state}")

    def on_leader(self, leader_id: int, term: int, membership: Membership, disks: Mapping[int, SimDisk]) -> None:
        """Check that a majority of each half has the new leader's vote on disk, or has reached a later term since."""
        for half in (membership.voters, membership.outgoing):
            states = [disks[voter].hard_state for voter in half]
            count = sum(state.term > term or (state.term == term and state.vote == leader_id) for state in states)
            demand(not half or count * 2 > len(half), "VoteQuorum", f"r{leader_id} leads term {term} by votes {states}")
