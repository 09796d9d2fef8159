"""`raftmq cluster recover` and `raftmq partition recover` against fake brokers."""

from __future__ import annotations

import json

from raftmq.proto import queue_pb2 as pb

from tests.support.cli.cluster_commands import ClusterCommands
from tests.support.cli.queue_commands import assert_refused
from tests.support.client.fake_recovery import FakeLosses, lose


def test_lost_partitions_are_listed_with_what_is_known_of_their_replicas(commands: ClusterCommands) -> None:
    assert commands.text("cluster", "recover") == "every partition has a majority of its replicas, or a leader\n"
    lose(commands.cluster.losses, "orders", 1)
    done = commands.run("cluster", "recover")
    assert done.returncode == 3
    assert [line.split() for line in done.stdout.splitlines() if line] == [
        [
            "partition",
            "broker",
            "condition",
            "newest",
            "term",
            "index",
            "committed",
            "start",
            "end",
            "watermark",
            "last",
            "seen",
        ],
        ["orders/1", "1", "served", "yes", "6", "30", "28", "2", "20", "18", "now"],
        ["orders/1", "2", "quarantined", "-", "?", "?", "?", "?", "?", "?", "-"],
        ["orders/1", "3", "unreachable", "-", "?", "?", "?", "?", "?", "?", "61", "s", "ago"],
        ["orders/1", "on", "broker", "2:", "its", "file", "is", "missing"],
        ["1", "partition", "without", "a", "majority"],
    ]
    found = commands.run("cluster", "recover", "-o", "json")
    assert found.returncode == 3
    assert '"unreachable_seconds": 61.4' in found.stdout
    assert '"newest_broker_id": 1, "is_newest_certain": true' in found.stdout


def test_a_recovery_says_what_may_be_lost_and_asks(commands: ClusterCommands) -> None:
    losses = commands.cluster.losses
    lose(losses, "orders", 1)
    recover = ("partition", "recover", "orders", "1", "--keep", "1")
    assert_refused(commands.run(*recover), 2, "pass --unsafe to accept the loss")
    planned = commands.text(*recover, "--unsafe", "--dry-run")
    assert planned.startswith("partition orders/1 planned\n")
    asked = commands.run(*recover, "--unsafe")
    assert asked.returncode == 2, "nobody answers"
    for words in (
        "the replica on broker 1 is kept and ends at offset 20", "abandoned: 2, 3", "records from offset 20 on",
        "at least 3 records up to offset 23 are known", "Abandon the other replicas of orders/1 permanently?",
    ):  # fmt: skip
        assert words in asked.stderr
    assert all(request.dry_run for request in losses.requests)
    answer = commands.answer(*recover, "--unsafe", "--yes")
    assert (answer["result"], answer["log_end_offset"], answer["known_loss"]) == ("recovered", 20, 3)
    assert losses.partitions == []
    listed = commands.text("cluster", "recover")
    assert (
        "orders/1 was recovered from broker 1 at 2023-11-14T22:13:20Z: records from offset 20 on may be missing"
        in listed
    )
    assert listed.endswith(", 3 records known to be lost\n")
    assert_refused(commands.run(*recover, "--unsafe", "--yes"), 2, "INVALID_ARGUMENT")


def diverge(losses: FakeLosses, *, last_terms: tuple[int, int]) -> None:
    """Let broker 1 and 2 serve replicas of orders/1: the one on broker 1 has the higher end."""
    lose(losses, "orders", 1)
    first, second = losses.partitions[0].replicas[:2]
    second.CopyFrom(first)
    first.last_term, second.last_term = last_terms
    second.broker_id, second.last_index, second.commit_index, second.log_end_offset = 2, 29, 27, 19


def test_a_recovery_warns_of_a_newer_replica_before_it_asks(commands: ClusterCommands) -> None:
    """Broker 1 led, was cut off, and appended records that nobody acknowledged. It lacks those of the next leader."""
    diverge(commands.cluster.losses, last_terms=(6, 7))
    rows = [line.split()[1:5] for line in commands.run("cluster", "recover").stdout.splitlines()[1:3]]
    assert rows == [["1", "served", "-", "6"], ["2", "served", "yes", "7"]]
    recover = ("partition", "recover", "orders", "1", "--unsafe")
    for options in ((), ("--dry-run",), ("--dry-run", "-o", "json"), ("--yes",)):
        done = commands.run(*recover, "--keep", "1", *options)
        for words in (
            "WARNING: broker 2 has a newer replica of orders/1 than broker 1: keep that one (--keep 2)",
            "WARNING: the last entry is term 7, index 29 on broker 2, and term 6, index 30 on broker 1",
            "WARNING: broker 1 may lack acknowledged records from offset 18 on, or have others at their offsets",
        ):
            assert words in done.stderr, options
        if not options:
            assert done.stderr.index("WARNING") < done.stderr.index("Abandon the other replicas")
    diverge(commands.cluster.losses, last_terms=(6, 7))
    right = commands.run(*recover, "--keep", "2", "--dry-run", "-o", "json")
    assert right.stderr == ""
    assert json.loads(right.stdout)["newer_broker_id"] is None
    assert commands.answer(*recover, "--keep", "1", "--yes")["newer_broker_id"] == 2


def test_an_unknown_order_of_replicas_is_said(commands: ClusterCommands) -> None:
    losses = commands.cluster.losses
    diverge(losses, last_terms=(0, 7))
    listed = commands.run("cluster", "recover").stdout
    assert [line.split()[1:5] for line in listed.splitlines()[1:3]] == [
        ["1", "served", "perhaps", "?"],
        ["2", "served", "-", "7"],
    ]
    assert "perhaps: a broker of an older version does not report the term of its last entry" in listed
    recover = ("partition", "recover", "orders", "1", "--unsafe", "--dry-run", "--keep")
    wrong = commands.run(*recover, "2").stderr
    assert "WARNING: broker 1 perhaps has a newer replica of orders/1 than broker 2" in wrong
    assert "WARNING: the newest replica of orders/1 is unknown" in wrong
    right = commands.run(*recover, "1").stderr
    assert "perhaps" not in right
    assert "WARNING: the newest replica of orders/1 is unknown" in right
    losses.is_old = True
    assert "WARNING: the newest replica of orders/1 is unknown" in commands.run(*recover, "1").stderr


def test_a_recovery_warns_of_a_replica_that_is_being_opened(commands: ClusterCommands) -> None:
    lose(commands.cluster.losses, "orders", 1)
    commands.cluster.losses.partitions[0].replicas[1].condition = pb.STARTING
    done = commands.run("partition", "recover", "orders", "1", "--unsafe", "--dry-run", "--keep", "1")
    assert "WARNING: replicas of orders/1 that may be newer are being opened on brokers 2: look again" in done.stderr


def test_a_forced_removal_names_lost_partitions_of_the_broker_before_it_asks(commands: ClusterCommands) -> None:
    """They were named only after its replicas had been given up for good, when it could not be brought back any more."""
    losses = commands.cluster.losses
    lose(losses, "orders", 1)
    del losses.partitions[0].replicas[2:]
    for number in range(2, 14):
        lose(losses, "orders", number)
    asked = commands.run("cluster", "remove", "3", "--force")
    assert asked.returncode == 2, "nobody answers"
    assert (
        "12 partitions with a replica on it have no majority of replicas within reach: "
        "orders/2, orders/3, orders/4, orders/5, orders/6, orders/7, orders/8, orders/9, orders/10, orders/11 and 2 more\n"
    ) in asked.stderr
    assert asked.stderr.index("given up for good") < asked.stderr.index("Remove broker 3 permanently")
    del losses.partitions[2:]
    assert "1 partition with a replica on it has no majority of replicas within reach: orders/2\n" in (
        commands.run("cluster", "remove", "3", "--force").stderr
    )
    assert "majority" not in commands.run("cluster", "remove", "3").stderr, "only an empty broker is removed"
    losses.partitions.clear()
    assert "majority" not in commands.run("cluster", "remove", "3", "--force").stderr


def test_a_forced_removal_says_that_more_partitions_may_be_concerned_than_are_listed(commands: ClusterCommands) -> None:
    losses = commands.cluster.losses
    lose(losses, "orders", 1)
    losses.unlisted_count = 5
    asked = commands.run("cluster", "remove", "3", "--force")
    assert (
        "at least 1 partition with a replica on it has no majority of replicas within reach: orders/1\n" in asked.stderr
    )
