"""Replication: log matching, conflict hints, windows, heartbeats, proposals."""

from dataclasses import replace

import pytest
from raftmq.errors import InvariantError
from raftmq.raft.core import RaftCore
from raftmq.raft.entry import GENESIS, Entry, EntryKind, Proposal
from raftmq.raft.messages import AppendRequest, AppendResponse, Heartbeat, HeartbeatResponse, Message
from raftmq.raft.progress import ProgressState
from raftmq.raft.ready import Appended, RefusalReason, Refused, Role
from raftmq.raft.settings import RaftSettings
from raftmq.types import LogIndex, ReplicaId, Term

from tests.support.raft.harness import (
    SETTINGS,
    START,
    Cluster,
    MemoryLog,
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


def append(
    prev: tuple[int, int], *entries: Entry, term: int = 6, commit: int = START, source: int = 2
) -> AppendRequest:
    return AppendRequest(
        ReplicaId(source), ReplicaId(1), Term(term), LogIndex(prev[0]), Term(prev[1]), entries, LogIndex(commit)
    )


def answer(core: RaftCore, disk: MemoryLog, message: Message) -> AppendResponse:
    core.step(message)
    answers = [m for m in take(core, disk) if isinstance(m, AppendResponse)]
    assert len(answers) == 1
    return answers[0]


def follower(terms: list[int], term: int | None = None) -> tuple[RaftCore, MemoryLog]:
    disk = MemoryLog(GENESIS, membership(1, 2, 3))
    fill(disk, terms)
    if term is not None:
        disk.hard_state = replace(disk.hard_state, term=Term(term))
    return make_core(1, disk), disk


# ----------------------------------------------------------------------------------------------------- follower


def test_a_follower_appends_after_a_matching_entry_and_acknowledges_the_last() -> None:
    core, disk = follower([6])
    said = answer(core, disk, append((START + 1, 6), entry(START + 2, 6), entry(START + 3, 6)))
    assert (said.index, said.is_rejected, said.term) == (START + 3, False, 6)
    assert sorted(disk.rows) == [START + 1, START + 2, START + 3]


def test_a_follower_without_a_match_refuses_and_appends_nothing() -> None:
    core, disk = follower([6])
    said = answer(core, disk, append((START + 2, 6), entry(START + 3, 6)))
    assert (said.is_rejected, said.index) == (True, START + 2)
    assert (said.hint_index, said.hint_term) == (START + 1, 6)
    assert core.last_index == START + 1


def test_only_a_real_conflict_truncates() -> None:
    """Thesis figure 3.1, AppendEntries 3: an old message must not shorten a log that already agrees."""
    core, disk = follower([6, 6, 6])
    said = answer(core, disk, append((START, 5), entry(START + 1, 6)))
    assert (said.index, core.last_index) == (START + 1, START + 3)
    said = answer(core, disk, append((START + 1, 6), entry(START + 2, 7), term=7))
    assert (said.index, core.last_index) == (START + 2, START + 2)
    assert disk.rows[START + 2].term == 7
    assert START + 3 not in disk.rows


def test_a_repeated_append_changes_nothing() -> None:
    core, disk = follower([6])
    message = append((START + 1, 6), entry(START + 2, 6), entry(START + 3, 6))
    first = answer(core, disk, message)
    rows = dict(disk.rows)
    assert answer(core, disk, message) == first
    assert disk.rows == rows


def test_an_append_below_the_commit_index_is_answered_with_the_commit_index() -> None:
    core, disk = follower([6, 6])
    answer(core, disk, append((START + 2, 6), commit=START + 2))
    said = answer(core, disk, append((START, 5), entry(START + 1, 7), term=7))
    assert (said.index, said.is_rejected) == (START + 2, False)
    assert disk.rows[START + 1].term == 6


def test_the_hint_skips_a_whole_divergent_term() -> None:
    """Thesis 3.5, end of the section: one round trip per conflicting term at most."""
    core, disk = follower([6, 6, 9, 9, 9, 9])
    said = answer(core, disk, append((START + 6, 8), term=10))
    assert (said.hint_index, said.hint_term) == (START + 2, 6)


def test_the_leader_uses_the_hint_over_its_own_terms() -> None:
    """The worst follower of figure 3.6: the leader finds the point of agreement with the first answer."""
    cluster = Cluster(1, 2, 3)
    fill(cluster.nodes[1].disk, [6] * 3 + [8] * 5)
    fill(cluster.nodes[2].disk, [6] * 3 + [7] * 20)
    for replica_id in (1, 2):
        cluster.restart(replica_id)
    cluster.nodes[2].core.step(Heartbeat(ReplicaId(1), ReplicaId(2), Term(8), GENESIS.index, 0))
    cluster.run(2)
    cluster.wire.clear()
    cluster.elect(1)
    assert cluster.nodes[2].disk.rows.keys() == cluster.nodes[1].disk.rows.keys()
    assert [e.term for e in cluster.nodes[2].disk.rows.values()] == [
        e.term for e in cluster.nodes[1].disk.rows.values()
    ]
    rejects = [m for m in cluster.of_type(AppendResponse, 2) if isinstance(m, AppendResponse) and m.is_rejected]
    assert len(rejects) == 1


def test_malformed_appends_are_dropped_without_an_answer() -> None:
    core, disk = follower([6])
    for bad in (
        append((START + 1, 6), entry(START + 3, 6)),
        append((START + 1, 6), entry(START + 2, 6), entry(START + 2, 6)),
        append((START + 1, 6), entry(START + 2, 5)),
        append((START + 1, 6), entry(START + 2, 7)),
    ):
        core.step(bad)
        assert not [m for m in take(core, disk) if isinstance(m, AppendResponse)]
        assert core.last_index == START + 1


def test_offsets_must_continue_those_at_prev_also_after_a_truncation() -> None:
    core, disk = lone()
    answer(
        core,
        disk,
        append((START, 5), entry(START + 1, 6, b"a", count=3), entry(START + 2, 6, b"b", base_offset=3, count=2)),
    )
    # the conflict at START + 2 rewinds the offset to the header at START + 1
    answer(core, disk, append((START + 1, 6), entry(START + 2, 7, b"c", base_offset=3, count=1), term=7))
    assert disk.header_reads == [START + 1]
    with pytest.raises(InvariantError, match="base_offset_continuity"):
        core.step(append((START + 2, 7), entry(START + 3, 7, b"d", base_offset=5, count=1), term=7))


def test_divergence_is_repaired_in_every_case_of_figure_3_6() -> None:
    """(a)-(f): missing entries, extra entries, or both. After the leader's first round all logs are equal."""
    leader_terms = [6, 6, 6, 9, 9, 10, 10, 11, 11, 11]
    followers = [
        leader_terms[:9],
        leader_terms[:4],
        [*leader_terms, 11],
        [*leader_terms, 12, 12],
        [*leader_terms[:5], 9, 9],
        [6, 6, 6, 7, 7, 7, 8, 8, 8, 8, 8],
    ]
    for terms in followers:
        cluster = Cluster(1, 2, 3)
        fill(cluster.nodes[1].disk, leader_terms)
        fill(cluster.nodes[2].disk, leader_terms)
        fill(cluster.nodes[3].disk, terms)
        for node in cluster.nodes.values():
            node.disk.hard_state = replace(node.disk.hard_state, term=Term(12))
        for replica_id in (1, 2, 3):
            cluster.restart(replica_id)
        cluster.elect(1)
        cluster.tick()
        logs = [[(e.index, e.term) for e in node.disk.rows.values()] for node in cluster.nodes.values()]
        assert logs[0] == logs[1] == logs[2]


# ----------------------------------------------------------------------------------------------------- proposals


def test_a_follower_refuses_a_proposal_and_names_the_leader() -> None:
    cluster = Cluster(1, 2, 3)
    cluster.elect(1)
    outcome = cluster[2].propose([data()], 0)
    assert outcome == Refused(RefusalReason.NOT_LEADER, ReplicaId(1))


def test_the_leader_assigns_index_term_dense_offsets_and_nondecreasing_time() -> None:
    cluster = Cluster(1)
    cluster.elect(1)
    first = cluster[1].propose([data(b"a", 3), Proposal(EntryKind.COMMAND, b"c"), data(b"b", 2)], 500)
    second = cluster[1].propose([data(b"d", 1)], 400)
    assert isinstance(first, Appended)
    assert isinstance(second, Appended)
    entries = first.entries + second.entries
    assert [e.index for e in entries] == [START + 2, START + 3, START + 4, START + 5]
    assert [(e.base_offset, e.next_offset) for e in entries] == [(0, 3), (3, 3), (3, 5), (5, 6)]
    assert [e.append_time_ms for e in entries] == [500, 500, 500, 500]
    assert {e.term for e in entries} == {6}


def test_a_data_entry_without_records_is_a_defect_of_the_caller() -> None:
    cluster = Cluster(1)
    cluster.elect(1)
    for bad in ([Proposal(EntryKind.DATA, b"x", 0)], [Proposal(EntryKind.COMMAND, b"x", 1)], []):
        with pytest.raises(InvariantError):
            cluster[1].propose(bad, 0)


def test_the_uncommitted_tail_is_bounded_and_empty_entries_pass() -> None:
    cluster = Cluster(1, 2, 3, settings=replace(SETTINGS, uncommitted_bytes_max=100))
    leader = cluster.elect(1)
    cluster.isolate(1)
    assert isinstance(leader.propose([data(b"x" * 300)], 0), Appended), "the first always fits"
    outcome = leader.propose([data(b"y")], 0)
    assert outcome == Refused(RefusalReason.UNCOMMITTED_FULL, ReplicaId(1))
    assert isinstance(leader.propose([Proposal(EntryKind.EMPTY, b"")], 0), Appended)
    cluster.heal()
    cluster.pump()
    cluster.tick(2)
    assert isinstance(leader.propose([data(b"y")], 0), Appended)


# ------------------------------------------------------------------------------------------------------- sending


def test_many_proposals_before_one_ready_are_sent_in_one_message() -> None:
    cluster = Cluster(1, 2, 3)
    cluster.elect(1)
    cluster.sent.clear()
    for _ in range(5):
        cluster.propose(1, b"x")
    ready = cluster.work(1)
    assert ready is not None
    sent = [m for m in ready.messages if isinstance(m, AppendRequest)]
    assert [(m.target, len(m.entries)) for m in sent] == [(2, 5), (3, 5)]


def test_appends_are_pipelined_up_to_the_window() -> None:
    cluster = Cluster(1, 2, settings=replace(SETTINGS, inflight_appends_max=3))
    cluster.elect(1)
    cluster.is_lost = lambda m: m.target == 2
    for _ in range(6):
        cluster.propose(1, b"x")
        cluster.run(1)
    assert (
        len([m for m in cluster.of_type(AppendRequest, 1) if isinstance(m, AppendRequest) and b"x" in _payloads(m)])
        == 3
    )
    assert cluster[1].progress[ReplicaId(2)].is_paused


def test_a_completely_lost_window_recovers_by_heartbeats() -> None:
    """etcd: replicate_pause. Without an empty request despite the full window, both sides would wait endlessly."""
    cluster = Cluster(1, 2, settings=replace(SETTINGS, inflight_appends_max=3))
    cluster.elect(1)
    cluster.is_lost = lambda m: m.target == 2
    for _ in range(6):
        cluster.propose(1, b"x")
        cluster.run(1)
    cluster[1].step(HeartbeatResponse(ReplicaId(2), ReplicaId(1), cluster[1].term, 0))
    cluster.run(1)
    probe = cluster.sent[-1]
    assert isinstance(probe, AppendRequest)
    assert (probe.prev_index, probe.entries) == (START + 4, ()), "a full window lets nothing but a probe through"
    cluster.is_lost = lambda _m: False
    cluster.tick(3)
    assert cluster[2].last_index == cluster[1].last_index
    assert cluster[1].commit_index == cluster[1].last_index


def test_the_window_is_bounded_in_bytes_too() -> None:
    cluster = Cluster(1, 2, settings=replace(SETTINGS, inflight_bytes_max=10))
    cluster.elect(1)
    cluster.is_lost = lambda m: m.target == 2
    for _ in range(4):
        cluster.propose(1, b"x" * 6)
        cluster.run(1)
    assert cluster[1].progress[ReplicaId(2)].inflights.bytes == 12


def test_a_request_holds_at_most_its_bytes_and_at_least_one_entry() -> None:
    cluster = Cluster(1, 2, settings=replace(SETTINGS, append_bytes_max=10))
    cluster.elect(1)
    cluster.sent.clear()
    cluster.propose(1, b"x" * 4, b"y" * 4, b"z" * 40)
    cluster.pump()
    sizes = [[len(p) for p in _payloads(m)] for m in cluster.of_type(AppendRequest, 1) if _payloads(m)]
    assert sizes == [[4, 4], [40]]


def test_an_unreachable_peer_is_probed_and_pipelined_again_after_its_answer() -> None:
    cluster = Cluster(1, 2, 3)
    cluster.elect(1)
    progress = cluster[1].progress[ReplicaId(2)]
    cluster[1].report_unreachable(ReplicaId(2))
    assert now(progress.state) is ProgressState.PROBE
    cluster.propose(1, b"x")
    cluster.pump()
    assert now(progress.state) is ProgressState.REPLICATE
    cluster[1].report_unreachable(ReplicaId(77))


def test_a_lost_append_is_not_mistaken_for_a_mismatch() -> None:
    """Silence does not decrement next_index, so the first probe after the loss matches."""
    cluster = Cluster(1, 2, 3)
    cluster.elect(1)
    cluster.propose(1, *[b"x"] * 20)
    cluster.pump()
    cluster.isolate(2)
    cluster.propose(1, b"y")
    cluster.pump()
    cluster[1].report_unreachable(ReplicaId(2))
    assert cluster[1].progress[ReplicaId(2)].next_index == START + 22
    cluster.heal()
    cluster.sent.clear()
    cluster.tick()
    assert not [m for m in cluster.of_type(AppendResponse, 2) if isinstance(m, AppendResponse) and m.is_rejected]
    assert cluster[2].last_index == cluster[1].last_index


def test_a_peer_whose_entries_are_not_in_memory_waits_for_the_fetch() -> None:
    cluster = Cluster(1, 2, 3)
    cluster.elect(1)
    cluster.isolate(3)
    cluster.propose(1, b"a")
    cluster.pump()
    cluster[1].report_unreachable(ReplicaId(3))
    cluster.nodes[1].disk.is_cold = True
    cluster.heal()
    cluster.tick(3)
    assert cluster[3].last_index == START + 1
    assert now(cluster[1].role) is Role.LEADER
    cluster.nodes[1].disk.is_cold = False
    cluster[1].entries_fetched()
    cluster.pump()
    assert cluster[3].last_index == cluster[1].last_index


def test_a_cold_apply_waits_for_the_fetch() -> None:
    cluster = Cluster(1)
    cluster.elect(1)
    cluster.nodes[1].disk.is_cold = True
    cluster.propose(1, b"a")
    cluster.pump()
    assert cluster.nodes[1].values() == []
    cluster.nodes[1].disk.is_cold = False
    cluster[1].entries_fetched()
    cluster.pump()
    assert cluster.nodes[1].values() == [b"a"]


def test_a_stale_answer_of_an_earlier_term_is_ignored() -> None:
    cluster = Cluster(1, 2, 3)
    leader = cluster.elect(1)
    cluster.isolate(1)
    cluster.propose(1, b"x")
    cluster.run(1)
    leader.step(AppendResponse(ReplicaId(2), ReplicaId(1), Term(5), leader.last_index))
    assert leader.match_index(ReplicaId(2)) == START + 1
    assert leader.commit_index == START + 1


def test_an_answer_from_a_non_member_is_dropped() -> None:
    cluster = Cluster(1, 2, 3)
    leader = cluster.elect(1)
    cluster.isolate(1)
    cluster.propose(1, b"x")
    cluster.run(1)
    leader.step(AppendResponse(ReplicaId(9), ReplicaId(1), leader.term, leader.last_index))
    leader.step(HeartbeatResponse(ReplicaId(9), ReplicaId(1), leader.term, 0))
    assert leader.commit_index == START + 1
    assert ReplicaId(9) not in leader.match_indexes()


def test_an_acknowledgement_beyond_the_log_is_a_violation() -> None:
    cluster = Cluster(1, 2, 3)
    leader = cluster.elect(1)
    with pytest.raises(InvariantError, match="ack_within_log"):
        leader.step(AppendResponse(ReplicaId(2), ReplicaId(1), leader.term, LogIndex(leader.last_index + 1)))


# ---------------------------------------------------------------------------------------------------- heartbeats


def test_a_heartbeat_carries_the_commit_index_only_as_far_as_the_match() -> None:
    cluster = Cluster(1, 2, 3)
    cluster.elect(1)
    cluster.isolate(3)
    cluster.propose(1, b"a", b"b")
    cluster.pump()
    cluster.tick()
    heartbeats = {target: commit for target, commit, _ in cluster[1].take_heartbeats()}
    assert heartbeats == {2: START + 3, 3: START + 1}


def test_a_heartbeat_beyond_the_log_is_a_violation() -> None:
    core, _ = lone()
    with pytest.raises(InvariantError, match="commit_within_log"):
        core.step(Heartbeat(ReplicaId(2), ReplicaId(1), Term(6), LogIndex(START + 4), 0))


def test_heartbeats_are_due_by_the_timer_and_cleared_when_taken() -> None:
    cluster = Cluster(1, 2, 3, settings=RaftSettings(election_ticks=10, heartbeat_ticks=3))
    leader = cluster.elect(1)
    leader.take_heartbeats()
    leader.tick(2)
    assert not now(leader.heartbeat_due)
    leader.tick()
    assert now(leader.heartbeat_due)
    assert [target for target, _, _ in leader.take_heartbeats()] == [2, 3]
    assert not now(leader.heartbeat_due)
    assert cluster[2].take_heartbeats() == []


def _payloads(message: Message) -> list[bytes]:
    return [e.payload for e in message.entries if e.payload] if isinstance(message, AppendRequest) else []


def test_aioraft_one_black_holed_follower_stops_the_heartbeats_of_all() -> None:
    """aioraft's heartbeat loop awaited all peers together."""
    cluster = Cluster(1, 2, 3)
    leader = cluster.elect(1)
    cluster.cut = {(3, 1)}
    for _ in range(50):
        leader.tick()
        assert [target for target, _, _ in leader.take_heartbeats()] == [2, 3]
        leader.step(AppendResponse(TWO, ONE, leader.term, leader.commit_index))
    assert now(leader.role) is Role.LEADER


def test_aioraft_takes_a_timeout_for_a_log_mismatch() -> None:
    """In aioraft each lost request decremented next_index, down to the beginning."""
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


def test_aioraft_two_requests_share_an_index() -> None:
    """aioraft chose the index before an await. Here the call that appends chooses it."""
    cluster = Cluster(1, 2, 3)
    leader = cluster.elect(1)
    outcomes = [leader.propose([data(b"a"), data(b"b")], 0), leader.propose([data(b"c")], 0)]
    indexes = [e.index for outcome in outcomes if isinstance(outcome, Appended) for e in outcome.entries]
    assert indexes == [START + 2, START + 3, START + 4]


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


def test_pysyncobj_ignores_lower_terms_silently() -> None:
    core, disk = lone()
    core.step(Heartbeat(TWO, ONE, Term(9), GENESIS.index, 0))
    take(core, disk)
    core.step(AppendRequest(THREE, ONE, Term(8), GENESIS.index, GENESIS.term, (), GENESIS.index))
    assert [(m.target, m.term) for m in take(core, disk)] == [(3, 9)]
