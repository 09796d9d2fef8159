"""`raftmq partition` and `raftmq topic alter --replication-factor` against fake brokers."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from raftmq.cli.placement import waiting
from raftmq.client.base.loop_thread import LoopThread
from raftmq.proto import queue_pb2 as pb

from tests.support.cli.cluster_commands import ClusterCommands
from tests.support.cli.queue_commands import assert_refused


def test_partitions_of_one_or_all_topics_are_listed(commands: ClusterCommands) -> None:
    commands.cluster.create_topic("audit", partitions=1)
    assert commands.text("partition", "list").splitlines() == [
        "topic   partition  leader  epoch  replicas",
        "audit   0          1       1      1",
        "orders  0          1       1      1, 2",
        "orders  1          2       1      2, 3",
        "orders  2          3       1      3, 1",
    ]
    found = commands.answer("partition", "list", "audit")
    assert [(one["topic"], one["partition"], one["leader_broker_id"], one["replica_brokers"]) for one in found] == [
        ("audit", 0, 1, [1])
    ]
    assert_refused(commands.run("partition", "list", "none"), 4, "UNKNOWN_TOPIC")


def test_a_partition_is_described_with_its_move(commands: ClusterCommands) -> None:
    quiet = commands.answer("partition", "describe", "orders", "1")
    assert (quiet["partition"], quiet["state"]["in_sync_brokers"], quiet["move"]) == (1, [2, 3], None)
    commands.moves.is_frozen = True
    commands.text("partition", "move", "orders", "1", "--to", "1,2", "--no-wait")
    head, row, *_, move = commands.text("partition", "describe", "orders", "1").splitlines()
    assert head.split() == ["partition", "leader", "epoch", "replicas", "in", "sync", "start", "end", "bytes"]
    assert row.split()[:3] == ["1", "2", "1"]
    assert move == "moving to 1, 2 (requested), 50 % copied"
    assert commands.answer("partition", "describe", "orders", "1")["move"]["to_broker_ids"] == [1, 2]
    assert_refused(commands.run("partition", "describe", "orders", "3"), 4, "has partitions 0 to 2, not 3")


def test_a_move_ends_when_the_partition_is_in_sync_on_its_new_brokers(commands: ClusterCommands) -> None:
    done = commands.run("partition", "move", "orders", "0", "--to", "3,2")
    assert (done.returncode, done.stdout) == (0, "partition orders/0 moved to 3, 2\n"), done.stderr
    assert done.stderr.splitlines()[-1] == "moving orders/0: in sync on 3, 2"
    assert commands.replicas()[0] == [3, 2]
    commands.moves.behind = 4
    answer = commands.answer("partition", "move", "orders", "0", "--to", "1, 2")
    assert (answer["result"], answer["from_broker_ids"], answer["to_broker_ids"]) == ("moved", [3, 2], [1, 2])
    assert commands.moves.behind == 0


def test_a_planned_move_is_shown_and_a_refused_one_changes_nothing(commands: ClusterCommands) -> None:
    assert commands.text("partition", "move", "orders", "0", "--to", "3,2", "--dry-run").splitlines() == [
        "partition  from  to    reason     bytes",
        "orders/0   1, 2  3, 2  requested  4096",
    ]
    assert_refused(commands.run("partition", "move", "orders", "0", "--to", "1,9"), 4, "UNKNOWN_BROKER")
    assert_refused(commands.run("partition", "move", "orders", "5", "--to", "1,2"), 4, "UNKNOWN_PARTITION")
    assert commands.moves.planned == []


def test_a_move_that_never_arrives_is_stuck_and_says_so(
    commands: ClusterCommands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "STALLED_SECONDS", 0.01)
    commands.moves.is_losing = True
    done = commands.run("partition", "move", "orders", "0", "--to", "3,2")
    assert_refused(
        done, 6, "moving orders/0: in sync on 1, 2, no partition is moving, but the cluster plans no further"
    )


def test_a_move_that_has_lost_its_leader_is_stuck_and_says_so(
    commands: ClusterCommands, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, the command waited without end."""
    monkeypatch.setattr(waiting, "STALLED_SECONDS", 0.01)
    commands.moves.is_frozen = True
    commands.cluster.topics["orders"].partitions[0].is_led = False
    commands.moves.stuck = [pb.StuckReplica(topic="orders", partition=0, reason="no replica leads it", advice="wait")]
    words = "but 1 new replica (orders/0) cannot come up: no replica leads it. Advice: wait"
    assert_refused(commands.run("partition", "move", "orders", "0", "--to", "3,2"), 6, words)


def test_a_move_in_a_topic_that_was_created_again_ends_with_a_sentence(commands: ClusterCommands) -> None:
    commands.moves.is_frozen = True

    async def create_again() -> None:
        commands.cluster.delete_topic("orders")
        commands.cluster.create_topic("orders", partitions=1)

    with commands.process("partition", "move", "orders", "2", "--to", "2,1") as process:
        commands.wait_described(1)
        LoopThread.get().run(create_again())
        assert process.wait(60) == 5
        assert process.stderr is not None
        assert process.stderr.read().endswith(b"raftmq: partition orders/2 was deleted in the meantime\n")


def end_of_replaced(commands: ClusterCommands, order: Sequence[str], other: Sequence[str]) -> bytes:
    """Give an order, and another one while the first is awaited. Return the error output of the first command, which ends with exit code 5."""
    commands.moves.is_frozen = True
    with commands.process(*order) as process:
        commands.wait_described(1)
        commands.text(*other, "--no-wait")
        assert process.wait(60) == 5
        assert process.stderr is not None
        return process.stderr.read()


def test_a_move_that_another_command_replaces_ends_with_the_brokers_it_gets(commands: ClusterCommands) -> None:
    """Before, the command waited for its own brokers, then named a broker that is down, although all of them ran."""
    order = ("partition", "move", "orders", "0", "--to")
    said = end_of_replaced(commands, (*order, "3,2"), (*order, "1,3"))
    assert b"moving orders/0: the partition's brokers were changed again in the meantime, to 1, 3" in said


def test_without_waiting_a_move_is_made_in_the_background(commands: ClusterCommands) -> None:
    done = commands.run("partition", "move", "orders", "0", "--to", "3,2", "--no-wait")
    assert done.stdout == "partition orders/0 moving to 3, 2: raftmq cluster moves shows the progress\n"
    assert len(commands.moves.planned) == 1


def test_a_leadership_is_transferred(commands: ClusterCommands) -> None:
    said = commands.text("partition", "transfer-leader", "orders", "0", "--to", "2")
    assert said == "partition orders/0: leader 2, epoch 2\n"
    answer = commands.answer("partition", "transfer-leader", "orders", "0")
    assert answer == {"topic": "orders", "partition": 0, "leader_broker_id": 2, "leader_epoch": 3}
    assert_refused(commands.run("partition", "transfer-leader", "orders", "0", "--to", "3"), 2, "INVALID_ARGUMENT")


def test_a_higher_replication_factor_needs_no_question(commands: ClusterCommands) -> None:
    planned = commands.answer("topic", "alter", "orders", "--replication-factor", "3", "--dry-run")
    assert (planned["result"], planned["move_count"], len(planned["moves"])) == ("planned", 3, 3)
    assert commands.moves.planned == []
    commands.moves.behind = 6
    done = commands.run("topic", "alter", "orders", "--replication-factor", "3")
    assert commands.moves.behind == 0
    assert (done.returncode, done.stdout) == (
        0,
        "topic orders altered: replication factor 3, all replicas in sync\n",
    ), done.stderr
    assert done.stderr.splitlines()[-1].endswith("to 3: 3 of 3 partitions with 3 replicas in sync")
    assert [len(replicas) for replicas in commands.replicas()] == [3, 3, 3]


def test_a_further_replica_that_cannot_come_up_ends_the_wait_with_its_reason(
    commands: ClusterCommands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "STALLED_SECONDS", 0.01)
    commands.moves.is_frozen = True
    commands.moves.stuck = [
        pb.StuckReplica(topic="orders", partition=n, broker_id=3, reason="broker 3 is down", advice="start it")
        for n in range(3)
    ]
    done = commands.run("topic", "alter", "orders", "--replication-factor", "3")
    words = "3 new replicas (orders/0, orders/1, orders/2) cannot come up: broker 3 is down. Advice: start it"
    assert words in done.stderr.splitlines()[0], "the waiting command says so before it ends"
    assert_refused(done, 6, f"but {words}")
    assert len(commands.moves.planned) == 3, "the order stands"


def test_a_replication_factor_that_another_command_changes_again_ends_the_wait(commands: ClusterCommands) -> None:
    """Before, the command waited for its own factor, then named a broker that is down, although all of them ran."""
    order = ("topic", "alter", "orders", "--replication-factor")
    said = end_of_replaced(commands, (*order, "3"), (*order, "1", "--yes"))
    assert b"changing the replication factor of orders to 3: it was changed again in the meantime, to 1" in said


def test_the_plan_for_another_replication_factor_is_a_table(commands: ClusterCommands) -> None:
    planned = commands.text("topic", "alter", "orders", "--replication-factor", "3", "--dry-run").splitlines()
    assert planned[0].split() == ["partition", "from", "to", "reason", "bytes"]
    assert [line.split()[0] for line in planned[1:4]] == ["orders/0", "orders/1", "orders/2"]
    assert planned[-1] == "replication factor 3 of topic orders: 3 partitions to change"


def test_without_a_wait_the_command_names_the_one_that_shows_the_progress(commands: ClusterCommands) -> None:
    said = commands.text("topic", "alter", "orders", "--replication-factor", "3", "--no-wait")
    assert said == "topic orders gets replication factor 3: raftmq cluster moves shows the progress\n"


def test_a_lower_replication_factor_shows_its_effect_and_asks(commands: ClusterCommands) -> None:
    arguments = ("topic", "alter", "orders", "--replication-factor", "1")
    declined = commands.fed(*arguments, stdin=b"n\n")
    assert declined.returncode == 130
    preview = "topic orders: replication factor 2, 3 partitions to change\n"
    assert declined.stderr.startswith(f"{preview}Keep only 1 replica of each partition of topic orders?")
    assert_refused(commands.run(*arguments), 2, "pass --yes")
    assert [len(replicas) for replicas in commands.replicas()] == [2, 2, 2]
    answer = commands.answer(*arguments, "--yes", "--no-wait")
    assert answer == {"topic": "orders", "result": "changing", "replication_factor": 1, "move_count": 3}


def test_more_replicas_than_brokers_are_refused(commands: ClusterCommands) -> None:
    for options in ((), ("--dry-run",), ("--yes",)):
        done = commands.run("topic", "alter", "orders", "--replication-factor", "4", *options)
        assert_refused(done, 4, "INVALID_REPLICATION_FACTOR")


def test_a_moved_partition_is_pinned_until_the_pin_is_ended(commands: ClusterCommands) -> None:
    commands.text("partition", "move", "orders", "0", "--to", "3,2")
    assert commands.text("partition", "list", "orders").splitlines()[1].endswith("3, 2 (pinned)")
    assert commands.answer("partition", "list", "orders")[0]["is_pinned"] is True
    assert "pinned: an operator moved it" in commands.text("partition", "describe", "orders", "0")
    said = commands.text("partition", "move", "orders", "0", "--unpin")
    assert said == "partition orders/0 unpinned: automatic balancing may move it\n"
    assert (
        commands.text("partition", "move", "orders", "0", "--unpin")
        == "partition orders/0 is not pinned: nothing changed\n"
    )
    again = commands.answer("partition", "move", "orders", "0", "--unpin")
    assert again == {"result": "unpinned", "topic": "orders", "partition": 0, "was_pinned": False}
    assert commands.answer("partition", "describe", "orders", "0")["is_pinned"] is False
    for arguments in ((), ("--unpin", "--to", "1,2"), ("--unpin", "--dry-run")):
        assert commands.run("partition", "move", "orders", "0", *arguments).returncode == 2
