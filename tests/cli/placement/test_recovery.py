"""`raftmq cluster recover` and `raftmq partition recover` against fake brokers."""

from __future__ import annotations

from tests.support.cli.cluster_commands import ClusterCommands
from tests.support.cli.queue_commands import assert_refused
from tests.support.client.fake_recovery import lose


def test_lost_partitions_are_listed_with_what_is_known_of_their_replicas(commands: ClusterCommands) -> None:
    assert commands.text("cluster", "recover") == "every partition has a majority of its replicas, or a leader\n"
    lose(commands.cluster.losses, "orders", 1)
    done = commands.run("cluster", "recover")
    assert done.returncode == 3
    assert [line.split() for line in done.stdout.splitlines() if line] == [
        ["partition", "broker", "condition", "index", "committed", "start", "end", "watermark", "last", "seen"],
        ["orders/1", "1", "served", "30", "28", "2", "20", "18", "now"],
        ["orders/1", "2", "quarantined", "?", "?", "?", "?", "?", "-"],
        ["orders/1", "3", "unreachable", "?", "?", "?", "?", "?", "61", "s", "ago"],
        ["orders/1", "on", "broker", "2:", "its", "file", "is", "missing"],
        ["1", "partition", "without", "a", "majority"],
    ]
    found = commands.run("cluster", "recover", "-o", "json")
    assert found.returncode == 3
    assert '"unreachable_seconds": 61.4' in found.stdout


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
