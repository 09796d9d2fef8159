"""ReadIndex: confirmed reads without a write (thesis 6.4)."""

from dataclasses import replace

from raftmq.raft.entry import EntryKind
from raftmq.raft.membership import Membership
from raftmq.raft.messages import AppendResponse, HeartbeatResponse, ReadIndexRequest
from raftmq.raft.read_queue import ReadQueue
from raftmq.types import ReplicaId

from tests.support.raft.harness import SETTINGS, START, Cluster, membership, voters

ONE, TWO = ReplicaId(1), ReplicaId(2)


def respond(cluster: Cluster, source: int, counter: int) -> None:
    leader = cluster[1]
    leader.step(HeartbeatResponse(ReplicaId(source), ONE, leader.term, counter))
    cluster.run(1)


def reads(cluster: Cluster, replica_id: int) -> list[tuple[int, int]]:
    return [(read.request_id, read.read_index) for read in cluster.nodes[replica_id].reads]


def test_a_read_waits_for_a_round_that_began_after_it() -> None:
    cluster = Cluster(1, 2, 3)
    leader = cluster.elect(1)
    cluster.isolate(1)
    old = leader.take_heartbeats()[0][2]
    leader.read_index(7)
    assert leader.heartbeat_due
    cluster.run(1)
    respond(cluster, 2, old)
    respond(cluster, 3, old)
    assert reads(cluster, 1) == []
    new = leader.take_heartbeats()[0][2]
    assert new > old
    respond(cluster, 2, new)
    assert reads(cluster, 1) == [(7, START + 1)]


def test_the_only_voter_of_both_halves_of_a_joint_configuration_confirms_a_read_alone() -> None:
    """Seed 7508652 of the core simulator: nobody answers heartbeats, so that no read was ever confirmed."""
    cluster = Cluster(1, config=replace(membership(1), outgoing=voters(1)))
    leader = cluster.elect(1)

    leader.read_index(7)
    cluster.pump()

    assert reads(cluster, 1) == [(7, START + 1)]


def test_the_read_index_is_the_commit_index_at_arrival() -> None:
    cluster = Cluster(1, 2, 3)
    leader = cluster.elect(1)
    leader.read_index(1)
    cluster.propose(1, b"x")
    cluster.pump()
    assert leader.commit_index == START + 2
    cluster.heartbeat(1)
    cluster.pump()
    assert reads(cluster, 1) == [(1, START + 1)]


def test_a_read_needs_a_quorum_of_responses() -> None:
    cluster = Cluster(1, 2, 3, 4, 5)
    leader = cluster.elect(1)
    cluster.isolate(1)
    leader.read_index(1)
    counter = leader.take_heartbeats()[0][2]
    respond(cluster, 2, counter)
    respond(cluster, 2, counter)
    respond(cluster, 99, counter)
    assert reads(cluster, 1) == []
    respond(cluster, 3, counter)
    assert reads(cluster, 1) == [(1, START + 1)]


def test_a_joint_configuration_confirms_reads_with_both_majorities() -> None:
    joint = Membership(voters=voters(1, 4, 5), outgoing=voters(1, 2, 3))
    cluster = Cluster(1, 2, 3, 4, 5, config=joint)
    leader = cluster.elect(1)
    cluster.isolate(1)
    leader.read_index(1)
    counter = leader.take_heartbeats()[0][2]
    respond(cluster, 2, counter)
    respond(cluster, 3, counter)
    assert reads(cluster, 1) == []
    respond(cluster, 5, counter)
    assert len(reads(cluster, 1)) == 1


def test_learners_answer_heartbeats_and_never_confirm_reads() -> None:
    cluster = Cluster(1, 2, 3, 4, config=membership(1, 2, 3, learners=[4]))
    leader = cluster.elect(1)
    cluster.isolate(1)
    leader.read_index(1)
    respond(cluster, 4, leader.take_heartbeats()[0][2])
    assert reads(cluster, 1) == []


def test_a_read_waits_for_the_first_commit_of_the_term() -> None:
    cluster = Cluster(1, 2, 3)
    cluster.is_lost = lambda m: isinstance(m, AppendResponse)
    leader = cluster.elect(1)
    leader.read_index(1)
    cluster.tick(2)
    assert reads(cluster, 1) == []
    cluster.is_lost = lambda _m: False
    cluster.tick(3)
    assert reads(cluster, 1) == [(1, START + 1)]


def test_a_single_voter_answers_immediately_after_the_first_commit_of_its_term() -> None:
    cluster = Cluster(1)
    core = cluster[1]
    core.campaign()
    ready = core.ready()  # its vote
    assert ready.append is not None
    cluster.nodes[1].appends.append(ready.append)
    cluster.finish_append(1)
    core.read_index(1)
    cluster.nodes[1].holds_appends = True
    cluster.run(1)
    assert reads(cluster, 1) == []
    cluster.finish_appends(1)
    cluster.run(1)
    core.read_index(2)
    cluster.run(1)
    assert reads(cluster, 1) == [(1, START + 1), (2, START + 1)]


def test_followers_and_learners_forward_their_reads() -> None:
    cluster = Cluster(1, 2, 3, 4, config=membership(1, 2, 3, learners=[4]))
    cluster.elect(1)
    cluster[2].read_index(5)
    cluster[4].read_index(5)
    cluster.pump()
    cluster.heartbeat(1)
    cluster.pump()
    assert reads(cluster, 2) == reads(cluster, 4) == [(5, START + 1)]
    assert cluster.nodes[1].reads == []


def test_a_read_without_a_leader_fails_immediately() -> None:
    cluster = Cluster(1, 2, 3)
    cluster[2].read_index(9)
    cluster.run(2)
    assert cluster.nodes[2].failed_reads == [9]


def test_reads_fail_when_the_leadership_ends() -> None:
    cluster = Cluster(1, 2, 3)
    leader = cluster.elect(1)
    cluster[2].read_index(8)
    cluster.run(2)
    cluster.deliver_one()
    leader.read_index(1)
    leader.read_index(2)
    leader.step_down()
    cluster.run(1)
    assert cluster.nodes[1].failed_reads == [1, 2], "its own; the other's asker times out"
    assert not leader.has_ready()


def test_waiting_reads_are_bounded() -> None:
    cluster = Cluster(1, 2, 3, settings=replace(SETTINGS, pending_reads_max=2))
    leader = cluster.elect(1)
    for request_id in (1, 2, 3):
        leader.read_index(request_id)
    leader.step(ReadIndexRequest(TWO, ONE, leader.term, 4))
    cluster.run(1)
    assert cluster.nodes[1].failed_reads == [3]
    cluster.heartbeat(1)
    cluster.pump()
    assert [read[0] for read in reads(cluster, 1)] == [1, 2]
    assert reads(cluster, 2) == []


def test_one_round_confirms_all_reads_that_arrived_before_it() -> None:
    cluster = Cluster(1, 2, 3)
    leader = cluster.elect(1)
    for request_id in range(5):
        leader.read_index(request_id)
    cluster.sent.clear()
    cluster.heartbeat(1)
    cluster.pump()
    assert len(cluster.of_type(HeartbeatResponse)) == 2
    assert [read[0] for read in reads(cluster, 1)] == [0, 1, 2, 3, 4]


def test_counters_restart_with_every_leadership() -> None:
    cluster = Cluster(1, 2, 3)
    leader = cluster.elect(1)
    for request_id in range(4):
        leader.read_index(request_id)
        cluster.tick()
    late = leader.take_heartbeats()[0][2]
    cluster.elect(2)
    leader = cluster.elect(1)
    cluster.isolate(1)
    leader.read_index(50)
    leader.take_heartbeats()
    cluster.nodes[1].reads.clear()
    leader.step(HeartbeatResponse(TWO, ONE, type(leader.term)(6), late))
    cluster.run(1)
    assert cluster.nodes[1].reads == [], "a response of an earlier term, however high its counter"


def test_the_queue_releases_a_prefix_by_rounds() -> None:
    queue = ReadQueue()
    queue.add(10, ONE, 1)
    assert queue.on_heartbeats_taken() == 1
    queue.add(11, ONE, 2)
    queue.add(12, TWO, 3)
    assert queue.on_heartbeats_taken() == 2
    assert queue.release(0) == []
    assert queue.release(1) == [(10, ONE, 1)]
    queue.waiting.append((ONE, 4))
    assert (len(queue), queue.take_own(ONE)) == (3, [2, 4])
    assert queue.release(2) == [(11, ONE, 2), (12, TWO, 3)]
    assert not queue.is_confirming


def test_aioraft_reads_without_a_no_op() -> None:
    """aioraft's leader served reads before it had committed an entry of its term."""
    cluster = Cluster(1, 2, 3)
    cluster.is_lost = lambda m: isinstance(m, AppendResponse)
    leader = cluster.elect(1)
    leader.read_index(1)
    cluster.tick(3)
    assert cluster.nodes[1].reads == []
    assert not leader.is_confirmed_leader
    assert cluster.nodes[1].disk.rows[START + 1].kind is EntryKind.EMPTY
