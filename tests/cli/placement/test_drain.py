"""`raftmq cluster drain`, `undrain`, `nodes` and `status` against fake brokers."""

from __future__ import annotations

import json
import signal

import pytest
from raftmq.cli.placement import waiting
from raftmq.proto import queue_pb2 as pb

from tests.support.cli.cluster_commands import ClusterCommands
from tests.support.cli.queue_commands import assert_refused


def test_a_drain_ends_when_the_broker_holds_nothing_and_names_the_next_command(commands: ClusterCommands) -> None:
    done = commands.run("cluster", "drain", "3")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "broker 3 is empty: raftmq cluster remove 3 removes it from the cluster\n"
    assert done.stderr.splitlines() == [
        "draining broker 3: holds 1 replica, 1 leadership and a vote on metadata, 2 partitions moving (25 % copied)",
        "draining broker 3: holds nothing, 1 partition moving (50 % copied)",
        "draining broker 3: holds nothing",
    ]
    assert commands.replicas() == [[1, 2], [2, 1], [2, 1]]
    status = json.loads(commands.run("cluster", "status", "--output", "json").stdout)
    assert [(b["id"], b["state"], b["replicas"], b["leaders"]) for b in status["brokers"]] == [
        (1, "active", 3, 1),
        (2, "active", 3, 2),
        (3, "draining", 0, 0),
    ]


def test_an_empty_broker_is_drained_again_without_a_wait(commands: ClusterCommands) -> None:
    commands.text("cluster", "drain", "3")
    assert commands.answer("cluster", "drain", "3") == {
        "broker_id": 3,
        "result": "empty",
        "replicas": 0,
        "leaders": 0,
        "is_metadata_voter": False,
        "without_place_count": 0,
        "without_place": [],
    }


def test_a_dry_run_shows_the_moves_and_changes_nothing(commands: ClusterCommands) -> None:
    lines = commands.text("cluster", "drain", "3", "--dry-run").splitlines()
    assert [line.split("  ")[0] for line in lines] == ["partition", "orders/1", "orders/2", "", lines[-1]]
    assert lines[1].split() == ["orders/1", "2,", "3", "2,", "1", "drain", "4096"]
    assert lines[-1] == "broker 3 holds 2 replicas, 1 leadership and a vote on metadata"
    planned = commands.answer("cluster", "drain", "3", "--dry-run")
    assert (planned["result"], planned["replicas"], len(planned["moves"])) == ("planned", 2, 2)
    assert planned["moves"][0] == {
        "topic": "orders",
        "partition": 1,
        "from_broker_ids": [2, 3],
        "to_broker_ids": [2, 1],
        "reason": "drain",
        "size_bytes": 4096,
        "copied_bytes": 0,
    }
    assert commands.moves.draining == set()
    assert commands.moves.planned == []


def test_without_waiting_the_command_ends_when_the_drain_has_begun(commands: ClusterCommands) -> None:
    commands.moves.is_frozen = True
    said = commands.text("cluster", "drain", "3", "--no-wait")
    assert said == (
        "broker 3 is being drained and holds 2 replicas, 1 leadership and a vote on metadata: "
        "raftmq cluster moves shows the progress\n"
    )
    assert commands.answer("cluster", "drain", "3", "--no-wait")["result"] == "draining"
    assert commands.moves.draining == {3}
    assert commands.moves.descriptions == 0


def test_a_drain_that_lacks_a_broker_is_stuck_and_says_so(
    commands: ClusterCommands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "STALLED_SECONDS", 0.01)
    commands.text("topic", "alter", "orders", "--replication-factor", "3")
    commands.moves.without_place = [pb.PartitionName(topic="orders", partition=n) for n in range(3)]
    planned = commands.run("cluster", "drain", "3", "--dry-run")
    assert planned.returncode == 0
    assert "warning: 3 replicas have no other broker that can take them now" in planned.stderr
    words = "3 replicas have no other broker that can take them now: orders/0, orders/1, orders/2. Add a broker"
    assert_refused(commands.run("cluster", "drain", "3"), 6, "draining broker 3: holds 3 replicas", words)


def test_a_drain_whose_vote_nobody_can_take_is_stuck_and_says_so(
    commands: ClusterCommands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "STALLED_SECONDS", 0.01)
    commands.moves.keeps_vote = True
    words = "but no other broker can take the vote now. Start a broker that is down"
    assert_refused(commands.run("cluster", "drain", "3"), 6, "draining broker 3: holds a vote on metadata", words)


def test_a_drain_of_a_dead_broker_with_the_only_replica_is_stuck_and_says_so(
    commands: ClusterCommands, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, the command waited without end for moves of partitions that only the dead broker can lead."""
    monkeypatch.setattr(waiting, "STALLED_SECONDS", 0.01)
    commands.moves.is_frozen, commands.moves.moves_max, commands.moves.unreachable = True, 0, {3}
    words = "but broker 3 is not connected, and partitions that need it for a leader cannot move. Start it, and the"
    assert_refused(commands.run("cluster", "drain", "3"), 6, "holds 2 replicas", words, "cluster remove 3 --force")


def test_a_drain_that_only_waits_for_partitions_without_a_leader_is_stuck_and_says_so(
    commands: ClusterCommands, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A partition that lost all its replicas counts as one that is rebuilt, for good."""
    monkeypatch.setattr(waiting, "STALLED_SECONDS", 0.01)
    commands.moves.is_frozen, commands.moves.moves_max, commands.moves.leaderless_count = True, 0, 3
    commands.moves.rebuilding_count = 1
    commands.moves.stuck = [pb.StuckReplica(topic="orders", partition=0, reason="no leader", advice="wait")]
    words = "but 3 partitions have no leader and cannot move: see raftmq cluster status"
    assert_refused(commands.run("cluster", "drain", "3"), 6, "holds 2 replicas", words)


@pytest.mark.parametrize(
    ("unreachable", "words"),
    [
        (set(), "but 1 new replica (orders/0) cannot come up: no leader. Advice: wait"),
        ({3}, "but broker 3 is not connected, and partitions that need it for a leader cannot move"),
    ],
)
def test_a_drain_that_only_waits_for_stuck_rebuilding_is_stuck_and_says_so(
    commands: ClusterCommands, monkeypatch: pytest.MonkeyPatch, unreachable: set[int], words: str
) -> None:
    """A partition whose lost replica cannot be rebuilt, because the partition has no leader, is not planned to move."""
    monkeypatch.setattr(waiting, "STALLED_SECONDS", 0.01)
    commands.moves.is_frozen, commands.moves.moves_max, commands.moves.unreachable = True, 0, unreachable
    commands.moves.rebuilding_count, commands.moves.plans_nothing = 1, True
    commands.moves.stuck = [pb.StuckReplica(topic="orders", partition=0, reason="no leader", advice="wait")]
    assert_refused(commands.run("cluster", "drain", "3"), 6, "holds 2 replicas", words)


def test_a_drain_whose_moves_have_lost_their_leaders_is_stuck_and_says_so(
    commands: ClusterCommands, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, the command waited without end for moves under way that nobody can lead."""
    monkeypatch.setattr(waiting, "STALLED_SECONDS", 0.01)
    commands.moves.is_frozen, commands.moves.leaderless_count = True, 3
    for partition in commands.cluster.topics["orders"].partitions:
        partition.is_led = False
    words = "2 partitions moving (25 % copied), but 3 partitions have no leader and cannot move"
    assert_refused(commands.run("cluster", "drain", "3"), 6, "holds 2 replicas", words)


def test_a_drain_whose_moves_have_leaders_is_not_stuck(
    commands: ClusterCommands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "STALLED_SECONDS", 0.0)
    commands.moves.leaderless_count = 3
    commands.cluster.topics["orders"].partitions[0].is_led = False
    done = commands.run("cluster", "drain", "3")
    assert done.returncode == 0, done.stderr


def test_a_drain_without_a_place_says_so_although_other_partitions_have_no_leader(
    commands: ClusterCommands, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only those without a leader were named, although the drain waited for a place."""
    monkeypatch.setattr(waiting, "STALLED_SECONDS", 0.01)
    commands.moves.is_frozen, commands.moves.moves_max, commands.moves.leaderless_count = True, 0, 3
    commands.moves.without_place = [pb.PartitionName(topic="orders", partition=2)]
    words = "but 1 replica has no other broker that can take it now: orders/2, and 3 partitions have no leader"
    assert_refused(commands.run("cluster", "drain", "3"), 6, words)


def test_a_drain_that_waits_for_its_turn_is_not_stuck(
    commands: ClusterCommands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "STALLED_SECONDS", 0.0)
    commands.moves.leaderless_count = 1
    done = commands.run("cluster", "drain", "3")
    assert done.returncode == 0, done.stderr


def test_work_that_waits_for_a_rebuilt_replica_is_not_stuck(
    commands: ClusterCommands, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replica in repair goes first, so nothing moves for as long as the repair takes."""
    monkeypatch.setattr(waiting, "STALLED_SECONDS", 0.0)
    commands.moves.rebuilding_first = 3
    done = commands.run("cluster", "drain", "3")
    assert done.returncode == 0, done.stderr
    assert "1 partition rebuilding a lost replica first" in done.stderr


def test_a_drained_broker_that_another_command_removes_is_not_reported_as_empty(commands: ClusterCommands) -> None:
    commands.moves.is_frozen = True
    with commands.process("cluster", "drain", "3") as process:
        commands.wait_described(1)
        removed = commands.cluster.brokers.pop(3)
        assert process.wait(60) == 5
        commands.cluster.brokers[3] = removed  # it is stopped with the others
        assert process.stderr is not None
        assert b"broker 3 was removed in the meantime" in process.stderr.read()


def test_a_draining_that_another_command_ends_is_not_reported_as_finished(commands: ClusterCommands) -> None:
    commands.moves.is_frozen = True
    with commands.process("cluster", "drain", "3") as process:
        commands.wait_described(1)
        commands.text("cluster", "undrain", "3")
        assert process.wait(60) == 5
        assert process.stderr is not None
        assert b"the draining of broker 3 was ended in the meantime" in process.stderr.read()


def test_a_broker_that_has_not_learnt_of_the_drain_yet_does_not_end_it(commands: ClusterCommands) -> None:
    """Any broker may describe the cluster, also one whose metadata are a moment old."""
    commands.moves.late_brokers = 3
    done = commands.run("cluster", "drain", "3")
    assert done.returncode == 0, done.stderr
    assert commands.moves.late_brokers == 0
    assert commands.replicas() == [[1, 2], [2, 1], [2, 1]]


def test_an_interrupted_drain_continues_and_says_how_to_see_it(commands: ClusterCommands) -> None:
    commands.moves.is_frozen = True
    with commands.process("cluster", "drain", "3") as process:
        assert process.stderr is not None
        assert process.stderr.readline().startswith(b"draining broker 3: holds 2 replicas")
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        said = process.stderr.read().splitlines()
        assert said[-1] == b"the cluster continues the work: raftmq cluster moves shows the progress"
    assert commands.moves.draining == {3}


def test_a_state_that_cannot_be_asked_for_is_an_unknown_outcome(commands: ClusterCommands) -> None:
    commands.moves.refusal = pb.NO_LEADER
    done = commands.run("cluster", "drain", "3", "--timeout", "200ms")
    assert_refused(done, 5, "the command was accepted and the cluster continues the work", "raftmq cluster moves")
    assert commands.moves.draining == {3}


def test_an_unknown_broker_is_refused(commands: ClusterCommands) -> None:
    for arguments in (("drain", "9"), ("drain", "9", "--dry-run"), ("undrain", "9")):
        assert_refused(commands.run("cluster", *arguments), 4, "raftmq: UNKNOWN_BROKER")


def test_a_drained_broker_is_used_again(commands: ClusterCommands) -> None:
    commands.text("cluster", "drain", "3")
    said = commands.text("cluster", "undrain", "3")
    assert said == "broker 3 gets replicas again: raftmq cluster rebalance gives it an equal share now\n"
    assert commands.moves.draining == set()


def test_the_end_of_a_draining_that_had_not_begun_says_that_nothing_changed(commands: ClusterCommands) -> None:
    assert commands.text("cluster", "undrain", "3") == "broker 3 was not being drained: nothing changed\n"
    answer = commands.answer("cluster", "undrain", "3")
    assert (answer["result"], answer["was_draining"]) == ("active", False)
    commands.text("cluster", "drain", "3")
    answer = commands.answer("cluster", "undrain", "3")
    assert (answer["result"], answer["was_draining"]) == ("active", True)


def test_nodes_are_listed_with_their_states(commands: ClusterCommands) -> None:
    commands.text("cluster", "drain", "3")
    head, *rows = commands.text("cluster", "nodes").splitlines()
    assert head.split() == ["broker", "address", "peers", "http", "host", "rack", "version", "level", "state"]
    assert [(row.split()[0], row.split()[-1]) for row in rows] == [("1", "active"), ("2", "active"), ("3", "draining")]
    nodes = commands.answer("cluster", "nodes")
    assert [list(node)[:4] for node in nodes] == [["id", "state", "replicas", "leaders"]] * 3
    assert nodes[2]["address"] == commands.cluster.brokers[3].address
    assert "broker_id" not in nodes[0]


def test_a_removal_names_its_consequences(commands: ClusterCommands) -> None:
    said = commands.text("cluster", "remove", "3", "--force", "--yes").splitlines()
    assert said[0] == "broker 3 removed"
    assert said[1].startswith("5 partitions get another replica where a broker has room")
    assert said[2].endswith("Start the other brokers that hold them, or see raftmq cluster recover: t/3, t/5")
    assert commands.answer("cluster", "remove", "3", "--force", "--yes") == {
        "broker_id": 3,
        "replica_count": 7,
        "without_majority_count": 2,
        "without_majority": [{"topic": "t", "partition": 3}, {"topic": "t", "partition": 5}],
    }
    assert_refused(commands.run("cluster", "remove", "9", "--yes"), 4, "UNKNOWN_BROKER")
