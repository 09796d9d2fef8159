"""Where replicas and leaders should be (`broker/cluster/balance_plan.py`)."""

import itertools
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from raftmq.broker.cluster.balance_plan import BalancePlan, PlacedPartition, Reason, plan_balance
from raftmq.fsm.metadata_views import NodeView


def node(node_id, host="", rack="", state="active"):
    return NodeView(
        node_id,
        f"uuid-{node_id}",
        f"h{node_id}:1",
        f"h{node_id}:2",
        f"h{node_id}:3",
        host or f"host-{node_id}",
        rack,
        "1.0",
        3,
        node_id,
        state,
    )


def brokers(count):
    return [node(node_id) for node_id in range(1, count + 1)]


def placed(*places, replication_factor=0, fixed=()):
    """Return partitions of groups 1, 2, …, one for each tuple of brokers."""
    return [
        PlacedPartition(group_id, tuple(node_ids), replication_factor or len(node_ids), group_id in fixed)
        for group_id, node_ids in enumerate(places, 1)
    ]


def plan(nodes, partitions, *, replicas_max=None, away=(), is_automatic=True):
    available = {one.node_id: one.node_id not in away for one in nodes}
    return plan_balance(nodes, partitions, replicas_max or {}, available, is_automatic=is_automatic)


def after(partitions, made):
    """Return the partitions once the plan is carried out."""
    changed = {change.group_id: change.node_ids for change in made.changes}
    return [
        replace(
            one,
            node_ids=(node_ids := changed.get(one.group_id, one.node_ids)),
            is_pinned=one.is_pinned and set(node_ids) == set(one.node_ids),
        )
        for one in partitions
    ]


def replica_counts(nodes, partitions):
    counts = Counter(node_id for one in partitions for node_id in one.node_ids)
    return [counts[one.node_id] for one in nodes]


def leader_counts(nodes, partitions):
    counts = Counter(one.node_ids[0] for one in partitions)
    return [counts[one.node_id] for one in nodes]


def move_count(partitions, made):
    before = {one.group_id: one.node_ids for one in partitions}
    return sum(len(change.added(before[change.group_id])) for change in made.changes)


def test_a_new_broker_is_filled_by_as_few_moves_as_it_needs():
    nodes = brokers(4)
    partitions = placed(*[(1, 2, 3), (2, 3, 1), (3, 1, 2)] * 4)
    made = plan(nodes, partitions)
    assert replica_counts(nodes, after(partitions, made)) == [9, 9, 9, 9]
    assert move_count(partitions, made) == 9
    assert leader_counts(nodes, after(partitions, made)) == [3, 3, 3, 3]


def test_an_even_cluster_is_left_alone():
    assert plan(brokers(3), placed((1, 2, 3), (2, 3, 1), (3, 1, 2))) == BalancePlan(())


def test_a_drained_broker_is_emptied_and_leads_nothing():
    nodes = [node(1), node(2, state="draining"), node(3), node(4)]
    partitions = placed((1, 2, 3), (2, 3, 4), (4, 1, 2), (3, 4, 1))
    made = plan(nodes, partitions, is_automatic=False)
    assert {change.group_id: change.reason for change in made.changes} == dict.fromkeys((1, 2, 3), Reason.DRAIN)
    result = after(partitions, made)
    assert all(2 not in one.node_ids and len(set(one.node_ids)) == 3 for one in result)


def test_without_another_broker_a_drain_says_which_partitions_stay():
    nodes = [node(1), node(2, state="draining"), node(3)]
    made = plan(nodes, placed((1, 2, 3), (1, 3), (2, 1, 3)))
    assert made.without_place == (1, 3)
    assert all(change.reason is Reason.LEADERS for change in made.changes)


def test_a_full_broker_is_given_nothing():
    nodes = [node(1), node(2, state="draining"), node(3), node(4)]
    partitions = placed((1, 2), (2, 3), (2, 1))
    made = plan(nodes, partitions, replicas_max={1: 3, 3: 1, 4: 1}, is_automatic=False)
    assert replica_counts(nodes, after(partitions, made))[2:] == [1, 1]
    assert made.without_place == (3,)


def test_an_unreachable_broker_is_given_nothing_and_keeps_what_it_has():
    nodes = brokers(4)
    partitions = placed(*[(1, 2, 3)] * 6)
    made = plan(nodes, partitions, away=(4,))
    assert move_count(partitions, made) == 0
    made = plan(nodes, partitions, away=(3,))
    assert replica_counts(nodes, after(partitions, made))[2] == 6


def test_a_smaller_replication_factor_removes_the_replica_that_shares_a_rack():
    nodes = [node(1, rack="a"), node(2, rack="a"), node(3, rack="b")]
    partitions = placed((1, 2, 3), replication_factor=2)
    (change,) = plan(nodes, partitions, is_automatic=False).changes
    assert change.reason is Reason.SURPLUS
    assert change.node_ids in ((1, 3), (2, 3))


def test_a_drained_broker_gives_up_a_surplus_replica_without_a_move():
    nodes = [node(1), node(2), node(3, state="draining"), node(4)]
    partitions = placed((3, 1, 2), replication_factor=2)
    (change,) = plan(nodes, partitions).changes
    assert sorted(change.node_ids) == [1, 2]


def test_replicas_that_share_a_host_are_spread_before_anything_is_evened():
    nodes = [node(1, host="x"), node(2, host="x"), node(3, host="y")]
    partitions = placed((1, 2))
    (change,) = plan(nodes, partitions).changes
    assert (change.reason, sorted(change.node_ids)) in ((Reason.SPREAD, [1, 3]), (Reason.SPREAD, [2, 3]))


def test_evenness_is_not_sought_at_the_cost_of_racks():
    nodes = [node(1, rack="a"), node(2, rack="b"), node(3, rack="b"), node(4, rack="b")]
    partitions = placed((1, 2), (1, 3), (1, 4), (2, 1))
    made = plan(nodes, partitions)
    assert replica_counts(nodes, after(partitions, made))[0] == 4, "rack a has one broker"


def test_a_partition_that_must_stay_is_not_touched_but_counts():
    nodes = [node(1, state="draining"), node(2), node(3)]
    partitions = placed((1, 2), (1, 2), fixed=(1,))
    made = plan(nodes, partitions)
    assert [change.group_id for change in made.changes] == [2]


def test_leaders_are_shifted_along_a_chain():
    """Broker 4 leads nothing, and broker 1 two: it hands one to 2 or 3, which hands one to 4."""
    nodes = brokers(4)
    partitions = placed((1, 2), (1, 3), (3, 4), (2, 4))
    made = plan(nodes, partitions)
    assert leader_counts(nodes, after(partitions, made)) == [1, 1, 1, 1]
    assert move_count(partitions, made) == 0


def test_without_automatic_balance_only_drains_and_surplus_are_planned():
    nodes = brokers(4)
    assert plan(nodes, placed(*[(1, 2, 3)] * 6), is_automatic=False) == BalancePlan(())


def test_a_broker_that_gives_replicas_away_has_room_for_those_of_a_drained_one():
    """Hypothesis found it: broker 1 is full, holds too many, and is the only one that can take the replica of broker 4."""
    nodes = [node(1), node(2), node(3), node(4, state="draining"), node(5, state="draining")]
    partitions = placed((2, 3, 4), (1,), (1,), (1,), (1,), (1,))
    made = plan(nodes, partitions, replicas_max={1: 4})
    assert sorted(after(partitions, made)[0].node_ids) == [1, 2, 3]
    assert made.without_place == ()


@st.composite
def clusters(draw):
    """Return brokers, partitions, the room of brokers, and the brokers that are away."""
    count = draw(st.integers(1, 6))
    nodes = [
        node(
            node_id,
            host=draw(st.sampled_from(["", "", "", "shared"])),
            rack=draw(st.sampled_from(["", "a", "b"])),
            state=draw(st.sampled_from(["active", "active", "active", "draining"])),
        )
        for node_id in range(1, count + 1)
    ]
    ids = [one.node_id for one in nodes]
    partitions = [
        PlacedPartition(
            group_id,
            tuple(draw(st.lists(st.sampled_from(ids), min_size=1, max_size=min(3, count), unique=True))),
            draw(st.integers(1, 3)),
            draw(st.sampled_from([False, False, False, True])),
            draw(st.sampled_from([False, False, False, True])),
            frozenset(draw(st.sets(st.sampled_from(ids), max_size=1))),
        )
        for group_id in range(1, draw(st.integers(0, 9)) + 1)
    ]
    replicas_max = draw(st.dictionaries(st.sampled_from(ids), st.integers(1, 12), max_size=2))
    return nodes, partitions, replicas_max, draw(st.sets(st.sampled_from(ids), max_size=1))


def crowding(nodes, node_ids):
    by_id = {one.node_id: one for one in nodes}
    hosts = Counter(by_id[node_id].host for node_id in node_ids)
    racks = Counter(by_id[node_id].rack for node_id in node_ids)
    return sum(count**2 for count in hosts.values()), sum(count**2 for count in racks.values())


def better_single_moves(nodes, partitions, replicas_max, away):
    """Return every single move that would bring a wish nearer: the slow and obvious judge of a plan."""
    counts = dict(zip((one.node_id for one in nodes), replica_counts(nodes, partitions), strict=True))
    takers = [
        one.node_id
        for one in nodes
        if one.state == "active"
        and one.node_id not in away
        and counts[one.node_id] < replicas_max.get(one.node_id, counts[one.node_id] + 1)
    ]
    draining = {one.node_id for one in nodes if one.state == "draining"}
    able = {one.node_id for one in nodes if one.state == "active" and one.node_id not in away}
    for partition in partitions:
        if partition.is_fixed:
            continue
        for giver, taker in itertools.product(partition.node_ids, takers):
            if taker in partition.node_ids or taker in partition.barred:
                continue
            if partition.is_pinned and giver not in draining:
                continue
            moved = [taker if node_id == giver else node_id for node_id in partition.node_ids]
            change = crowding(nodes, moved), crowding(nodes, partition.node_ids)
            if giver in draining:
                yield Reason.DRAIN, partition.group_id, giver, taker
            elif change[0] < change[1]:
                yield Reason.SPREAD, partition.group_id, giver, taker
            elif change[0] == change[1] and giver in able and counts[giver] - counts[taker] > 1:
                yield Reason.REPLICAS, partition.group_id, giver, taker


@given(clusters())
@settings(max_examples=100, deadline=None)
def test_a_plan_keeps_what_must_stay_and_leaves_no_better_single_move(cluster):
    nodes, partitions, replicas_max, away = cluster
    made = plan(nodes, partitions, replicas_max=replicas_max, away=away)
    result = after(partitions, made)
    takers = {one.node_id for one in nodes if one.state == "active" and one.node_id not in away}
    counts = dict(zip((one.node_id for one in nodes), replica_counts(nodes, result), strict=True))
    before_counts = dict(zip((one.node_id for one in nodes), replica_counts(nodes, partitions), strict=True))
    for before, now in zip(partitions, result, strict=True):
        assert len(set(now.node_ids)) == len(now.node_ids)
        assert set(now.node_ids).difference(before.node_ids) <= takers - before.barred
        assert now.node_ids == before.node_ids or not before.is_fixed
        expected = min(len(before.node_ids), before.replication_factor)
        assert len(now.node_ids) == (len(before.node_ids) if before.is_fixed else expected)
    for node_id, room in replicas_max.items():
        assert counts[node_id] <= max(room, before_counts[node_id])
    assert list(better_single_moves(nodes, result, replicas_max, away)) == []
    led = Counter(one.node_ids[0] for one in result)
    for one in result:
        if not one.is_fixed and not one.is_pinned and one.node_ids[0] in takers:
            assert all(led[one.node_ids[0]] - led[other] < 2 for other in one.node_ids[1:] if other in takers)
    again = plan(nodes, result, replicas_max=replicas_max, away=away)
    assert again.changes == ()


@given(st.integers(2, 7), st.data())
@settings(max_examples=100, deadline=None)
def test_where_nothing_hinders_no_plan_has_fewer_moves(count, data):
    nodes = brokers(count)
    ids = st.sampled_from([one.node_id for one in nodes])
    partitions = placed(*data.draw(st.lists(st.tuples(ids), max_size=20)))
    made = plan(nodes, partitions)
    counts = sorted(replica_counts(nodes, partitions), reverse=True)
    each, more = divmod(sum(counts), count)
    fewest = sum(max(0, have - (each + (place < more))) for place, have in enumerate(counts))
    assert move_count(partitions, made) == fewest
    result = replica_counts(nodes, after(partitions, made))
    assert max(result) - min(result) <= 1


@pytest.mark.parametrize("is_automatic", [True, False])
def test_a_plan_does_not_depend_on_the_order_of_its_input(is_automatic):
    nodes = [node(1), node(2, state="draining"), node(3, rack="a"), node(4, rack="a"), node(5)]
    partitions = placed(*[(1, 2, 3), (2, 4, 1), (3, 1, 2)] * 5)
    assert plan(nodes, partitions, is_automatic=is_automatic) == plan(
        nodes[::-1], partitions[::-1], is_automatic=is_automatic
    )


# ------------------------------------------------------------------------------------------------- pinned and barred


def test_a_pinned_partition_stays_while_others_are_spread_and_evened():
    nodes = brokers(3)
    partitions = [replace(one, is_pinned=one.group_id <= 3) for one in placed(*[(1,)] * 6)]
    result = {one.group_id: one.node_ids for one in after(partitions, plan(nodes, partitions))}
    assert {group_id: node_ids for group_id, node_ids in result.items() if group_id <= 3} == dict.fromkeys(
        (1, 2, 3), (1,)
    )
    assert sorted(result[group_id] for group_id in (4, 5, 6)) == [(2,), (2,), (3,)]


def test_a_drain_and_a_smaller_replication_factor_end_a_pin():
    nodes = [node(1, state="draining"), node(2), node(3)]
    partitions = [replace(one, is_pinned=True) for one in placed((1, 2))]
    (change,) = plan(nodes, partitions).changes
    assert sorted(change.node_ids) == [2, 3]
    partitions = [replace(one, is_pinned=True) for one in placed((1, 2), replication_factor=1)]
    assert [one.node_ids for one in plan(brokers(3), partitions).changes] == [(1,)]


def test_a_barred_broker_gets_no_replica_of_the_partition():
    nodes = [node(1, state="draining"), node(2), node(3)]
    partitions = [replace(one, barred=frozenset({3})) for one in placed((1, 2), (1, 2))]
    assert plan(nodes, partitions).without_place == (1, 2)
    partitions = [replace(one, barred=frozenset({2})) for one in placed((1,), (1,))]
    assert plan(brokers(2), partitions).changes == ()


# ------------------------------------------------------------------------------------------------------------- bytes

GIB = 1 << 30


def sized(partitions, *gibibytes):
    return [replace(one, size_bytes=size * GIB) for one, size in zip(partitions, gibibytes, strict=True)]


def held_bytes(nodes, partitions):
    return [sum(one.size_bytes for one in partitions if each.node_id in one.node_ids) for each in nodes]


def test_bytes_are_evened_by_exchanges_that_keep_the_numbers_of_replicas_and_leaders():
    nodes = brokers(2)
    partitions = sized(placed((1,), (1,), (2,), (2,)), 40, 30, 10, 20)
    made = plan(nodes, partitions)
    assert {change.reason for change in made.changes} == {Reason.BYTES}
    result = after(partitions, made)
    assert held_bytes(nodes, result) == [50 * GIB, 50 * GIB]
    assert replica_counts(nodes, result) == leader_counts(nodes, result) == [2, 2]
    assert plan(nodes, result).changes == ()


def test_a_small_difference_of_bytes_is_left_alone():
    for sizes in ((11, 0, 10, 0), (1, 0, 0, 0)):
        assert plan(brokers(2), sized(placed((1,), (1,), (2,), (2,)), *sizes)).changes == ()


def test_much_is_not_copied_for_little():
    partitions = sized(placed((1,), (1,), (2,), (2,)), 100, 30, 99, 1)
    result = after(partitions, plan(brokers(2), partitions))
    assert result[0].node_ids == (1,), "an exchange of the two large partitions would copy 199 GiB to even 1 GiB"


def better_exchanges(nodes, partitions, away):
    """Return every exchange that would even bytes, as long as they are uneven: the slow and obvious judge of a plan."""
    able = [one.node_id for one in nodes if one.state == "active" and one.node_id not in away]
    held = {node_id: sum(one.size_bytes for one in partitions if node_id in one.node_ids) for node_id in able}
    if not able:
        return
    begin = max(GIB, sum(held.values()) // len(able) * 20 // 100)
    hosts, racks = len({one.host for one in nodes}), len({one.rack for one in nodes})

    def is_spread(places):
        return crowding(nodes, places) <= (least(len(places), hosts), least(len(places), racks))

    def may_swap(one, old, new):
        moved = [new if node_id == old else node_id for node_id in one.node_ids]
        return (
            old in one.node_ids and new not in one.node_ids and new not in one.barred
            and not one.is_fixed and not one.is_pinned
            and is_spread(one.node_ids) and crowding(nodes, moved) <= crowding(nodes, one.node_ids)
        )  # fmt: skip

    givers = [one for one in able if held[one] - min(held.values()) > begin]
    for giver, taker in itertools.product(givers, able):
        gap = held[giver] - held[taker]
        for given_one, taken_one in itertools.product(partitions, partitions):
            step = given_one.size_bytes - taken_one.size_bytes
            is_same_role = (given_one.node_ids[0] == giver) == (taken_one.node_ids[0] == taker)
            is_worth = 0 < step < gap and given_one.size_bytes + taken_one.size_bytes <= 8 * step
            if (
                gap > begin // 2
                and is_worth
                and is_same_role
                and may_swap(given_one, giver, taker)
                and may_swap(taken_one, taker, giver)
            ):
                yield giver, taker, given_one.group_id, taken_one.group_id


def least(count, places):
    each, more = divmod(count, places)
    return more * (each + 1) ** 2 + (places - more) * each**2


@given(clusters(), st.data())
@settings(max_examples=100, deadline=None)
def test_a_plan_with_sizes_never_changes_the_numbers_and_a_few_plans_leave_no_better_exchange(cluster, data):
    nodes, partitions, replicas_max, away = cluster
    sizes = data.draw(st.lists(st.integers(0, 40), min_size=len(partitions), max_size=len(partitions)))
    partitions = sized(partitions, *sizes)
    made = plan(nodes, partitions, replicas_max=replicas_max, away=away)
    result = after(partitions, made)
    final = result
    for _ in range(9):
        final = after(final, plan(nodes, final, replicas_max=replicas_max, away=away))
    assert plan(nodes, final, replicas_max=replicas_max, away=away).changes == ()
    assert list(better_exchanges(nodes, final, away)) == []
    without = plan(nodes, [replace(one, size_bytes=0) for one in partitions], replicas_max=replicas_max, away=away)
    uneven = after(partitions, without)
    assert replica_counts(nodes, result) == replica_counts(nodes, uneven)
    assert leader_counts(nodes, result) == leader_counts(nodes, uneven)
