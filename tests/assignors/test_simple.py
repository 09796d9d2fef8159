"""Range and round robin, as in Kafka, and the common properties of all assignors of RaftMQ."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from raftmq.assignors.assignor import Assignor, ConsumerGroup, Member, Topic
from raftmq.assignors.builtin import BUILTIN_ASSIGNORS, DEFAULT_ASSIGNOR
from raftmq.assignors.range import RangeAssignor
from raftmq.assignors.round_robin import RoundRobinAssignor

from tests.support.assignors.groups import check_complete, equal_group, groups

EACH = pytest.mark.parametrize("assignor", BUILTIN_ASSIGNORS.values(), ids=BUILTIN_ASSIGNORS)


def test_names() -> None:
    assert DEFAULT_ASSIGNOR == "sticky"
    assert {name: assignor.name for name, assignor in BUILTIN_ASSIGNORS.items()} == {
        "sticky": "sticky",
        "range": "range",
        "round_robin": "round_robin",
    }


@EACH
@given(group=groups())
def test_each_assigns_everything_once(assignor: Assignor, group: ConsumerGroup) -> None:
    check_complete(group, assignor.assign(group))


@EACH
@given(group=groups(), rng=st.randoms(use_true_random=False))
def test_each_is_deterministic(assignor: Assignor, group: ConsumerGroup, rng: random.Random) -> None:
    shuffled = ConsumerGroup(
        tuple(rng.sample(group.members, len(group.members))),
        tuple(rng.sample(group.topics, len(group.topics))),
        group.owned,
    )
    assert assignor.assign(group) == assignor.assign(shuffled)


@given(groups(is_equal=True))
def test_round_robin_is_even_among_equal_subscriptions(group: ConsumerGroup) -> None:
    counts = [len(partitions) for partitions in RoundRobinAssignor().assign(group).values()]
    assert not counts or max(counts) - min(counts) <= 1


@given(groups())
def test_range_is_even_per_topic_and_gives_runs(group: ConsumerGroup) -> None:
    assignment = RangeAssignor().assign(group)
    for topic in group.topics:
        runs = [
            [number for topic_id, number in assignment[member.member_id] if topic_id == topic.topic_id]
            for member in group.members
            if topic.topic_id in member.topic_ids
        ]
        assert all(run == list(range(run[0], run[0] + len(run))) for run in runs if run)
        assert not runs or max(map(len, runs)) - min(map(len, runs)) <= 1


def test_range_puts_equal_numbers_of_two_topics_together() -> None:
    """Kafka's documented example: one member joins co-partitioned topics."""
    assert RangeAssignor().assign(equal_group(2, 3, 3)) == {
        "m00": ((1, 0), (1, 1), (2, 0), (2, 1)),
        "m01": ((1, 2), (2, 2)),
    }


def test_round_robin_skips_members_without_the_subscription() -> None:
    """Kafka's documented example of unequal subscriptions."""
    members = (Member("c0", frozenset({1})), Member("c1", frozenset({1, 2})), Member("c2", frozenset({1, 2, 3})))
    assert RoundRobinAssignor().assign(ConsumerGroup(members, (Topic(1, 1), Topic(2, 2), Topic(3, 3)))) == {
        "c0": ((1, 0),),
        "c1": ((2, 0),),
        "c2": ((2, 1), (3, 0), (3, 1), (3, 2)),
    }
