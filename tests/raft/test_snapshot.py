"""Snapshots with two positions, compaction, and members that lag behind it."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from raftmq.errors import InvariantError
from raftmq.raft.core import RaftCore
from raftmq.raft.entry import GENESIS, Entry, EntryKind, LogPosition
from raftmq.raft.membership import EMPTY_MEMBERSHIP, Membership, MembershipOp, encode_change
from raftmq.raft.messages import (
    AppendRequest,
    AppendResponse,
    InstallSnapshot,
    Message,
    SnapshotMeta,
    VoteRequest,
    VoteResponse,
)
from raftmq.raft.progress import ProgressState
from raftmq.raft.ready import Role
from raftmq.types import LogIndex, Offset, ReplicaId, Term

from tests.support.raft.harness import (
    START,
    Cluster,
    MemoryLog,
    change,
    entry,
    fill,
    lone,
    make_core,
    membership,
    now,
    take,
    voters,
)

ONE, TWO, THREE = ReplicaId(1), ReplicaId(2), ReplicaId(3)


def install(
    position: tuple[int, int],
    state_index: int,
    config: Membership | None = None,
    *,
    term: int = 9,
    next_offset: int = 40,
) -> InstallSnapshot:
    point = LogPosition(LogIndex(position[0]), Term(position[1]), Offset(next_offset), 1000)
    meta = SnapshotMeta(point, LogIndex(state_index), config or membership(1, 2, 3))
    return InstallSnapshot(TWO, ONE, Term(term), meta)


def filled(terms: list[int]) -> tuple[RaftCore, MemoryLog]:
    disk = MemoryLog(GENESIS, membership(1, 2, 3))
    fill(disk, terms)
    return make_core(1, disk), disk


def acks(messages: Sequence[Message]) -> list[int]:
    return [m.index for m in messages if isinstance(m, AppendResponse) and not m.is_rejected]


def compacted_cluster() -> Cluster:
    """Create three replicas, of which 3 has missed entries that 1 and 2 have compacted."""
    cluster = Cluster(1, 2, 3)
    cluster.elect(1)
    cluster.isolate(3)
    cluster.propose(1, *[b"x"] * 10)
    cluster.pump()
    for replica_id in (1, 2):
        node = cluster.nodes[replica_id]
        node.core.compacted(node.disk.compact(START + 8))
    return cluster


# ------------------------------------------------------------------------------------------------------- installing


def test_a_snapshot_replaces_the_log_and_is_acknowledged_once_durable() -> None:
    core, disk = filled([6, 6])
    core.step(install((START + 20, 8), START + 20))
    assert not [m for m in core.ready(with_append=False).messages if isinstance(m, AppendResponse)]
    assert acks(take(core, disk)) == [START + 20]
    assert (core.first_index, core.last_index, core.commit_index, core.applied_index) == (
        START + 21,
        START + 20,
        START + 20,
        START + 20,
    )
    assert disk.rows == {}
    assert core.log.next_offset == 40


def test_entries_continue_after_the_snapshot_with_its_offset_and_term() -> None:
    core, disk = filled([])
    core.step(install((START + 20, 8), START + 20))
    request = AppendRequest(
        TWO,
        ONE,
        Term(9),
        LogIndex(START + 20),
        Term(8),
        (entry(START + 21, 9, b"d", base_offset=40, count=2),),
        LogIndex(START + 21),
    )
    core.step(request)
    assert acks(take(core, disk)) == [START + 21]
    assert core.applied_index == START + 21


def test_a_snapshot_at_or_below_the_commit_index_is_ignored_and_answered_with_the_commit_index() -> None:
    core, disk = filled([6, 6, 6])
    core.step(AppendRequest(TWO, ONE, Term(6), LogIndex(START + 3), Term(6), (), LogIndex(START + 3)))
    take(core, disk)
    for state_index in (START + 2, START + 9):
        core.step(install((START + 2, 6), state_index))
        assert acks(take(core, disk)) == [START + 3]
    assert core.first_index == START + 1


def test_a_matching_log_is_kept_and_only_its_commit_index_moves() -> None:
    """Thesis 5.1: entries after a matching entry are retained. They may be acknowledged, and the leader counts them.

    Found by simulation: a late snapshot of a state ahead of the log removed acknowledged entries.
    """
    for state_index in (START + 2, START + 9):
        core, disk = filled([6, 6, 6, 6])
        core.step(install((START + 2, 6), state_index))
        assert acks(take(core, disk)) == [START + 2]
        assert (core.first_index, core.last_index, core.commit_index) == (START + 1, START + 4, START + 2)
        assert (core.applied_index, core.state_floor) == (START + 2, START)


def test_a_snapshot_discards_the_entries_above_it_too() -> None:
    """A suffix that did not match would leave entries of lower terms at the end (a defect of aioraft-ng)."""
    core, disk = filled([6] * 10)
    core.step(install((START + 4, 8), START + 4))
    take(core, disk)
    assert (core.last_index, core.log.last_term) == (START + 4, 8)


def test_a_snapshot_without_this_replica_or_with_a_defect_is_refused() -> None:
    for config in (membership(2, 3), Membership(voters(2, 1)), Membership(voters(1, 2), learners=voters(2))):
        core, disk = filled([])
        core.step(install((START + 20, 8), START + 20, config))
        assert acks(take(core, disk)) == [START]
        assert core.membership == membership(1, 2, 3)
    core, disk = filled([])
    core.step(install((START + 20, 8), START + 19))
    assert acks(take(core, disk)) == [START], "its state is older than its log"
    core.step(install((START + 20, 10), START + 20, term=9))
    assert acks(take(core, disk)) == [START], "its position is of a later term than its sender"


def test_a_learner_and_an_outgoing_voter_accept_their_snapshot() -> None:
    for config in (membership(2, 3, learners=[1]), Membership(voters(2, 3), outgoing=voters(1, 2))):
        core, disk = filled([])
        core.step(install((START + 20, 8), START + 20, config))
        assert acks(take(core, disk)) == [START + 20]
        assert core.membership == config


def test_a_candidate_becomes_follower_before_it_restores() -> None:
    core, disk = filled([])
    core.campaign()
    take(core, disk)
    core.step(install((START + 20, 8), START + 20, term=core.term + 4))
    assert (core.role, core.leader_id, core.last_index) == (Role.FOLLOWER, TWO, START + 20)


def test_a_stale_snapshot_of_a_lower_term_is_refused() -> None:
    core, disk = filled([])
    core.step(install((START, 5), START, term=12))
    take(core, disk)
    core.step(install((START + 20, 8), START + 20, term=9))
    assert [m.is_rejected for m in take(core, disk) if isinstance(m, AppendResponse)] == [True]
    assert core.last_index == START


def test_nothing_is_applied_while_a_snapshot_is_pending() -> None:
    core, disk = filled([6, 6])
    core.step(AppendRequest(TWO, ONE, Term(6), LogIndex(START + 2), Term(6), (), LogIndex(START + 2)))
    core.step(install((START + 20, 8), START + 20))
    ready = core.ready()
    assert ready.append is not None
    assert ready.append.snapshot is not None
    assert ready.apply == ()
    assert core.ready().apply == ()
    disk.write(ready.append)
    core.append_done(ready.append.token)
    assert core.log.snapshot is None


def test_no_campaign_while_a_snapshot_is_pending_or_the_state_is_below_its_floor() -> None:
    core, disk = filled([])
    core.step(install((START + 20, 8), START + 22, next_offset=0))
    core.tick(100)
    assert not core.campaign_due
    take(core, disk)
    core.tick(1)
    assert not core.campaign_due, "applied 20, the floor is 22"
    core.step(
        AppendRequest(
            TWO,
            ONE,
            Term(9),
            LogIndex(START + 20),
            Term(8),
            (entry(START + 21, 9), entry(START + 22, 9)),
            LogIndex(START + 22),
        )
    )
    take(core, disk)
    core.tick(100)
    assert (core.applied_index, core.campaign_due) == (START + 22, True)


def test_membership_entries_up_to_the_floor_are_part_of_the_snapshot() -> None:
    cluster = Cluster(1, 2, 3)
    cluster.elect(1)
    cluster.change(1, (MembershipOp.ADD_LEARNER, 4))
    cluster.pump()
    cluster.add(4, is_empty=True)
    cluster.tick(3)
    learner = cluster.nodes[4]
    assert learner.core.state_floor == START + 2
    assert EntryKind.MEMBERSHIP in {e.kind for e in learner.applied}
    assert learner.core.membership == membership(1, 2, 3, learners=[4])


def test_an_old_change_below_the_floor_is_not_repeated() -> None:
    """In the snapshot 4 is a voter. The entry that once made it a learner still arrives, and changes nothing."""
    core, disk = filled([])
    config = membership(1, 2, 3, 4)
    core.step(install((START + 20, 8), START + 22, config, next_offset=0))
    payload = encode_change(change((MembershipOp.ADD_LEARNER, 4)))
    old, new = (
        Entry(LogIndex(index), Term(9), EntryKind.MEMBERSHIP, Offset(0), 0, 0, payload)
        for index in (START + 21, START + 23)
    )
    between = entry(START + 22, 9)
    core.step(AppendRequest(TWO, ONE, Term(9), LogIndex(START + 20), Term(8), (old, between), LogIndex(START + 22)))
    take(core, disk)
    assert (core.applied_index, now(core.membership)) == (START + 22, config)
    core.step(AppendRequest(TWO, ONE, Term(9), LogIndex(START + 22), Term(9), (new,), LogIndex(START + 23)))
    take(core, disk)
    assert now(core.membership) == membership(1, 2, 3, learners=[4])


def test_a_restart_below_the_floor_starts_from_the_stored_state() -> None:
    disk = MemoryLog(GENESIS, membership(1, 2, 3))
    fill(disk, [6, 6])
    disk.state_index = START + 9
    core = make_core(1, disk)
    assert (core.applied_index, core.commit_index, core.state_floor) == (START + 2, START + 2, START + 9)
    core.campaign()
    assert now(core.role) is Role.FOLLOWER


# ---------------------------------------------------------------------------------------------------------- sending


def test_a_follower_behind_the_compaction_gets_a_snapshot_and_then_the_rest() -> None:
    cluster = compacted_cluster()
    cluster.propose(1, b"y")
    cluster.pump()
    cluster[1].report_unreachable(THREE)
    cluster.heal()
    cluster.tick(2)
    assert len(cluster.of_type(InstallSnapshot, 1, 3)) == 1
    assert cluster[3].last_index == cluster[1].last_index
    assert cluster[3].first_index == START + 9
    assert cluster[1].progress[THREE].state is ProgressState.REPLICATE


def test_nothing_but_heartbeats_goes_to_a_peer_in_snapshot_state() -> None:
    cluster = compacted_cluster()
    cluster[1].report_unreachable(THREE)
    cluster.heal()
    cluster.is_lost = lambda m: isinstance(m, InstallSnapshot)
    cluster.tick(2)
    progress = cluster[1].progress[THREE]
    assert (progress.state, progress.next_index) == (ProgressState.SNAPSHOT, START + 9)
    cluster.sent.clear()
    cluster.propose(1, b"y")
    cluster.tick(3)
    assert cluster.of_type(AppendRequest, 1, 3) == cluster.of_type(InstallSnapshot, 1, 3) == []


def test_a_failed_snapshot_is_sent_again_after_a_heartbeat() -> None:
    cluster = compacted_cluster()
    cluster[1].report_unreachable(THREE)
    cluster.heal()
    cluster.is_lost = lambda m: isinstance(m, InstallSnapshot)
    cluster.tick(2)
    cluster[1].report_snapshot(THREE, is_sent=False)
    cluster.is_lost = lambda _m: False
    cluster.tick(2)
    assert len(cluster.of_type(InstallSnapshot, 1, 3)) == 2
    assert cluster[3].last_index == cluster[1].last_index


def test_a_sent_snapshot_is_followed_by_a_probe_after_it() -> None:
    cluster = compacted_cluster()
    cluster[1].report_unreachable(THREE)
    cluster.heal()
    cluster.is_lost = lambda m: isinstance(m, InstallSnapshot)
    cluster.tick(2)
    cluster[1].report_snapshot(THREE, is_sent=True)
    progress = cluster[1].progress[THREE]
    assert (progress.state, progress.next_index, progress.is_paused) == (ProgressState.PROBE, START + 9, True)
    cluster[1].report_snapshot(THREE, is_sent=True)
    cluster[1].report_snapshot(ReplicaId(77), is_sent=True)


def test_any_answer_that_reconnects_to_the_log_ends_the_snapshot_state() -> None:
    """etcd: snapshot_succeed_via_app_resp. The peer may have caught up in another way."""
    cluster = compacted_cluster()
    cluster[1].report_unreachable(THREE)
    cluster.heal()
    cluster.is_lost = lambda m: isinstance(m, InstallSnapshot)
    cluster.tick(2)
    leader = cluster[1]
    leader.step(AppendResponse(THREE, ONE, leader.term, LogIndex(START + 3)))
    assert leader.progress[THREE].state is ProgressState.SNAPSHOT, "still behind the log's start"
    leader.step(AppendResponse(THREE, ONE, leader.term, LogIndex(START + 10)))
    progress = leader.progress[THREE]
    assert (progress.state, progress.match_index, progress.next_index) == (
        ProgressState.REPLICATE,
        START + 10,
        START + 11,
    )


def test_a_snapshot_overtaken_by_compaction_is_followed_by_another() -> None:
    """Found by simulation: the acknowledged index is after the snapshot and before the log's new start."""
    for acknowledged in (START + 8, START + 9):
        cluster = compacted_cluster()
        cluster[1].report_unreachable(THREE)
        cluster.heal()
        cluster.is_lost = lambda m: isinstance(m, InstallSnapshot)
        cluster.tick(2)
        leader = cluster[1]
        cluster.propose(1, *[b"y"] * 5)
        cluster.pump()
        leader.compacted(cluster.nodes[1].disk.compact(START + 12))
        cluster.sent.clear()
        leader.step(AppendResponse(THREE, ONE, leader.term, LogIndex(acknowledged)))
        cluster.run(1)
        assert len(cluster.of_type(InstallSnapshot, 1, 3)) == 1
        progress = leader.progress[THREE]
        assert (progress.match_index, progress.pending_snapshot) == (acknowledged, START + 12)


def test_no_snapshot_goes_to_a_silent_peer() -> None:
    cluster = compacted_cluster()
    cluster[1].report_unreachable(THREE)
    cluster.tick(25, only=[1, 2])
    cluster.sent.clear()
    cluster.propose(1, b"y")
    cluster.tick(3, only=[1, 2])
    assert cluster.of_type(InstallSnapshot) == []


def test_an_unavailable_snapshot_is_offered_later() -> None:
    cluster = compacted_cluster()
    metas = [None, None, cluster.snapshot_of(1)]
    cluster[1].snapshot_meta = lambda: metas.pop(0) if len(metas) > 1 else metas[0]
    cluster[1].report_unreachable(THREE)
    cluster.heal()
    cluster.tick(8)
    assert cluster[3].last_index == cluster[1].last_index


# ------------------------------------------------------------------------------------------------------- compaction


def test_compaction_keeps_term_and_match_at_the_position() -> None:
    cluster = Cluster(1, 2, 3)
    cluster.elect(1)
    cluster.propose(1, *[b"x"] * 5)
    cluster.pump()
    node = cluster.nodes[1]
    node.core.compacted(node.disk.compact(START + 6))
    assert (node.core.first_index, node.core.last_index) == (START + 7, START + 6)
    assert node.core.log.has(START + 6, 6)
    cluster.propose(1, b"y")
    cluster.pump()
    assert cluster.of_type(InstallSnapshot) == [], "an empty log with the right position needs no snapshot"
    assert cluster[3].last_index == START + 7


def test_a_compacted_replica_compares_its_complete_log_in_votes() -> None:
    cluster = compacted_cluster()
    cluster.nodes[1].is_up = False
    cluster.heal()
    cluster.elect(2)
    assert cluster[2].term == 7
    cluster.tick(3)
    assert cluster[3].last_index == cluster[2].last_index


def test_compaction_beyond_the_applied_index_is_a_violation() -> None:
    core, _ = filled([6, 6])
    with pytest.raises(InvariantError, match="compacted_applied"):
        core.compacted(LogPosition(LogIndex(START + 1), Term(6), Offset(0)))


# ----------------------------------------------------------------------------------------------------- first snapshot


def test_a_replica_without_a_snapshot_votes_and_never_campaigns() -> None:
    cluster = Cluster(1, 2, 3)
    node = cluster.add(4, is_empty=True)
    assert (node.core.membership, node.core.last_index, node.core.term) == (EMPTY_MEMBERSHIP, 0, 0)
    node.core.tick(200)
    node.core.campaign()
    assert (node.core.campaign_due, node.core.role) == (False, Role.FOLLOWER)
    cluster[1].campaign()
    request = cluster[1].ready().messages[0]
    node.core.step(replace(request, target=ReplicaId(4)))
    answers = take(node.core, node.disk)
    assert [m.is_granted for m in answers if isinstance(m, VoteResponse)] == [True]


def test_messages_for_a_wiped_replica_are_dropped_by_its_id() -> None:
    """A lost disk returns under a new replica id, and messages for the old id reach nobody."""
    core, disk = lone(9)
    take(core, disk)
    core.step(install((START + 20, 8), START + 20))
    assert take(core, disk) == []
    assert core.last_index == START


def test_aioraft_takes_a_snapshot_timeout_for_success() -> None:
    """aioraft set the match to the snapshot's index although nothing had arrived."""
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


def test_aioraft_restart_forgets_the_state_of_its_snapshot() -> None:
    """aioraft loaded the snapshot's metadata, restored no state, and started with last_applied = 0."""
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
    # with the right last term it also refuses candidates that would have won against the old suffix
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
