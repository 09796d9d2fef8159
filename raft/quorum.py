"""Compute majorities, plain and joint, as pure functions over integers.

Must not know about roles, logs or messages. Invariant: a joint decision needs both halves. An empty half never holds a
decision back, which is how a configuration that is not joint is evaluated.
Source: Ongaro's thesis 3.4 (majorities), 4.3 (joint consensus).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum

from raftmq.types import ReplicaId

UNBOUNDED = (1 << 64) - 1
"""The value that an empty set of voters has agreed on, above every other value."""


class VoteResult(Enum):
    """Say how an election stands."""

    PENDING = "pending"
    WON = "won"
    LOST = "lost"


def majority_size(voter_count: int) -> int:
    """Return the size of a majority of `voter_count` voters: more than half, also when the count is even."""
    return voter_count // 2 + 1


def majority_index(values: list[int]) -> int:
    """Return the largest value that a majority has reached. `values` holds one value for each voter and is sorted in place."""
    count = len(values)
    if count == 0:
        return UNBOUNDED
    values.sort()
    return values[count - majority_size(count)]


def joint_index(incoming: list[int], outgoing: list[int]) -> int:
    """Return the largest value that a majority of each half has reached. Both lists are sorted in place."""
    index = majority_index(incoming)
    if outgoing:
        return min(index, majority_index(outgoing))
    return index


def majority_vote(voters: Iterable[ReplicaId], votes: Mapping[ReplicaId, bool]) -> VoteResult:
    """Return the decision of the voters. Votes of learners and removed replicas do not count."""
    voter_count = granted = missing = 0
    for voter in voters:
        voter_count += 1
        vote = votes.get(voter)
        if vote is None:
            missing += 1
        elif vote:
            granted += 1
    if voter_count == 0:
        return VoteResult.WON
    needed = majority_size(voter_count)
    if granted >= needed:
        return VoteResult.WON
    return VoteResult.PENDING if granted + missing >= needed else VoteResult.LOST


def joint_vote(
    incoming: Iterable[ReplicaId], outgoing: Iterable[ReplicaId], votes: Mapping[ReplicaId, bool]
) -> VoteResult:
    """Return the decision of both halves: lost as soon as one half is lost, won only when both are won."""
    first = majority_vote(incoming, votes)
    second = majority_vote(outgoing, votes)
    if first is second:
        return first
    if VoteResult.LOST in (first, second):
        return VoteResult.LOST
    return VoteResult.PENDING
