"""Changes of membership in a running group: joint consensus, learners, removal, and the checks of proposals."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from raftmq.raft.entry import Entry, EntryKind
from raftmq.raft.membership import MembershipOp, decode_change, encode_change
from raftmq.raft.messages import AppendRequest, AppendResponse, Message, TimeoutNow, VoteRequest
from raftmq.raft.ready import Appended, RefusalReason, Refused, Role
from raftmq.types import LogIndex, Offset, ReplicaId, Term

from tests.support.raft.harness import SETTINGS, START, Cluster, answer, change, lone, membership, now, take, voters

ADD, LEARN, REMOVE = MembershipOp.ADD_VOTER, MembershipOp.ADD_LEARNER, MembershipOp.REMOVE


def reason(outcome: Appended | Refused) -> RefusalReason | None:
    return outcome.reason if isinstance(outcome, Refused) else None


def membership_entries(cluster: Cluster, replica_id: int) -> list[Entry]:
    return [e for e in cluster.nodes[replica_id].applied if e.kind is EntryKind.MEMBERSHIP]


def test_a_learner_is_added_catches_up_by_a_snapshot_and_is_promoted() -> None:
    cluster = Cluster(1, 2, 3)
    cluster.elect(1)
    cluster.propose(1, b"a")
    cluster.pump()
    cluster.add(4, is_empty=True)
    cluster.change(1, (LEARN, 4))
    cluster.pump()
    cluster.tick(2)
    assert cluster[4].membership == membership(1, 2, 3, learners=[4])
    assert cluster[4].last_index == cluster[1].last_index
    cluster.change(1, (ADD, 4))
    cluster.pump()
    assert {node.core.membership for node in cluster.nodes.values()} == {membership(1, 2, 3, 4)}
    assert decode_change(membership_entries(cluster, 1)[-1].payload).steps == ((ADD, 4),)


def test_a_change_of_two_voters_goes_joint_and_leaves_by_itself() -> None:
    cluster = Cluster(1, 2, 3)
    cluster.elect(1)
    cluster.add(4, is_empty=True)
    cluster.change(1, (LEARN, 4))
    cluster.pump()
    cluster.tick(2)
    before = len(membership_entries(cluster, 1))
    cluster.change(1, (ADD, 4), (REMOVE, 3))
    cluster.pump()
    assert len(membership_entries(cluster, 1)) == before + 2
    assert decode_change(membership_entries(cluster, 1)[-1].payload).steps == ()
    assert cluster[1].membership == cluster[2].membership == cluster[4].membership == membership(1, 2, 4)


def test_an_explicit_joint_configuration_waits_to_be_left() -> None:
    cluster = Cluster(1, 2, 3)
    cluster.elect(1)
    cluster[1].propose_membership(change((REMOVE, 3), is_explicit=True), 0)
    cluster.pump()
    cluster.tick(3)
    assert cluster[1].membership.is_joint
    assert reason(cluster.change(1, (REMOVE, 2))) is RefusalReason.MEMBERSHIP_PENDING
    assert isinstance(cluster.change(1), Appended)
    cluster.pump()
    assert cluster[1].membership == membership(1, 2)


def test_two_voters_are_replaced_by_two_in_one_change() -> None:
    cluster = Cluster(1, 2, 3)
    cluster.elect(1)
    for new in (4, 5):
        cluster.add(new, is_empty=True)
        cluster.change(1, (LEARN, new))
        cluster.pump()
        cluster.tick(2)
    cluster.change(1, (ADD, 4), (ADD, 5), (REMOVE, 2), (REMOVE, 3))
    cluster.pump()
    cluster.tick(2)
    assert cluster[1].membership == cluster[4].membership == membership(1, 4, 5)
    cluster.nodes[2].is_up = cluster.nodes[3].is_up = False
    cluster.propose(1, b"x")
    cluster.pump()
    assert cluster.nodes[5].values() == [b"x"]


def test_a_joint_configuration_needs_both_majorities_to_commit() -> None:
    cluster = Cluster(1, 2, 3)
    leader = cluster.elect(1)
    for new in (4, 5):
        cluster.add(new, is_empty=True)
        cluster.change(1, (LEARN, new))
        cluster.pump()
        cluster.tick(2)
    leader.propose_membership(change((ADD, 4), (ADD, 5), (REMOVE, 2), (REMOVE, 3), is_explicit=True), 0)
    cluster.pump()
    assert leader.membership.is_joint
    commit = leader.commit_index
    cluster.isolate(4)
    cluster.isolate(5)
    cluster.propose(1, b"x")
    cluster.pump()
    assert leader.commit_index == commit, "the old majority alone"
    cluster.heal()
    cluster.isolate(2)
    cluster.isolate(3)
    cluster.propose(1, b"y")
    cluster.tick(2)
    assert cluster[4].last_index == commit + 2
    assert leader.commit_index == commit + 1, "x is held by both, y by the new majority alone"
    cluster.cut = {pair for pair in cluster.cut if 2 not in pair}
    cluster.tick(2)
    assert leader.commit_index == commit + 2


def test_a_joint_configuration_needs_both_majorities_to_elect() -> None:
    joint = membership(1, 4, 5)
    joint = type(joint)(voters=voters(1, 4, 5), outgoing=voters(1, 2, 3))
    cluster = Cluster(1, 2, 3, 4, 5, config=joint)
    cluster.isolate(2)
    cluster.isolate(3)
    cluster[1].campaign()
    cluster.pump()
    assert cluster.leaders() == []
    asked = {m.target for m in cluster.of_type(VoteRequest, 1)}
    assert asked == {2, 3, 4, 5}
    cluster.heal()
    cluster.isolate(3)
    cluster.isolate(5)
    cluster[1].campaign()
    cluster.pump()
    assert cluster.leaders() == [1]


def test_a_joint_configuration_needs_both_majorities_to_stay_leader() -> None:
    joint = type(membership(1))(voters=voters(1, 4, 5), outgoing=voters(1, 2, 3))
    cluster = Cluster(1, 2, 3, 4, 5, config=joint)
    cluster.elect(1)
    cluster.isolate(4)
    cluster.isolate(5)
    cluster.tick(2 * SETTINGS.election_ticks, only=[1, 2, 3])
    assert cluster.leaders() == []


def test_a_configuration_is_active_when_applied_not_when_appended() -> None:
    cluster = Cluster(1, 2, 3)
    leader = cluster.elect(1)
    cluster.nodes[1].holds_applies = True
    cluster.change(1, (REMOVE, 3))
    cluster.pump()
    assert leader.commit_index == START + 2
    assert leader.membership == membership(1, 2, 3)
    cluster.finish_applies(1)
    assert leader.membership == membership(1, 2)


def test_one_change_at_a_time() -> None:
    cluster = Cluster(1, 2, 3)
    cluster.elect(1)
    cluster.nodes[1].holds_applies = True
    assert isinstance(cluster.change(1, (REMOVE, 3)), Appended)
    assert reason(cluster.change(1, (LEARN, 4))) is RefusalReason.MEMBERSHIP_PENDING
    cluster.pump()
    assert reason(cluster.change(1, (LEARN, 4))) is RefusalReason.MEMBERSHIP_PENDING, "committed, not applied"
    cluster.finish_applies(1)
    assert isinstance(cluster.change(1, (LEARN, 4)), Appended)


def test_no_change_before_the_own_term_committed() -> None:
    """Ongaro's correction of 2015 to the single-server change."""
    cluster = Cluster(1, 2, 3)
    cluster.is_lost = lambda m: isinstance(m, AppendResponse)
    leader = cluster.elect(1)
    assert reason(cluster.change(1, (REMOVE, 3))) is RefusalReason.MEMBERSHIP_PENDING
    cluster.is_lost = lambda _m: False
    cluster.tick(2)
    assert leader.commit_index == START + 1
    assert isinstance(cluster.change(1, (REMOVE, 3)), Appended)


def test_a_new_leader_knows_of_its_predecessors_uncommitted_change() -> None:
    cluster = Cluster(1, 2, 3)
    cluster.elect(1)
    cluster.nodes[2].holds_applies = True
    cluster.is_lost = lambda m: m.source == 2 and isinstance(m, AppendResponse)
    cluster.isolate(3)
    cluster.change(1, (LEARN, 4))
    cluster.pump()
    cluster.heal()
    cluster.is_lost = lambda _m: False
    cluster.nodes[1].is_up = False
    cluster.elect(2)
    assert cluster[2].log.membership_indexes == [START + 2]
    assert reason(cluster.change(2, (LEARN, 5))) is RefusalReason.MEMBERSHIP_PENDING
    cluster.finish_applies(2)
    assert cluster[2].membership == membership(1, 2, 3, learners=[4])


def test_an_unapplied_change_is_found_again_after_a_restart() -> None:
    cluster = Cluster(1, 2, 3)
    cluster.elect(1)
    cluster.nodes[2].holds_applies = True
    cluster.change(1, (LEARN, 4))
    cluster.pump()
    node = cluster.restart(2)
    assert node.core.log.membership_indexes == [START + 2]
    cluster.run(2)
    assert node.core.membership == membership(1, 2, 3), "not known committed yet: the commit index is lazy"
    cluster.tick(2)
    assert node.core.membership == membership(1, 2, 3, learners=[4])


def test_a_stale_revision_is_refused_and_the_newest_is_kept() -> None:
    cluster = Cluster(1, 2, 3)
    cluster.elect(1)
    cluster.change(1, (LEARN, 4), revision=7)
    cluster.pump()
    assert cluster[2].membership.revision == 7
    assert reason(cluster.change(1, (LEARN, 5), revision=6)) is RefusalReason.MEMBERSHIP_STALE
    assert isinstance(cluster.change(1, (REMOVE, 2), (REMOVE, 3), revision=7), Appended)
    cluster.pump()
    assert cluster[1].membership.revision == 7
    assert cluster[1].membership.voters == voters(1)


def test_an_impossible_change_is_refused_before_it_is_proposed() -> None:
    cluster = Cluster(1, 2, 3)
    cluster.elect(1)
    assert reason(cluster.change(1, (REMOVE, 1), (REMOVE, 2), (REMOVE, 3))) is RefusalReason.MEMBERSHIP_INVALID
    assert reason(cluster.change(1)) is RefusalReason.MEMBERSHIP_INVALID
    assert reason(cluster.change(2, (LEARN, 4))) is RefusalReason.NOT_LEADER


def test_an_invalid_change_at_apply_is_a_no_op() -> None:
    """A proposal is checked as far as possible. The final decision is made at apply, and is the same on every replica."""
    core, disk = lone(2, 1, 2, 3)
    payloads = (b"garbage", encode_change(change()), encode_change(change((REMOVE, 1), (REMOVE, 2), (REMOVE, 3))))
    entries = tuple(
        Entry(LogIndex(START + 1 + i), Term(6), EntryKind.MEMBERSHIP, Offset(0), 0, 0, payload)
        for i, payload in enumerate(payloads)
    )
    core.step(
        AppendRequest(ReplicaId(1), ReplicaId(2), Term(6), LogIndex(START), Term(5), entries, LogIndex(START + 3))
    )
    take(core, disk)
    assert (core.applied_index, core.membership) == (START + 3, membership(1, 2, 3))


def test_no_campaign_with_a_committed_and_unapplied_change() -> None:
    cluster = Cluster(1, 2, 3)
    cluster.elect(1)
    cluster.nodes[2].holds_applies = True
    cluster.change(1, (LEARN, 4))
    cluster.pump()
    follower = cluster[2]
    assert follower.commit_index > follower.applied_index
    follower.tick(100)
    assert not follower.campaign_due
    follower.campaign()
    assert now(follower.role) is Role.FOLLOWER
    cluster.finish_applies(2)
    follower.tick(1)
    assert follower.campaign_due


def test_a_candidate_that_learns_of_a_committed_change_applies_it_first() -> None:
    cluster = Cluster(1, 2, 3)
    cluster.elect(1)
    cluster.is_lost = lambda m: m.target == 2 and getattr(m, "commit_index", 0) >= START + 2
    cluster.change(1, (LEARN, 4))
    cluster.pump()
    candidate = cluster[2]
    assert candidate.commit_index == START + 1
    candidate.campaign()
    assert now(candidate.role) is Role.PRE_CANDIDATE
    refusal = answer(candidate, 3, 6, granted=False, pre=True)
    candidate.step(replace(refusal, commit_index=LogIndex(START + 2), commit_term=Term(6)))
    assert (candidate.role, candidate.commit_index) == (Role.FOLLOWER, START + 2)
    cluster.run(2)
    assert candidate.membership == membership(1, 2, 3, learners=[4])


def test_a_removed_leader_leads_until_the_change_is_committed_then_steps_down() -> None:
    """Thesis 4.2.2."""
    cluster = Cluster(1, 2, 3)
    leader = cluster.elect(1)
    cluster.isolate(1)
    cluster.change(1, (REMOVE, 1))
    cluster.pump()
    assert now(leader.role) is Role.LEADER
    cluster.heal()
    cluster.tick(2)
    assert now(leader.role) is Role.FOLLOWER
    assert cluster[2].membership == cluster[3].membership == membership(2, 3)
    cluster.live(60)
    assert cluster.leaders() in ([2], [3])
    leader.tick(500)
    assert not leader.campaign_due, "it is nobody's voter"


def test_a_removed_leader_has_a_voter_campaign_that_holds_the_change() -> None:
    """Without that, each move of a partition off its leader was an outage of an election timeout, and no client could write."""
    cluster = Cluster(1, 2, 3, 4)
    cluster.elect(1)
    cluster.isolate(2)
    cluster.propose(1, b"a")
    cluster.pump()
    cluster.change(1, (REMOVE, 1))
    cluster.pump()
    assert cluster.leaders() == [3]
    assert (cluster[3].term, cluster[3].membership) == (7, membership(2, 3, 4))


def test_without_the_message_of_a_removed_leader_the_others_elect_after_a_timeout() -> None:
    cluster = Cluster(1, 2, 3)
    cluster.elect(1)
    cluster.is_lost = lambda message: isinstance(message, TimeoutNow)
    cluster.change(1, (REMOVE, 1))
    cluster.pump()
    assert cluster.leaders() == []
    cluster.live(60)
    assert cluster.leaders() in ([2], [3])


def exchange_only_replica(cluster: Cluster) -> None:
    """Move a group of one replica to another: (1) becomes (2)."""
    cluster.elect(1)
    cluster.add(2, is_empty=True)
    cluster.change(1, (LEARN, 2))
    cluster.pump()
    cluster.tick(2)
    cluster.change(1, (ADD, 2), (REMOVE, 1))


def test_the_only_replica_that_is_exchanged_hands_over_immediately() -> None:
    cluster = Cluster(1)
    exchange_only_replica(cluster)
    cluster.pump()
    assert cluster.leaders() == [2]
    assert cluster[2].membership == membership(2)


def remove_one_of_two(cluster: Cluster) -> None:
    cluster.elect(1)
    cluster.change(1, (REMOVE, 1))


@pytest.mark.parametrize(("members", "begin"), [((1,), exchange_only_replica), ((1, 2), remove_one_of_two)])
def test_news_of_the_change_that_arrives_after_the_campaign_began_lets_the_only_voter_lead(
    members: tuple[int, ...], begin: Callable[[Cluster], None]
) -> None:
    """The removed leader dies, and its last news is of the term before. The only voter asked it for a vote, without end."""
    cluster = Cluster(*members)
    late: list[AppendRequest] = []

    def is_news(message: Message) -> bool:
        if isinstance(message, AppendRequest) and message.source == 1 and not message.entries:
            late.append(message)
            return True
        return False

    cluster.is_lost = is_news
    begin(cluster)
    while not cluster.of_type(TimeoutNow):
        cluster.work(1)
        cluster.work(2)
        if cluster.wire and not cluster.of_type(TimeoutNow):
            cluster.deliver_one()
    cluster.nodes[1].is_up = False
    cluster.is_lost = lambda message: False
    assert late[-1].commit_index == cluster[1].commit_index
    cluster.deliver_one()
    cluster.work(2)
    assert cluster[2].term > late[-1].term
    cluster.wire.extend(late)
    cluster.pump()
    assert cluster.leaders() == [2]


def test_two_changes_in_a_row_do_not_make_the_heir_wait() -> None:
    """It applies the joint configuration and campaigns in it. By the answer it learns that the last change is committed, too."""
    cluster = Cluster(1)
    exchange_only_replica(cluster)
    cluster.nodes[2].holds_applies = True
    cluster.is_lost = lambda message: isinstance(message, AppendRequest) and not message.entries
    cluster.pump()
    cluster.nodes[2].holds_applies = False
    cluster.finish_applies(2)
    cluster.pump()
    assert cluster.leaders() == [2]


def test_a_removed_leader_that_transfers_already_names_no_second_heir() -> None:
    """Both voted for themselves in one term, and nobody led for an election timeout."""
    cluster = Cluster(1, 2, 3)
    cluster.elect(1)
    cluster.nodes[1].holds_applies = True
    cluster.change(1, (REMOVE, 1))
    cluster.pump()
    cluster[1].transfer_leader(ReplicaId(3))
    cluster.work(1)
    cluster.finish_applies(1)
    cluster.work(1)
    cluster.pump()
    assert cluster.leaders() == [3]


def test_a_removed_leader_names_the_voter_that_answered_last() -> None:
    cluster = Cluster(1, 2, 3, 4)
    cluster.elect(1)
    cluster.nodes[1].holds_applies = True
    cluster.change(1, (REMOVE, 1))
    cluster.pump()
    cluster.nodes[2].is_up = False
    cluster.tick(2)
    cluster.finish_applies(1)
    cluster.pump()
    assert cluster.leaders() == [3]


def test_a_repeated_append_of_the_removed_leader_does_not_end_the_wish_of_its_heir() -> None:
    """The heir knew no leader when it was told to campaign, so the append seemed to be that of another one."""
    cluster = Cluster(1, 2, 3)
    cluster.elect(1)
    cluster.nodes[1].holds_applies = cluster.nodes[2].holds_applies = True
    cluster.change(1, (REMOVE, 1))
    cluster.pump()
    cluster[2].forget_leader()
    cluster.finish_applies(1)
    cluster.pump()
    appends = [one for one in cluster.sent if isinstance(one, AppendRequest) and one.target == 2 and one.term == 6]
    cluster.wire.append(appends[-1])
    cluster.pump()
    cluster.nodes[2].holds_applies = False
    cluster.finish_applies(2)
    cluster.pump()
    assert cluster.leaders() == [2]


def test_a_voter_does_not_campaign_for_a_transfer_that_was_given_up() -> None:
    """It caught up half an election timeout after the transfer began, and applied a change when the time was over."""
    cluster = Cluster(1, 2, 3)
    cluster.elect(1)
    cluster.nodes[2].holds_applies = True
    cluster.change(1, (REMOVE, 3))
    cluster.pump()
    cluster.nodes[2].holds_appends = True
    cluster.propose(1, b"x")
    cluster.pump()
    cluster[1].transfer_leader(ReplicaId(2))
    cluster.tick(SETTINGS.election_ticks // 2)
    cluster.nodes[2].holds_appends = False
    cluster.finish_appends(2)
    cluster.pump()
    assert cluster.of_type(TimeoutNow)
    cluster.tick(SETTINGS.election_ticks - SETTINGS.election_ticks // 2)
    cluster.finish_applies(2)
    cluster.pump()
    assert cluster.leaders() == [1]


def test_a_voter_that_learns_of_the_change_by_its_campaign_repeats_it_immediately() -> None:
    """The message of the removed leader overtook the news that the change is committed. They use different connections."""
    cluster = Cluster(1)
    exchange_only_replica(cluster)
    cluster.is_lost = lambda message: isinstance(message, AppendRequest) and not message.entries
    cluster.pump()
    assert cluster.leaders() == [2]
    assert (cluster[2].term, cluster[2].membership) == (8, membership(2))


def test_a_voter_that_must_apply_a_change_first_campaigns_when_it_has() -> None:
    cluster = Cluster(1, 2)
    cluster.elect(1)
    cluster.nodes[2].holds_applies = True
    cluster.change(1, (REMOVE, 1))
    cluster.pump()
    assert cluster.leaders() == []
    cluster.finish_applies(2)
    cluster.pump()
    assert cluster.leaders() == [2]


def test_a_voter_that_applies_a_change_too_late_does_not_campaign() -> None:
    """The leader took proposals again after an election timeout."""
    cluster = Cluster(1, 2, 3)
    cluster.elect(1)
    cluster.nodes[2].holds_applies = True
    cluster.change(1, (REMOVE, 3))
    cluster.pump()
    cluster[1].transfer_leader(ReplicaId(2))
    cluster.pump()
    cluster.tick(SETTINGS.election_ticks)
    cluster.finish_applies(2)
    cluster.pump()
    assert cluster.leaders() == [1]


def test_a_demoted_leader_steps_down_and_stays_a_learner() -> None:
    cluster = Cluster(1, 2, 3)
    cluster.elect(1)
    cluster.change(1, (LEARN, 1))
    cluster.pump()
    cluster.live(60)
    assert cluster.leaders() in ([2], [3])
    cluster.propose(cluster.leaders()[0], b"x")
    cluster.pump()
    assert cluster.nodes[1].values() == [b"x"]
    assert cluster[1].membership == membership(2, 3, learners=[1])


def test_a_leader_is_replaced_through_a_joint_change_and_counts_until_it_is_left() -> None:
    cluster = Cluster(1, 2, 3)
    cluster.elect(1)
    cluster.add(4, is_empty=True)
    cluster.change(1, (LEARN, 4))
    cluster.pump()
    cluster.tick(2)
    cluster.change(1, (ADD, 4), (REMOVE, 1))
    cluster.pump()
    cluster.live(60)
    assert now(cluster[1].role) is Role.FOLLOWER
    leader = cluster[cluster.leaders()[0]]
    assert leader.membership == membership(2, 3, 4)


def test_a_removed_replica_cannot_disturb_the_others() -> None:
    """Thesis 4.2.3: it may never hear that it was removed."""
    cluster = Cluster(1, 2, 3)
    cluster.elect(1)
    cluster.isolate(3)
    cluster.change(1, (REMOVE, 3))
    cluster.pump()
    cluster.heal()
    assert cluster[3].membership == membership(1, 2, 3)
    for _ in range(5):
        cluster.live(20)
    assert (cluster.leaders(), cluster[1].term) == ([1], 6)


def test_a_smaller_quorum_immediately_commits_entries_that_waited_for_a_removed_voter() -> None:
    cluster = Cluster(1, 2)
    leader = cluster.elect(1)
    cluster.nodes[1].holds_applies = True
    cluster.change(1, (REMOVE, 2))
    cluster.pump()
    cluster.isolate(2)
    cluster.propose(1, b"x")
    leader.read_index(1)
    cluster.heartbeat(1)
    cluster.pump()
    assert leader.commit_index == START + 2
    cluster.nodes[1].holds_applies = False
    cluster.finish_applies(1)
    assert leader.commit_index == START + 3
    cluster.pump()
    assert cluster.nodes[1].values() == [b"x"]
    assert [read.request_id for read in cluster.nodes[1].reads] == [1]


def test_adding_a_dead_voter_does_not_depose_the_leader() -> None:
    """New members start as recently active."""
    cluster = Cluster(1)
    leader = cluster.elect(1)
    leader.tick(SETTINGS.election_ticks - 1)
    cluster.change(1, (ADD, 2))
    cluster.pump()
    leader.tick(1)
    assert now(leader.role) is Role.LEADER


def test_auto_leave_waits_for_a_transfer_to_end() -> None:
    cluster = Cluster(1, 2, 3, 4, config=membership(1, 2, 3, learners=[4]))
    leader = cluster.elect(1)
    cluster.tick(1)
    cluster.nodes[1].holds_applies = True
    cluster.change(1, (ADD, 4), (REMOVE, 3))
    cluster.pump()
    cluster.isolate(2)
    leader.transfer_leader(ReplicaId(2))
    cluster.finish_applies(1)
    assert leader.membership.is_joint
    cluster.nodes[1].holds_applies = False
    cluster.pump()
    assert leader.membership.is_joint
    cluster.heal()
    cluster.wire.clear()
    cluster.tick(SETTINGS.election_ticks, only=[1])
    cluster.pump()
    assert cluster[cluster.leaders()[0]].membership == membership(1, 2, 4)


def test_a_new_leader_finishes_the_joint_change_of_its_predecessor() -> None:
    cluster = Cluster(1, 2, 3, 4, config=membership(1, 2, 3, learners=[4]))
    leader = cluster.elect(1)
    cluster.tick(1)
    cluster.nodes[1].holds_applies = True  # it never applies, so it never leaves the joint configuration
    cluster.change(1, (ADD, 4), (REMOVE, 3))
    cluster.pump()
    assert cluster[2].membership.is_joint
    assert leader.membership == membership(1, 2, 3, learners=[4])
    cluster.nodes[1].is_up = False
    for node in cluster.nodes.values():
        node.core.forget_leader()
    cluster.live(60)
    assert len(cluster.leaders()) == 1
    assert cluster[cluster.leaders()[0]].membership == membership(1, 2, 4)


def test_a_live_majority_of_the_new_configuration_elects_although_one_knows_less() -> None:
    """etcd issue 12359: the commit index in votes tells the best log that the change is committed."""
    cluster = Cluster(1, 2, 3, 4, config=membership(1, 2, learners=[3, 4]))
    leader = cluster.elect(1)
    cluster.tick(1)
    # 2 holds the change but never hears that it is committed, and 3 and 4 apply it
    cluster.is_lost = lambda m: m.target == 2 and getattr(m, "commit_index", 0) >= START + 2
    leader.propose_membership(change((ADD, 3), (ADD, 4), is_explicit=True), 0)
    cluster.pump()
    assert cluster[3].membership.is_joint
    assert not cluster[2].membership.is_joint
    cluster.nodes[1].is_up = False
    cluster.is_lost = lambda _m: False
    for node in cluster.nodes.values():
        node.core.forget_leader()
    cluster.live(150)
    assert cluster[2].membership.is_joint


def test_the_commitment_of_a_change_is_written_immediately() -> None:
    """Scenario: one voter becomes three, and no entry follows. Then the first one's disk is lost, and the others restart.

    If no disk recorded that the joint configuration was left, they would permanently need a vote of the first one.
    """
    cluster = Cluster(1, 2, 3, config=membership(1, learners=[2, 3]))
    cluster.elect(1)
    cluster.tick(1)
    cluster.change(1, (ADD, 2), (ADD, 3))
    cluster.pump()
    cluster.heartbeat(1)
    cluster.pump()
    for node in cluster.nodes.values():
        assert node.core.membership == membership(1, 2, 3)
        assert node.disk.hard_state.commit_index == node.core.applied_index == START + 3


def test_aioraft_configuration_is_not_rolled_back_with_its_entry() -> None:
    """Our changes are active when they are applied, so a truncated change was never active."""
    cluster = Cluster(1, 2, 3)
    cluster.elect(1)
    cluster.isolate(1)
    cluster.change(1, (MembershipOp.REMOVE, 2))
    cluster.run(1)
    cluster.elect(2)
    cluster.heal()
    cluster.live(30)
    assert cluster[1].membership == membership(1, 2, 3)
    assert cluster[1].log.membership_indexes == []
    assert cluster[1].log.term_at(START + 2) == cluster[2].term


def test_aioraft_new_voters_count_at_once() -> None:
    """An empty new member is a learner first: its acknowledgements commit nothing."""
    cluster = Cluster(1, 2, 3)
    leader = cluster.elect(1)
    cluster.add(4, is_empty=True)
    cluster.change(1, (MembershipOp.ADD_LEARNER, 4))
    cluster.pump()
    cluster.tick(2)
    commit = leader.commit_index
    cluster.isolate(2)
    cluster.isolate(3)
    cluster.propose(1, b"x")
    cluster.pump()
    assert leader.match_index(ReplicaId(4)) == leader.last_index
    assert leader.commit_index == commit
