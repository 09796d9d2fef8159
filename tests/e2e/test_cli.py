"""The command line against real brokers: the commands of the README, and what they say when the cluster says no."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
from raftmq.testing import LocalCluster

pytestmark = [pytest.mark.e2e]


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=3) as running:
        yield running


@pytest.fixture
def topic(cluster: LocalCluster, request: pytest.FixtureRequest) -> str:
    name = f"cli-{abs(hash(request.node.nodeid))}"
    assert raftmq(cluster, "topic", "create", name, "--partitions", "2", "--replication-factor", "3").returncode == 0
    return name


def raftmq(cluster: LocalCluster, *arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    environment = os.environ | {"RAFTMQ_BOOTSTRAP_SERVERS": cluster.bootstrap_servers}
    command = [sys.executable, "-m", "raftmq", *arguments]
    return subprocess.run(command, input=stdin, capture_output=True, check=False, timeout=60, env=environment)


def answer(cluster: LocalCluster, *arguments: str) -> object:
    done = raftmq(cluster, *arguments, "--output", "json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_status_shows_three_voters_and_one_leader(cluster: LocalCluster) -> None:
    status = answer(cluster, "cluster", "status")
    assert isinstance(status, dict)
    assert [node["node_id"] for node in status["nodes"]] == [1, 2, 3]
    assert all(node["is_metadata_voter"] and node["is_connected"] for node in status["nodes"])
    assert len({node["host"] for node in status["nodes"]}) == 3
    assert status["metadata_leader_node_id"] in (1, 2, 3)
    text = raftmq(cluster, "cluster", "status").stdout.decode()
    assert text.count("local-") == 3
    assert "none without a leader" in text


def test_a_topic_is_listed_and_described(cluster: LocalCluster, topic: str) -> None:
    listed = answer(cluster, "topic", "list")
    assert isinstance(listed, list)
    assert {"name": topic, "partitions": 2, "replication_factor": 3, "config": {}} in listed
    described = answer(cluster, "topic", "describe", topic)
    assert isinstance(described, dict)
    assert [sorted(p["replica_nodes"]) for p in described["partitions"]] == [[1, 2, 3], [1, 2, 3]]
    assert all(p["leader_node_id"] in (1, 2, 3) for p in described["partitions"])
    assert f"topic {topic}: 2 partitions" in raftmq(cluster, "topic", "describe", topic).stdout.decode()


def test_what_is_produced_can_be_consumed(cluster: LocalCluster, topic: str) -> None:
    lines = [f"key-{n % 5}:value {n}" for n in range(1000)]
    done = raftmq(cluster, "produce", topic, "--key-separator", ":", stdin="\n".join(lines).encode())
    assert (done.returncode, done.stdout) == (0, f"1000 records written to {topic}\n".encode())
    read = raftmq(cluster, "consume", topic, "--from-beginning", "--exit-at-end", "--key-separator", ":")
    assert read.returncode == 0, read.stderr
    assert sorted(read.stdout.decode().splitlines()) == sorted(lines)
    of_one_key = [line for line in read.stdout.decode().splitlines() if line.startswith("key-3:")]
    assert of_one_key == [line for line in lines if line.startswith("key-3:")]


def test_consume_prints_positions_as_json_and_starts_at_an_offset(cluster: LocalCluster, topic: str) -> None:
    raftmq(cluster, "produce", topic, "--partition", "1", stdin=b"a\nb\nc\nd\n")
    read = raftmq(cluster, "consume", topic, "-p", "1", "--offset", "2", "--exit-at-end", "--output", "json")
    records = [json.loads(line) for line in read.stdout.splitlines()]
    assert [(r["partition"], r["offset"], r["key"], r["value"]) for r in records] == [
        (1, 2, None, "c"),
        (1, 3, None, "d"),
    ]


def test_consume_ends_after_so_many_records(cluster: LocalCluster, topic: str) -> None:
    raftmq(cluster, "produce", topic, stdin=b"x\n" * 50)
    read = raftmq(cluster, "consume", topic, "--from-beginning", "--max-records", "7")
    assert (read.returncode, read.stdout) == (0, b"x\n" * 7)


def test_records_are_written_as_they_are_typed_and_ctrl_c_ends_the_consumer(cluster: LocalCluster, topic: str) -> None:
    environment = os.environ | {"RAFTMQ_BOOTSTRAP_SERVERS": cluster.bootstrap_servers}
    command = [sys.executable, "-m", "raftmq"]
    consumer = subprocess.Popen(
        [*command, "consume", topic, "--from-beginning"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
    )
    producer = subprocess.Popen(
        [*command, "produce", topic],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
    )
    with consumer, producer:
        assert producer.stdin is not None
        assert consumer.stdout is not None
        producer.stdin.write(b"typed\n")
        producer.stdin.flush()
        assert consumer.stdout.readline() == b"typed\n"
        consumer.send_signal(signal.SIGINT)
        assert consumer.wait(20) == 130
        assert consumer.stderr is not None
        assert consumer.stderr.read() == b""
        producer.stdin.close()
        assert producer.wait(20) == 0


def test_ctrl_c_ends_a_producer_that_waits_for_a_person(cluster: LocalCluster, topic: str) -> None:
    environment = os.environ | {"RAFTMQ_BOOTSTRAP_SERVERS": cluster.bootstrap_servers}
    producer = subprocess.Popen(
        [sys.executable, "-m", "raftmq", "produce", topic],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
    )
    with producer:
        assert producer.stdin is not None
        assert producer.stderr is not None
        producer.stdin.write(b"first\n")
        producer.stdin.flush()
        assert raftmq(cluster, "consume", topic, "--from-beginning", "-n", "1").stdout == b"first\n"
        producer.send_signal(signal.SIGINT)
        assert producer.wait(20) == 130
        assert producer.stderr.read() == b""


def test_a_reader_that_has_enough_ends_the_consumer(cluster: LocalCluster, topic: str) -> None:
    raftmq(cluster, "produce", topic, stdin=b"y" * 200 + b"\n" + b"z\n" * 100_000)
    environment = os.environ | {"RAFTMQ_BOOTSTRAP_SERVERS": cluster.bootstrap_servers}
    command = [sys.executable, "-m", "raftmq", "consume", topic, "--from-beginning", "--exit-at-end"]
    consumer = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)
    with consumer:
        assert consumer.stdout is not None
        assert consumer.stderr is not None
        consumer.stdout.readline()
        consumer.stdout.close()
        assert consumer.wait(30) == 141
        assert consumer.stderr.read() == b""


def test_a_topic_can_be_altered_extended_and_deleted(cluster: LocalCluster, topic: str) -> None:
    assert raftmq(cluster, "topic", "alter", topic, "--config", "retention.ms=60000").returncode == 0
    described = answer(cluster, "topic", "describe", topic)
    assert isinstance(described, dict)
    assert described["config"] == {"retention.ms": "60000"}
    assert raftmq(cluster, "topic", "add-partitions", topic, "4").returncode == 0
    described = answer(cluster, "topic", "describe", topic)
    assert isinstance(described, dict)
    assert len(described["partitions"]) == 4
    assert raftmq(cluster, "topic", "delete", topic, stdin=b"n\n").returncode == 130
    assert raftmq(cluster, "topic", "delete", topic, "--yes").returncode == 0
    assert raftmq(cluster, "topic", "describe", topic).returncode == 4


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("topic", "describe", "no-such-topic"), 4),
        (("topic", "delete", "no-such-topic", "--yes"), 4),
        (("produce", "no-such-topic", "--timeout", "3"), 4),
        (("consume", "no-such-topic", "--timeout", "3"), 4),
        (("topic", "create", "a/b"), 2),
        (("topic", "create", "too-many", "--replication-factor", "4"), 2),
        (("topic", "create", "odd", "--config", "no.such.setting=1"), 2),
    ],
)
def test_a_no_of_the_cluster_is_one_sentence_and_an_exit_code(
    cluster: LocalCluster, arguments: tuple[str, ...], code: int
) -> None:
    done = raftmq(cluster, *arguments, stdin=b"x\n")
    assert done.returncode == code, done.stderr
    assert done.stdout == b""
    assert done.stderr.startswith(b"raftmq: ")
    assert done.stderr.count(b"\n") == 1


def test_creating_a_topic_twice_is_refused_unless_that_is_fine(cluster: LocalCluster, topic: str) -> None:
    assert raftmq(cluster, "topic", "create", topic).returncode == 4
    assert raftmq(cluster, "topic", "create", topic, "--if-not-exists").returncode == 0


async def test_commands_work_while_a_broker_is_down(topic: str, cluster: LocalCluster) -> None:
    cluster.kill(1)
    try:
        await asyncio.to_thread(cluster.wait_leaders, topic, avoiding=1)
        done = await asyncio.to_thread(raftmq, cluster, "produce", topic, stdin=b"alive\n")
        assert done.returncode == 0, done.stderr
        read = await asyncio.to_thread(raftmq, cluster, "consume", topic, "--from-beginning", "--exit-at-end")
        assert read.stdout == b"alive\n"
    finally:
        await asyncio.to_thread(cluster.restart, 1)
        await asyncio.to_thread(cluster.wait_formed)
