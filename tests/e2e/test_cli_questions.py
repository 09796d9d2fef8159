"""Irreversible commands check their arguments and show their effect before they ask for confirmation."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from raftmq import sync
from raftmq.fsm.feature_levels import FEATURE_LEVEL
from raftmq.testing import LocalCluster

from tests.support.e2e.raftmq_command import Terminal, answer, assert_one_sentence, raftmq

pytestmark = [pytest.mark.e2e]


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=1) as running:
        with sync.Admin(bootstrap_servers=running.bootstrap_servers) as admin:
            admin.create_topic("orders", partitions=2, replication_factor=1)
        with sync.Producer(bootstrap_servers=running.bootstrap_servers) as producer:
            producer.send_many("orders", [(None, b"%d" % n) for n in range(30)], partition=0).result(30)
            producer.send_many("orders", [(None, b"%d" % n) for n in range(10)], partition=1).result(30)
        done = raftmq(running, "consume", "orders", "--group", "audit", "--from-beginning", "-e")
        assert done.returncode == 0, done.stderr
        yield running


@pytest.mark.parametrize(
    ("arguments", "preview", "question"),
    [
        (
            ("topic", "delete", "orders"),
            "topic orders: 2 partitions, 40 records\n",
            "Delete topic orders and all of its records?",
        ),
        (
            ("topic", "delete-records", "orders", "--before", "8"),
            "0          0             8        30\n1          0             8        10\n",
            "Delete the records below offset 8 in every partition of topic orders?",
        ),
        (
            ("topic", "delete-records", "orders", "--all", "--partition", "1"),
            "1          0             10       10\n",
            "Delete all records in partition 1 of topic orders?",
        ),
        (
            ("group", "reset-offsets", "audit", "--shift-by", "-5"),
            "orders  0          30      25\norders  1          10      5\n",
            "Reset the offsets of group audit?",
        ),
        (("group", "delete", "audit"), "orders  0          30", "Delete group audit and its offsets?"),
        (("cluster", "remove", "1"), "broker 1 at 127.0.0.1:", "Remove broker 1 permanently?"),
        (("cluster", "raise-level"), f"feature level {FEATURE_LEVEL}\n", "Raise the feature level permanently?"),
        (("cluster", "remove", "1", "--force"), " replicas, leads ", "permanently and give up the data on it?"),
    ],
)
def test_a_command_shows_its_effect_before_it_asks_and_a_no_changes_nothing(
    cluster: LocalCluster, arguments: tuple[str, ...], preview: str, question: str
) -> None:
    declined = raftmq(cluster, *arguments, stdin=b"n\n")
    said = declined.stderr.decode()
    assert declined.returncode == 130, said
    assert preview in said
    assert said.index(preview) < said.index(question)
    assert preview.encode() not in declined.stdout
    nobody = raftmq(cluster, *arguments)
    assert nobody.returncode == 2
    assert nobody.stderr.endswith(b"raftmq: no answer on standard input: pass --yes to skip the confirmation\n")
    shown = answer(cluster, "group", "describe", "audit")
    assert isinstance(shown, dict)
    offsets = [(one["committed"], one["log_start_offset"], one["end_offset"]) for one in shown["offsets"]]
    assert offsets == [(30, 0, 30), (10, 0, 10)]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("topic", "delete", "none"), 4, "'none'"),
        (("topic", "delete-records", "none", "--all"), 4, "'none'"),
        (("topic", "delete-records", "orders", "--before", "11"), 4, "orders/1 has no offset 11"),
        (("topic", "delete-records", "orders", "--all", "-p", "2"), 4, "has partitions 0 to 1, not 2"),
        (("group", "delete", "none"), 4, "'none'"),
        (("group", "reset-offsets", "none", "--to-latest"), 4, "'none'"),
        (("group", "reset-offsets", "audit", "--to-offset", "orders:0=31"), 4, "31"),
        (("cluster", "remove", "7"), 4, "there is no broker 7; there are 1"),
        (("dlq", "redrive", "none"), 4, "'none'"),
        (("dlq", "purge", "none"), 4, "'none'"),
    ],
)
def test_invalid_arguments_are_refused_without_a_question(
    cluster: LocalCluster, arguments: tuple[str, ...], code: int, words: str
) -> None:
    assert_one_sentence(raftmq(cluster, *arguments, stdin=b"y\n"), code, words)


@pytest.mark.parametrize("arguments", [("delete",), ("reset-offsets", "--to-earliest")])
def test_a_group_with_members_is_refused_without_a_question(cluster: LocalCluster, arguments: tuple[str, ...]) -> None:
    command, *rest = arguments
    with sync.Consumer("orders", bootstrap_servers=cluster.bootstrap_servers, group_id="audit") as consumer:
        while not consumer.assignment():
            consumer.getmany(timeout_ms=100)
        refused = raftmq(cluster, "group", command, "audit", *rest, stdin=b"y\n")
    assert refused.returncode == 4
    assert b"group audit has 1 member" in refused.stderr
    assert b"[y/N]" not in refused.stderr


def test_a_confirmed_reset_does_what_it_showed(cluster: LocalCluster) -> None:
    done = raftmq(cluster, "group", "reset-offsets", "audit", "--shift-by", "-5", stdin=b"y\n")
    assert done.returncode == 0, done.stderr
    assert done.stdout.decode().splitlines()[-2:] == ["orders  0          30      25", "orders  1          10      5"]
    assert raftmq(cluster, "group", "reset-offsets", "audit", "--to-latest", "--yes").returncode == 0


def test_a_confirmed_deletion_of_records_spares_those_that_came_during_the_question(cluster: LocalCluster) -> None:
    raftmq(cluster, "topic", "create", "late", "--partitions", "2")
    raftmq(cluster, "produce", "late", "--partition", "0", stdin=b"a\nb\n")
    asked = Terminal(cluster, "topic", "delete-records", "late", "--all")
    asked.read_until("[y/N]: ")
    raftmq(cluster, "produce", "late", "--partition", "0", stdin=b"c\n")
    asked.type_until_end("y\n")
    assert asked.end()[0] == 0
    assert raftmq(cluster, "consume", "late", "--from-beginning", "-e").stdout == b"c\n"


def test_a_deletion_of_records_is_checked_before_a_part_of_it_is_done(cluster: LocalCluster) -> None:
    raftmq(cluster, "topic", "create", "partly")
    raftmq(cluster, "produce", "partly", stdin=b"a\n")
    done = raftmq(cluster, "topic", "delete-records", "partly", "--before", "1", "-p", "0", "-p", "9", "--yes")
    assert_one_sentence(done, 4, "9")
    assert raftmq(cluster, "consume", "partly", "--from-beginning", "-e").stdout == b"a\n"
    assert (
        raftmq(cluster, "topic", "delete-records", "none", "--before", "1", "-p", "0", "-p", "9", "--yes").returncode
        == 4
    )


def test_a_confirmed_level_is_reported(cluster: LocalCluster) -> None:
    said = raftmq(cluster, "cluster", "raise-level", stdin=b"y\n").stdout.decode()
    assert said == f"the cluster is at feature level {FEATURE_LEVEL}\n"
    assert answer(cluster, "cluster", "raise-level", "--yes") == {"feature_level": FEATURE_LEVEL}


@pytest.mark.parametrize("key", ["\x03", "\x04"], ids=["Ctrl-C", "Ctrl-D"])
def test_a_question_on_a_terminal_is_declined_by_one_key(cluster: LocalCluster, key: str) -> None:
    """A script without a terminal is told about --yes instead."""
    asked = Terminal(cluster, "topic", "delete", "orders")
    asked.read_until("[y/N]: ")
    asked.type_until_end(key)
    code, shown = asked.end()
    assert code == 130
    assert "--yes" not in shown


@pytest.mark.parametrize(
    ("command", "kind", "result"),
    [
        (("produce",), "log", "2 records written to typed-log"),
        (("queue", "put"), "queue", "2 messages put into typed-queue"),
    ],
)
def test_a_person_is_told_how_to_end_the_input(
    cluster: LocalCluster, command: tuple[str, ...], kind: str, result: str
) -> None:
    assert raftmq(cluster, "topic", "create", f"typed-{kind}", "--kind", kind).returncode == 0
    typing = Terminal(cluster, *command, f"typed-{kind}")
    typing.read_until("per line; Ctrl-D ends")
    typing.type("one\ntwo\n\x04")
    code, shown = typing.end()
    assert (code, shown.splitlines()[-1]) == (0, result)


def test_the_error_of_the_partition_limit_names_the_requested_number(cluster: LocalCluster) -> None:
    """The error once named a number that nobody had requested: `at most 10000, not 9998`."""
    with sync.Admin(bootstrap_servers=cluster.bootstrap_servers) as admin, pytest.raises(Exception, match="not 10001"):
        admin.add_partitions("orders", 10_001)


def test_a_setting_accepts_a_time_with_a_unit_and_an_unknown_setting_gets_a_suggestion(cluster: LocalCluster) -> None:
    assert raftmq(cluster, "topic", "create", "short", "--config", "retention.ms=2h").returncode == 0
    described = answer(cluster, "topic", "describe", "short")
    assert isinstance(described, dict)
    assert described["config"] == {"retention.ms": "7200000"}
    done = raftmq(cluster, "topic", "alter", "short", "--config", "retention.mss=1d")
    assert_one_sentence(done, 2, "there is no setting 'retention.mss': did you mean retention.ms?")
