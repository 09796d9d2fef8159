"""Replacement plans choose partitions and nodes, a bounded number at a time: pure functions, and a model that follows the plans."""

from types import SimpleNamespace

import msgspec
import pytest
from raftmq.broker.cluster.replacement_plan import WantedPartition, further_replicas, plan_elsewhere, plan_replacements
from raftmq.fsm.metadata_views import NodeView, PartitionView, ReplicaView


def node(node_id, host="", rack="", state="active"):
    return NodeView(node_id, f"u{node_id}", "", "", "", host or f"h{node_id}", rack, "1", 1, node_id, state)


def wanted(group_id, node_ids, *, lost=(), leaving=(), factor=3):
    """Return a partition whose replica ids show group and node. The lost replicas were on the named nodes."""
    replicas = tuple(ReplicaView(group_id * 100 + node_id, node_id) for node_id in node_ids)
    retiring = tuple(ReplicaView(group_id * 100 + 50 + node_id, node_id, is_lost=True) for node_id in lost)
    retiring += tuple(ReplicaView(group_id * 100 + 50 + node_id, node_id) for node_id in leaving)
    view = PartitionView(1, group_id, group_id, replicas, replicas, retiring, revision=40 + group_id)
    return WantedPartition(view, factor)


def plan(partitions, nodes, *, counts=None, takes=None, down=(), leaders=None, most=10, growing=None):
    led_by = {p.view.group_id: p.view.replicas[0].node_id for p in partitions if p.view.replicas} | (leaders or {})
    return plan_replacements(
        partitions,
        nodes,
        counts or {},
        takes or {},
        lambda n: n not in down,
        lambda replica: led_by.get(replica, 0),
        most,
        most if growing is None else growing,
    )


def chosen(found):
    return {command.group_id: command.node_ids for command in found.commands}


FIVE = [node(n) for n in range(1, 6)]


def test_whole_partitions_are_left_alone():
    found = plan([wanted(1, (1, 2, 3)), wanted(2, (1,), factor=1)], FIVE)
    assert found.commands == ()
    assert found.without_node_count == 0


def test_a_short_partition_keeps_its_replicas_and_order_and_gets_the_emptiest_node():
    found = plan([wanted(1, (3, 2), lost=(1,))], FIVE[1:], counts={4: 7, 5: 6})
    assert chosen(found) == {1: (3, 2, 5)}
    assert found.commands[0].expected_revision == 41, "a partition that changed in the meantime refuses it"


def elsewhere(view, stuck, nodes=FIVE, down=(), takes=None):
    return plan_elsewhere(view, stuck, nodes, {4: 2}, takes or {}, lambda n: n not in down)


def test_a_stuck_replica_gets_another_place_at_the_same_position():
    view = wanted(1, (2, 3, 1)).view
    command = elsewhere(view, 103)
    assert (command.group_id, command.node_ids, command.expected_revision) == (1, (2, 5, 1), view.revision)


def test_a_stuck_replica_stays_where_no_other_broker_can_take_it():
    view = wanted(1, (1, 2, 3), leaving=(4,)).view
    assert elsewhere(view, 103, down=(5,)) is None, "broker 4 has a replica that has not left yet"
    assert elsewhere(view, 103, takes={5: 0}) is None
    assert elsewhere(view, 103, nodes=[*FIVE[:4], node(5, state="draining")]) is None
    assert elsewhere(view, 103).node_ids == (1, 2, 5)


def test_hosts_count_before_racks_before_replicas():
    nodes = [
        node(1, "a", "r1"), node(2, "b", "r2"), node(3, "a", "r3"), node(4, "c", "r1"), node(5, "d", "r3"),
        node(6, "e", "r3"),
    ]  # fmt: skip
    assert chosen(plan([wanted(1, (1, 2))], nodes, counts={4: 0, 5: 9, 6: 8}))[1] == (1, 2, 6)
    assert chosen(plan([wanted(1, (1, 2))], nodes[:4], counts={4: 9}))[1] == (1, 2, 4), (
        "a shared rack, not a shared host"
    )
    assert chosen(plan([wanted(1, (1, 2))], nodes[:3]))[1] == (1, 2, 3), "rather a shared host than no replica"


def test_planned_replicas_count_for_the_next_choice():
    found = plan([wanted(replica, (1, 2)) for replica in range(1, 7)], FIVE)
    assert [ids[2] for ids in chosen(found).values()] == [3, 4, 5, 3, 4, 5]


def test_full_absent_and_leaving_nodes_get_nothing_and_the_shortage_is_reported():
    partitions = [wanted(1, (1, 2)), wanted(2, (1, 2, 3))]
    for situation in (
        {"nodes": FIVE[:2]},
        {"nodes": FIVE[:3], "down": (3,)},
        {"nodes": [*FIVE[:2], node(3, state="draining")]},
        {"nodes": FIVE[:3], "counts": {3: 4}, "takes": {3: 4}},
    ):
        found = plan(partitions, situation.pop("nodes"), **situation)
        assert found.commands == ()
        assert found.without_node_count == 1


def test_a_node_whose_old_replica_still_votes_takes_no_other_of_the_group_and_a_lost_one_may():
    assert chosen(plan([wanted(1, (1, 2), leaving=(3,))], FIVE[:4])) == {1: (1, 2, 4)}
    assert chosen(plan([wanted(1, (1, 2), lost=(3,))], FIVE[:3])) == {1: (1, 2, 3)}, "the machine came back empty"


@pytest.mark.parametrize("leader", [0, 3, 5])
def test_without_a_leader_within_reach_nothing_is_planned(leader):
    """There is no leader, it was removed, or it is not a replica: there is no source to copy from."""
    found = plan([wanted(1, (1, 2), lost=(3,))], FIVE, leaders={1: leader})
    assert found.commands == ()
    assert plan([wanted(1, (1, 2), lost=(3,))], FIVE, down=(1,)).commands == ()


def test_a_partition_that_was_moving_to_a_removed_node_is_led_by_the_replica_that_was_to_leave():
    """It has the data. With one replica per partition, nothing was ever planned, and the partition counted as moving without end."""
    found = plan([wanted(1, (), lost=(5,), leaving=(1,), factor=1)], FIVE[:4], counts={2: 1}, leaders={1: 1})
    assert chosen(found) == {1: (3,)}


def test_a_partition_whose_every_replica_is_lost_does_not_come_back_empty():
    found = plan([wanted(1, (), lost=(3,), factor=1)], FIVE, leaders={1: 3})
    assert found.commands == ()


def test_rebuilding_is_bounded_and_starts_with_the_fewest_replicas():
    partitions = [wanted(1, (1, 2)), wanted(2, (1,)), wanted(3, (1, 2)), wanted(4, (1, 2, 3), lost=(5,))]
    assert list(chosen(plan(partitions, FIVE, most=3))) == [2, 1], "the fourth is on its way, so there is room for two"
    assert plan(partitions, FIVE, most=1).commands == ()
    assert plan(partitions, FIVE, most=1).without_node_count == 0, "they wait for capacity, not for a node"


def test_more_replicas_come_after_lost_ones_and_have_a_bound_of_their_own():
    growing = [wanted(1, (1,)), wanted(2, (1,)), wanted(3, (2,))]
    assert list(chosen(plan(growing, FIVE, growing=2))) == [1, 2]
    lost = [wanted(4, (1, 2), lost=(5,)), wanted(5, (2, 3), lost=(5,))]
    assert list(chosen(plan([*growing, *lost], FIVE, growing=3))) == [4, 5, 1]
    assert list(chosen(plan([*growing, *lost], FIVE, growing=2))) == [4, 5]


def test_a_partition_that_waits_for_a_node_does_not_delay_others():
    stuck = wanted(4, (1, 2, 3), lost=(5,))
    assert list(chosen(plan([wanted(1, (1, 2)), stuck], FIVE, down=(3,), most=1))) == [1]


def test_as_many_as_there_are_nodes_for_are_added():
    found = plan([wanted(1, (1, 2), lost=(8, 9), factor=5)], FIVE[:3])
    assert chosen(found) == {1: (1, 2, 3)}
    assert found.without_node_count == 1


def test_following_the_plans_makes_everything_whole_a_few_at_a_time():
    """Node 6 of 6 held a replica of each of 30 partitions. In each round one replacement completes."""
    partitions = {g: wanted(g, (1 + g % 5, 1 + (g + 1) % 5), lost=(6,)) for g in range(30)}
    rounds = 0
    while any(p.missing_count or p.view.retiring for p in partitions.values()):
        rounds += 1
        assert rounds < 100
        counts = {n: sum(n in nodes_of(p) for p in partitions.values()) for n in range(1, 6)}
        for command in plan(list(partitions.values()), FIVE, counts=counts, most=4).commands:
            partitions[command.group_id] = wanted(command.group_id, command.node_ids, lost=(6,))
        on_the_way = [g for g, p in partitions.items() if not p.missing_count and p.view.retiring]
        assert 0 < len(on_the_way) <= 4
        partitions[on_the_way[0]] = wanted(on_the_way[0], nodes_of(partitions[on_the_way[0]]))
    assert all(len(set(nodes_of(p))) == 3 for p in partitions.values())
    assert max(counts.values()) - min(counts.values()) <= 1


def nodes_of(partition):
    return tuple(replica.node_id for replica in partition.view.replicas)


def test_further_replicas_are_those_of_a_raised_factor_and_no_repair():
    grown = PartitionView(1, 0, 1, (), (ReplicaView(1, 1), ReplicaView(2, 2, is_newcomer=True)), (), revision=1)
    rebuilt = PartitionView(
        1, 0, 1, (), (ReplicaView(1, 1), ReplicaView(5, 2, inherited_seat=3, is_newcomer=True)),
        (ReplicaView(3, 3, is_lost=True, is_newcomer=True),), revision=1,
    )  # fmt: skip
    moved = PartitionView(1, 0, 1, (), (ReplicaView(4, 2, inherited_seat=1),), (ReplicaView(1, 1),), revision=1)
    recovered = {9: object()}

    def further(partition):
        return further_replicas(SimpleNamespace(recovery=recovered.get), partition)

    assert [further(one) for one in (grown, rebuilt, moved)] == [{2}, set(), set()]
    assert further(msgspec.structs.replace(grown, group_id=9)) == set(), "it has lost its other replicas"
