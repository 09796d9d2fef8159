"""Every error that a user of the command line can meet: one sentence, a documented exit code, a bounded time."""

import json
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from google.protobuf.any_pb2 import Any as AnyMessage
from google.rpc import status_pb2
from grpc_status import rpc_status
from raftmq.proto import queue_pb2 as pb
from raftmq.testing import LocalCluster

from tests.support.e2e.raftmq_command import assert_one_sentence, lines_of, raftmq, started

pytestmark = [pytest.mark.e2e]


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=1) as running:
        assert raftmq(running, "topic", "create", "there", "--partitions", "2").returncode == 0
        yield running


@pytest.fixture
def frozen(cluster: LocalCluster) -> Iterator[LocalCluster]:
    """Freeze the broker: it accepts connections and answers nothing."""
    cluster.pause(1)
    yield cluster
    cluster.resume(1)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("topic", "describe", "none"), 4, ["none", "raftmq topic create"]),
        (("topic", "delete", "none", "--yes"), 4, ["none"]),
        (("topic", "delete-records", "none", "--all", "--yes"), 4, ["none"]),
        (("produce", "none"), 4, ["'none'", "raftmq topic create"]),
        (("consume", "none"), 4, ["'none'", "raftmq topic create"]),
        (("produce", "there", "--partition", "9"), 4, ["partitions 0 to 1"]),
        (("consume", "there", "--partition", "9"), 4, ["partitions 0 to 1"]),
        (("consume", "there", "--partition", "1", "--offset", "99"), 4, ["there/1", "99"]),
        (("topic", "create", "a/b"), 2, ["a/b"]),
        (("topic", "describe", "\udcff"), 2, ["UTF-8"]),
        (("topic", "create", "x" * 250), 2, ["249"]),
        (("topic", "create", "wide", "--replication-factor", "3"), 4, ["replication factor 3"]),
        (("topic", "create", "odd", "--config", "no.such.setting=1"), 2, ["no.such.setting", "retention.ms"]),
        (("topic", "create", "there"), 4, ["there"]),
        (("topic", "add-partitions", "there", "2"), 4, ["2 partitions"]),
        (("topic", "alter", "there", "--replication-factor", "2"), 4, ["replication factor 2"]),
        (("dlq", "show", "there", "--partition", "9"), 4, ["no partition 9"]),
        (("dlq", "show", "there", "--partition", "1", "--offset", "99"), 4, ["no record 99"]),
        (("cluster", "drain", "1"), 4, ["only active broker"]),
        (("cluster", "raise-level", "--level", "1", "--yes"), 4, ["cannot be lowered"]),
        (("partition", "recover", "there", "0", "--keep", "1", "--unsafe", "--yes"), 4, ["has a leader"]),
        (("topic", "delete-records", "there", "--before", "99", "--yes"), 4, ["99"]),
    ],
)
def test_a_refusal_of_the_cluster_is_one_sentence(
    cluster: LocalCluster, arguments: tuple[str, ...], code: int, words: list[str]
) -> None:
    assert_one_sentence(raftmq(cluster, *arguments, "--timeout", "5s", stdin=b"x\n"), code, *words)


def new_topic(cluster: LocalCluster, name: str, *arguments: str) -> str:
    assert raftmq(cluster, "topic", "create", name, *arguments).returncode == 0
    return name


def values_of(cluster: LocalCluster, topic: str) -> list[object]:
    return [record["value"] for record in lines_of(cluster, topic, "--from-beginning")]


def test_produce_reports_an_unknown_topic_before_it_reads_input(cluster: LocalCluster) -> None:
    """Otherwise a person would type a first line in vain, and a program that wrote nothing would believe in success."""
    assert_one_sentence(raftmq(cluster, "produce", "none", "--timeout", "5s"), 4, "'none'", "raftmq topic create")
    with started(cluster, "produce", "none") as waiting:
        assert waiting.wait(30) == 4  # although its standard input is open


def test_a_line_that_is_too_long_is_named_and_the_lines_before_it_are_written(cluster: LocalCluster) -> None:
    topic = new_topic(cluster, "long")
    done = raftmq(cluster, "produce", topic, stdin=b"one\ntwo\n" + b"x" * 1_100_000 + b"\nfour\n")
    assert_one_sentence(
        done, 6, "line 3", "1100000 bytes", "at most 1048560", "max.batch.bytes", "before it are written"
    )
    assert values_of(cluster, topic) == ["one", "two"]


@pytest.mark.parametrize("more", [(), ("--header", "a=b")], ids=["all at once", "one by one"])
def test_a_raised_batch_limit_allows_longer_lines_and_the_first_too_long_line_is_named(
    cluster: LocalCluster, more: tuple[str, ...]
) -> None:
    topic = new_topic(cluster, f"wide{len(more)}", "--config", "max.batch.bytes=2097152")
    lines = [b"one", b"x" * 1_500_000, b"y" * 2_100_000, b"four"]
    done = raftmq(cluster, "produce", topic, *more, stdin=b"\n".join(lines))
    assert_one_sentence(done, 6, "line 3", "a record has 21000", "at most 2093040", "before it are written")
    assert values_of(cluster, topic) == [line.decode() for line in lines[:2]]


def test_an_endless_line_is_refused_before_it_fills_memory(cluster: LocalCluster) -> None:
    done = raftmq(cluster, "produce", "there", stdin=b"x" * 12_000_000)
    assert_one_sentence(done, 6, "longer than 8388608 bytes")


@pytest.mark.parametrize("command", [("produce",), ("queue", "put")])
def test_an_input_that_cannot_be_read_is_not_reported_as_its_end(
    cluster: LocalCluster, command: tuple[str, ...]
) -> None:
    """The process's memory is a file that begins with an error."""
    kind = "log" if command == ("produce",) else "queue"
    topic = new_topic(cluster, f"unreadable-{kind}", "--kind", kind)
    done = raftmq(cluster, *command, topic, "--file", "/proc/self/mem")
    assert_one_sentence(done, 1, "the input cannot be read any further: input/output error")


def test_a_record_above_the_topics_own_limit_is_refused(cluster: LocalCluster) -> None:
    topic = new_topic(cluster, "small", "--config", "max.batch.bytes=2048")
    done = raftmq(cluster, "produce", topic, stdin=b"y" * 5000 + b"\n")
    assert_one_sentence(done, 6, "small/0", "2048")
    assert values_of(cluster, topic) == []


def test_a_line_that_is_not_json_is_named(cluster: LocalCluster) -> None:
    topic = new_topic(cluster, "documents")
    done = raftmq(cluster, "produce", topic, "--format", "json", stdin=b'{"a": 1}\n\n{"a":\n{"a": 3}\n')
    assert_one_sentence(done, 6, "line 3", "not JSON")
    assert values_of(cluster, topic) == ['{"a": 1}']


@pytest.mark.parametrize(
    "arguments",
    [
        ("topic", "list"),
        ("topic", "create", "late"),
        ("cluster", "status"),
        ("produce", "there"),
        ("consume", "there", "--from-beginning"),
    ],
)
def test_a_command_ends_in_time_when_the_broker_does_not_answer(
    frozen: LocalCluster, arguments: tuple[str, ...]
) -> None:
    assert_one_sentence(raftmq(frozen, *arguments, "--timeout", "0.7s", stdin=b"x\n"), 3, frozen.address(1))


def test_records_of_unknown_outcome_are_reported_and_a_full_buffer_does_not_hang(cluster: LocalCluster) -> None:
    """The broker freezes while 30 MB are on their way, which is more than the buffer holds."""
    topic = new_topic(cluster, "frozen")
    producer = started(cluster, "produce", topic, "--timeout", "2s")
    with producer:
        assert producer.stdin is not None
        assert producer.stderr is not None
        producer.stdin.write(b"first\n")
        producer.stdin.flush()
        assert raftmq(cluster, "consume", topic, "--from-beginning", "-n", "1").stdout == b"first\n"
        cluster.pause(1)
        try:
            try:
                producer.stdin.write((b"z" * 999 + b"\n") * 30_000)
                producer.stdin.close()
            except BrokenPipeError:
                pass  # the command ended before it had read everything
            assert producer.wait(30) == 5
        finally:
            cluster.resume(1)
        said = producer.stderr.read().decode()
    assert "may have been written" in said
    assert "known to be written: 1)" in said
    assert said.count("\n") == 1


def test_records_written_before_a_definite_refusal_are_not_reported_as_not_applied(cluster: LocalCluster) -> None:
    """Nothing was applied, says exit code 4: a script would write these records twice."""
    topic = new_topic(cluster, "half")
    with started(cluster, "produce", topic) as producer:
        assert producer.stdin is not None
        assert producer.stderr is not None
        producer.stdin.write(b"first\n")
        producer.stdin.flush()
        assert raftmq(cluster, "consume", topic, "--from-beginning", "-n", "1").stdout == b"first\n"
        raftmq(cluster, "topic", "delete", topic, "--yes")
        producer.stdin.write(b"second\n")
        producer.stdin.close()
        assert producer.wait(60) == 5
        assert b"known to be written: 1)" in producer.stderr.read()


def test_a_waiting_consumer_ends_when_the_cluster_stops_answering(cluster: LocalCluster) -> None:
    topic = new_topic(cluster, "silence")
    raftmq(cluster, "produce", topic, stdin=b"heard\n")
    consumer = started(cluster, "consume", topic, "--from-beginning", "--timeout", "1s")
    with consumer:
        assert consumer.stdout is not None
        assert consumer.stderr is not None
        assert consumer.stdout.readline() == b"heard\n"
        cluster.pause(1)
        try:
            assert consumer.wait(30) == 3
        finally:
            cluster.resume(1)
        assert consumer.stderr.read().startswith(b"raftmq: the cluster has not answered for 1 s: ")


def test_a_consumer_whose_topic_is_deleted_ends(cluster: LocalCluster) -> None:
    topic = new_topic(cluster, "short-lived")
    raftmq(cluster, "produce", topic, stdin=b"heard\n")
    consumer = started(cluster, "consume", topic, "--from-beginning")
    with consumer:
        assert consumer.stdout is not None
        assert consumer.stderr is not None
        assert consumer.stdout.readline() == b"heard\n"
        assert raftmq(cluster, "topic", "delete", topic, "--yes").returncode == 0
        assert consumer.wait(30) == 4
        assert consumer.stderr.read().startswith(b"raftmq: short-lived/0: ")


def test_an_address_that_is_not_a_brokers_is_named(cluster: LocalCluster) -> None:
    http = cluster.http_address(1)
    assert_one_sentence(raftmq(cluster, "topic", "list", "--bootstrap-servers", http, "--timeout", "1s"), 3, http)


def test_the_peer_port_of_a_broker_is_suspected(cluster: LocalCluster) -> None:
    (node,) = json.loads(raftmq(cluster, "cluster", "nodes", "--output", "json").stdout)
    peer = node["peer_address"]
    done = raftmq(cluster, "cluster", "status", "--bootstrap-servers", peer, "--timeout", "1s")
    assert_one_sentence(done, 3, f"{peer} (the server there closes the connection", "peer port?", "client port, 9400")


class Refusal(grpc.GenericRpcHandler):
    """A broker that answers every call with one error."""

    def __init__(self, code: int, message: str) -> None:
        detail = AnyMessage()
        detail.Pack(pb.ErrorDetail(code=code, message=message))
        self.status = status_pb2.Status(code=9, message=message, details=[detail])

    def service(self, details: grpc.HandlerCallDetails) -> "grpc.RpcMethodHandler[bytes, bytes]":
        def refuse(request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
            yield from ()
            context.abort_with_status(rpc_status.to_status(self.status))

        return grpc.unary_stream_rpc_method_handler(refuse)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (pb.UNSUPPORTED_VERSION, "this broker speaks version 9, the client 1"),
        (pb.WRONG_CLUSTER, "this broker belongs to cluster b, not a"),
        (pb.PERMISSION_DENIED, "no right to look"),
    ],
)
def test_a_permanent_refusal_exits_with_4(code: int, message: str, cluster: LocalCluster) -> None:
    server = grpc.server(ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers([Refusal(code, message)])
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        done = raftmq(cluster, "topic", "list", "--bootstrap-servers", address, "--timeout", "2s")
    finally:
        server.stop(0).wait()
    assert_one_sentence(done, 4, message)


def test_errors_are_sentences_with_json_output_too(cluster: LocalCluster) -> None:
    assert_one_sentence(raftmq(cluster, "topic", "describe", "none", "--output", "json"), 4)
    done = raftmq(cluster, "cluster", "status", "--output", "json")
    assert json.loads(done.stdout)["partitions_without_leader"] == 0


def test_a_waiting_consumer_ends_when_head_closes_the_pipe(cluster: LocalCluster) -> None:
    """The closed pipe is noticed although no further record arrives that could be written to it."""
    topic = new_topic(cluster, "headed")
    raftmq(cluster, "produce", topic, stdin=b"only\n")
    consumer = started(cluster, "consume", topic, "--from-beginning")
    with consumer:
        assert consumer.stdout is not None
        assert consumer.stderr is not None
        assert consumer.stdout.readline() == b"only\n"
        consumer.stdout.close()
        try:
            assert consumer.wait(20) == 141
        except subprocess.TimeoutExpired:
            consumer.kill()
            raise
        assert consumer.stderr.read() == b""
