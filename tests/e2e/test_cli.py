"""The command line with real brokers: the commands of the README, and their messages when the cluster refuses."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from raftmq import sync
from raftmq.testing import LocalCluster

from tests.support.e2e.raftmq_command import answer, assert_one_sentence, completions, lines_of, raftmq

pytestmark = [pytest.mark.e2e]

WAIT_SECONDS = 120.0
"""Limit of waits that normally take a second or two, long enough for a busy machine."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=3) as running:
        yield running


@pytest.fixture
def topic(cluster: LocalCluster, request: pytest.FixtureRequest) -> str:
    name = f"cli-{abs(hash(request.node.nodeid))}"
    assert raftmq(cluster, "topic", "create", name, "--partitions", "2", "--replication-factor", "3").returncode == 0
    return name


def status_until(cluster: LocalCluster, *codes: int, output: str = "text") -> subprocess.CompletedProcess[bytes]:
    """Repeat `cluster status` until it exits with one of these codes, and return that run."""
    end = time.monotonic() + WAIT_SECONDS
    while (done := raftmq(cluster, "cluster", "status", "--output", output)).returncode not in codes:
        assert time.monotonic() < end, done
        time.sleep(0.05)
    return done


def test_status_shows_three_voters_and_one_leader(cluster: LocalCluster) -> None:
    status = json.loads(status_until(cluster, 0, output="json").stdout)
    assert [broker["id"] for broker in status["brokers"]] == [1, 2, 3]
    assert {broker["state"] for broker in status["brokers"]} == {"active"}
    assert all(broker["replicas"] >= broker["leaders"] >= 0 for broker in status["brokers"])
    assert all(broker["is_metadata_voter"] and broker["is_connected"] for broker in status["brokers"])
    assert len({broker["host"] for broker in status["brokers"]}) == 3
    assert status["metadata_leader_broker_id"] in (1, 2, 3)
    text = status_until(cluster, 0).stdout.decode()
    assert text.count("local-") == 3
    assert "none without a leader" in text
    assert "all replicas in sync" in text


def test_status_reports_a_dead_broker_and_lagging_replicas_in_json_and_exit_code(
    cluster: LocalCluster, topic: str
) -> None:
    """A script that stops the next broker relies on the exit code alone."""
    owner = next(n for n in (1, 2, 3) if n not in cluster.leaders(topic).values())
    cluster.kill(owner)
    try:
        # one after the other: a busy broker that answers late is unknown for a moment, in one of the two commands
        for is_shown in (_is_said_to_be_missing, _is_out_of_sync):
            end = time.monotonic() + WAIT_SECONDS
            while not is_shown(cluster, owner, topic):
                assert time.monotonic() < end, (is_shown, raftmq(cluster, "cluster", "status", "--output", "json"))
    finally:
        cluster.restart(owner)
        cluster.wait_formed()
    status_until(cluster, 0)


def _is_said_to_be_missing(cluster: LocalCluster, owner: int, topic: str) -> bool:
    """Return whether status exits with 6, names the broker and shows a leader without its replica.

    Assert that status reports no outage.
    """
    done = raftmq(cluster, "cluster", "status", "--output", "json")
    if done.returncode != 6:
        return False
    status = json.loads(done.stdout)
    assert not any(problem["is_outage"] for problem in status["problems"])
    behind = [broker["health"]["under_replicated"] for broker in status["brokers"] if broker["health"]]
    is_named = f"broker {owner} is not connected" in [problem["problem"] for problem in status["problems"]]
    # status names only the first partitions, which may all belong to topics of other tests
    return is_named and any([topic, 0] in one["first"] or one["count"] > len(one["first"]) for one in behind)


def _is_out_of_sync(cluster: LocalCluster, owner: int, topic: str) -> bool:
    """Return whether the topic's description shows the broker's replicas, and no others, as out of sync."""
    described = answer(cluster, "topic", "describe", topic)
    assert isinstance(described, dict)
    states = [partition["state"] for partition in described["partitions"]]
    return all(state and set(state["in_sync_brokers"]) == {1, 2, 3} - {owner} for state in states)


def test_the_restart_plan_ends_with_the_metadata_leader(cluster: LocalCluster) -> None:
    leader = json.loads(status_until(cluster, 0, output="json").stdout)["metadata_leader_broker_id"]
    plan = answer(cluster, "cluster", "restart-plan")
    assert isinstance(plan, dict)
    assert [one["broker_id"] for one in plan["restarts"]][-1] == leader
    assert plan["problems"] == []
    alone = raftmq(cluster, "topic", "create", "alone", "--partitions", "1", "--replication-factor", "1")
    assert alone.returncode == 0
    owner = cluster.leaders("alone")[0]
    status_until(cluster, 0)
    said = raftmq(cluster, "cluster", "restart-plan").stdout.decode()
    assert said.splitlines()[0].split() == ["step", "broker", "address", "host", "rack", "metadata", "leads"]
    assert said.endswith(
        f"warning: 1 partition with one or two replicas cannot be used while broker {owner} restarts\n"
    )
    assert raftmq(cluster, "topic", "delete", "alone", "--yes").returncode == 0


def test_the_restart_plan_says_not_to_begin_while_a_broker_is_missing(cluster: LocalCluster) -> None:
    cluster.kill(3)
    try:
        status_until(cluster, 6)
        done = raftmq(cluster, "cluster", "restart-plan")
    finally:
        cluster.restart(3)
        cluster.wait_formed()
    assert done.returncode == 6
    assert "do not begin yet: broker 3 is not connected\n" in done.stdout.decode()
    status_until(cluster, 0)


def test_a_cluster_that_exists_is_not_formed_again(cluster: LocalCluster) -> None:
    status = json.loads(status_until(cluster, 0, output="json").stdout)
    formed = raftmq(cluster, "cluster", "init")
    assert formed.stdout.decode() == f"cluster {status['cluster_id']} exists already\n"
    assert answer(cluster, "cluster", "init") == {"cluster_id": status["cluster_id"], "is_new": False}


def test_status_names_a_broker_that_hangs(cluster: LocalCluster) -> None:
    leader = json.loads(status_until(cluster, 0, output="json").stdout)
    frozen = next(n for n in (1, 2, 3) if n not in (leader["metadata_leader_broker_id"], leader["answering_broker_id"]))
    cluster.pause(frozen)
    try:
        done = status_until(cluster, 3, 6)
    finally:
        cluster.resume(frozen)
    assert f"broker {frozen} is" in done.stdout.decode(), done
    status_until(cluster, 0)


def test_a_topic_is_listed_and_described(cluster: LocalCluster, topic: str) -> None:
    listed = answer(cluster, "topic", "list")
    assert isinstance(listed, list)
    shown = {"kind": "log", "partitions": 2, "replication_factor": 3, "config": {}, "is_unconfirmed": False}
    assert {"name": topic, **shown} in listed
    described = answer(cluster, "topic", "describe", topic)
    assert isinstance(described, dict)
    assert [sorted(p["replica_brokers"]) for p in described["partitions"]] == [[1, 2, 3], [1, 2, 3]]
    assert all(p["leader_broker_id"] in (1, 2, 3) for p in described["partitions"])
    text = raftmq(cluster, "topic", "describe", topic).stdout.decode()
    assert f"topic {topic}: 2 partitions" in text
    assert text.splitlines()[2].split() == [
        "partition",
        "leader",
        "epoch",
        "replicas",
        "in",
        "sync",
        "start",
        "end",
        "bytes",
    ]


def test_a_partition_is_described_with_its_offsets_and_its_size(cluster: LocalCluster, topic: str) -> None:
    raftmq(cluster, "produce", topic, "--partition", "1", stdin=b"one\ntwo\nthree\n")
    raftmq(cluster, "topic", "delete-records", topic, "--partition", "1", "--before", "2", "--yes")
    described = answer(cluster, "topic", "describe", topic)
    assert isinstance(described, dict)
    empty, written = (partition["state"] for partition in described["partitions"])
    assert (empty["log_start_offset"], empty["high_watermark"]) == (0, 0)
    assert (written["log_start_offset"], written["high_watermark"]) == (2, 3)
    assert written["size_bytes"] > 0


def test_produced_records_can_be_consumed_with_their_keys_in_order(cluster: LocalCluster, topic: str) -> None:
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


def test_records_that_consume_prints_can_be_produced_again(cluster: LocalCluster, topic: str) -> None:
    """`produce` accepts the output of `consume` from another partition, including binary and absent values."""
    records = (
        b'{"key": "k", "value": "plain", "headers": [["h", "1"], ["h", {"base64": "/w=="}]], "timestamp": 1000}\n'
        b'{"key": {"base64": "AP8="}, "value": null, "timestamp": 2000}\n'
    )
    assert raftmq(cluster, "produce", topic, "-p", "0", "--format", "records", stdin=records).returncode == 0
    printed = raftmq(cluster, "consume", topic, "-p", "0", "--from-beginning", "-e", "-o", "json").stdout
    done = raftmq(cluster, "produce", topic, "-p", "1", "--format", "records", "-H", "copied=yes", stdin=printed)
    assert done.returncode == 0, done.stderr
    original, copy = (
        lines_of(cluster, topic, "-p", "0", "--from-beginning"),
        lines_of(cluster, topic, "-p", "1", "--from-beginning"),
    )
    assert [(r["key"], r["value"], r["timestamp"]) for r in original] == [
        ("k", "plain", 1000),
        ({"base64": "AP8="}, None, 2000),
    ]
    assert original[0]["headers"] == [["h", "1"], ["h", {"base64": "/w=="}]]
    for one, other in zip(original, copy, strict=True):
        assert other["headers"][0] == ["copied", "yes"]
        assert other["headers"][1:] == one["headers"]
        assert {name: one[name] for name in ("key", "value", "timestamp", "offset")} == {
            name: other[name] for name in ("key", "value", "timestamp", "offset")
        }


def test_json_documents_from_a_file_are_keyed_by_a_field(cluster: LocalCluster, topic: str, tmp_path: Path) -> None:
    documents = [{"user": {"id": n % 3}, "text": "x"} for n in range(90)]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(document) + "\n" for document in documents))
    arguments = ("--format", "json", "--key-field", "user.id", "--compression", "zstd", "--output", "json")
    done = raftmq(cluster, "produce", topic, "--file", str(tmp_path / "in.jsonl"), *arguments)
    assert json.loads(done.stdout) == {"topic": topic, "records": 90}
    read = lines_of(cluster, topic, "--from-beginning")
    assert {(r["key"], json.loads(r["value"])["user"]["id"]) for r in read} == {("0", 0), ("1", 1), ("2", 2)}
    assert len(read) == 90
    assert len({(r["key"], r["partition"]) for r in read}) == 3


def test_raw_output_is_the_values_bytes_and_nothing_else(cluster: LocalCluster, topic: str) -> None:
    raftmq(cluster, "produce", topic, "-p", "0", stdin=b"a\n\xff\x00\nb")
    read = raftmq(cluster, "consume", topic, "-p", "0", "--from-beginning", "-e", "--output", "raw")
    assert (read.returncode, read.stdout) == (0, b"a\xff\x00b")


def test_consume_starts_at_a_time(cluster: LocalCluster, topic: str) -> None:
    raftmq(cluster, "produce", topic, "-p", "0", stdin=b"old\n")
    between = str(int(time.time() * 1000) + 1)
    raftmq(cluster, "produce", topic, "-p", "0", stdin=b"new\n")
    assert [r["value"] for r in lines_of(cluster, topic, "--from-time", between)] == ["new"]
    assert [r["value"] for r in lines_of(cluster, topic, "--from-time", "1h")] == ["old", "new"]
    assert lines_of(cluster, topic, "--from-time", "2100-01-01") == []


def test_old_records_can_be_deleted(cluster: LocalCluster, topic: str) -> None:
    raftmq(cluster, "produce", topic, "-p", "0", stdin=b"a\nb\nc\n")
    raftmq(cluster, "produce", topic, "-p", "1", stdin=b"d\n")
    assert raftmq(cluster, "topic", "delete-records", topic, "--all", stdin=b"n\n").returncode == 130
    trimmed = answer(cluster, "topic", "delete-records", topic, "-p", "0", "--before", "2", "--yes")
    assert trimmed == [{"topic": topic, "partition": 0, "log_start_offset": 2}]
    assert sorted(r["value"] for r in lines_of(cluster, topic, "--from-beginning")) == ["c", "d"]
    text = raftmq(cluster, "topic", "delete-records", topic, "--all", "--yes").stdout.decode()
    assert [line.split() for line in text.splitlines()[1:]] == [["0", "3"], ["1", "1"]]
    assert lines_of(cluster, topic, "--from-beginning") == []


def test_the_shell_completes_names_of_topics(cluster: LocalCluster, topic: str) -> None:
    assert topic in completions(cluster, f"raftmq topic describe {topic[:6]}")


@pytest.mark.long
def test_a_partition_without_a_leader_is_reported_within_the_timeout(cluster: LocalCluster) -> None:
    """The broker of its only replica is dead. The rest of the cluster is healthy."""
    raftmq(cluster, "topic", "create", "fragile", "--partitions", "1", "--replication-factor", "1")
    raftmq(cluster, "produce", "fragile", stdin=b"kept\n")
    owner = cluster.leaders("fragile")[0]
    reader = sync.Consumer("fragile", bootstrap_servers=cluster.bootstrap_servers, group_id="readers")
    while not reader.assignment():
        reader.getmany(timeout_ms=100)
    cluster.kill(owner)
    try:
        done = raftmq(cluster, "produce", "fragile", "--timeout", "2s", stdin=b"x\n")
        assert_one_sentence(done, 3, "fragile/0", "could not be written within 2 s")
        assert_one_sentence(raftmq(cluster, "consume", "fragile", "--from-beginning", "--timeout", "2s"), 3)
        status = raftmq(cluster, "cluster", "status")
        assert status.returncode == 3
        assert "not connected" in status.stdout.decode()
        described = raftmq(cluster, "topic", "describe", "fragile").stdout.decode().splitlines()
        assert described[3].split()[-4:] == ["?", "?", "?", "?"], "its leader does not answer"
        trim = raftmq(cluster, "topic", "delete-records", "fragile", "--all", stdin=b"n\n")
        assert trim.stderr.decode().splitlines()[1].split() == ["0", "?", "end", "?"]
        group = raftmq(cluster, "group", "describe", "readers").stdout.decode().splitlines()
        assert group[-1].split() == ["fragile", "0", "?", "?", "?", "?"]
    finally:
        reader.close()
        cluster.restart(owner)
        cluster.wait_formed()
    assert [r["value"] for r in lines_of(cluster, "fragile", "--from-beginning")] == ["kept"]


def test_consume_ends_after_max_records(cluster: LocalCluster, topic: str) -> None:
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


def test_ctrl_c_ends_a_producer_that_waits_for_input(cluster: LocalCluster, topic: str) -> None:
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


def test_a_consumer_exits_with_141_when_its_reader_closes_the_pipe(cluster: LocalCluster, topic: str) -> None:
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


def test_creating_a_topic_twice_is_refused_unless_if_not_exists_is_given(cluster: LocalCluster, topic: str) -> None:
    assert raftmq(cluster, "topic", "create", topic).returncode == 4
    again = raftmq(cluster, "topic", "create", topic, "--if-not-exists")
    assert (again.returncode, again.stdout) == (0, f"topic {topic} exists already\n".encode())


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


def test_a_record_is_written_from_options(cluster: LocalCluster) -> None:
    topic = "from-options"
    raftmq(cluster, "topic", "create", topic)
    done = raftmq(cluster, "produce", topic, "--key", "k", "--value", "two\nlines", "-H", "a=1", stdin=b"not read\n")
    assert (done.returncode, done.stdout) == (0, b"1 record written to from-options\n"), done.stderr
    assert raftmq(cluster, "produce", topic, "--key", "all", stdin=b"one\ntwo\n").returncode == 0
    assert raftmq(cluster, "produce", topic, "--value", "").returncode == 0
    found = [(one["key"], one["value"], one["headers"]) for one in lines_of(cluster, topic, "--from-beginning")]
    assert found == [("k", "two\nlines", [["a", "1"]]), ("all", "one", []), ("all", "two", []), (None, "", [])]


def test_records_are_filtered_and_printed_by_a_template(cluster: LocalCluster) -> None:
    topic = "chosen"
    raftmq(cluster, "topic", "create", topic)
    lines = b"".join(b"k%d:v%d\n" % (n % 3, n) for n in range(9))
    assert raftmq(cluster, "produce", topic, "-k", ":", "-H", "source=shell", stdin=lines).returncode == 0
    assert raftmq(cluster, "produce", topic, "--key", "k1", "--value", "bare").returncode == 0
    read = ("consume", topic, "--from-beginning", "--exit-at-end")
    done = raftmq(cluster, *read, "--key", "k1", "--format", r"%p/%o %k=%s\n")
    assert done.stdout == b"0/1 k1=v1\n0/4 k1=v4\n0/7 k1=v7\n0/9 k1=bare\n"
    done = raftmq(cluster, *read, "--key", "k1", "--header", "source=shell", "-n", "2")
    assert done.stdout == b"v1\nv4\n"


def test_a_group_commits_filtered_out_records_but_no_matching_record_before_it_is_printed(
    cluster: LocalCluster,
) -> None:
    topic = "filtered"
    raftmq(cluster, "topic", "create", topic)
    lines = b"".join(b"k%d:v%d\n" % (n % 2, n) for n in range(10))
    assert raftmq(cluster, "produce", topic, "-k", ":", stdin=lines).returncode == 0
    read = ("consume", topic, "--group", topic, "--from-beginning", "--key", "k1", "-n", "2", "--exit-at-end")
    assert raftmq(cluster, *read).stdout == b"v1\nv3\n"
    assert raftmq(cluster, *read).stdout == b"v5\nv7\n"
    assert raftmq(cluster, *read).stdout == b"v9\n"


def test_a_line_without_its_separator_ends_the_command_with_the_line_number(cluster: LocalCluster) -> None:
    topic = "separated"
    raftmq(cluster, "topic", "create", topic)
    done = raftmq(cluster, "produce", topic, "--key-separator", ":", stdin=b"a:1\nb:2\nnone\nc:3\n")
    assert_one_sentence(done, 6, "line 3: it has no ':' between key and value", "the lines before it are written")
    assert [one["key"] for one in lines_of(cluster, topic, "--from-beginning")] == ["a", "b"]
