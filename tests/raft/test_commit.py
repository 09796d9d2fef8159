"""The commitment of entries, its propagation, and the entries that may be applied."""

from dataclasses import replace

import pytest
from raftmq.errors import InvariantError
from raftmq.raft.entry import GENESIS, EntryKind
from raftmq.raft.messages import AppendRequest, AppendResponse
from raftmq.raft.ready import Role
from raftmq.types import LogIndex, ReplicaId, Term

from tests.support.raft.harness import (
    SETTINGS,
    START,
    Cluster,
    MemoryLog,
    entry,
    fill,
    make_core,
    membership,
    now,
    take,
)

ONE, TWO, THREE = ReplicaId(1), ReplicaId(2), ReplicaId(3)


def test_a_new_leader_appends_a_no_op_of_its_term_immediately() -> None:
    cluster = Cluster(1, 2, 3)
    leader = cluster.elect(1)
    row = cluster.nodes[1].disk.rows[START + 1]
    assert (row.kind, row.term, row.payload) == (EntryKind.EMPTY, leader.term, b"")


def test_an_entry_commits_when_a_majority_holds_it() -> None:
    cluster = Cluster(1, 2, 3, 4, 5)
    leader = cluster.elect(1)
    for lost in (3, 4, 5):
        cluster.isolate(lost)
    cluster.propose(1, b"x")
    cluster.pump()
    assert leader.commit_index == START + 1, "two of five"
    cluster.cut = {pair for pair in cluster.cut if 3 not in pair}
    cluster.tick(2)
    assert leader.commit_index == START + 2, "three of five"


def test_entries_of_earlier_terms_commit_only_with_one_of_the_own_term() -> None:
    """Thesis figure 3.7 (figure 8 of the paper): a majority holding an old entry does not commit it."""
    cluster = Cluster(1, 2, 3)
    for node in cluster.nodes.values():
        fill(node.disk, [6])
        cluster.restart(int(node.core.replica_id))
    # all hold START + 1 of term 6, and the no-op of the new term reaches nobody
    cluster.is_lost = lambda m: isinstance(m, AppendRequest) and bool(m.entries) and m.entries[-1].term > 6
    leader = cluster[1]
    leader.campaign()
    cluster.pump()
    assert now(leader.role) is Role.LEADER
    for peer in (2, 3):
        leader.step(AppendResponse(ReplicaId(peer), ReplicaId(1), leader.term, LogIndex(START + 1)))
    assert leader.match_index(ReplicaId(2)) == leader.match_index(ReplicaId(3)) == START + 1
    assert leader.commit_index == START
    cluster.is_lost = lambda _m: False
    cluster.tick(2)
    assert leader.commit_index == START + 2


def test_the_leader_counts_itself_only_for_entries_on_its_disk() -> None:
    cluster = Cluster(1, 2, 3)
    leader = cluster.elect(1)
    cluster.isolate(3)
    cluster.nodes[1].holds_appends = True
    cluster.propose(1, b"x")
    cluster.pump()
    assert leader.match_index(ReplicaId(2)) == START + 2
    assert leader.commit_index == START + 1
    cluster.finish_appends(1)
    assert leader.commit_index == START + 2


def test_each_write_of_the_leader_counts_for_its_own_entries_only() -> None:
    cluster = Cluster(1, 2, 3)
    leader = cluster.elect(1)
    cluster.isolate(3)
    cluster.nodes[1].holds_appends = True
    for payload in (b"x", b"y"):
        cluster.propose(1, payload)
        cluster.pump()
    assert leader.match_index(ReplicaId(2)) == START + 3
    cluster.finish_append(1)
    assert (leader.match_index(ReplicaId(1)), leader.commit_index) == (START + 2, START + 2)


def test_followers_may_commit_entries_that_are_not_on_the_leaders_disk() -> None:
    """Thesis 10.2.1: the leader writes in parallel with its followers."""
    cluster = Cluster(1, 2, 3)
    leader = cluster.elect(1)
    cluster.nodes[1].holds_appends = True
    cluster.propose(1, b"x")
    cluster.pump()
    assert leader.commit_index == START + 2
    assert cluster.nodes[1].values() == [], "but it applies only what it holds"
    assert cluster.nodes[2].values() == [b"x"]
    cluster.nodes[1].holds_appends = False
    cluster.finish_appends(1)
    cluster.pump()
    assert cluster.nodes[1].values() == [b"x"]


def test_a_follower_commits_only_entries_that_the_message_proved() -> None:
    """`min(leaderCommit, last index of this message)`: its own tail may be divergent."""
    disk = MemoryLog(GENESIS, membership(1, 2, 3))
    fill(disk, [6, 6, 6])
    core = make_core(1, disk)
    core.step(
        AppendRequest(
            ReplicaId(2), ReplicaId(1), Term(7), LogIndex(START), Term(5), (entry(START + 1, 6),), LogIndex(START + 3)
        )
    )
    assert core.commit_index == START + 1
    take(core, disk)


def test_commit_indexes_reach_followers_without_a_heartbeat() -> None:
    cluster = Cluster(1, 2, 3)
    cluster.elect(1)
    cluster.propose(1, b"x")
    cluster.pump()
    assert [node.core.commit_index for node in cluster.nodes.values()] == [START + 2] * 3


def test_a_commit_is_announced_once_not_per_acknowledgement() -> None:
    cluster = Cluster(1, 2, 3)
    cluster.elect(1)
    cluster.sent.clear()
    cluster.propose(1, b"x")
    cluster.pump()
    to_two = [m for m in cluster.of_type(AppendRequest, 1, 2) if isinstance(m, AppendRequest)]
    assert [(len(m.entries), m.commit_index) for m in to_two] == [(1, START + 1), (0, START + 2)]


def test_a_lagging_commit_index_is_repaired_by_heartbeats() -> None:
    cluster = Cluster(1, 2, 3)
    cluster.elect(1)
    cluster.is_lost = lambda m: isinstance(m, AppendRequest) and not m.entries and m.target == 3
    cluster.propose(1, b"x")
    cluster.pump()
    assert cluster[3].commit_index == START + 1
    cluster.tick()
    assert cluster[3].commit_index == START + 2


def test_a_learner_receives_entries_and_is_never_counted() -> None:
    config = membership(1, 2, 3, learners=[4])
    cluster = Cluster(1, 2, 3, 4, config=config)
    leader = cluster.elect(1)
    cluster.isolate(2)
    cluster.isolate(3)
    cluster.propose(1, b"x")
    cluster.pump()
    assert cluster[4].last_index == START + 2
    assert leader.commit_index == START + 1


def test_entries_are_applied_in_order_once_and_only_when_committed() -> None:
    cluster = Cluster(1, 2, 3)
    cluster.elect(1)
    cluster.isolate(1)
    cluster.propose(1, b"lost")
    cluster.pump()
    assert cluster.nodes[1].values() == []
    cluster.heal()
    cluster.propose(1, b"b", b"c")
    cluster.pump()
    cluster.tick(2)
    for node in cluster.nodes.values():
        assert node.values() == [b"lost", b"b", b"c"]
        assert [e.index for e in node.applied] == list(range(START + 1, START + 5))


def test_entries_handed_out_for_applying_are_bounded_in_bytes() -> None:
    cluster = Cluster(1, settings=replace(SETTINGS, apply_bytes_max=10))
    cluster.elect(1)
    cluster.nodes[1].holds_applies = True
    cluster.propose(1, *[b"x" * 4] * 6)
    cluster.pump()
    assert [len(part) for part in cluster.nodes[1].applies] == [2, 1]
    cluster.nodes[1].holds_applies = False
    cluster.finish_applies(1)
    cluster.pump()
    assert len(cluster.nodes[1].values()) == 6


def test_a_committed_entry_survives_the_death_of_its_leader() -> None:
    """Leader completeness (thesis 3.6.3)."""
    cluster = Cluster(1, 2, 3)
    cluster.elect(1)
    cluster.isolate(3)
    cluster.propose(1, b"kept")
    cluster.pump()
    cluster.nodes[1].is_up = False
    cluster.heal()
    cluster[3].forget_leader()
    cluster[2].forget_leader()
    cluster[3].campaign()
    cluster.pump()
    assert cluster.leaders() == [], "the shorter log cannot win"
    cluster.live(60)
    assert cluster.leaders() == [2]
    assert cluster.nodes[3].values() == [b"kept"]


def test_an_uncommitted_entry_of_a_dead_leader_may_be_replaced() -> None:
    cluster = Cluster(1, 2, 3)
    cluster.elect(1)
    cluster.isolate(1)
    cluster.propose(1, b"gone")
    cluster.run(1)
    cluster.elect(2)
    cluster.propose(2, b"stays")
    cluster.pump()
    cluster.heal()
    cluster.tick(3)
    cluster.live(40)
    assert [node.values() for node in cluster.nodes.values()] == [[b"stays"]] * 3


def test_state_and_commitment_survive_the_restart_of_everyone() -> None:
    cluster = Cluster(1, 2, 3)
    cluster.elect(1)
    cluster.propose(1, b"a", b"b")
    cluster.pump()
    for replica_id in (1, 2, 3):
        cluster.restart(replica_id)
    cluster.live(60)
    assert len(cluster.leaders()) == 1
    cluster.propose(cluster.leaders()[0], b"c")
    cluster.pump()
    assert [node.values() for node in cluster.nodes.values()] == [[b"a", b"b", b"c"]] * 3


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


def test_pysyncobj_loses_a_second_of_commit_index() -> None:
    """Our commit index is written with each append. A restarted replica learns a lost part of it again."""
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
