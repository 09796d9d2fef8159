"""`raftmq queue put` against fake brokers."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from raftmq.cli.input_lines import READ_BYTES
from raftmq.proto import queue_pb2 as pb

from tests.support.cli.queue_commands import QueueCommands, assert_refused
from tests.support.client.fake_broker import detail


def values(jobs: QueueCommands) -> list[str]:
    return [line["value"] for line in jobs.lines("queue", "browse", "jobs", "--values")]


def test_a_message_has_the_fields_of_the_options(jobs: QueueCommands) -> None:
    options = ("--key", "k", "--tenant", "acme.eu", "--priority", "-3", "--id", "one", "-H", "trace=1")
    said = jobs.text("queue", "put", "jobs", "--value", "work", *options, "--delay", "1h30m", "--expires", "2d")
    assert said == "1 message put into jobs: sequence 0 of partition 0\n"
    (message,) = jobs.lines("queue", "browse", "jobs", "--values")
    assert (message["value"], message["key"], message["tenant"], message["priority"]) == ("work", "k", "acme.eu", -3)
    assert (message["id"], message["headers"], message["state"]) == ("one", [["trace", "1"]], "delayed")
    assert 5_300_000 < message["due_in_ms"] <= 5_400_000
    (stored,) = jobs.queues[0].messages.values()
    assert stored.expires_ms == 2 * 86_400_000


def test_a_message_is_not_delivered_before_a_point_in_time(jobs: QueueCommands) -> None:
    moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 3600))
    jobs.text("queue", "put", "jobs", "--value", "later", "--not-before", moment)
    jobs.text("queue", "put", "jobs", "--value", "later", "--not-before", str(int((time.time() + 3600) * 1000)))
    found = jobs.lines("queue", "browse", "jobs", "--state", "delayed")
    assert [3_500_000 < message["due_in_ms"] <= 3_600_000 for message in found] == [True, True]


def test_a_known_id_is_reported(jobs: QueueCommands) -> None:
    put = ("queue", "put", "jobs", "--id", "x", "--delay", "1h", "--value")
    assert jobs.answer(*put, "a") == {
        "topic": "jobs",
        "partition": 0,
        "sequence": 0,
        "is_deduplicated": False,
        "replaced_sequence": None,
    }
    assert jobs.text(*put, "b") == "nothing put into jobs: the id is known\n"
    assert jobs.text(*put, "c", "--replace") == "1 message put into jobs: sequence 2 of partition 0, instead of 0\n"
    assert values(jobs) == ["c"]


def test_each_line_of_the_input_is_a_message(jobs: QueueCommands) -> None:
    done = jobs.fed("queue", "put", "jobs", "--tenant", "acme", "-k", ":", stdin=b"k1:one\nk2:two\r\nk3:")
    assert (done.returncode, done.stdout) == (0, "3 messages put into jobs\n"), done.stderr
    found = jobs.lines("queue", "browse", "jobs", "--values")
    assert [(m["key"], m["value"], m["tenant"]) for m in found] == [
        ("k1", "one", "acme"),
        ("k2", "two", "acme"),
        ("k3", "", "acme"),
    ]


def test_fields_of_json_documents_become_key_tenant_and_id(jobs: QueueCommands, tmp_path: Path) -> None:
    file = tmp_path / "orders.jsonl"
    documents = ['{"order": {"id": 7}, "customer": "c", "who": "acme"}', "", '{"order": {"id": 7}}', '{"who": null}']
    file.write_text("\n".join(documents))
    fields = ("--id-field", "order.id", "--key-field", "customer", "--tenant-field", "who")
    done = jobs.answer("queue", "put", "jobs", "--format", "json", *fields, "--file", str(file))
    assert done == {"topic": "jobs", "messages": 3, "deduplicated": 1, "replaced": 0}
    found = jobs.lines("queue", "browse", "jobs")
    assert [(m["id"], m["key"], m["tenant"]) for m in found] == [("7", "c", "acme"), (None, None, "")]
    again = jobs.text("queue", "put", "jobs", "--format", "json", *fields, "--file", str(file))
    assert again == "1 message put into jobs, 2 with known ids not enqueued again\n"


def test_browsed_messages_are_put_again_with_their_fields_and_the_rest_of_their_delays(
    jobs: QueueCommands, tmp_path: Path
) -> None:
    jobs.text("queue", "put", "jobs", "--value", "later", "--id", "a", "--delay", "1h", "--key", "k", "-H", "h=1")
    jobs.text("queue", "put", "jobs", "--value", "now", "--tenant", "acme", "--priority", "5")
    copied = jobs.text("queue", "browse", "jobs", "--values", "-o", "json")
    file = tmp_path / "messages.jsonl"
    file.write_text(copied)
    jobs.text("topic", "create", "copy", "--kind", "queue")
    jobs.text("queue", "put", "copy", "--format", "messages", "--file", str(file))
    again = [json.loads(line) for line in copied.splitlines()]
    found = jobs.lines("queue", "browse", "copy", "--values")
    kept = ("id", "key", "tenant", "priority", "headers", "value", "state")
    assert [[m[name] for name in kept] for m in found] == [[m[name] for name in kept] for m in again]
    assert 3_500_000 < found[0]["due_in_ms"] <= 3_600_000


def test_a_line_that_is_no_message_ends_the_command_and_the_lines_before_it_are_put(jobs: QueueCommands) -> None:
    lines = b'{"value": "a"}\n{"value": "b", "priority": 99999999999}\n{"value": "c"}\n'
    done = jobs.fed("queue", "put", "jobs", "--format", "messages", stdin=lines)
    assert_refused(done, 6, "line 2: ", "priority", "the lines before it are put")
    done = jobs.fed("queue", "put", "jobs", "--format", "messages", stdin=b'{"value": "d", "tennant": "x"}\n')
    assert_refused(done, 6, "line 1: ", "did you mean 'tenant'?")
    assert values(jobs) == ["a"]


def test_a_message_that_is_too_large_for_the_topic_is_named_by_its_line(jobs: QueueCommands) -> None:
    done = jobs.fed("queue", "put", "jobs", stdin=b"small\n" + b"x" * (1 << 21) + b"\nsmall\n")
    assert_refused(done, 6, "line 2: a message has 2097152 bytes", "the lines before it are put")
    assert values(jobs) == ["small"]


def test_a_full_queue_is_reported(jobs: QueueCommands) -> None:
    jobs.cluster.append_hook = lambda *_: detail(pb.QUEUE_FULL, "the queue is full")
    done = jobs.run("queue", "put", "jobs", "--value", "x", "--timeout", "5s")
    assert_refused(done, 3, "the queue is full")
    assert done.stdout == ""


def test_a_failure_in_the_middle_names_the_number_of_messages_that_are_put(jobs: QueueCommands, tmp_path: Path) -> None:
    """Nothing was applied, says exit code 3: a script would put these messages twice."""
    file = tmp_path / "lines"
    file.write_bytes((b"x" * 1023 + b"\n") * (READ_BYTES // 1024 + 10))
    batches: list[bytes] = []

    def refuse_the_second(_broker: int, _topic: object, _partition: int, batch: bytes) -> pb.ErrorDetail | None:
        if batch not in batches:
            batches.append(batch)
        return detail(pb.QUEUE_FULL) if len(batches) > 1 else None

    jobs.cluster.append_hook = refuse_the_second
    done = jobs.run("queue", "put", "jobs", "--file", str(file), "--timeout", "5s")
    assert_refused(done, 5, f"(messages known to be put: {READ_BYTES // 1024})")
    assert len(jobs.queues[0].messages) == READ_BYTES // 1024


@pytest.mark.parametrize(("full", "code"), [({1}, 5), ({0, 1, 2}, 3)])
def test_messages_put_beside_refused_ones_are_not_reported_as_not_applied(
    wide_jobs: QueueCommands, full: set[int], code: int
) -> None:
    wide_jobs.cluster.append_hook = lambda _broker, _topic, partition, _batch: (
        detail(pb.QUEUE_FULL, "the queue is full") if partition in full else None
    )
    lines = b"".join(b'{"value": "x", "id": "%d"}\n' % n for n in range(20))
    done = wide_jobs.fed("queue", "put", "jobs", "--format", "messages", "--timeout", "2s", stdin=lines)
    assert_refused(done, code, "the queue is full")
    assert bool(values(wide_jobs)) is (code == 5)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--value", "x", "--file", "cli/main.py"), "--file"),
        (("--value", "x", "--format", "json"), "--format"),
        (("--value", "x", "-k", ":"), "--key-separator"),
        (("--id", "x"), "--id"),
        (("--key-field", "x"), "--key-field"),
        (("--id-field", "x"), "--id-field"),
        (("--tenant-field", "x", "--format", "messages"), "--tenant-field"),
        (("--format", "json", "-k", ":"), "--key-separator"),
        (("-k", ""), "--key-separator"),
        (("-k", ":", "--key", "k"), "--key"),
        (("--replace",), "--replace"),
        (("--value", "x", "--replace"), "--replace"),
        (("--value", "x", "--delay", "1s", "--not-before", "2031-01-01"), "--delay"),
        (("--value", "x", "--delay", "11000d"), "outside 0s to 3660d"),
        (("--value", "x", "--not-before", "5m"), "is not a time"),
        (("--value", "x", "--tenant", "acme..eu"), "tenant"),
        (("--value", "x", "--priority", "2147483648"), "whole number"),
        (("--value", "x", "--id", ""), "id"),
        (("--value", "x", "--key", ""), "key"),
        (("--value", "x", "-H", "trace"), "NAME=VALUE"),
    ],
)
def test_options_that_contradict_each_other_are_refused_before_anything_is_put(
    jobs: QueueCommands, options: tuple[str, ...], words: str
) -> None:
    assert_refused(jobs.run("queue", "put", "jobs", *options), 2, words)
    assert jobs.queues[0].messages == {}


def test_a_log_topic_and_an_unknown_topic_are_refused(jobs: QueueCommands) -> None:
    jobs.text("topic", "create", "events")
    assert_refused(jobs.run("queue", "put", "events", "--value", "x"), 4, "kind 'log'")
    assert_refused(jobs.run("queue", "put", "none", "--value", "x", "--timeout", "5s"), 4, "raftmq topic create")
