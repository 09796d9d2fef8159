"""`raftmq cluster rebalance`, `moves` and `balancing` against fake brokers."""

from __future__ import annotations

import signal

import pytest
from raftmq.cli.placement import waiting
from raftmq.fsm.metadata_balancing import MOVES_LIMIT
from raftmq.proto import queue_pb2 as pb

from tests.support.cli.cluster_commands import ClusterCommands
from tests.support.cli.queue_commands import assert_refused

DATA = pb.PartitionMove(
    topic="orders", partition=0, from_broker_ids=[1, 2], to_broker_ids=[1, 3], reason=pb.EVEN_REPLICAS, bytes=1000
)
ORDER = pb.PartitionMove(
    topic="orders", partition=1, from_broker_ids=[2, 3], to_broker_ids=[3, 2], reason=pb.EVEN_LEADERS
)


@pytest.fixture(autouse=True)
def plan(commands: ClusterCommands) -> None:
    commands.moves.balance = [DATA, ORDER]


def test_a_dry_run_shows_the_plan_and_changes_nothing(commands: ClusterCommands) -> None:
    lines = commands.text("cluster", "rebalance", "--dry-run").splitlines()
    assert lines == [
        "partition  from  to    reason         bytes",
        "orders/0   1, 2  1, 3  even replicas  1000",
        "orders/1   2, 3  3, 2  even leaders   ?",
        "",
        "replicas of 1 partition and 1 leadership planned",
    ]
    planned = commands.answer("cluster", "rebalance", "--dry-run", "--leaders-only")
    assert (planned["result"], planned["replica_move_count"], planned["leader_move_count"]) == ("planned", 0, 1)
    assert planned["moves"][0]["size_bytes"] is None
    assert commands.moves.planned == []


def test_a_rebalance_ends_when_nothing_moves_any_more(commands: ClusterCommands) -> None:
    done = commands.run("cluster", "rebalance")
    assert (done.returncode, done.stdout) == (0, "replicas of 1 partition and 1 leadership moved\n")
    assert done.stderr.splitlines()[0] == "rebalancing: 2 partitions moving (50 % copied)"
    assert done.stderr.splitlines()[-1] == "rebalancing: no partition is moving"
    assert commands.replicas() == [[1, 3], [3, 2], [3, 1]]
    assert commands.text("cluster", "rebalance") == (
        "nothing to move: the brokers have equal shares, as far as hosts and racks permit\n"
    )


def test_a_rebalance_whose_moves_begin_late_is_not_taken_for_finished(commands: ClusterCommands) -> None:
    commands.moves.unplanned_first = 1
    commands.text("cluster", "rebalance")
    assert commands.replicas() == [[1, 3], [3, 2], [3, 1]]


def test_a_rebalance_whose_moves_are_given_up_is_not_reported_as_done(commands: ClusterCommands) -> None:
    commands.moves.given_up = [pb.GivenUpMove(topic="orders", partition=2, to_broker_ids=[4], reason="earlier")]
    commands.moves.gives_up = True
    refused = commands.run("cluster", "rebalance")
    assert refused.stdout == ""
    assert_refused(
        refused, 6, "rebalancing: 2 moves given up, such as orders/0 to 1, 3: the new replica makes no progress"
    )


def test_a_rebalance_that_only_waits_for_partitions_without_a_leader_is_stuck_and_says_so(
    commands: ClusterCommands, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While automatic balancing is on, they stay planned. The command waited for them without end."""
    monkeypatch.setattr(waiting, "STALLED_SECONDS", 0.01)
    commands.moves.is_frozen, commands.moves.moves_max, commands.moves.leaderless_count = True, 0, 2
    words = "rebalancing: 2 waiting, but 2 partitions have no leader and cannot move: see raftmq cluster status"
    assert_refused(commands.run("cluster", "rebalance"), 6, words)


def test_a_rebalance_whose_moves_have_lost_their_leaders_is_stuck_and_says_so(
    commands: ClusterCommands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "STALLED_SECONDS", 0.01)
    commands.moves.is_frozen, commands.moves.moves_max, commands.moves.leaderless_count = True, 1, 2
    commands.cluster.topics["orders"].partitions[0].is_led = False
    words = "1 partition moving (50 % copied), 1 waiting, but 2 partitions have no leader and cannot move"
    assert_refused(commands.run("cluster", "rebalance"), 6, words)


def test_partitions_that_a_rebalance_left_because_they_have_no_leader_are_not_reported_as_moved(
    commands: ClusterCommands,
) -> None:
    """While automatic balancing is paused, the brokers end the rebalance without them."""
    commands.moves.is_losing = True
    commands.cluster.topics["orders"].partitions[0].is_led = False
    words = "rebalancing: 1 partition has no leader and was not moved: orders/0"
    assert_refused(commands.run("cluster", "rebalance", "-o", "json"), 6, words, "Repeat the command when it has one")


def test_only_leaderships_are_moved_on_request(commands: ClusterCommands) -> None:
    answer = commands.answer("cluster", "rebalance", "--leaders-only")
    assert (answer["result"], answer["replica_move_count"], answer["leader_move_count"]) == ("moved", 0, 1)
    assert answer["leader_return_count"] == 0
    assert commands.replicas() == [[1, 2], [3, 2], [3, 1]]


def test_a_rebalance_waits_for_leaderships_that_return_to_a_restarted_broker(commands: ClusterCommands) -> None:
    commands.moves.balance = []
    commands.moves.idle_leaders = 5
    dry = commands.text("cluster", "rebalance", "--leaders-only", "--dry-run")
    assert dry == "1 leadership would return to the preferred leaders\n"
    planned = commands.answer("cluster", "rebalance", "--leaders-only", "--dry-run")
    assert (planned["leader_move_count"], planned["leader_return_count"]) == (0, 1)
    done = commands.run("cluster", "rebalance", "--leaders-only")
    assert (done.returncode, done.stdout) == (0, "1 leadership returned to the preferred leaders\n")
    assert commands.moves.idle_leaders == 0
    assert done.stderr.splitlines() == [
        "rebalancing: 1 leadership not with the preferred leader yet",
        "rebalancing: no partition is moving",
    ]


def test_leaderships_that_do_not_return_are_reported(
    commands: ClusterCommands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "STALLED_SECONDS", 0.01)
    commands.moves.idle_leaders = 1_000_000
    assert_refused(
        commands.run("cluster", "rebalance"), 6, "1 leadership not with the preferred leader yet, but a broker"
    )


def test_the_end_of_pins_is_announced_and_reported(commands: ClusterCommands) -> None:
    """An operator who moved a partition by hand must not learn of its way back afterwards."""
    commands.moves.balance = []
    commands.text("partition", "move", "orders", "0", "--to", "1,2")
    nothing = "nothing to move: the brokers have equal shares, as far as hosts and racks permit"
    assert commands.text("cluster", "rebalance", "--dry-run").splitlines() == [
        nothing,
        "1 partition will no longer be pinned: --leaders-only keeps pins, and raftmq partition list marks pinned partitions",
    ]
    assert commands.answer("cluster", "rebalance", "--dry-run")["pin_count"] == 1
    assert commands.answer("cluster", "rebalance", "--leaders-only")["pin_count"] == 0
    assert commands.text("cluster", "rebalance").splitlines() == [
        nothing,
        "1 partition no longer pinned: automatic balancing may move it",
    ]
    assert commands.answer("cluster", "rebalance")["pin_count"] == 0


def test_without_waiting_the_plan_is_made_in_the_background(commands: ClusterCommands) -> None:
    said = commands.text("cluster", "rebalance", "--no-wait")
    assert said.startswith("replicas of 1 partition and 1 leadership moving: raftmq cluster moves shows")
    assert commands.moves.planned == [DATA, ORDER]
    assert commands.moves.descriptions == 0


def test_an_interrupted_rebalance_continues(commands: ClusterCommands) -> None:
    commands.moves.is_frozen = True
    with commands.process("cluster", "rebalance") as process:
        assert process.stderr is not None
        assert process.stderr.readline().startswith(b"rebalancing: 2 partitions moving")
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        assert b"the cluster continues the work: raftmq cluster moves" in process.stderr.read()
    assert commands.moves.planned == [DATA, ORDER]


def test_moves_are_shown_with_their_progress_and_settings(commands: ClusterCommands) -> None:
    commands.moves.is_frozen = True
    commands.moves.moves_max = 1
    commands.moves.rebuilding_count = 3
    commands.moves.without_place = [pb.PartitionName(topic="orders", partition=2)]
    commands.text("cluster", "rebalance", "--no-wait")
    assert commands.text("cluster", "moves").splitlines() == [
        "partition  from  to    reason         bytes  copied bytes  copied",
        "orders/0   1, 2  1, 3  even replicas  1000   500           50 %",
        "",
        "1 partition moving (50 % copied), 1 waiting, 3 partitions rebuilding a lost replica first",
        "auto-balance on, at most 1 partition simultaneously, rate of each broker unlimited",
        "warning: 1 replica has no other broker that can take it now: orders/2",
    ]
    shown = commands.answer("cluster", "moves")
    assert (shown["auto_balance"], shown["moves_max"], shown["bytes_per_second"]) == (True, 1, 0)
    assert (len(shown["moves"]), shown["waiting_count"], shown["rebuilding_count"]) == (1, 1, 3)
    assert (shown["without_place_count"], shown["without_place"]) == (1, [{"topic": "orders", "partition": 2}])


STUCK = pb.StuckReplica(topic="orders", partition=1, broker_id=3, reason="broker 3 is down", advice="start it")
HOMELESS = pb.StuckReplica(topic="orders", partition=2, reason="no broker can take it", advice="add a broker")


def test_replicas_that_cannot_come_up_are_shown_with_their_reason(commands: ClusterCommands) -> None:
    commands.moves.stuck = [STUCK, HOMELESS]
    assert commands.text("cluster", "moves").splitlines()[2:] == [
        "warning: 2 new replicas cannot come up:",
        "",
        "partition  broker  cannot come up because  advice",
        "orders/1   3       broker 3 is down        start it",
        "orders/2   -       no broker can take it   add a broker",
    ]
    shown = commands.answer("cluster", "moves")
    assert shown["stuck_count"] == 2
    assert shown["stuck"][1] == {
        "topic": "orders",
        "partition": 2,
        "broker_id": None,
        "reason": "no broker can take it",
        "advice": "add a broker",
    }


def test_balancing_is_shown_paused_and_limited(commands: ClusterCommands) -> None:
    before = "auto-balance on, at most 2 partitions simultaneously, rate of each broker unlimited\n"
    assert commands.text("cluster", "balancing") == before
    said = commands.text("cluster", "balancing", "--no-auto", "--moves", "8", "--rate", "50MiB/s")
    assert said == "auto-balance off, at most 8 partitions simultaneously, rate of each broker 50 MiB/s\n"
    changed = commands.answer("cluster", "balancing", "--auto", "--rate", "unlimited")
    assert changed == {"auto_balance": True, "moves_max": 8, "bytes_per_second": 0}


def test_contradicting_options_change_nothing(commands: ClusterCommands) -> None:
    done = commands.run("cluster", "balancing", "--auto", "--no-auto", "--moves", "8")
    assert_refused(done, 2, "give either --auto or --no-auto")
    assert commands.answer("cluster", "balancing")["moves_max"] == 2


def test_a_wrong_rate_is_refused_with_an_example(commands: ClusterCommands) -> None:
    assert_refused(commands.run("cluster", "balancing", "--rate", "fast"), 2, "'fast' is not a rate", "50MiB/s")


@pytest.mark.parametrize("number", ["0", "1001"])
def test_a_wrong_number_of_moves_is_refused_with_the_way_to_pause_them(commands: ClusterCommands, number: str) -> None:
    """Before, the error named a maximum of 2147483647, and the advice came only with a number that is too high."""
    words = f"'{number}' is not a whole number from 1 to {MOVES_LIMIT}: to pause automatic balancing, give"
    assert_refused(commands.run("cluster", "balancing", "--moves", number), 2, words, "--no-auto")


def test_moves_that_were_given_up_are_shown_with_their_reason(commands: ClusterCommands) -> None:
    commands.moves.given_up = [
        pb.GivenUpMove(
            topic="orders", partition=1, to_broker_ids=[3], reason="broker 3 is unreachable", retry_at_ms=1_000, count=2
        )
    ]
    said = commands.text("cluster", "moves")
    assert "given up: orders/1 to 3: broker 3 is unreachable (not planned again before 1970-01-01T00:00:01Z)" in said
    (found,) = commands.answer("cluster", "moves")["given_up"]
    assert (found["topic"], found["to_broker_ids"], found["count"]) == ("orders", [3], 2)
