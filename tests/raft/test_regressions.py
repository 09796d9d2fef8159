"""Defects of two earlier Python Raft libraries, each as a test that our core passes.

Sources: aioraft-ng 0.2.0 and PySyncObj 0.3.14, read from their published packages.
"""

from dataclasses import replace

import pytest
from raftmq.errors import InvariantError
from raftmq.raft.entry import GENESIS, EntryKind, LogPosition
from raftmq.raft.membership import MembershipOp
from raftmq.raft.messages import (
    AppendRequest,
    AppendResponse,
    Heartbeat,
    InstallSnapshot,
    SnapshotMeta,
    VoteRequest,
    VoteResponse,
)
from raftmq.raft.progress import ProgressState
from raftmq.raft.ready import Appended, Role
from raftmq.types import LogIndex, Offset, ReplicaId, Term

from tests.support.raft.harness import (
    START,
    Cluster,
    MemoryLog,
    answer,
    data,
    entry,
    fill,
    lone,
    make_core,
    membership,
    now,
    take,
)

ONE, TWO, THREE = ReplicaId(1), ReplicaId(2), ReplicaId(3)


def vote_request(source: int, term: int, *, pre: bool = False) -> VoteRequest:
    return VoteRequest(
        ReplicaId(source), ONE, Term(term), 0, GENESIS.index, GENESIS.term, GENESIS.index, GENESIS.term, pre
    )


# ------------------------------------------------------------------------------------------------------ aioraft-ng


def test_aioraft_reads_without_a_no_op() -> None:
    """It served reads as leader before committing anything of its term."""
    cluster = Cluster(1, 2, 3)
    cluster.is_lost = lambda m: isinstance(m, AppendResponse)
    leader = cluster.elect(1)
    leader.read_index(1)
    cluster.tick(3)
    assert cluster.nodes[1].reads == []
    assert not leader.is_confirmed_leader
    assert cluster.nodes[1].disk.rows[START + 1].kind is EntryKind.EMPTY


def test_aioraft_votes_in_spite_of_a_live_leader() -> None:
    """RequestVote ignored that a leader had just been heard, inside its own lease."""
    cluster = Cluster(1, 2, 3)
    cluster.elect(2)
    cluster[1].step(vote_request(3, 50))
    cluster.pump()
    assert (cluster[1].term, cluster.leaders()) == (6, [2])


def test_aioraft_pre_vote_never_refuses() -> None:
    """Its test for a known leader read an event that was cleared at once."""
    core, disk = lone()
    core.step(Heartbeat(TWO, ONE, Term(6), GENESIS.index, 0))
    take(core, disk)
    core.tick(5)
    core.step(vote_request(3, 7, pre=True))
    assert take(core, disk) == []


def test_aioraft_one_black_holed_follower_stops_the_beats_of_all() -> None:
    """The heartbeat loop awaited all peers together."""
    cluster = Cluster(1, 2, 3)
    leader = cluster.elect(1)
    cluster.cut = {(3, 1)}
    for _ in range(50):
        leader.tick()
        assert [target for target, _, _ in leader.take_heartbeats()] == [2, 3]
        leader.step(AppendResponse(TWO, ONE, leader.term, leader.commit_index))
    assert now(leader.role) is Role.LEADER


def test_aioraft_takes_a_timeout_for_a_log_mismatch() -> None:
    """A lost request decremented next_index, one by one down to the beginning."""
    cluster = Cluster(1, 2, 3)
    leader = cluster.elect(1)
    cluster.propose(1, *[b"x"] * 30)
    cluster.pump()
    cluster.isolate(3)
    for _ in range(20):
        cluster.propose(1, b"y")
        cluster.tick(only=[1, 2])
        leader.report_unreachable(THREE)
    assert leader.progress[THREE].next_index == leader.progress[THREE].match_index + 1 == START + 32


def test_aioraft_takes_a_snapshot_timeout_for_success() -> None:
    """It set the match to the snapshot's index although nothing had arrived."""
    cluster = Cluster(1, 2, 3)
    leader = cluster.elect(1)
    cluster.isolate(3)
    cluster.propose(1, *[b"x"] * 5)
    cluster.pump()
    leader.compacted(cluster.nodes[1].disk.compact(START + 4))
    leader.report_unreachable(THREE)
    cluster.heal()
    cluster.is_lost = lambda m: isinstance(m, InstallSnapshot)
    cluster.tick()
    assert leader.progress[THREE].state is ProgressState.SNAPSHOT
    for is_sent in (False, True):
        leader.report_snapshot(THREE, is_sent)
        assert leader.match_index(THREE) == START + 1


def test_aioraft_two_requests_share_an_index() -> None:
    """The index was chosen before an await; here it is taken in the call that appends."""
    cluster = Cluster(1, 2, 3)
    leader = cluster.elect(1)
    outcomes = [leader.propose([data(b"a"), data(b"b")], 0), leader.propose([data(b"c")], 0)]
    indexes = [e.index for outcome in outcomes if isinstance(outcome, Appended) for e in outcome.entries]
    assert indexes == [START + 2, START + 3, START + 4]


def test_aioraft_erases_a_fresh_vote() -> None:
    """It set the term, awaited, and then cleared the vote: here both change in one step, and once."""
    core, disk = lone()
    core.step(vote_request(2, 9))
    core.step(Heartbeat(THREE, ONE, Term(9), GENESIS.index, 0))
    core.step(vote_request(3, 9))
    said = [(m.target, m.is_granted) for m in take(core, disk) if isinstance(m, VoteResponse)]
    assert said == [(2, True), (3, False)]
    assert (disk.hard_state.term, disk.hard_state.vote) == (9, 2)


def test_aioraft_restart_forgets_the_state_of_its_snapshot() -> None:
    """It loaded the snapshot's metadata, restored no state, and started with last_applied = 0."""
    core, disk = lone()
    position = LogPosition(LogIndex(START + 20), Term(8), Offset(40))
    core.step(InstallSnapshot(TWO, ONE, Term(9), SnapshotMeta(position, position.index, membership(1, 2, 3, 4))))
    take(core, disk)
    reborn = make_core(1, disk)
    assert (reborn.applied_index, reborn.commit_index, reborn.state_floor) == (START + 20, START + 20, START + 20)
    assert reborn.membership == membership(1, 2, 3, 4)
    assert reborn.log.next_offset == 40


def test_aioraft_snapshot_keeps_a_suffix_that_does_not_match() -> None:
    disk = MemoryLog(GENESIS, membership(1, 2, 3))
    fill(disk, [6] * 9)
    core = make_core(1, disk)
    position = LogPosition(LogIndex(START + 4), Term(8), Offset(0))
    core.step(InstallSnapshot(TWO, ONE, Term(9), SnapshotMeta(position, position.index, membership(1, 2, 3))))
    take(core, disk)
    assert (core.last_index, core.log.last_term, disk.rows) == (START + 4, 8, {})
    # and with the right last term it refuses candidates that the old suffix would have let win
    core.forget_leader()
    core.step(
        VoteRequest(
            THREE, ONE, Term(10), 0, LogIndex(START + 9), Term(6), GENESIS.index, GENESIS.term, is_pre_vote=False
        )
    )
    assert [m.is_granted for m in take(core, disk) if isinstance(m, VoteResponse)] == [False]


def test_aioraft_snapshot_omits_its_sender_and_takes_an_uncommitted_configuration() -> None:
    cluster = Cluster(1, 2, 3)
    leader = cluster.elect(1)
    cluster.isolate(1)
    cluster.change(1, (MembershipOp.ADD_LEARNER, 4))
    cluster.run(1)
    meta = cluster.snapshot_of(1)
    assert meta is not None
    assert meta.membership == leader.membership == membership(1, 2, 3)


def test_aioraft_configuration_is_not_rolled_back_with_its_entry() -> None:
    """Ours is active when applied, so a truncated change was never in force."""
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
    """An empty newcomer is a learner first: its acknowledgements commit nothing."""
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


def test_aioraft_skips_an_entry_whose_apply_failed() -> None:
    """Entries are handed out once and in order, and completion cannot jump beyond them."""
    cluster = Cluster(1)
    cluster.elect(1)
    node = cluster.nodes[1]
    node.holds_applies = True
    cluster.propose(1, b"a", b"b")
    cluster.pump()
    assert node.core.applied_index == START + 1
    with pytest.raises(InvariantError):
        node.core.apply_done(LogIndex(node.core.last_index + 1))


def test_aioraft_steps_next_index_back_one_by_one() -> None:
    cluster = Cluster(1, 2, 3)
    fill(cluster.nodes[1].disk, [6] * 2 + [9])
    fill(cluster.nodes[2].disk, [6] * 2 + [9])
    fill(cluster.nodes[3].disk, [6] * 2 + [7] * 60)
    for replica_id in (1, 2, 3):
        cluster.restart(replica_id)
    cluster.live(60)
    cluster.elect(1)
    rejects = [m for m in cluster.of_type(AppendResponse, 3) if isinstance(m, AppendResponse) and m.is_rejected]
    assert len(rejects) <= 2
    assert cluster[3].last_index == cluster[1].last_index


# -------------------------------------------------------------------------------------------------------- PySyncObj


def test_pysyncobj_forgets_term_and_vote() -> None:
    core, disk = lone()
    core.step(vote_request(2, 9))
    take(core, disk)
    reborn = make_core(1, disk)
    assert (reborn.term, reborn.vote) == (9, 2)


def test_pysyncobj_acknowledges_what_is_not_on_disk() -> None:
    """Its journal was never synced."""
    cluster = Cluster(1, 2, 3)
    leader = cluster.elect(1)
    cluster.nodes[2].holds_appends = cluster.nodes[3].holds_appends = True
    cluster.propose(1, b"x")
    cluster.pump()
    assert leader.commit_index == START + 1
    cluster.finish_appends(2)
    cluster.pump()
    assert leader.commit_index == START + 2


def test_pysyncobj_loses_a_second_of_commit_index() -> None:
    """Ours rides with each append, and what is behind is learned again, never lost."""
    cluster = Cluster(1, 2, 3)
    cluster.elect(1)
    cluster.propose(1, b"a")
    cluster.pump()
    cluster.propose(1, b"b")
    cluster.pump()
    assert cluster.nodes[2].disk.hard_state.commit_index == START + 2
    for replica_id in (1, 2, 3):
        cluster.restart(replica_id)
    cluster.live(60)
    assert [node.values() for node in cluster.nodes.values()] == [[b"a", b"b"]] * 3


def test_pysyncobj_truncates_everything_after_prev() -> None:
    core, disk = lone()
    for index in range(START + 1, START + 6):
        core.step(
            AppendRequest(
                TWO,
                ONE,
                Term(6),
                LogIndex(index - 1),
                Term(6 if index > START + 1 else 5),
                (entry(index, 6),),
                GENESIS.index,
            )
        )
    take(core, disk)
    core.step(AppendRequest(TWO, ONE, Term(6), LogIndex(START), Term(5), (entry(START + 1, 6),), GENESIS.index))
    core.step(AppendRequest(TWO, ONE, Term(6), LogIndex(START + 2), Term(6), (), GENESIS.index))
    take(core, disk)
    assert core.last_index == START + 5
    assert len(disk.rows) == 5


def test_pysyncobj_commits_without_a_log_match() -> None:
    disk = MemoryLog(GENESIS, membership(1, 2, 3))
    fill(disk, [6, 6, 6])
    core = make_core(1, disk)
    core.step(AppendRequest(TWO, ONE, Term(9), LogIndex(START + 3), Term(8), (), LogIndex(START + 3)))
    assert core.commit_index == START, "refused: nothing is proven"
    core.step(AppendRequest(TWO, ONE, Term(9), LogIndex(START + 1), Term(6), (), LogIndex(START + 3)))
    assert core.commit_index == START + 1, "an empty message proves its prev only"


def test_pysyncobj_acknowledgements_without_a_term() -> None:
    """An acknowledgement of an earlier leadership must not count for a later one."""
    cluster = Cluster(1, 2, 3)
    cluster.elect(1)
    cluster.elect(2)
    leader = cluster.elect(1)
    cluster.isolate(1)
    cluster.propose(1, b"x")
    cluster.run(1)
    commit = leader.commit_index
    for peer in (TWO, THREE):
        leader.step(AppendResponse(peer, ONE, Term(6), leader.last_index))
    assert leader.commit_index == commit


def test_pysyncobj_ignores_lower_terms_silently() -> None:
    core, disk = lone()
    core.step(Heartbeat(TWO, ONE, Term(9), GENESIS.index, 0))
    take(core, disk)
    core.step(AppendRequest(THREE, ONE, Term(8), GENESIS.index, GENESIS.term, (), GENESIS.index))
    assert [(m.target, m.term) for m in take(core, disk)] == [(3, 9)]


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
