"""Elections: votes, terms, timers, pre-vote, stickiness, quorum check."""

from dataclasses import replace
from random import Random

import pytest
from raftmq.broker.replica.initial_state import founder_state, joiner_state
from raftmq.errors import InvariantError
from raftmq.raft.core import RaftCore, RestoredState
from raftmq.raft.entry import GENESIS
from raftmq.raft.messages import (
    AppendRequest,
    AppendResponse,
    Heartbeat,
    Message,
    VoteRequest,
    VoteResponse,
)
from raftmq.raft.ready import Role
from raftmq.raft.settings import RaftSettings
from raftmq.types import LogIndex, ReplicaId, Term

from tests.support.raft.harness import (
    SETTINGS,
    START,
    Cluster,
    MemoryLog,
    answer,
    fill,
    lone,
    make_core,
    membership,
    now,
    take,
)

ONE, TWO, THREE = ReplicaId(1), ReplicaId(2), ReplicaId(3)


def vote_request(
    source: int = 2,
    target: int = 1,
    term: int = 6,
    last: tuple[int, int] = (START, 5),
    commit: tuple[int, int] = (START, 5),
    *,
    pre: bool = False,
    transfer: bool = False,
) -> VoteRequest:
    return VoteRequest(
        ReplicaId(source),
        ReplicaId(target),
        Term(term),
        0,
        LogIndex(last[0]),
        Term(last[1]),
        LogIndex(commit[0]),
        Term(commit[1]),
        pre,
        transfer,
    )


def heartbeat(source: int = 2, term: int = 6, commit: int = START, counter: int = 0) -> Heartbeat:
    return Heartbeat(ReplicaId(source), ReplicaId(1), Term(term), LogIndex(commit), counter)


def votes_of(messages: list[Message]) -> list[tuple[int, bool, int]]:
    return [(m.target, m.is_granted, m.term) for m in messages if isinstance(m, VoteResponse)]


def make_candidate() -> tuple[RaftCore, MemoryLog]:
    """Create replica 1 of five, a candidate of term 6 whose own vote is durable."""
    core, disk = lone(1, 1, 2, 3, 4, 5)
    core.campaign()
    take(core, disk)
    core.step(answer(core, 2, 6, pre=True))
    core.step(answer(core, 3, 6, pre=True))
    assert now(core.role) is Role.CANDIDATE
    take(core, disk)
    return core, disk


# ------------------------------------------------------------------------------------------------------- starting


def test_a_replica_starts_as_follower_and_knows_no_leader() -> None:
    core, _ = lone()
    assert (core.role, core.leader_id, core.term) == (Role.FOLLOWER, 0, GENESIS.term)


def test_a_follower_that_hears_nothing_campaigns_within_one_to_two_timeouts() -> None:
    for seed in range(50):
        core = make_core(1, MemoryLog(GENESIS, membership(1, 2, 3)), seed=seed)
        ticks = 0
        while not core.campaign_due:
            core.tick()
            ticks += 1
        assert SETTINGS.election_ticks <= ticks <= 2 * SETTINGS.election_ticks - 1


def test_election_timeouts_differ_between_replicas_and_are_drawn_again() -> None:
    timeouts = set()
    core, disk = lone()
    for _ in range(30):
        ticks = 0
        while not core.campaign_due:
            core.tick()
            ticks += 1
        timeouts.add(ticks)
        core.step(heartbeat(2, core.term + 1))
        take(core, disk)
    assert len(timeouts) >= 5


def test_a_heartbeat_or_append_resets_the_election_timer() -> None:
    core, disk = lone()
    for _ in range(10):
        core.tick(9)
        core.step(heartbeat())
        take(core, disk)
        core.tick(9)
        core.step(AppendRequest(ReplicaId(2), ReplicaId(1), Term(6), GENESIS.index, GENESIS.term, (), GENESIS.index))
        take(core, disk)
    assert not core.campaign_due


def test_a_granted_vote_resets_the_election_timer_and_a_refused_one_does_not() -> None:
    core, disk = lone()
    core.tick(9)
    core.step(vote_request(term=6))
    take(core, disk)
    core.tick(9)
    assert not core.campaign_due
    core, disk = lone(settings=SETTINGS)
    ticks = 0
    while not core.campaign_due:
        core.step(vote_request(term=5, last=(START - 1, 4)))  # same term, but refused because of a shorter log
        core.tick()
        ticks += 1
    assert ticks < 2 * SETTINGS.election_ticks


# --------------------------------------------------------------------------------------------------------- voting


def test_a_voter_grants_one_vote_per_term_first_come_first_served() -> None:
    core, disk = lone()
    core.step(vote_request(source=2, term=6))
    core.step(vote_request(source=3, term=6))
    core.step(vote_request(source=2, term=6))
    assert votes_of(take(core, disk)) == [(2, True, 6), (3, False, 6), (2, True, 6)]
    assert disk.hard_state.vote == 2


def test_a_vote_survives_a_restart() -> None:
    core, disk = lone()
    core.step(vote_request(source=2, term=6))
    take(core, disk)
    reborn = make_core(1, disk)
    reborn.step(vote_request(source=3, term=6))
    assert votes_of(take(reborn, disk)) == [(3, False, 6)]


def test_a_replica_with_a_term_older_than_its_log_does_not_start() -> None:
    """Term and vote were lost, so the replica could vote twice in a term."""
    disk = MemoryLog(GENESIS, membership(1, 2, 3))
    fill(disk, [6, 7])
    disk.hard_state = replace(disk.hard_state, term=Term(6), vote=ReplicaId(2))
    with pytest.raises(InvariantError, match="restored_term"):
        make_core(1, disk)
    disk.hard_state = replace(disk.hard_state, term=Term(7))
    assert make_core(1, disk).vote == 2


@pytest.mark.parametrize("restored", [founder_state(membership(1, 2, 3)), joiner_state()])
def test_a_new_replica_starts_in_the_term_of_its_position(restored: RestoredState) -> None:
    core = RaftCore(ReplicaId(1), restored, MemoryLog(restored.position, restored.membership), Random(1), SETTINGS)
    assert (core.term, core.vote) == (restored.position.term, 0)


@pytest.mark.parametrize(
    ("last", "is_granted"),
    [
        ((START + 9, 6), False),
        ((START + 1, 7), False),
        ((START + 2, 7), True),
        ((START + 3, 7), True),
        ((START + 1, 8), True),
    ],
)
def test_only_a_log_at_least_as_up_to_date_gets_the_vote_term_before_index(
    last: tuple[int, int], is_granted: bool
) -> None:
    disk = MemoryLog(GENESIS, membership(1, 2, 3))
    fill(disk, [6, 7])
    core = make_core(1, disk)
    core.step(vote_request(term=9, last=last))
    assert [granted for _, granted, _ in votes_of(take(core, disk))] == [is_granted]


def test_a_higher_term_is_adopted_and_the_vote_is_free_again() -> None:
    core, disk = lone()
    core.step(vote_request(source=2, term=6))
    core.step(vote_request(source=3, term=8))
    assert votes_of(take(core, disk)) == [(2, True, 6), (3, True, 8)]
    assert (core.term, disk.hard_state.vote) == (8, 3)


def test_a_vote_request_of_a_lower_term_is_refused() -> None:
    core, disk = lone()
    core.step(heartbeat(term=8))
    take(core, disk)
    core.step(vote_request(source=3, term=7))
    assert (take(core, disk), core.term) == ([], 8)


def test_learners_and_non_members_vote() -> None:
    """They may be voters of a configuration that they do not know yet (etcd: campaign_learner_must_vote)."""
    learner, disk = lone(4, config=membership(1, 2, 3, learners=[4]))
    learner.step(vote_request(source=2, target=4))
    assert votes_of(take(learner, disk)) == [(2, True, 6)]
    stranger, disk = lone(9)
    stranger.step(vote_request(source=2, target=9))
    assert votes_of(take(stranger, disk)) == [(2, True, 6)]


# ---------------------------------------------------------------------------------------------------- campaigning


def test_a_candidate_raises_the_term_votes_for_itself_and_asks_everyone() -> None:
    core, disk = lone()
    core.campaign()
    core.step(answer(core, 2, 6, pre=True))
    said = take(core, disk)
    assert (core.role, core.term, core.vote) == (Role.CANDIDATE, 6, 1)
    asked = [m.target for m in said if isinstance(m, VoteRequest) and not m.is_pre_vote]
    assert asked == [2, 3]
    assert (disk.hard_state.term, disk.hard_state.vote) == (6, 1)


def test_a_majority_makes_a_leader_and_a_minority_does_not() -> None:
    core, _ = make_candidate()
    core.step(answer(core, 2, 6))
    assert now(core.role) is Role.CANDIDATE
    core.step(answer(core, 3, 6))
    assert now(core.role) is Role.LEADER


def test_the_same_voter_counts_once_and_outsiders_never() -> None:
    core, _ = make_candidate()
    for _ in range(3):
        core.step(answer(core, 2, 6))
    core.step(answer(core, 77, 6))
    assert now(core.role) is Role.CANDIDATE


def test_a_majority_of_refusals_ends_the_candidacy_in_the_same_term() -> None:
    core, _ = make_candidate()
    for source in (2, 3, 4):
        core.step(answer(core, source, 6, granted=False))
    assert (core.role, core.term) == (Role.FOLLOWER, 6)


def test_votes_of_an_earlier_term_are_not_counted() -> None:
    core, disk = make_candidate()
    core.step(answer(core, 2, 5))
    core.step(answer(core, 3, 5))
    assert now(core.role) is Role.CANDIDATE
    # an answer to a pre-vote is no vote either
    core.step(answer(core, 2, 7, pre=True))
    core.step(answer(core, 3, 7, pre=True))
    assert now(core.role) is Role.CANDIDATE
    take(core, disk)


def test_a_candidate_steps_back_for_a_leader_of_its_term_or_a_later_one() -> None:
    core, _ = make_candidate()
    core.step(heartbeat(2, 6))
    assert (core.role, core.leader_id, core.term) == (Role.FOLLOWER, 2, 6)
    core, _ = make_candidate()
    core.step(heartbeat(3, 9))
    assert (core.role, core.leader_id, core.term) == (Role.FOLLOWER, 3, 9)


def test_a_candidate_whose_votes_split_asks_again_after_its_timeout() -> None:
    core, disk = make_candidate()
    core.tick(2 * SETTINGS.election_ticks)
    assert core.campaign_due
    core.campaign()
    assert now(core.role) is Role.PRE_CANDIDATE
    take(core, disk)
    core.step(answer(core, 2, 7, pre=True))
    core.step(answer(core, 3, 7, pre=True))
    assert (core.role, core.term) == (Role.CANDIDATE, 7)


def test_a_single_voter_elects_itself_once_its_vote_is_durable() -> None:
    core, disk = lone(1, 1)
    core.campaign()
    assert now(core.role) is Role.CANDIDATE, "its vote is not on disk yet"
    take(core, disk)
    assert (core.role, core.commit_index) == (Role.LEADER, START + 1)


def test_there_is_one_leader_per_term() -> None:
    """Thesis figure 3.2, election safety: messages of two leaders of one term stop the replica."""
    core, disk = lone()
    core.step(heartbeat(2, 6))
    take(core, disk)
    with pytest.raises(InvariantError, match="one_leader_per_term"):
        core.step(heartbeat(3, 6))


def test_messages_for_another_replica_are_dropped() -> None:
    core, disk = lone()
    take(core, disk)
    core.step(replace(vote_request(term=9), target=ReplicaId(7)))
    assert (take(core, disk), core.term) == ([], GENESIS.term)


# ------------------------------------------------------------------------------------------------------- pre-vote


def test_a_pre_vote_changes_neither_term_nor_vote_nor_timer() -> None:
    core, disk = lone()
    take(core, disk)
    core.tick(9)
    core.step(vote_request(term=6, pre=True))
    assert votes_of(take(core, disk)) == [(2, True, 6)]
    assert (core.term, core.vote, disk.hard_state.vote) == (5, 0, 0)
    core.tick(10)
    assert core.campaign_due


def test_a_pre_vote_for_a_worse_log_is_refused_with_the_own_term() -> None:
    disk = MemoryLog(GENESIS, membership(1, 2, 3))
    fill(disk, [7])
    core = make_core(1, disk)
    core.step(vote_request(term=9, last=(START, 5), pre=True))
    assert votes_of(take(core, disk)) == [(2, False, 7)]


def test_no_term_rises_without_a_majority_of_pre_votes() -> None:
    cluster = Cluster(1, 2, 3)
    cluster.elect(1)
    cluster.isolate(3)
    term = cluster[3].term
    cluster.live(200)
    assert cluster[3].term == term
    cluster.heal()
    cluster.live(20)
    assert (cluster.leaders(), cluster[1].term) == ([1], term)


def test_a_pre_vote_of_a_lower_term_is_answered_with_the_own_term() -> None:
    """Without an answer the sender would stay behind permanently."""
    core, disk = lone()
    core.step(heartbeat(term=9))
    take(core, disk)
    core.step(vote_request(source=3, term=7, pre=True))
    assert votes_of(take(core, disk)) == [(3, False, 9)]


def test_answers_to_an_earlier_round_do_not_count() -> None:
    """A pre-vote of one term is requested repeatedly, and an earlier grant was given to another log."""
    core, disk = lone()
    core.campaign()
    take(core, disk)
    early = [answer(core, source, 6, pre=True) for source in (2, 3)]
    early += [answer(core, source, 5, granted=False, pre=True) for source in (2, 3)]
    core.campaign()
    take(core, disk)
    for late in early:
        core.step(late)
    assert now(core.role) is Role.PRE_CANDIDATE
    core.step(answer(core, 2, 6, pre=True))
    assert (core.role, core.term) == (Role.CANDIDATE, 6)
    take(core, disk)
    core.step(replace(answer(core, 2, 6), round=early[0].round))
    assert now(core.role) is Role.CANDIDATE
    core.step(answer(core, 2, 6))
    assert now(core.role) is Role.LEADER


def test_rounds_differ_before_and_after_a_restart() -> None:
    rounds = set()
    for seed in range(20):
        disk = MemoryLog(GENESIS, membership(1, 2, 3))
        core = make_core(1, disk, seed=seed)
        for _ in range(3):
            core.campaign()
            rounds |= {message.round for message in take(core, disk) if isinstance(message, VoteRequest)}
    assert len(rounds) == 60


def test_an_answer_repeats_the_round_of_its_request() -> None:
    core, disk = lone()
    core.step(replace(vote_request(term=6, pre=True), round=7))
    core.step(replace(vote_request(term=6), round=8))
    core.step(replace(vote_request(source=3, term=6), round=9))
    core.step(replace(vote_request(source=3, term=5, pre=True), round=10))
    answers = [message for message in take(core, disk) if isinstance(message, VoteResponse)]
    assert [(one.target, one.round, one.is_granted) for one in answers] == [
        (2, 7, True),
        (2, 8, True),
        (3, 9, False),
        (3, 10, False),
    ]


def test_failed_pre_votes_stretch_the_timeout_up_to_four_times_and_a_leader_resets_it() -> None:
    settings = RaftSettings(election_ticks=10, pre_vote_backoff_max=4)
    core, disk = lone(settings=settings)

    def wait() -> int:
        ticks = 0
        while not core.campaign_due:
            core.tick()
            ticks += 1
        return ticks

    waits = []
    for _ in range(6):
        waits.append(wait())
        core.campaign()
        take(core, disk)
    assert 10 <= waits[0] <= 19
    assert 10 <= waits[1] <= 19
    assert 20 <= waits[2] <= 38
    assert all(40 <= ticks <= 76 for ticks in waits[3:])
    core.step(heartbeat())
    take(core, disk)
    assert wait() <= 19


def test_a_returning_peer_ends_the_backoff_of_pre_votes() -> None:
    """After the majority returns, the group must not wait for another four election timeouts."""
    core, disk = lone(settings=RaftSettings(election_ticks=10, pre_vote_backoff_max=4))
    for _ in range(4):
        core.tick(80)
        core.campaign()
        take(core, disk)
    core.tick(19)
    assert not now(core.campaign_due)
    core.peer_returned()
    core.tick()
    assert now(core.campaign_due)
    core.campaign()
    assert (now(core.role), core.term) == (Role.PRE_CANDIDATE, 5), "it only asks sooner"


# ---------------------------------------------------------------------------------- stickiness and quorum check


def test_a_replica_that_hears_a_leader_ignores_vote_requests() -> None:
    for pre in (True, False):
        core, disk = lone()
        core.step(heartbeat(2, 6))
        take(core, disk)
        core.step(vote_request(source=3, term=7, pre=pre))
        assert (take(core, disk), core.term) == ([], 6)
        core.tick(SETTINGS.election_ticks)
        core.step(vote_request(source=3, term=7, pre=pre))
        assert votes_of(take(core, disk)) == [(3, True, 7)]


def test_a_live_leader_ignores_vote_requests_too() -> None:
    cluster = Cluster(1, 2, 3)
    cluster.elect(1)
    cluster[1].step(vote_request(source=3, term=99))
    assert (cluster[1].role, cluster[1].term) == (Role.LEADER, 6)


def test_a_replica_that_forgot_its_leader_grants_pre_votes_immediately() -> None:
    cluster = Cluster(1, 2, 3)
    cluster.elect(1)
    cluster.nodes[1].is_up = False
    cluster[2].campaign()
    cluster.pump()
    assert cluster.leaders() == []
    cluster[2].forget_leader()
    cluster[3].forget_leader()
    cluster[2].campaign()
    cluster.pump()
    assert cluster.leaders() == [2]


def test_a_leader_without_a_quorum_steps_down_within_two_timeouts() -> None:
    cluster = Cluster(1, 2, 3)
    cluster.elect(1)
    cluster.isolate(1)
    cluster.tick(2 * SETTINGS.election_ticks, only=[1])
    assert (cluster[1].role, cluster[1].leader_id) == (Role.FOLLOWER, 0)


def test_a_leader_with_a_quorum_keeps_leading() -> None:
    cluster = Cluster(1, 2, 3)
    cluster.elect(1)
    cluster.isolate(3)
    cluster.tick(10 * SETTINGS.election_ticks, only=[1, 2])
    assert now(cluster[1].role) is Role.LEADER


def test_a_replica_that_campaigns_endlessly_disturbs_nobody() -> None:
    cluster = Cluster(1, 2, 3)
    cluster.elect(1)
    for _ in range(50):
        cluster.tick()
        cluster[3].campaign()
        cluster.pump()
    assert (cluster.leaders(), cluster[1].term) == ([1], 6)


def test_a_one_way_cut_leader_is_replaced_once() -> None:
    """The leader hears nobody but is heard: its followers stay loyal until it steps down by itself."""
    cluster = Cluster(1, 2, 3)
    cluster.elect(1)
    cluster.cut = {(2, 1), (3, 1)}
    cluster.live(80)
    assert len([i for i in cluster.leaders() if i != 1]) == 1
    assert cluster[2].term == 7


# ------------------------------------------------------------------------------------------------ being freed, stale


def test_a_replica_with_a_higher_term_rejoins_through_its_answer_to_the_leader() -> None:
    cluster = Cluster(1, 2, 3)
    cluster.elect(1)
    ahead = cluster[3]
    ahead.forget_leader()
    ahead.step(vote_request(source=9, target=3, term=20))  # its term rises, and the others' terms do not
    cluster.wire.clear()
    cluster.run(3)
    cluster.wire.clear()
    assert ahead.term == 20
    cluster.live(60)
    leader = cluster[cluster.leaders()[0]]
    assert leader.term > 20
    assert all(node.core.leader_id == leader.replica_id for node in cluster.nodes.values())


def test_a_leader_of_a_lower_term_is_told_the_term() -> None:
    core, disk = lone()
    core.step(heartbeat(term=9))
    take(core, disk)
    for stale in (
        heartbeat(3, 7),
        AppendRequest(ReplicaId(3), ReplicaId(1), Term(7), LogIndex(5), Term(5), (), LogIndex(5)),
    ):
        core.step(stale)
        answers = take(core, disk)
        assert [(type(m), m.term, m.target) for m in answers] == [(AppendResponse, 9, 3)]
    assert core.leader_id == 2


def test_commit_indexes_in_votes_spread_what_is_committed() -> None:
    """etcd issue 12359: a replica that holds an entry may commit it on the word of any message."""
    disk = MemoryLog(GENESIS, membership(1, 2, 3))
    fill(disk, [6, 6, 7])
    core = make_core(1, disk)
    core.step(vote_request(term=4, commit=(START + 2, 6)))
    assert core.commit_index == START + 2
    core.step(vote_request(term=8, commit=(START + 3, 8)))  # another entry than the one it holds
    assert core.commit_index == START + 2
    core.step(replace(answer(core, 3, 8), commit_index=LogIndex(START + 3), commit_term=Term(7)))
    assert core.commit_index == START + 3


def test_step_down_leaves_the_term_and_its_vote() -> None:
    cluster = Cluster(1, 2, 3)
    cluster.elect(1)
    cluster[1].step_down()
    assert (cluster[1].role, cluster[1].term, cluster[1].vote, cluster[1].leader_id) == (Role.FOLLOWER, 6, 1, 0)
    cluster.live(60)
    assert len(cluster.leaders()) == 1


def test_a_confirmation_round_after_a_stall_restores_or_ends_the_leadership() -> None:
    cluster = Cluster(1, 2, 3)
    leader = cluster.elect(1)
    cluster.tick()
    assert now(leader.is_confirmed_leader)
    cluster.heartbeat(1)  # a round that began before the stall must not count
    leader.require_confirmation()
    assert not now(leader.is_confirmed_leader)
    cluster.pump()
    assert not now(leader.is_confirmed_leader)
    cluster.heartbeat(1)
    cluster.pump()
    assert now(leader.is_confirmed_leader)
    cluster.isolate(1)
    leader.require_confirmation()
    cluster.tick(SETTINGS.election_ticks, only=[1])
    assert now(leader.role) is Role.FOLLOWER


def test_a_single_voter_confirms_itself() -> None:
    cluster = Cluster(1)
    leader = cluster.elect(1)
    leader.require_confirmation()
    assert now(leader.is_confirmed_leader)


def test_a_new_leader_is_confirmed_only_when_its_no_op_is_applied() -> None:
    cluster = Cluster(1, 2, 3)
    cluster.nodes[1].holds_applies = True
    leader = cluster.elect(1)
    assert not now(leader.is_confirmed_leader)
    cluster.finish_applies(1)
    assert now(leader.is_confirmed_leader)


def test_role_changes_are_reported_once() -> None:
    cluster = Cluster(1, 2, 3)
    cluster.elect(1)
    cluster.tick(5)
    assert [(c.role, c.term, c.leader_id) for c in cluster.nodes[1].role_changes] == [
        (Role.PRE_CANDIDATE, 5, 0),
        (Role.CANDIDATE, 6, 0),
        (Role.LEADER, 6, 1),
    ]
    assert [(c.role, c.term, c.leader_id) for c in cluster.nodes[2].role_changes][-1] == (Role.FOLLOWER, 6, 1)


def test_a_quiet_heartbeat_touches_the_timer_only() -> None:
    core, disk = lone()
    assert not core.on_quiet_heartbeat(ReplicaId(2), Term(6), GENESIS.index), "an unknown leader is news"
    core.step(heartbeat(2, 6))
    take(core, disk)
    for _ in range(5):
        core.tick(9)
        assert core.on_quiet_heartbeat(ReplicaId(2), Term(6), GENESIS.index)
    assert not core.campaign_due
    assert not core.has_ready()
    assert not core.on_quiet_heartbeat(ReplicaId(3), Term(6), GENESIS.index)
    assert not core.on_quiet_heartbeat(ReplicaId(2), Term(7), GENESIS.index)
    assert not core.on_quiet_heartbeat(ReplicaId(2), Term(6), LogIndex(START + 1)), "a commit index is news"


def test_a_quiet_echo_counts_for_the_quorum_check() -> None:
    cluster = Cluster(1, 2, 3)
    leader = cluster.elect(1)
    for _ in range(6):
        leader.tick(SETTINGS.election_ticks - 1)
        assert leader.on_quiet_heartbeat_response(ReplicaId(2), leader.term, 0)
    assert now(leader.role) is Role.LEADER
    assert not leader.on_quiet_heartbeat_response(ReplicaId(2), Term(leader.term - 1), 0)
    assert not leader.on_quiet_heartbeat_response(ReplicaId(9), leader.term, 0)
    leader.read_index(1)
    assert not leader.on_quiet_heartbeat_response(ReplicaId(2), leader.term, 0), "a read waits for it"


def test_aioraft_votes_in_spite_of_a_live_leader() -> None:
    """aioraft granted RequestVote although a leader had just been heard."""
    cluster = Cluster(1, 2, 3)
    cluster.elect(2)
    cluster[1].step(vote_request(3, term=50))
    cluster.pump()
    assert (cluster[1].term, cluster.leaders()) == (6, [2])


def test_aioraft_pre_vote_never_refuses() -> None:
    """aioraft's check for a known leader read an event that was cleared immediately."""
    core, disk = lone()
    core.step(Heartbeat(TWO, ONE, Term(6), GENESIS.index, 0))
    take(core, disk)
    core.tick(5)
    core.step(vote_request(3, term=7, pre=True))
    assert take(core, disk) == []


def test_aioraft_erases_a_fresh_vote() -> None:
    """aioraft set the term, awaited, and then cleared the vote. Here both change in one step, and only once."""
    core, disk = lone()
    core.step(vote_request(2, term=9))
    core.step(Heartbeat(THREE, ONE, Term(9), GENESIS.index, 0))
    core.step(vote_request(3, term=9))
    said = [(m.target, m.is_granted) for m in take(core, disk) if isinstance(m, VoteResponse)]
    assert said == [(2, True), (3, False)]
    assert (disk.hard_state.term, disk.hard_state.vote) == (9, 2)


def test_pysyncobj_forgets_term_and_vote() -> None:
    core, disk = lone()
    core.step(vote_request(2, term=9))
    take(core, disk)
    reborn = make_core(1, disk)
    assert (reborn.term, reborn.vote) == (9, 2)


def test_pysyncobj_counts_votes_without_identity() -> None:
    core, disk = lone(1, 1, 2, 3, 4, 5)
    core.campaign()
    for source in (2, 3):
        core.step(answer(core, source, 6, pre=True))
    take(core, disk)
    vote = answer(core, 2, 6)
    for _ in range(5):
        core.step(vote)
    core.step(replace(vote, source=ReplicaId(42)))
    assert now(core.role) is Role.CANDIDATE
    core.step(replace(vote, source=THREE))
    assert now(core.role) is Role.LEADER
