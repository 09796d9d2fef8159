"""Majorities, compared with slow obvious twins."""

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st
from raftmq.raft.quorum import (
    UNBOUNDED,
    VoteResult,
    joint_index,
    joint_vote,
    majority_index,
    majority_size,
    majority_vote,
)
from raftmq.types import ReplicaId

VALUES = st.lists(st.integers(0, 50), max_size=7)
IDS = st.lists(st.integers(1, 9).map(ReplicaId), max_size=7, unique=True)
VOTES = st.dictionaries(st.integers(1, 9).map(ReplicaId), st.booleans(), max_size=9)


def slow_majority_index(values: list[int]) -> int:
    """Return the largest value that some majority has reached, by trying every majority."""
    if not values:
        return UNBOUNDED
    size = len(values) // 2 + 1
    return max(min(chosen) for chosen in combinations(values, size))


def slow_majority_vote(voters: list[ReplicaId], votes: dict[ReplicaId, bool]) -> VoteResult:
    """Return won if all possible missing votes lead to a win, and lost if none do."""
    if not voters:
        return VoteResult.WON
    known = [votes[v] for v in voters if v in votes]
    missing = len(voters) - len(known)
    outcomes = {2 * (sum(known) + extra) > len(voters) for extra in range(missing + 1)}
    return {True: VoteResult.WON, False: VoteResult.LOST}[outcomes.pop()] if len(outcomes) == 1 else VoteResult.PENDING


def test_a_majority_of_an_even_number_is_more_than_half() -> None:
    assert [majority_size(n) for n in range(1, 8)] == [1, 2, 2, 3, 3, 4, 4]


@given(VALUES)
def test_majority_index_equals_its_slow_twin(values: list[int]) -> None:
    assert majority_index(list(values)) == slow_majority_index(values)


@given(VALUES, VALUES)
def test_the_joint_index_is_the_highest_that_both_halves_reached(incoming: list[int], outgoing: list[int]) -> None:
    expected = min(slow_majority_index(incoming), slow_majority_index(outgoing))
    assert joint_index(list(incoming), list(outgoing)) == expected


@given(IDS, VOTES)
def test_majority_vote_equals_its_slow_twin(voters: list[ReplicaId], votes: dict[ReplicaId, bool]) -> None:
    assert majority_vote(voters, votes) is slow_majority_vote(voters, votes)


@given(IDS, IDS, VOTES)
def test_joint_vote_needs_both_halves(
    incoming: list[ReplicaId], outgoing: list[ReplicaId], votes: dict[ReplicaId, bool]
) -> None:
    halves = [slow_majority_vote(incoming, votes), slow_majority_vote(outgoing, votes)]
    if VoteResult.LOST in halves:
        expected = VoteResult.LOST
    elif VoteResult.PENDING in halves:
        expected = VoteResult.PENDING
    else:
        expected = VoteResult.WON
    assert joint_vote(incoming, outgoing, votes) is expected


@given(IDS, VOTES)
def test_votes_of_outsiders_never_count(voters: list[ReplicaId], votes: dict[ReplicaId, bool]) -> None:
    insiders = {voter: vote for voter, vote in votes.items() if voter in voters}
    assert majority_vote(voters, votes) is majority_vote(voters, insiders)
