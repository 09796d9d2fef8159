"""Slow writes: the messages that may leave before they are durable, and the meaning of late completions."""

from dataclasses import replace

import pytest
from raftmq.errors import InvariantError
from raftmq.raft.core import RaftCore
from raftmq.raft.entry import GENESIS, Entry, LogPosition
from raftmq.raft.membership import MembershipOp
from raftmq.raft.messages import (
    AppendRequest,
    AppendResponse,
    Heartbeat,
    HeartbeatResponse,
    InstallSnapshot,
    Message,
    SnapshotMeta,
    VoteRequest,
    VoteResponse,
)
from raftmq.raft.ready import AppendWork, Role
from raftmq.types import LogIndex, Offset, ReplicaId, Term

from tests.support.raft.harness import (
    START,
    Cluster,
    MemoryLog,
    answer,
    data,
    entry,
    lone,
    make_core,
    membership,
    now,
    take,
)

ONE, TWO, THREE = ReplicaId(1), ReplicaId(2), ReplicaId(3)


def append(prev: tuple[int, int], *entries: Entry, term: int, source: int = 2, commit: int = START) -> AppendRequest:
    return AppendRequest(
        ReplicaId(source), ONE, Term(term), LogIndex(prev[0]), Term(prev[1]), entries, LogIndex(commit)
    )


def write_of(core: RaftCore) -> AppendWork:
    work = core.ready().append
    assert work is not None
    return work


def answers(work: AppendWork) -> list[Message]:
    return list(work.responses)


# --------------------------------------------------------------------------------------- the order of effects


def test_acknowledgements_refusals_and_votes_leave_only_after_the_write() -> None:
    for message in (
        append((START, 5), entry(START + 1, 6), term=6),
        append((START + 9, 5), term=6),
        VoteRequest(TWO, ONE, Term(6), 0, LogIndex(START), Term(5), LogIndex(START), Term(5), is_pre_vote=False),
        VoteRequest(TWO, ONE, Term(6), 0, LogIndex(START - 1), Term(5), LogIndex(START), Term(5), is_pre_vote=False),
        VoteRequest(TWO, ONE, Term(6), 0, LogIndex(START), Term(5), LogIndex(START), Term(5), is_pre_vote=True),
    ):
        core, _ = lone()
        core.step(message)
        ready = core.ready()
        assert ready.messages == ()
        assert ready.append is not None
        assert len(ready.append.responses) == 1
        assert isinstance(ready.append.responses[0], AppendResponse | VoteResponse)


def test_the_vote_is_in_the_write_that_releases_it() -> None:
    core, _ = lone()
    core.step(VoteRequest(TWO, ONE, Term(6), 0, LogIndex(START), Term(5), LogIndex(START), Term(5), is_pre_vote=False))
    work = write_of(core)
    assert work.hard_state is not None
    assert (work.hard_state.term, work.hard_state.vote, work.must_sync) == (6, 2, True)
    assert isinstance(work.responses[0], VoteResponse)


def test_appends_to_peers_leave_before_the_leaders_own_write() -> None:
    """Thesis 10.2.1."""
    cluster = Cluster(1, 2, 3)
    leader = cluster.elect(1)
    leader.propose([data()], 0)
    ready = leader.ready()
    assert [m.target for m in ready.messages if isinstance(m, AppendRequest)] == [2, 3]
    assert ready.append is not None
    assert ready.append.responses == ()


def test_a_heartbeat_answer_needs_no_write() -> None:
    core, disk = lone()
    core.step(Heartbeat(TWO, ONE, Term(6), GENESIS.index, 3))
    take(core, disk)
    core.step(Heartbeat(TWO, ONE, Term(6), GENESIS.index, 4))
    ready = core.ready()
    assert [type(m) for m in ready.messages] == [HeartbeatResponse]
    assert ready.append is None


def test_the_own_vote_counts_only_when_it_is_durable() -> None:
    cluster = Cluster(1)
    cluster.nodes[1].holds_appends = True
    cluster[1].campaign()
    cluster.pump()
    assert now(cluster[1].role) is Role.CANDIDATE
    cluster.finish_appends(1)
    assert now(cluster[1].role) is Role.LEADER


def test_a_late_completion_of_an_earlier_vote_does_not_count() -> None:
    core, _ = lone(1, 1, 2)
    core.campaign()
    core.step(answer(core, 2, 6, pre=True))
    first = write_of(core)
    core.tick(40)
    core.campaign()
    core.step(answer(core, 2, 7, pre=True))
    assert (core.role, core.term) == (Role.CANDIDATE, 7)
    core.step(answer(core, 2, 7))
    core.append_done(first.token)
    assert now(core.role) is Role.CANDIDATE
    core.append_done(write_of(core).token)
    assert now(core.role) is Role.LEADER


# ----------------------------------------------------------------------------------------------- gathering, order


def test_a_ready_without_append_leaves_the_pending_writes_for_a_later_call() -> None:
    core, _ = lone()
    core.step(append((START, 5), entry(START + 1, 6), term=6))
    assert core.ready(with_append=False).append is None
    assert not core.has_ready(with_append=False)
    assert core.has_ready()
    core.step(append((START + 1, 6), entry(START + 2, 6), entry(START + 3, 6), term=6))
    work = write_of(core)
    assert [e.index for e in work.entries] == [START + 1, START + 2, START + 3]
    assert work.hard_state is not None
    assert not core.has_ready()


def test_several_appends_are_acknowledged_once() -> None:
    core, _ = lone()
    for index in range(START + 1, START + 5):
        core.step(append((index - 1, 6 if index > START + 1 else 5), entry(index, 6), term=6))
    work = write_of(core)
    assert [m.index for m in work.responses if isinstance(m, AppendResponse)] == [START + 4]


def test_a_late_lower_acknowledgement_does_not_replace_a_higher_one() -> None:
    core, _ = lone()
    first = append((START, 5), entry(START + 1, 6), term=6)
    core.step(first)
    core.step(append((START + 1, 6), entry(START + 2, 6), entry(START + 3, 6), term=6))
    core.step(first)
    work = write_of(core)
    assert [m.index for m in work.responses if isinstance(m, AppendResponse)] == [START + 3, START + 1]


def test_a_refusal_is_never_merged_away() -> None:
    core, _ = lone()
    core.step(append((START, 5), entry(START + 1, 6), term=6))
    core.step(append((START + 7, 6), term=6))
    core.step(append((START + 1, 6), entry(START + 2, 6), term=6))
    said = [(m.index, m.is_rejected) for m in answers(write_of(core)) if isinstance(m, AppendResponse)]
    assert said == [(START + 1, False), (START + 7, True), (START + 2, False)]


def test_further_appends_may_be_handed_out_while_one_is_in_flight() -> None:
    core, disk = lone()
    core.step(append((START, 5), entry(START + 1, 6), term=6))
    first = write_of(core)
    core.step(append((START + 1, 6), entry(START + 2, 6), term=6))
    second = write_of(core)
    assert [e.index for e in second.entries] == [START + 2]
    disk.write(first)
    core.append_done(first.token)
    assert core.log.durable_index == START + 1
    disk.write(second)
    core.append_done(second.token)
    assert core.log.durable_index == START + 2


def test_one_completion_covers_all_before_it() -> None:
    core, disk = lone()
    core.step(append((START, 5), entry(START + 1, 6), term=6))
    first = write_of(core)
    core.step(append((START + 1, 6), entry(START + 2, 6), term=6))
    second = write_of(core)
    for work in (first, second):
        disk.write(work)
    core.append_done(second.token)
    assert core.log.durable_index == START + 2


def test_completions_out_of_order_are_a_violation() -> None:
    core, _ = lone()
    core.step(append((START, 5), entry(START + 1, 6), term=6))
    first = write_of(core)
    core.step(append((START + 1, 6), entry(START + 2, 6), term=6))
    second = write_of(core)
    core.append_done(second.token)
    with pytest.raises(InvariantError, match="appends_in_order"):
        core.append_done(first.token)


def test_a_commit_index_alone_causes_no_write() -> None:
    core, disk = lone()
    core.step(append((START, 5), entry(START + 1, 6), term=6))
    take(core, disk)
    core.step(Heartbeat(TWO, ONE, Term(6), LogIndex(START + 1), 0))
    ready = core.ready()
    assert ready.append is None
    assert [e.index for e in ready.apply] == [START + 1]
    core.step(append((START + 1, 6), entry(START + 2, 6), term=6, commit=START + 1))
    work = write_of(core)
    assert work.hard_state is not None
    assert work.hard_state.commit_index == START + 1


def test_a_bare_answer_needs_no_sync() -> None:
    core, disk = lone()
    core.step(append((START, 5), entry(START + 1, 6), term=6))
    take(core, disk)
    core.step(append((START + 1, 6), term=6))
    work = write_of(core)
    assert (work.must_sync, work.entries, work.hard_state, len(work.responses)) == (False, (), None, 1)


# ----------------------------------------------------------------------------------------------- applying


def test_only_durable_entries_are_applied() -> None:
    core, disk = lone()
    core.step(append((START, 5), entry(START + 1, 6), term=6, commit=START + 1))
    ready = core.ready()
    assert core.commit_index == START + 1
    assert ready.apply == ()
    assert ready.append is not None
    disk.write(ready.append)
    core.append_done(ready.append.token)
    assert [e.index for e in core.ready().apply] == [START + 1]


def test_append_and_apply_may_be_in_flight_together() -> None:
    cluster = Cluster(1, 2, 3)
    cluster.elect(1)
    node = cluster.nodes[1]
    node.holds_applies = True
    cluster.propose(1, b"a")
    cluster.pump()
    node.holds_appends = True
    cluster.propose(1, b"b")
    cluster.pump()
    assert node.core.commit_index == START + 3
    assert node.core.applied_index == START + 1
    cluster.finish_applies(1)
    assert node.values() == [b"a"]
    cluster.finish_appends(1)
    node.holds_appends = node.holds_applies = False
    cluster.pump()
    assert node.values() == [b"a", b"b"]


def test_an_apply_finished_after_a_snapshot_is_ignored() -> None:
    core, disk = lone()
    core.step(append((START, 5), entry(START + 1, 6), term=6, commit=START + 1))
    work = write_of(core)
    disk.write(work)
    core.append_done(work.token)
    handed = core.ready().apply
    position = LogPosition(LogIndex(START + 30), Term(6), Offset(0))
    core.step(InstallSnapshot(TWO, ONE, Term(6), SnapshotMeta(position, position.index, membership(1, 2, 3))))
    core.apply_done(handed[-1].index)
    assert core.applied_index == START + 30


def test_applying_entries_that_were_not_handed_out_is_a_violation() -> None:
    core, disk = lone()
    core.step(append((START, 5), entry(START + 1, 6), term=6))
    take(core, disk)
    with pytest.raises(InvariantError, match="applied_in_order"):
        core.apply_done(LogIndex(START + 1))


# ---------------------------------------------------------------------------------------------------- ABA


def test_a_late_write_of_replaced_entries_makes_nothing_durable() -> None:
    """The ABA race: A is replaced by B and B by A, and the completion of the first A must not count for the second.

    1. Leader 2 (term 6) sends entry A. Its write W1 is in flight.
    2. Leader 3 (term 7) replaces it by B. W2 is queued.
    3. Leader 2 (term 8) replaces B by A. W3 is queued.
    4. W1 completes. The tail's entry equals A, but W2 will still overwrite the disk.
    """
    core, disk = lone()
    a, b = entry(START + 1, 6), entry(START + 1, 7)
    core.step(append((START, 5), a, term=6))
    first = write_of(core)
    core.step(append((START, 5), b, term=7, source=3))
    second = write_of(core)
    core.step(append((START, 5), a, term=8, commit=START + 1))
    third = write_of(core)
    assert (first.token.last_index, first.token.last_term) == (third.token.last_index, third.token.last_term)
    for work in (first, second):
        disk.write(work)
        core.append_done(work.token)
        assert core.log.durable_index == START
        assert not core.ready().apply
    disk.write(third)
    core.append_done(third.token)
    assert core.log.durable_index == START + 1
    assert [e.term for e in core.ready().apply] == [6]


def test_the_write_of_a_term_change_completes_the_tail_after_an_ignored_completion() -> None:
    """Liveness of the ABA guard: every write carries the end of the whole tail while there is one."""
    core, disk = lone()
    core.step(append((START, 5), entry(START + 1, 6), term=6))
    first = write_of(core)
    core.step(Heartbeat(THREE, ONE, Term(7), GENESIS.index, 0))
    second = write_of(core)
    assert second.entries == ()
    assert (second.token.last_index, second.token.last_term) == (START + 1, 6)
    for work in (first, second):
        disk.write(work)
        core.append_done(work.token)
    assert core.log.durable_index == START + 1


def test_a_write_from_before_a_snapshot_makes_nothing_after_it_durable() -> None:
    """The same race across a snapshot within one term. This is a second line of defence, since no correct leader sends this."""
    core, disk = lone()
    core.step(append((START, 5), entry(START + 1, 6), entry(START + 2, 6), entry(START + 3, 8), term=8))
    first = write_of(core)
    position = LogPosition(LogIndex(START + 2), Term(7), Offset(0))
    meta = SnapshotMeta(position, position.index, membership(1, 2, 3))
    core.step(InstallSnapshot(TWO, ONE, Term(8), meta))
    core.step(append((START + 2, 7), entry(START + 3, 8), term=8, commit=START + 3))
    second = write_of(core)
    assert second.snapshot is not None
    disk.write(first)
    core.append_done(first.token)
    assert core.log.durable_index == START + 2
    assert now(core.log.snapshot) is not None
    disk.write(second)
    core.append_done(second.token)
    assert (core.log.durable_index, now(core.log.snapshot)) == (START + 3, None)


def test_a_snapshot_completion_is_valid_in_any_term() -> None:
    core, disk = lone()
    position = LogPosition(LogIndex(START + 2), Term(6), Offset(0))
    meta = SnapshotMeta(position, position.index, membership(1, 2, 3))
    core.step(InstallSnapshot(TWO, ONE, Term(6), meta))
    work = write_of(core)
    core.step(Heartbeat(THREE, ONE, Term(9), GENESIS.index, 0))
    disk.write(work)
    core.append_done(work.token)
    assert core.log.snapshot is None


def test_a_second_snapshot_survives_the_completion_of_the_first() -> None:
    core, disk = lone()

    def snapshot(index: int) -> InstallSnapshot:
        position = LogPosition(LogIndex(index), Term(6), Offset(0))
        return InstallSnapshot(TWO, ONE, Term(6), SnapshotMeta(position, position.index, membership(1, 2, 3)))

    core.step(snapshot(START + 2))
    first = write_of(core)
    core.step(snapshot(START + 8))
    disk.write(first)
    core.append_done(first.token)
    assert now(core.log.snapshot) is not None
    take(core, disk)
    assert (now(core.log.snapshot), core.last_index) == (None, START + 8)


# --------------------------------------------------------------------------------------------------- crashes


def test_entries_lost_in_a_crash_were_never_acknowledged() -> None:
    cluster = Cluster(1, 2, 3)
    leader = cluster.elect(1)
    cluster.nodes[2].holds_appends = cluster.nodes[3].holds_appends = True
    cluster.propose(1, b"x")
    cluster.pump()
    assert leader.commit_index == START + 1
    cluster.restart(2)
    assert cluster[2].last_index == START + 1
    cluster.tick(3)
    assert leader.commit_index == START + 2, "sent again after the restart"
    assert cluster.nodes[2].values() == [b"x"]


def test_a_vote_that_was_not_durable_was_never_sent() -> None:
    cluster = Cluster(1, 2, 3)
    cluster.isolate(3)
    cluster.nodes[2].holds_appends = True
    cluster[1].campaign()
    cluster.pump()
    assert cluster.of_type(VoteResponse, 2) == []
    cluster.restart(2)
    assert cluster[2].vote == 0


def test_a_restart_keeps_term_vote_log_and_committed_state() -> None:
    cluster = Cluster(1, 2, 3)
    cluster.elect(1)
    cluster.propose(1, b"a", b"b")
    cluster.pump()
    cluster.change(1, (MembershipOp.ADD_LEARNER, 4))
    cluster.pump()
    old = cluster[2]
    new = cluster.restart(2).core
    assert (new.term, new.vote, new.last_index, new.membership) == (old.term, old.vote, old.last_index, old.membership)
    assert new.log.next_offset == 2
    assert new.commit_index <= old.commit_index


def test_a_commit_index_beyond_the_log_at_start_is_a_violation() -> None:
    disk = MemoryLog(GENESIS, membership(1, 2, 3))
    disk.hard_state = replace(disk.hard_state, commit_index=LogIndex(START + 3))
    with pytest.raises(InvariantError, match="restored_commit"):
        make_core(1, disk)


def test_pysyncobj_acknowledges_what_is_not_on_disk() -> None:
    """PySyncObj never synced its journal."""
    cluster = Cluster(1, 2, 3)
    leader = cluster.elect(1)
    cluster.nodes[2].holds_appends = cluster.nodes[3].holds_appends = True
    cluster.propose(1, b"x")
    cluster.pump()
    assert leader.commit_index == START + 1
    cluster.finish_appends(2)
    cluster.pump()
    assert leader.commit_index == START + 2
