"""Vote requests wait for the disk like answers, and their answers count only in their own round."""

from collections.abc import Callable

import pytest
from raftmq.raft.core import RaftCore
from raftmq.raft.messages import AppendRequest, Heartbeat, Message, VoteRequest, VoteResponse
from raftmq.raft.ready import Role
from raftmq.types import LogIndex, ReplicaId, Term

from sim.core.mutants.elections import AsksBeforeDurable, AsksEarlyCountsLate, CountsLateAnswers
from tests.support.raft.harness import SETTINGS, START, Cluster, MemoryLog, answer, entry, lone, make_core, now, take

ONE, TWO = ReplicaId(1), ReplicaId(2)
X = START + 2


def requests_of(messages: tuple[Message, ...]) -> list[VoteRequest]:
    return [message for message in messages if isinstance(message, VoteRequest) and not message.is_pre_vote]


def make_asking(disk_holds: int = 1) -> tuple[RaftCore, MemoryLog]:
    """Create replica 1 of three, a candidate of term 7 with two entries, `disk_holds` of them on disk, whose next Ready was not taken yet."""
    core, disk = lone()
    for index in (START + 1, START + 2):
        previous = (LogIndex(index - 1), Term(6 if index > START + 1 else 5))
        core.step(AppendRequest(TWO, ONE, Term(6), *previous, (entry(index, 6),), LogIndex(START)))
        if index - START <= disk_holds:
            take(core, disk)
    core.forget_leader()
    core.campaign()
    core.ready(with_append=False)
    core.step(answer(core, 3, 7, pre=True))
    assert (core.role, core.term) == (Role.CANDIDATE, 7)
    return core, disk


# ------------------------------------------------------------------------------------------------- behind the write


@pytest.mark.parametrize("disk_holds", [1, 2])
def test_a_request_leaves_after_the_write_of_all_values_in_it(disk_holds: int) -> None:
    core, _ = make_asking(disk_holds)
    ready = core.ready()
    assert requests_of(ready.messages) == []
    work = ready.append
    assert work is not None
    assert work.must_sync
    assert work.hard_state is not None
    assert (work.hard_state.term, work.hard_state.vote) == (7, 1)
    asked = requests_of(work.responses)
    assert [(m.target, m.term, m.last_index, m.last_term) for m in asked] == [(2, 7, X, 6), (3, 7, X, 6)]
    assert [e.index for e in work.entries] == list(range(START + disk_holds + 1, X + 1))


def test_a_pre_vote_waits_for_nothing() -> None:
    """A pre-vote promises nothing: the campaign after it asks again, after the write."""
    core, _ = lone()
    core.step(AppendRequest(TWO, ONE, Term(6), LogIndex(START), Term(5), (entry(START + 1, 6),), LogIndex(START)))
    core.forget_leader()
    core.campaign()
    asked = [m for m in core.ready(with_append=False).messages if isinstance(m, VoteRequest)]
    assert [(m.is_pre_vote, m.last_index) for m in asked] == [(True, START + 1)] * 2


@pytest.mark.parametrize("term", [7, 8])
def test_a_request_of_an_ended_campaign_does_not_leave(term: int) -> None:
    """The log that the request names is replaced before a disk ever held it."""
    core, disk = make_asking()
    news = (entry(X, term),)
    core.step(AppendRequest(TWO, ONE, Term(term), LogIndex(START + 1), Term(6), news, LogIndex(START)))
    assert requests_of(tuple(take(core, disk))) == []
    assert disk.rows[X].term == term


def test_a_candidate_does_not_time_out_before_it_has_asked() -> None:
    """The time for answers begins when the requests leave: a slow disk must not end every campaign before it begins."""
    core, disk = make_asking()
    work = core.ready().append
    assert work is not None
    core.tick(10 * SETTINGS.election_ticks)
    assert not core.campaign_due
    disk.write(work)
    core.append_done(work.token)
    core.tick(SETTINGS.election_ticks - 1)
    assert not now(core.campaign_due)
    core.tick(SETTINGS.election_ticks)
    assert now(core.campaign_due)


def test_the_candidate_of_a_transfer_waits_for_the_disk_too() -> None:
    cluster = Cluster(1, 2, 3)
    cluster.elect(1)
    cluster.nodes[2].holds_appends = True
    cluster[1].transfer_leader(TWO)
    cluster.pump()
    assert (cluster[2].role, cluster.of_type(VoteRequest, 2)) == (Role.CANDIDATE, [])
    cluster.finish_appends(2)
    cluster.pump()
    assert len(cluster.of_type(VoteRequest, 2)) == 2


# ----------------------------------------------------------------------------- the whole scenario, and what it takes


class Late:
    """Holds back answers on their way."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.held: list[Message] = []

    def hold(self, is_held: Callable[[VoteResponse], bool]) -> None:
        def is_lost(message: Message) -> bool:
            if isinstance(message, VoteResponse) and is_held(message):
                self.held.append(message)
                return True
            return False

        self.cluster.is_lost = is_lost

    def deliver(self) -> None:
        for message in self.held:
            self.cluster[message.target].step(message)
            self.cluster.pump()


def interrupted_campaign(core_class: type[RaftCore]) -> Cluster:
    """Replica 3 has committed X with 2 and stops. 1, which has X only in memory, campaigns, is killed, and campaigns again.

    The answer of 2 to the campaign before the kill arrives after the restart, and the new requests are lost.
    """
    cluster = Cluster(1, 2, 3, core_class=core_class)
    cluster.elect(3)
    cluster.nodes[1].holds_appends = True
    cluster.propose(3, b"x")
    cluster.pump()
    assert cluster[3].commit_index == cluster[1].last_index == X
    assert cluster.nodes[1].disk.last_index == START + 1, "its write is under way"
    cluster.nodes[3].is_up = False
    for follower in (1, 2):
        cluster[follower].forget_leader()
    late = Late(cluster)
    late.hold(lambda message: True)
    cluster[1].campaign()
    cluster.pump()
    late.hold(lambda message: not message.is_pre_vote)
    cluster[1].campaign()
    cluster.pump()
    assert (cluster[1].role, cluster[1].term) == (Role.CANDIDATE, 7)
    cluster.restart(1)
    assert (cluster[1].term, cluster[1].last_index) == (6, START + 1), "nothing of it was durable"
    cluster.is_lost = lambda message: isinstance(message, VoteRequest)
    cluster[1].campaign()
    cluster.pump()
    late.deliver()
    cluster.is_lost = lambda message: False
    return cluster


@pytest.mark.parametrize("core_class", [RaftCore, AsksBeforeDurable, CountsLateAnswers])
def test_a_vote_for_the_longer_log_before_a_restart_elects_nobody(core_class: type[RaftCore]) -> None:
    """The product survives this scenario, and so does either of its two defences alone."""
    cluster = interrupted_campaign(core_class)
    assert cluster.leaders() == []
    cluster.nodes[3].is_up = True
    cluster.live(200)
    (leader,) = cluster.leaders()
    cluster.propose(leader, b"y")
    cluster.tick(3)
    assert [node.values() for node in cluster.nodes.values()] == [[b"x", b"y"]] * 3


def test_without_both_defences_a_committed_entry_is_lost() -> None:
    """Two replicas apply different entries at the index of X, so the scenario above is harmful without the defences."""
    cluster = interrupted_campaign(AsksEarlyCountsLate)
    assert cluster.leaders() == [1]
    assert (cluster[1].term, cluster[1].log.term_at(X)) == (7, 7)
    assert cluster.nodes[3].disk.rows[X].payload == b"x"
    assert cluster[3].applied_index == X


def test_a_leader_of_the_term_ends_a_waiting_campaign() -> None:
    core, disk = make_asking()
    core.step(Heartbeat(TWO, ONE, Term(7), LogIndex(START), 0))
    assert (core.role, requests_of(tuple(take(core, disk)))) == (Role.FOLLOWER, [])
    assert make_core(1, disk).vote == 1, "the vote for itself stands, or it could vote again in this term"
