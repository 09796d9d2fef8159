"""The plan for the metadata group's own membership: a pure function."""

from raftmq.broker.metadata_controller import plan_membership
from raftmq.fsm.metadata_views import NodeView
from raftmq.raft.membership import Membership, MembershipOp


def node(node_id, replica_id=None, state="active", host=None):
    return NodeView(
        node_id=node_id, uuid=f"u{node_id}", client_address="", peer_address="", http_address="", host=host or f"h{node_id}",
        rack="", version="", feature_level_max=1, metadata_replica_id=replica_id or node_id, state=state,
    )  # fmt: skip


def plan(membership, nodes, matches=None, commit=1000, voters_max=3, connected=lambda _: True):
    return plan_membership(membership, nodes, matches or {}, commit, voters_max, connected, 7)


def test_a_new_node_becomes_a_learner_first():
    change = plan(Membership((1,)), [node(1), node(2), node(3)])
    assert change.steps == ((MembershipOp.ADD_LEARNER, 2),)
    assert change.revision == 7


def test_two_nodes_keep_one_voter():
    """An even number of voters tolerates no more failures than one fewer, and stops more easily."""
    assert plan(Membership((1,), (2,)), [node(1), node(2)], {2: 1000}) is None


def test_the_third_node_makes_three_voters_at_once():
    change = plan(Membership((1,), (2, 3)), [node(1), node(2), node(3)], {2: 1000, 3: 990})
    assert change.steps == ((MembershipOp.ADD_VOTER, 2), (MembershipOp.ADD_VOTER, 3))


def test_a_learner_that_is_behind_or_cut_off_is_not_promoted():
    nodes = [node(1), node(2), node(3)]
    assert plan(Membership((1,), (2, 3)), nodes, {2: 1000, 3: 10}) is None
    assert plan(Membership((1,), (2, 3)), nodes, {2: 1000, 3: 1000}, connected=lambda n: n != 3) is None


def test_a_lost_voter_is_replaced_in_one_joint_change():
    nodes = [node(1), node(2), node(3, state="lost"), node(4)]
    change = plan(Membership((1, 2, 3), (4,)), nodes, {4: 1000})
    assert set(change.steps) == {(MembershipOp.ADD_VOTER, 4), (MembershipOp.REMOVE, 3)}


def test_nothing_is_planned_while_joint_or_when_all_is_well():
    nodes = [node(1), node(2), node(3)]
    assert plan(Membership((1, 2, 3), outgoing=(1,)), nodes) is None
    assert plan(Membership((1, 2, 3)), nodes) is None


def test_the_fourth_of_four_stays_a_learner():
    nodes = [node(i) for i in range(1, 5)]
    assert plan(Membership((1, 2, 3), (4,)), nodes, {4: 1000}, voters_max=5) is None


def test_voters_prefer_hosts_without_one():
    nodes = [node(1, host="a"), node(2, host="a"), node(3, host="b"), node(4, host="c")]
    change = plan(Membership((1,), (2, 3, 4)), nodes, {2: 1000, 3: 1000, 4: 1000})
    assert change.steps == ((MembershipOp.ADD_VOTER, 3), (MembershipOp.ADD_VOTER, 4))
