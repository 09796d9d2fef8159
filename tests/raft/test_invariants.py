"""Each local invariant stops the replica when it is broken. This tests the checks themselves."""

from collections.abc import Callable

import pytest
from raftmq.errors import InvariantError
from raftmq.raft.core import RaftCore
from raftmq.raft.entry import Entry, EntryKind
from raftmq.raft.invariants import check_core
from raftmq.raft.membership import Membership, check_membership
from raftmq.raft.messages import InstallSnapshot, SnapshotMeta
from raftmq.types import LogIndex, Offset, ReplicaId, Term

from tests.support.raft.harness import START, Cluster, voters


def healthy() -> RaftCore:
    cluster = Cluster(1, 2, 3)
    leader = cluster.elect(1)
    cluster.propose(1, b"a", b"b")
    cluster.pump()
    check_core(leader)
    return leader


def _lower_term(core: RaftCore) -> None:
    core.term = Term(core.term - 1)


def _second_vote(core: RaftCore) -> None:
    core.vote = ReplicaId(3)


def _applied_beyond_commit(core: RaftCore) -> None:
    core.log.applied = core.log.commit + 1


def _commit_beyond_log(core: RaftCore) -> None:
    core.log.commit = core.log.last_index + 1


def _commit_falls(core: RaftCore) -> None:
    core.log.applied = core.log.applying = core.log.commit = START + 1


def _handed_out_beyond_tail(core: RaftCore) -> None:
    core.log.offset_in_progress = core.log.last_index + 2


def _last_term_above_term(core: RaftCore) -> None:
    core.log.last_term = core.term + 1


def _leader_of_another(core: RaftCore) -> None:
    core.leader_id = ReplicaId(2)


def _leader_without_vote(core: RaftCore) -> None:
    core.membership = Membership(voters(2, 3), learners=voters(1))


def _old_term_committed(core: RaftCore) -> None:
    core._seen_commit -= 1
    core.term = Term(core.term + 1)


@pytest.mark.parametrize(
    ("break_it", "name"),
    [
        (_lower_term, "term_monotone"),
        (_second_vote, "one_vote_per_term"),
        (_applied_beyond_commit, "log_pointers"),
        (_commit_beyond_log, "log_pointers"),
        (_commit_falls, "commit_monotone"),
        (_handed_out_beyond_tail, "unstable_pointers"),
        (_last_term_above_term, "last_term"),
        (_leader_of_another, "leader_knows_itself"),
        (_leader_without_vote, "leader_votes"),
        (_old_term_committed, "leader_commits_own_term"),
    ],
)
def test_a_broken_invariant_is_detected_immediately(break_it: Callable[[RaftCore], None], name: str) -> None:
    core = healthy()
    break_it(core)
    with pytest.raises(InvariantError, match=name):
        check_core(core)


def test_a_leader_never_overwrites_its_log() -> None:
    core = healthy()
    with pytest.raises(InvariantError, match="leader_appends_only"):
        core._truncate_for(core.log.last_index)


def test_a_leader_of_the_outgoing_half_may_lead() -> None:
    core = healthy()
    core.membership = Membership(voters(2, 3), outgoing=voters(1, 2, 3))
    check_core(core)


def test_no_committed_entry_is_replaced() -> None:
    core = healthy()
    core.step_down()
    with pytest.raises(InvariantError, match="conflict_committed"):
        core._truncate_for(core.log.commit)


def test_a_snapshot_and_entries_to_apply_are_never_handed_out_together(monkeypatch: pytest.MonkeyPatch) -> None:
    core = healthy()
    meta = SnapshotMeta(core.log.position, LogIndex(core.log.applied), core.membership)
    core.log.snapshot = InstallSnapshot(ReplicaId(2), ReplicaId(1), core.term, meta)
    entry = Entry(LogIndex(core.log.last_index), core.term, EntryKind.DATA, Offset(0), 1, 0, b"a")
    monkeypatch.setattr(RaftCore, "_has_apply", lambda _: True)
    monkeypatch.setattr(RaftCore, "_take_apply", lambda _: (entry,))
    with pytest.raises(InvariantError, match="snapshot_alone"):
        core.ready()


def test_a_term_cannot_be_reset_downwards() -> None:
    core = healthy()
    with pytest.raises(InvariantError, match="term_monotone"):
        core._reset(core.role, Term(core.term - 1))


def test_an_invalid_membership_is_detected() -> None:
    with pytest.raises(InvariantError, match="membership"):
        check_membership(Membership(voters(1), learners=voters(1)))


def test_the_checks_run_in_production_after_every_input() -> None:
    core = healthy()
    core.log.applied = core.log.commit + 1
    with pytest.raises(InvariantError):
        core.tick()
