"""Plans for a group's membership are tested as pure functions, and with a model that follows them to the end."""

import dataclasses
import itertools
import random

import pytest
from raftmq.broker.cluster.membership_plan import (
    MembershipTarget,
    choose_metadata_voters,
    has_healthy_majority,
    is_reached,
    partition_target,
    plan_change,
)
from raftmq.fsm import metadata_commands as mc
from raftmq.fsm.metadata_views import NodeView, PartitionView, ReplicaView
from raftmq.raft.membership import Membership, MembershipOp, apply_change, leave_joint
from raftmq.types import ReplicaId

from tests.support.fsm.harness import MetadataLog
from tests.support.fsm.histories import register


def target(voters, learners=(), lost=()):
    return MembershipTarget(frozenset(voters), frozenset(learners), frozenset(lost), revision=7)


def steps(membership, wanted, caught_up=()):
    change = plan_change(membership, wanted, caught_up)
    return None if change is None else change.steps


def test_a_newcomer_becomes_a_learner_first():
    change = plan_change(Membership((1, 2, 3)), target((1, 2, 4)), {4})
    assert change.steps == ((MembershipOp.ADD_LEARNER, 4),)
    assert change.revision == 7


def test_a_learner_that_is_behind_is_not_promoted():
    assert steps(Membership((1, 2, 3), (4,)), target((1, 2, 4))) is None


def test_a_replica_is_replaced_in_one_joint_change():
    planned = steps(Membership((1, 2, 3), (4,)), target((1, 2, 4), lost=(3,)), {4})
    assert planned == ((MembershipOp.ADD_VOTER, 4), (MembershipOp.REMOVE, 3))


def test_the_third_node_makes_three_voters_in_one_step():
    """Two voters tolerate no failure, and need both."""
    membership = Membership((1,), (2, 3))
    assert steps(membership, target((1, 2, 3)), {2}) is None
    planned = steps(membership, target((1, 2, 3)), {2, 3})
    assert planned == ((MembershipOp.ADD_VOTER, 2), (MembershipOp.ADD_VOTER, 3))


def test_a_slow_newcomer_does_not_keep_a_lost_replica_in_the_quorum():
    membership = Membership((1, 2, 3), (4, 5))
    planned = steps(membership, target((1, 4, 5), lost=(3,)), {4})
    assert planned == ((MembershipOp.ADD_VOTER, 4), (MembershipOp.REMOVE, 3)), "the lost one goes first"


def test_a_voter_that_should_be_a_learner_is_demoted():
    assert steps(Membership((1, 2, 3)), target((1,), learners=(2, 3))) == (
        (MembershipOp.ADD_LEARNER, 2),
        (MembershipOp.ADD_LEARNER, 3),
    )


def test_an_unwanted_learner_is_removed():
    assert steps(Membership((1, 2, 3), (4,)), target((1, 2, 3))) == ((MembershipOp.REMOVE, 4),)


def test_nothing_is_planned_while_joint_or_at_the_target_or_without_voters():
    assert steps(Membership((1, 2, 4), outgoing=(1, 2, 3), auto_leave=True), target((1, 2, 4)), {4}) is None
    assert steps(Membership((1, 2, 3)), target((1, 2, 3))) is None
    assert steps(Membership((1, 2, 3)), target(())) is None


@pytest.mark.parametrize("seed", range(200))
def test_following_the_plan_reaches_any_target_without_ever_having_fewer_voters_than_wanted(seed):
    rng = random.Random(seed)
    ids = range(1, 10)
    membership = Membership(tuple(sorted(rng.sample(ids, rng.choice((1, 3, 5))))))
    voters = rng.sample(ids, rng.choice((1, 2, 3, 5)))
    learners = [i for i in ids if i not in voters and rng.random() < 0.2]
    wanted = target(voters, learners, [i for i in ids if rng.random() < 0.3])
    least = min(len(membership.voters), len(voters))
    caught_up = set()
    for _ in range(60):
        caught_up = (caught_up | {i for i in membership.learners if rng.random() < 0.5}) & set(membership.learners)
        change = plan_change(membership, wanted, caught_up)
        if change is not None:
            assert all(r in caught_up for op, r in change.steps if op is MembershipOp.ADD_VOTER)
            membership = apply_change(membership, change)
            if membership.is_joint:
                membership = leave_joint(membership)
            assert len(membership.voters) >= least
    assert is_reached(membership, wanted)


# ------------------------------------------------------------------------------------------------------ metadata voters


def node(node_id, replica_id=None, state="active", host=None, rack=""):
    return NodeView(
        node_id=node_id, uuid=f"u{node_id}", client_address="", peer_address="", http_address="", host=host or f"h{node_id}",
        rack=rack, version="", feature_level_max=1, metadata_replica_id=replica_id or node_id, state=state,
    )  # fmt: skip


def voters(nodes, desired=(1,), now=(1,), leader=1, most=3, down=()):
    return choose_metadata_voters(nodes, desired, now, leader, most, lambda node_id: node_id not in down)


def test_voters_are_odd_in_number_and_bounded():
    assert voters([node(1)]) == (1,)
    assert voters([node(1), node(2)]) == (1,)
    assert voters([node(i) for i in range(1, 4)]) == (1, 2, 3)
    assert voters([node(i) for i in range(1, 5)], most=5) == (1, 2, 3)
    assert voters([node(i) for i in range(1, 8)], most=5) == (1, 2, 3, 4, 5)


def test_a_voter_that_is_down_keeps_its_vote():
    nodes = [node(i) for i in range(1, 5)]
    assert voters(nodes, desired=(1, 2, 3), now=(1, 2, 3), down={3}) == (1, 2, 3)


def test_a_node_that_went_down_before_it_voted_is_skipped():
    nodes = [node(i) for i in range(1, 5)]
    assert voters(nodes, desired=(1, 2, 3), now=(1,), down={3}) == (1, 2, 4)


def test_a_single_voter_is_not_made_two_while_a_third_is_away():
    nodes = [node(i) for i in range(1, 4)]
    assert voters(nodes, desired=(1, 2, 3), now=(1,), down={2}) == (1,)
    assert voters(nodes, desired=(1,), now=(1,), down={2}) == (1,)
    assert voters(nodes, desired=(1, 3), now=(1,)) == (1, 2, 3)
    assert voters(nodes[:2], desired=(1, 2), now=(1, 2, 3)) == (1,)
    assert voters([*nodes[:2], node(4)], desired=(1, 2), now=(1, 2, 3), down={4}) == (1, 2)


def test_a_draining_voter_keeps_its_vote_while_nobody_can_take_it():
    """Of the voters 2, 3 and 4, 2 is down, and 4 is drained while 5 is down, too (seed 800409 of the simulation).

    Without 4, the group would be 2 and 3, and 3 alone is no majority.
    """
    nodes = [node(1, state="draining"), node(2), node(3), node(4, state="draining"), node(5)]
    present = {"desired": (2, 3, 4), "now": (2, 3, 4), "leader": 4}
    assert voters(nodes, **present, down={2, 5}) == (2, 3, 4)
    assert voters(nodes, **present, down={2}) == (2, 3, 5)
    assert voters(nodes, **present) == (2, 3, 5)


def test_a_draining_voter_gives_its_vote_to_the_one_broker_that_can_take_it():
    """Two voters are no better than one, so that the newcomer takes the place and does not wait for a third."""
    nodes = [node(1), node(2), node(3), node(4, state="draining")]
    assert voters(nodes, desired=(4,), now=(4,), leader=4, down={1, 2}) == (3,)
    assert voters(nodes, desired=(4,), now=(4,), leader=4, down={1, 2, 3}) == (4,)


def test_the_present_voters_stay_if_the_chosen_one_is_down_before_it_is_alone():
    """1 was to be the only voter, and went down before the change began. Without it, the group would never have a majority."""
    nodes = [node(1), node(2), node(3, state="draining")]
    assert voters(nodes, desired=(1,), now=(1, 2, 3), leader=2, down={1}) == (1, 2, 3)
    assert voters(nodes, desired=(1, 2, 3), now=(1, 2, 3), leader=2, down={1}) == (2,)


def test_a_draining_node_is_no_voter_where_fewer_are_enough():
    nodes = [node(1), node(2), node(3, state="draining")]
    assert voters(nodes, desired=(1, 2, 3), now=(1, 2, 3)) == (1,)
    assert voters(nodes, desired=(1, 2, 3), now=(1, 2, 3), leader=3, down={1}) == (2,)


def test_voters_that_are_drained_stay_while_the_only_other_one_is_down():
    nodes = [node(1, state="draining"), node(2), node(3, state="draining")]
    assert voters(nodes, down={2}) == (1,)
    assert voters(nodes, desired=(1, 2, 3), now=(1, 2, 3), down={2}) == (1, 2, 3)
    assert voters(nodes, desired=(1, 2, 3), now=(1, 2, 3)) == (2,)
    everyone = [node(i, state="draining") for i in range(1, 4)]
    assert voters(everyone, desired=(1, 2, 3), now=(1, 2, 3)) == (1, 2, 3)


def test_a_voter_whose_node_is_gone_is_replaced():
    nodes = [node(1), node(2), node(4), node(5)]
    assert voters(nodes, desired=(1, 2), now=(1, 2, 3)) == (1, 2, 4)


def test_the_leader_stays_when_voters_become_fewer():
    assert voters([node(1), node(2)], desired=(1, 2), now=(1, 2, 3), leader=2) == (2,)


def test_voters_are_spread_over_hosts_then_racks():
    nodes = [node(1, host="a", rack="x"), node(2, host="a", rack="y"), node(3, host="b", rack="x"), node(4, host="c", rack="x"), node(5, host="d", rack="z")]  # fmt: skip
    assert voters(nodes) == (1, 3, 5)


def test_voters_that_share_a_host_or_a_rack_give_way_to_brokers_that_join_elsewhere():
    """Two of three voters on one machine: its loss would stop the metadata, although a third machine has come."""
    shared = [node(1, host="a", rack="x"), node(2, host="a", rack="x"), node(3, host="b", rack="x")]
    assert voters(shared, desired=(1, 2, 3), now=(1, 2, 3), leader=2) == (1, 2, 3)
    grown = [*shared, node(4, host="b", rack="y"), node(5, host="c", rack="x")]
    assert voters(grown, desired=(1, 2, 3), now=(1, 2, 3), leader=2) == (2, 4, 5)
    assert voters(grown, desired=(2, 4, 5), now=(2, 4, 5), leader=2) == (2, 4, 5)
    assert voters(grown, desired=(1, 2, 3), now=(1, 2, 3), leader=2, down={5}) == (2, 3, 4)
    assert voters(grown, desired=(1, 2, 3), now=(1, 2, 3), leader=2, down={1}) == (1, 2, 3)


def test_voters_end_on_as_many_hosts_as_any_choice_with_the_leader_and_stay_there():
    """The slow, obvious twin tries every choice. Whatever voted before, one choice leads there, and the next changes nothing."""
    random_source = random.Random(7)
    for _ in range(300):
        count = random_source.randint(3, 7)
        nodes = [
            node(i, host=random_source.choice("abcd"), rack=random_source.choice("xy")) for i in range(1, count + 1)
        ]
        size = random_source.choice([3, 5]) if count >= 5 else 3
        before = tuple(sorted(random_source.sample(range(1, count + 1), 3)))
        leader = random_source.choice(before)
        chosen = voters(nodes, desired=before, now=before, leader=leader, most=size)
        hosts = {one.node_id: one.host for one in nodes}
        widest = max(
            len({hosts[node_id] for node_id in choice})
            for choice in itertools.combinations(hosts, size)
            if leader in choice
        )
        assert leader in chosen
        assert (len(chosen), len({hosts[node_id] for node_id in chosen})) == (size, widest)
        assert voters(nodes, desired=chosen, now=chosen, leader=leader, most=size) == chosen


def test_a_voter_that_went_down_elsewhere_is_not_exchanged_for_one_that_shares_a_host():
    nodes = [node(1, host="a"), node(2, host="a"), node(3, host="b"), node(4, host="c")]
    assert voters(nodes, desired=(1, 3, 4), now=(1, 3, 4), down={4}) == (1, 3, 4)


# -------------------------------------------------------------------------------------------------------------- repair


def partition(replicas, retiring=(), born=(1, 2, 3)):
    created = tuple(ReplicaView(i, i) for i in born)
    return PartitionView(1, 0, 1, created, tuple(ReplicaView(i, i) for i in replicas), tuple(retiring), revision=5)


def healthy_without(view, gone, sick=()):
    return has_healthy_majority(view, lambda r: r.replica_id in gone, lambda r: r.replica_id not in sick)


def test_a_minority_may_be_replaced_but_not_a_majority():
    assert healthy_without(partition((1, 2, 3)), {3})
    assert not healthy_without(partition((1, 2, 3)), {3}, sick={2})
    assert not healthy_without(partition((1, 2)), {2})
    assert not healthy_without(partition((1,)), {1})


def test_a_lost_replica_counts_against_the_majority_until_it_has_left():
    replaced = PartitionView(
        1, 0, 1, (), (ReplicaView(1, 1), ReplicaView(2, 2), ReplicaView(4, 4, inherited_seat=3)),
        (ReplicaView(3, 3, is_lost=True),), revision=5,
    )  # fmt: skip
    assert not healthy_without(replaced, {2}), "4 may still be empty"
    assert healthy_without(partition((1, 2, 4)), {2})


def test_a_lost_replica_and_its_lost_successor_are_one_loss():
    """The disk of node 3 was lost, and then the new one too before the rebuilt replica voted. Then node 3 was removed."""
    lost = [ReplicaView(3, 3, is_lost=True), ReplicaView(4, 3, is_lost=True, inherited_seat=3)]
    last = ReplicaView(5, 4, inherited_seat=3)
    view = PartitionView(1, 0, 1, (), (ReplicaView(1, 1), ReplicaView(2, 2), last), tuple(lost), revision=5)

    assert healthy_without(view, {5})
    assert not healthy_without(view, {5}, sick={2})
    assert not healthy_without(view, {2})


def test_a_lost_replica_without_a_successor_is_one_loss():
    short = partition((1, 2), retiring=[ReplicaView(3, 3, is_lost=True)])
    assert healthy_without(short, set())
    assert not healthy_without(short, {2})


def test_newcomers_do_not_help_before_they_vote():
    """Only replica 1 has the data while a partition grows from one replica to three."""
    newcomers = [ReplicaView(number, number, is_newcomer=True) for number in (2, 3)]
    growing = PartitionView(1, 0, 1, (), (ReplicaView(1, 1), *newcomers), (), revision=5)
    assert healthy_without(growing, set())
    assert not healthy_without(growing, {1})
    assert not healthy_without(growing, {2}), "it may vote already, without 3"


def test_replicas_that_leave_without_a_successor_may_still_vote():
    shrinking = partition((1, 2, 3), retiring=[ReplicaView(4, 4), ReplicaView(5, 5)])
    assert healthy_without(shrinking, {1})
    assert healthy_without(shrinking, {4}, sick={5}), "three of five remain, and all of three"
    assert not healthy_without(shrinking, {1}, sick={4}), (
        "two of three remain with 4 among the voters: 1, 2, 3, 4 are four"
    )


def test_a_newcomer_takes_the_place_of_its_predecessor():
    predecessors = {ReplicaId(4): frozenset({ReplicaId(3)}), ReplicaId(6): frozenset({ReplicaId(1)})}
    wanted = MembershipTarget(frozenset({2, 4, 6}), lost=frozenset({1, 3}), predecessors=predecessors)
    assert steps(Membership((1, 2, 3), (4, 6)), wanted, {4}) == ((MembershipOp.ADD_VOTER, 4), (MembershipOp.REMOVE, 3))
    assert steps(Membership((1, 2, 3), (4, 6)), wanted, {6}) == ((MembershipOp.ADD_VOTER, 6), (MembershipOp.REMOVE, 1))


def test_a_newcomer_whose_predecessor_has_left_need_not_wait_for_a_slow_one():
    """Node 5 was removed and its replica 5 left. Then node 4 lost its disk and did not come back: 4 still voted, and 6 waited for 7."""
    predecessors = {ReplicaId(6): frozenset({ReplicaId(5)}), ReplicaId(7): frozenset({ReplicaId(4)})}
    wanted = MembershipTarget(frozenset({1, 2, 3, 6, 7}), lost=frozenset({4, 5}), predecessors=predecessors)
    assert steps(Membership((1, 2, 3, 4), (6, 7)), wanted, {6}) == ((MembershipOp.ADD_VOTER, 6),)
    alone = MembershipTarget(frozenset({1, 6, 7}), lost=frozenset({4, 5}), predecessors=predecessors)
    assert steps(Membership((1,), (6, 7)), alone, {6}) is None, "two are no better than one"


def test_a_partition_row_names_voters_and_lost_replicas():
    wanted = partition_target(partition((1, 2, 4), retiring=[ReplicaView(3, 3, is_lost=True), ReplicaView(5, 5)]))
    assert wanted == MembershipTarget(frozenset({1, 2, 4}), lost=frozenset({3}), revision=5)
    replaced = partition_target(
        PartitionView(
            1,
            0,
            1,
            (),
            (ReplicaView(1, 1), ReplicaView(4, 4, inherited_seat=3)),
            (ReplicaView(3, 3, is_lost=True),),
            revision=5,
        )
    )
    assert replaced.predecessors == {4: frozenset({3})}


class Replicated:
    """One partition of a metadata state machine, and its group, which follows the plan as its newcomers catch up.

    Its leader changes, and a leader's metadata may lack the last changes.
    """

    def __init__(self, rng, count):
        self.rng, self.count = rng, count
        self.log = MetadataLog(nodes=count + 2)
        self.log.run(mc.CreateTopic("t", "log", count, {}, (mc.PartitionPlan(tuple(range(1, count + 1))),)))
        self.membership = Membership(tuple(replica.replica_id for replica in self.view.replicas))
        self.views = [self.view]
        self.reported = []

    @property
    def view(self):
        return self.log.state.partition(1)

    def leaders_view(self):
        if self.view != self.views[-1]:
            self.views.append(self.view)
        return self.rng.choice(self.views[-4:]) if self.rng.random() < 0.4 else self.view

    @property
    def rows(self):
        return (*self.view.replicas, *self.view.retiring)

    def suffer(self):
        """Lose a disk, remove a node, move a replica, or create missing replicas. Such a command is often refused."""
        what = self.rng.random()
        node_id = self.rng.choice(self.rows).node_id
        node = self.log.state.node(node_id)
        wanted = [replica.node_id for replica in self.view.replicas]
        others = [node.node_id for node in self.log.state.nodes() if node.node_id not in wanted]
        if what < 0.12 and node is not None and node.state != "removed":
            self.log.run(register(f"u{self.rng.random()}", node_id, replaces_lost=True))
        elif what < 0.18:
            self.log.run(mc.RemoveNode(node_id, is_forced=True))
            self.log.run(register(f"u{self.rng.random()}"))
        elif what < 0.26 and wanted:
            wanted[self.rng.randrange(len(wanted))] = self.rng.choice(others)
            self._set(wanted)
        elif what < 0.6 and len(wanted) < self.count:
            self._set([*wanted, *self.rng.sample(others, self.count - len(wanted))])

    def _set(self, node_ids):
        self.log.run(mc.SetReplicas(1, tuple(node_ids), self.view.revision))

    def follow(self):
        """Apply one change of the group, if one is due and none is under way. Return the voters that decide."""
        if self.membership.is_joint:
            if self.rng.random() < 0.7:
                self.membership = leave_joint(self.membership)
        else:
            caught_up = {i for i in self.membership.learners if self.rng.random() < 0.5}
            change = plan_change(self.membership, partition_target(self.leaders_view()), caught_up)
            is_refused = change is None or change.revision < self.membership.revision
            if not is_refused and self.rng.random() < 0.6:
                self.membership = apply_change(self.membership, change)
        return [half for half in (self.membership.voters, self.membership.outgoing) if half]

    def forget(self):
        """Apply a leader's delayed report of replicas that left. A lost one is reported only when no replica is missing."""
        view, membership = self.leaders_view(), self.membership
        is_whole = len(view.replicas) == self.count and is_reached(membership, partition_target(view))
        left = [r for r in view.retiring if r.replica_id not in membership.member_ids and (is_whole or not r.is_lost)]
        if left and membership.revision < view.revision:
            self.membership = dataclasses.replace(
                membership, revision=view.revision
            )  # the group is closed to older wishes
        elif not membership.is_joint:
            self.reported += [replica.replica_id for replica in left]
        for replica_id in [i for i in self.reported if self.rng.random() < 0.4]:
            self.reported.remove(replica_id)
            self.log.run(mc.RemoveReplica(1, replica_id))


@pytest.mark.parametrize("seed", [*range(300), 1655, 1838, 2082])
def test_a_reported_healthy_majority_exists_whichever_replicas_vote(seed):
    """Disks are lost repeatedly, nodes removed, replicas moved. Without closing the group to older targets, a leader with older metadata
    would add a replica that was reported as left in the last seeds.
    """
    rng = random.Random(seed)
    partition = Replicated(rng, rng.choice((1, 3, 3, 5)))
    said = 0
    for _ in range(80):
        partition.suffer()
        deciding = partition.follow()
        of = {replica.replica_id: replica for replica in partition.rows}
        down = {node.node_id for node in partition.log.state.nodes() if rng.random() < 0.2}
        gone = {i for i, replica in of.items() if replica.node_id in down}
        is_healthy = healthy_without(partition.view, gone)
        said += is_healthy
        for voters_now in deciding:
            assert len({of[i].seat for i in voters_now}) == len(voters_now)
            sound = [i for i in voters_now if i not in gone and not of[i].is_lost]
            assert 2 * len(sound) > len(voters_now) or not is_healthy
            assert len({of[i].node_id for i in sound}) == len(sound), "two live replicas are never on one node"
        partition.forget()
    assert said
