"""The sticky assignor, compared with twins that try every assignment, and tests of defects of other systems."""

import random
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from raftmq.assignors.assignor import AssignedPartition, Assignment, ConsumerGroup, Member, Topic
from raftmq.assignors.sticky import StickyAssignor

from tests.support.assignors.groups import (
    check_complete,
    cost,
    equal_group,
    every_assignment,
    groups,
    keepers_of,
    near_count,
    owners_of,
)

assign = StickyAssignor().assign


@settings(max_examples=200, deadline=None)
@given(groups(with_racks=True))
def test_every_partition_has_exactly_one_owner(group: ConsumerGroup) -> None:
    check_complete(group, assign(group))


@settings(max_examples=200, deadline=None)
@given(groups(with_racks=True))
def test_equal_subscriptions_differ_by_at_most_one(group: ConsumerGroup) -> None:
    known = {topic.topic_id for topic in group.topics}
    counts: dict[frozenset[int], list[int]] = {}
    assignment = assign(group)
    for member in group.members:
        counts.setdefault(member.topic_ids & known, []).append(len(assignment[member.member_id]))
    assert all(max(row) - min(row) <= 1 for row in counts.values())


@settings(max_examples=150, deadline=None)
@given(groups(members_max=4, topics_max=3, partitions_max=2))
def test_no_assignment_is_more_even_or_as_even_with_fewer_moves(group: ConsumerGroup) -> None:
    """The twin tries every assignment."""
    assert cost(group, owners_of(assign(group))) == min(cost(group, owners) for owners in every_assignment(group))


@settings(max_examples=150, deadline=None)
@given(groups(is_equal=True, members_max=10, partitions_max=12))
def test_equal_subscriptions_keep_as_much_as_even_counts_allow(group: ConsumerGroup) -> None:
    """The twin is a formula: each member keeps up to the lower count, and as many members as possible keep the higher one."""
    if not group.members:
        return
    total = sum(topic.partition_count for topic in group.topics)
    base, extra = divmod(total, len(group.members))
    keepers = list(keepers_of(group).values())
    counts = [keepers.count(member.member_id) for member in group.members]
    kept_max = sum(min(count, base) for count in counts) + min(extra, sum(count > base for count in counts))
    assert cost(group, owners_of(assign(group)))[1] == len(keepers) - kept_max


@settings(max_examples=150, deadline=None)
@given(groups(with_racks=True))
def test_racks_never_reduce_balance_or_cause_moves(group: ConsumerGroup) -> None:
    bare = replace(group, members=tuple(replace(member, rack="") for member in group.members))
    aware = assign(group)
    assert cost(group, owners_of(aware)) == cost(group, owners_of(assign(bare)))


@given(groups(with_racks=True), st.randoms(use_true_random=False))
def test_the_order_of_the_input_changes_nothing(group: ConsumerGroup, rng: random.Random) -> None:
    expected = assign(group)
    shuffled = ConsumerGroup(
        tuple(rng.sample(group.members, len(group.members))),
        tuple(rng.sample(group.topics, len(group.topics))),
        {owner: rng.sample(list(group.owned[owner]), len(group.owned[owner])) for owner in reversed(group.owned)},
    )
    assert assign(group) == expected == assign(shuffled)


@given(groups(with_racks=True))
def test_the_assignment_stays_when_nothing_changes(group: ConsumerGroup) -> None:
    first = assign(group)
    assert assign(replace(group, owned=first)) == first


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_a_long_series_of_changes_stays_even_with_as_few_moves_as_possible(data: st.DataObject) -> None:
    """Members join and leave, and partitions are added. Each new assignment is compared with the previous one."""
    members: set[int] = set()
    partitions, owned = data.draw(st.integers(1, 40)), Assignment()
    for number in range(data.draw(st.integers(1, 15))):
        before = set(members)
        if members and data.draw(st.booleans()):
            members.discard(data.draw(st.sampled_from(sorted(members))))
        else:
            members.add(number)
        partitions += data.draw(st.sampled_from([0, 0, 3]))
        group = ConsumerGroup(
            tuple(Member(f"m{member:02d}", frozenset({1})) for member in members), (Topic(1, partitions),), owned
        )
        owned = assign(group)
        check_complete(group, owned)
        loads, moves = cost(group, owners_of(owned))
        assert not loads or loads[0] - loads[-1] <= 1
        if len(members - before) == 1:
            # only the new member gets partitions, and no more than its share
            assert moves <= -(-partitions // len(members))


def test_a_member_that_joins_when_everything_is_taken_gets_its_share() -> None:
    """The sticky assignor of an earlier system assigned only free partitions, so scaling out did not work."""
    alone = assign(equal_group(1, 12))
    assert len(alone["m00"]) == 12
    both = assign(equal_group(2, 12, owned=alone))
    assert {member: len(partitions) for member, partitions in both.items()} == {"m00": 6, "m01": 6}
    assert set(both["m00"]) < set(alone["m00"])
    crowd = assign(equal_group(12, 12, owned=both))
    assert all(len(partitions) == 1 for partitions in crowd.values())


def test_more_members_than_partitions_leave_some_without() -> None:
    assignment = assign(equal_group(5, 3))
    assert sorted(map(len, assignment.values())) == [0, 0, 1, 1, 1]


def test_a_new_topic_is_spread_over_all_members() -> None:
    first = assign(equal_group(3, 9))
    second = assign(equal_group(3, 9, 9, owned=first))
    for member_id, partitions in second.items():
        assert set(first[member_id]) < set(partitions)
        assert len(partitions) == 6


def test_a_fresh_assignment_spreads_each_topic() -> None:
    """A simple count would allow one member to have all of a topic, and a busy topic would make it a busy member."""
    assignment = assign(equal_group(4, 8, 8))
    for partitions in assignment.values():
        assert sorted(topic_id for topic_id, _ in partitions) == [1, 1, 2, 2]


def test_members_with_fewer_subscriptions_get_their_share_through_others() -> None:
    """m0 subscribes only to topic 1 and m2 only to topic 2. To relieve m2, m1 takes partitions from it and gives some to m0."""
    members = (Member("m0", frozenset({1})), Member("m1", frozenset({1, 2})), Member("m2", frozenset({2})))
    topics = (Topic(1, 2), Topic(2, 10))
    assignment = assign(ConsumerGroup(members, topics))
    assert [len(assignment[f"m{number}"]) for number in range(3)] == [2, 5, 5]
    assert assignment["m0"] == ((1, 0), (1, 1))


def test_partitions_without_a_near_replica_are_moved_first() -> None:
    racks = tuple(frozenset({"near" if number % 2 else "far"}) for number in range(8))
    topics = (Topic(1, 8, racks),)
    members = (Member("m0", frozenset({1}), "near"), Member("m1", frozenset({1}), "far"))
    owned: dict[str, tuple[AssignedPartition, ...]] = {"m0": tuple((1, number) for number in range(8))}
    group = ConsumerGroup(members, topics, owned)
    assignment = assign(group)
    assert assignment["m0"] == ((1, 1), (1, 3), (1, 5), (1, 7))
    assert near_count(group, assignment) == 8


def test_fresh_partitions_go_to_consumers_near_a_replica() -> None:
    racks = tuple(frozenset({"abc"[number % 3]}) for number in range(12))
    members = tuple(Member(f"m{number}", frozenset({1}), "abc"[number // 2]) for number in range(6))
    group = ConsumerGroup(members, (Topic(1, 12, racks),))
    assignment = assign(group)
    assert {len(partitions) for partitions in assignment.values()} == {2}
    assert near_count(group, assignment) == 12
