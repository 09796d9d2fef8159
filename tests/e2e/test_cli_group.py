"""`raftmq group` and `raftmq consume --group` with a real broker."""

import json
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest
from raftmq import TopicPartition, sync
from raftmq.testing import LocalCluster

from tests.support.e2e.raftmq_command import answer, assert_one_sentence, completions, raftmq, started

pytestmark = [pytest.mark.e2e]

COUNT = 60
PARTITIONS = 2


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=1) as running:
        yield running


@pytest.fixture
def topic(cluster: LocalCluster, request: pytest.FixtureRequest) -> str:
    """Create a topic with 30 records in each partition and return its name, which is also the group's."""
    name = f"group-{abs(hash(request.node.nodeid))}"
    with sync.Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        admin.create_topic(name, partitions=PARTITIONS, replication_factor=1)
    with sync.Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        for number in range(PARTITIONS):
            records = [(None, b"%d" % n) for n in range(COUNT // PARTITIONS)]
            producer.send_many(name, records, partition=number).result(30)
    return name


def described(cluster: LocalCluster, group: str) -> dict[str, Any]:
    found = answer(cluster, "group", "describe", group)
    assert isinstance(found, dict)
    return found


def committed(cluster: LocalCluster, group: str) -> list[int | None]:
    return [one["committed"] for one in described(cluster, group)["offsets"]]


def consumed(cluster: LocalCluster, topic: str, *arguments: str) -> list[tuple[int, int]]:
    done = raftmq(cluster, "consume", topic, "--group", topic, "--from-beginning", "-e", "-o", "json", *arguments)
    assert done.returncode == 0, done.stderr
    return [(one["partition"], one["offset"]) for one in map(json.loads, done.stdout.splitlines())]


def test_printed_records_are_committed_and_the_next_run_continues_after_them(cluster: LocalCluster, topic: str) -> None:
    first = consumed(cluster, topic, "--max-records", "25")
    assert len(first) == 25
    second = consumed(cluster, topic)
    assert sorted(first + second) == [(p, n) for p in range(PARTITIONS) for n in range(30)]
    assert consumed(cluster, topic) == []
    found = described(cluster, topic)
    assert (found["state"], found["members"]) == ("empty", [])
    assert [one["lag_records"] for one in found["offsets"]] == [0, 0]
    groups = answer(cluster, "group", "list")
    assert isinstance(groups, list)
    (listed,) = (one for one in groups if one["group"] == topic)
    assert (listed["members"], listed["partitions"], listed["lag_records"]) == (0, PARTITIONS, 0)
    head, *rows = raftmq(cluster, "group", "list").stdout.decode().splitlines()
    assert head.split() == ["group", "state", "members", "assignor", "partitions", "lag"]
    assert [row.split() for row in rows if topic in row] == [[topic, "empty", "0", "sticky", str(PARTITIONS), "0"]]
    assert f"group {topic}: empty, 0 members" in raftmq(cluster, "group", "describe", topic).stdout.decode()


def test_groups_are_listed_with_their_members(cluster: LocalCluster, topic: str) -> None:
    with sync.Consumer(topic, bootstrap_servers=cluster.bootstrap_servers, group_id=topic, client_id="me") as consumer:
        while len(consumer.assignment()) < PARTITIONS:
            consumer.getmany(timeout_ms=100)
        listed = answer(cluster, "group", "list")
        assert isinstance(listed, list)
        one = next(one for one in listed if one["group"] == topic)
        assert (one["state"], one["members"], one["assignor"]) == ("stable", 1, "sticky")
        (member,) = described(cluster, topic)["members"]
        assert (member["client_id"], member["topics"], len(member["partitions"])) == ("me", [topic], PARTITIONS)
        text = raftmq(cluster, "group", "describe", topic).stdout.decode()
        assert f"group {topic}: stable, 1 member\n" in text
        assert member["member_id"] in text
        refused = raftmq(cluster, "group", "delete", topic, "--yes")
        assert refused.returncode == 4
        refused = raftmq(cluster, "group", "reset-offsets", topic, "--to-earliest", "--yes")
        assert refused.returncode == 4
        assert b"stop its consumers first" in refused.stderr
        assert raftmq(cluster, "group", "remove-member", topic, "--member", "nobody").returncode == 4
        assert answer(cluster, "group", "remove-member", topic, "-m", member["member_id"]) == {
            "group": topic,
            "member_id": member["member_id"],
            "instance_id": None,
            "result": "removed",
        }


def test_every_kind_of_reset_moves_the_committed_offsets(cluster: LocalCluster, topic: str) -> None:
    consumed(cluster, topic)
    reset = ("group", "reset-offsets", topic, "--yes")
    shown = answer(cluster, *reset, "--to-earliest", "--dry-run")
    assert shown == [{"topic": topic, "partition": p, "before": 30, "after": 0} for p in range(PARTITIONS)]
    assert committed(cluster, topic) == [30, 30]
    answer(cluster, *reset, "--to-earliest")
    assert committed(cluster, topic) == [0, 0]
    behind = described(cluster, topic)["offsets"]
    assert [one["lag_records"] for one in behind] == [30, 30]
    assert all(one["lag_seconds"] > 0 for one in behind)
    answer(cluster, *reset, "--shift-by", "12", "--topic", topic, "--partition", "1")
    assert committed(cluster, topic) == [0, 12]
    answer(cluster, *reset, "--shift-by", "-5")
    assert committed(cluster, topic) == [0, 7]
    answer(cluster, *reset, "--to-offset", f"{topic}:0=9", "--to-offset", f"{topic}:1=8")
    assert committed(cluster, topic) == [9, 8]
    answer(cluster, *reset, "--to-time", "1h")
    assert committed(cluster, topic) == [0, 0]
    answer(cluster, *reset, "--to-latest", "--topic", topic)
    assert committed(cluster, topic) == [30, 30]
    assert consumed(cluster, topic) == []
    answer(cluster, *reset, "--to-offset", f"{topic}:1=28")
    assert consumed(cluster, topic) == [(1, 28), (1, 29)]


def test_a_reset_can_create_a_group_and_can_fence_its_members(cluster: LocalCluster, topic: str) -> None:
    reset = ("group", "reset-offsets", topic, "--yes")
    assert raftmq(cluster, *reset, "--to-latest").returncode == 4, "the group does not exist"
    answer(cluster, *reset, "--to-offset", f"{topic}:0=29", "--to-offset", f"{topic}:1=30")
    with sync.Consumer(topic, bootstrap_servers=cluster.bootstrap_servers, group_id=topic) as consumer:
        assert next(consumer).offset == 29
        answer(cluster, *reset, "--to-offset", f"{topic}:1=27", "--fence-members")
        assert [next(consumer).offset for _ in range(3)] == [27, 28, 29]


def test_a_deleted_group_loses_its_offsets(cluster: LocalCluster, topic: str) -> None:
    consumed(cluster, topic)
    done = raftmq(cluster, "group", "delete", topic, "--yes")
    assert (done.returncode, done.stdout.decode()) == (0, f"group {topic} deleted: offsets of 2 partitions removed\n")
    for order in (("describe", topic), ("delete", topic, "--yes"), ("remove-member", topic, "-m", "nobody")):
        unknown = raftmq(cluster, "group", *order)
        assert unknown.returncode == 4
        assert topic in unknown.stderr.decode()
    assert b"raftmq group list" in raftmq(cluster, "group", "delete", topic, "--yes").stderr
    assert len(consumed(cluster, topic)) == COUNT
    deleted = answer(cluster, "group", "delete", topic, "--yes")
    assert deleted == {"group": topic, "result": "deleted", "partitions": PARTITIONS}


def test_a_shift_needs_a_committed_offset_in_each_partition(cluster: LocalCluster, topic: str) -> None:
    """A group that does not exist is named, although the topic is."""
    shift = ("group", "reset-offsets", topic, "--yes", "--shift-by", "1")
    for arguments in (shift, (*shift, "--topic", topic)):
        assert_one_sentence(raftmq(cluster, *arguments), 4, f"no consumer group '{topic}'", "raftmq group list")
    answer(cluster, "group", "reset-offsets", topic, "--yes", "--to-offset", f"{topic}:1=4")
    refused = raftmq(cluster, *shift, "--topic", topic)
    assert_one_sentence(refused, 4, f"no committed offset in {topic}/0", "name only partitions in which it has one")
    assert committed(cluster, topic) == [4], "nothing changed"
    answer(cluster, *shift, "--topic", topic, "--partition", "1")
    assert committed(cluster, topic) == [5]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("group", "reset-offsets", "g"), "exactly one of --to-earliest"),
        (("group", "reset-offsets", "g", "--to-latest", "--to-earliest"), "exactly one of --to-earliest"),
        (("group", "reset-offsets", "g", "--shift-by", "5", "--to-time", "1h"), "exactly one of --to-earliest"),
        (("group", "reset-offsets", "g", "--shift-by", "0", "--to-offset", "t:0=1"), "exactly one of --to-earliest"),
        (("group", "reset-offsets", "g", "--shift-by", "1.5"), "'1.5' is not a whole number"),
        (("group", "reset-offsets", "g", "--shift-by", "1", "-p", "1"), "exactly one --topic"),
        (("group", "reset-offsets", "g", "--shift-by", "1", "-p", "1", "-t", "t", "-t", "u"), "exactly one --topic"),
        (("group", "reset-offsets", "g", "--to-offset", "t=1"), "'t=1' is not TOPIC:PARTITION=OFFSET"),
        (("group", "reset-offsets", "g", "--to-offset", "t:1=x"), "'t:1=x' is not TOPIC:PARTITION=OFFSET"),
        (
            ("group", "reset-offsets", "g", "--to-offset", "t:1=1", "--to-offset", "t:1=2"),
            "t:1 is given more than once",
        ),
        (("group", "reset-offsets", "g", "--to-latest", "--partition", "1"), "exactly one --topic"),
        (("group", "reset-offsets", "g", "--to-offset", "t:0=1", "--topic", "t"), "--topic: do not combine it"),
        (("group", "reset-offsets", "g", "--to-offset", "t:0=1", "-p", "0"), "--partition: do not combine it"),
        (("group", "remove-member", "g"), "either --member or --instance"),
        (("group", "remove-member", "g", "-m", "x", "-i", "y"), "either --member or --instance"),
        (("consume", "t", "--group", "g", "--offset", "1"), "raftmq group reset-offsets"),
    ],
)
def test_contradictory_or_malformed_arguments_are_usage_errors(
    cluster: LocalCluster, arguments: tuple[str, ...], words: str
) -> None:
    done = raftmq(cluster, *arguments)
    assert done.returncode == 2
    assert words in " ".join(done.stderr.decode().split())


def test_the_shell_completes_names_of_groups(cluster: LocalCluster, topic: str) -> None:
    consumed(cluster, topic)
    assert completions(cluster, f"raftmq group describe {topic[:-1]}") == [topic]


def test_a_reset_to_an_offset_that_does_not_exist_changes_nothing(cluster: LocalCluster, topic: str) -> None:
    consumed(cluster, topic)
    refused = raftmq(
        cluster, "group", "reset-offsets", topic, "--yes", "--to-offset", f"{topic}:0=5", "--to-offset", f"{topic}:1=31"
    )
    assert refused.returncode == 4
    assert b"has no offset 31" in refused.stderr
    assert committed(cluster, topic) == [30, 30]


def test_the_command_shares_partitions_with_another_consumer_of_its_group(cluster: LocalCluster, topic: str) -> None:
    with started(cluster, "consume", topic, "--group", topic, "--max-records", "5", "-o", "json") as waiting:
        while len(described_or_nothing(cluster, topic)) < 1:
            pass
        with sync.Consumer(topic, bootstrap_servers=cluster.bootstrap_servers, group_id=topic) as consumer:
            while len(consumer.assignment()) != 1:
                consumer.getmany(timeout_ms=50)
            (mine,) = consumer.assignment()
            other = TopicPartition(topic, 1 - mine.partition)
            with sync.Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
                # the command starts at the end of the log as of its first request, so it misses records sent earlier
                while waiting.poll() is None:
                    producer.send(topic, b"new", partition=other.partition).result(30)
                    time.sleep(0.05)
            assert waiting.stdout is not None
            printed = [json.loads(line) for line in waiting.stdout]
            assert [(one["partition"], one["value"]) for one in printed] == [(other.partition, "new")] * 5
            assert waiting.wait(30) == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_commits_the_printed_records_and_leaves_the_group(
    cluster: LocalCluster, topic: str, number: signal.Signals
) -> None:
    with started(cluster, "consume", topic, "--group", topic, "--from-beginning") as consumer:
        assert consumer.stdout is not None
        for _ in range(COUNT):
            consumer.stdout.readline()
        consumer.send_signal(number)
        assert consumer.wait(20) == 130
        assert consumer.stderr is not None
        assert consumer.stderr.read() == b""
    found = described(cluster, topic)
    assert [one["committed"] for one in found["offsets"]] == [30, 30]
    assert found["members"] == []


def test_a_signal_ends_a_command_whose_reader_has_stalled(cluster: LocalCluster) -> None:
    """The command waited in a write to the full pipe, and no signal but SIGKILL ended it."""
    assert raftmq(cluster, "topic", "create", "stalled", "--partitions", "1").returncode == 0
    assert raftmq(cluster, "produce", "stalled", stdin=(b"x" * 999 + b"\n") * 300).returncode == 0
    with started(cluster, "consume", "stalled", "--group", "stalled", "--from-beginning") as consumer:
        assert consumer.stdout is not None
        consumer.stdout.read(1)
        consumer.send_signal(signal.SIGTERM)
        assert consumer.wait(20) == 130
        assert consumer.stderr is not None
        assert consumer.stderr.read() == b"raftmq: the reader of the output has stopped reading\n"
    found = described(cluster, "stalled")
    assert [one["committed"] for one in found["offsets"]] == [None]
    assert found["members"] == []


def described_or_nothing(cluster: LocalCluster, group: str) -> list[Any]:
    done = raftmq(cluster, "group", "describe", group, "-o", "json")
    members: list[Any] = json.loads(done.stdout)["members"] if done.returncode == 0 else []
    return members


def test_partitions_whose_broker_is_down_are_said_to_be_missing() -> None:
    """A reset of everything would leave them out without a word."""
    with LocalCluster(brokers=3) as running:
        with sync.Admin(bootstrap_servers=running.bootstrap_servers) as admin:
            admin.create_topic("lonely", partitions=1, replication_factor=1)
            with sync.Producer(bootstrap_servers=running.bootstrap_servers) as producer:
                producer.send_many("lonely", [(None, b"1"), (None, b"2")]).result(30)
            admin.reset_group_offsets("audit", to="latest", topics=["lonely"])
            leader = admin.describe_topic("lonely", ask_leaders=True).partitions[0].leader_broker_id
        whole = described(running, "audit")
        assert ([one["committed"] for one in whole["offsets"]], whole["is_partial"]) == ([2], False)
        running.kill(leader)
        found = raftmq(running, "group", "describe", "audit")
        assert found.returncode == 0
        assert (
            b"the leaders of some partitions do not answer: offsets of group audit there are not listed" in found.stderr
        )
        partial = described(running, "audit")
        assert (partial["offsets"], partial["is_partial"]) == ([], True)
        refused = raftmq(running, "group", "reset-offsets", "audit", "--to-earliest", "--yes", "--timeout", "5s")
        assert_one_sentence(refused, 3, "may have offsets there", "name the topics")
