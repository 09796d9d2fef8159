"""Transfers of leadership (thesis 3.10)."""

from raftmq.raft.membership import MembershipOp
from raftmq.raft.messages import AppendRequest, TimeoutNow, VoteRequest
from raftmq.raft.ready import RefusalReason, Refused, Role
from raftmq.types import ReplicaId, Term

from tests.support.raft.harness import SETTINGS, START, Cluster, data, lone, membership, now, take

TWO, THREE = ReplicaId(2), ReplicaId(3)


def test_a_caught_up_target_takes_over_immediately_and_the_term_rises_by_one() -> None:
    cluster = Cluster(1, 2, 3)
    cluster.elect(1)
    assert cluster[1].transfer_leader(TWO) is None
    cluster.pump()
    assert cluster.leaders() == [2]
    assert cluster[2].term == 7


def test_the_target_campaigns_without_pre_vote_and_gets_votes_despite_a_live_leader() -> None:
    cluster = Cluster(1, 2, 3)
    cluster.elect(1)
    cluster.sent.clear()
    cluster[1].transfer_leader(TWO)
    cluster.pump()
    requests = [m for m in cluster.of_type(VoteRequest, 2) if isinstance(m, VoteRequest)]
    assert [(m.is_pre_vote, m.is_transfer) for m in requests] == [(False, True)] * 2


def test_a_lagging_target_receives_entries_first() -> None:
    cluster = Cluster(1, 2, 3)
    cluster.elect(1)
    cluster.isolate(2)
    cluster.propose(1, b"a", b"b", b"c")
    cluster.pump()
    cluster[1].report_unreachable(TWO)
    cluster.heal()
    cluster.sent.clear()
    cluster[1].transfer_leader(TWO)
    assert cluster.of_type(TimeoutNow) == []
    cluster.pump()
    assert cluster.leaders() == [2]
    assert cluster.nodes[2].values() == [b"a", b"b", b"c"]


def test_no_proposals_are_accepted_during_a_transfer() -> None:
    cluster = Cluster(1, 2, 3)
    cluster.elect(1)
    cluster.isolate(2)
    cluster[1].transfer_leader(TWO)
    assert cluster[1].propose([data()], 0) == Refused(RefusalReason.TRANSFERRING, ReplicaId(1))


def test_a_transfer_that_fails_ends_after_one_election_timeout() -> None:
    cluster = Cluster(1, 2, 3)
    leader = cluster.elect(1)
    cluster.isolate(2)
    leader.transfer_leader(TWO)
    cluster.tick(SETTINGS.election_ticks - 1, only=[1, 3])
    assert isinstance(leader.propose([data()], 0), Refused)
    cluster.tick(1, only=[1, 3])
    assert not isinstance(leader.propose([data()], 0), Refused)
    assert now(leader.role) is Role.LEADER


def test_a_second_transfer_replaces_the_first() -> None:
    cluster = Cluster(1, 2, 3)
    cluster.elect(1)
    cluster.isolate(2)
    cluster[1].transfer_leader(TWO)
    cluster[1].transfer_leader(THREE)
    cluster.pump()
    assert cluster.leaders()[-1] == 3


def test_transfers_do_not_delay_the_quorum_check() -> None:
    """A leader that hears nobody steps down in time, however often it is told to transfer its leadership."""
    cluster = Cluster(1, 2, 3)
    leader = cluster.elect(1)
    cluster.isolate(1)
    for tick in range(2 * SETTINGS.election_ticks):
        if not tick % 5:
            leader.transfer_leader(ReplicaId(2 + tick // 5 % 2))
        cluster.tick(1, only=[1])
    assert now(leader.role) is Role.FOLLOWER


def test_transfers_that_take_turns_end_after_one_election_timeout() -> None:
    cluster = Cluster(1, 2, 3)
    leader = cluster.elect(1)
    cluster.is_lost = lambda message: isinstance(message, TimeoutNow)
    for tick in range(SETTINGS.election_ticks):
        leader.transfer_leader(ReplicaId(2 + tick % 2))
        assert leader.propose([data()], 0) == Refused(RefusalReason.TRANSFERRING, ReplicaId(1))
        cluster.tick()
    assert not isinstance(leader.propose([data()], 0), Refused)
    leader.transfer_leader(TWO)
    cluster.tick(SETTINGS.election_ticks - 1)
    assert isinstance(leader.propose([data()], 0), Refused), "the next one has a time of its own"


def test_only_a_voter_can_be_the_target() -> None:
    cluster = Cluster(1, 2, 3, 4, config=membership(1, 2, 3, learners=[4]))
    leader = cluster.elect(1)
    assert leader.transfer_leader(ReplicaId(4)) == Refused(RefusalReason.NOT_VOTER, ReplicaId(1))
    assert leader.transfer_leader(ReplicaId(9)) == Refused(RefusalReason.NOT_VOTER, ReplicaId(1))
    assert cluster[2].transfer_leader(THREE) == Refused(RefusalReason.NOT_LEADER, ReplicaId(1))
    assert leader.transfer_leader(ReplicaId(1)) is None
    assert not isinstance(leader.propose([data()], 0), Refused)


def test_the_reachable_voter_with_the_longest_log_should_lead_next_and_never_a_learner() -> None:
    cluster = Cluster(1, 2, 3, 4, config=membership(1, 2, 3, learners=[4]))
    leader = cluster.elect(1)

    def grow(reached: int) -> None:
        cluster.cut = {(1, other) for other in (2, 3, 4) if other < reached}
        cluster.propose(1, b"x")
        cluster.pump()

    grow(3)
    grow(4)
    assert [leader.match_index(ReplicaId(other)) for other in (2, 3, 4)] == [START + 1, START + 2, START + 3]
    assert leader.furthest_voter(lambda _replica: True) == 3
    assert leader.furthest_voter(lambda replica: replica != 3) == 2
    assert leader.furthest_voter(lambda replica: replica == 4) is None
    cluster.heal()
    cluster.tick(3)
    assert leader.furthest_voter(lambda _replica: True) == 2
    leader.transfer_leader(THREE)
    assert leader.furthest_voter(lambda _replica: True) == 3, "the transfer that runs goes on"


def test_a_learner_and_a_removed_replica_ignore_timeout_now() -> None:
    for config in (membership(2, 3, learners=[1]), membership(2, 3)):
        core, disk = lone(1, config=config)
        core.step(TimeoutNow(TWO, ReplicaId(1), Term(6)))
        take(core, disk)
        assert (core.role, core.term) == (Role.FOLLOWER, 6)


def test_a_timeout_now_of_an_earlier_term_is_ignored() -> None:
    core, disk = lone()
    core.step(TimeoutNow(TWO, ReplicaId(1), Term(4)))
    take(core, disk)
    assert (core.role, core.term) == (Role.FOLLOWER, 5)


def test_a_transfer_ends_when_its_target_leaves_the_group() -> None:
    cluster = Cluster(1, 2, 3)
    leader = cluster.elect(1)
    cluster.nodes[1].holds_applies = True
    cluster.change(1, (MembershipOp.REMOVE, 2))
    cluster.isolate(2)
    cluster.pump()
    leader.transfer_leader(TWO)
    assert isinstance(leader.propose([data()], 0), Refused)
    cluster.finish_applies(1)
    assert not isinstance(leader.propose([data()], 0), Refused)


def test_entries_of_the_old_leader_survive_the_transfer() -> None:
    cluster = Cluster(1, 2, 3)
    cluster.elect(1)
    cluster.propose(1, b"x")
    cluster[1].transfer_leader(TWO)
    cluster.pump()
    assert cluster.leaders() == [2]
    assert all(node.values() == [b"x"] for node in cluster.nodes.values())
    appended = [m for m in cluster.of_type(AppendRequest, 1) if isinstance(m, AppendRequest) and m.entries]
    assert appended[-1].entries[-1].index == START + 2
