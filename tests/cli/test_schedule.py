"""`raftmq schedule` against fake brokers."""

from __future__ import annotations

from pathlib import Path

import pytest
from raftmq.proto import queue_pb2 as pb
from raftmq.queue_batch import QueueBodies, validate_queue

from tests.support.cli.queue_commands import QueueCommands, assert_refused

SWEEP = ("schedule", "put", "jobs", "sweep", "--value", "sweep", "--every", "5m")


def names(jobs: QueueCommands) -> list[str]:
    return [one["name"] for one in jobs.answer("schedule", "list", "jobs")]


def test_a_schedule_has_its_rule_and_its_message(jobs: QueueCommands) -> None:
    rule = ("--cron", "0 9 * * mon-fri", "--timezone", "Europe/Berlin", "--catch-up", "one")
    message = (
        "--value",
        "weekly",
        "--key",
        "k",
        "--tenant",
        "acme",
        "--priority",
        "-4",
        "--expires",
        "1h",
        "-H",
        "a=b",
    )
    said = jobs.text("schedule", "put", "jobs", "report", *rule, *message)
    assert said.startswith("schedule report of topic jobs put, version 1; next firing: ")
    assert "report    0 9 * * mon-fri Europe/Berlin  " in jobs.text("schedule", "list", "jobs")
    (queue,) = jobs.queues
    made = queue.schedules["report"].rule
    assert (made.cron, made.timezone, made.catch_up) == ("0 9 * * mon-fri", "Europe/Berlin", pb.FIRE_ONCE)
    batch = queue.scheduled["report"]
    _, columns = validate_queue(batch, 1 << 20)
    assert bytes(QueueBodies(batch).body(0)) == b"weekly"
    assert (columns.tenants.to_list(), list(columns.priorities or ())) == ([b"acme"], [-4])


def test_a_schedule_fires_regularly_or_once(jobs: QueueCommands, tmp_path: Path) -> None:
    file = tmp_path / "value"
    file.write_bytes(b"two\nlines\n")
    jobs.text("schedule", "put", "jobs", "once", "--file", str(file), "--at", "2040-01-01T00:00:00Z", "--paused")
    assert bytes(QueueBodies(jobs.queues[0].scheduled["once"]).body(0)) == b"two\nlines\n"
    made = jobs.answer(*SWEEP)
    assert (made["topic"], made["every_ms"], made["version"], made["is_paused"]) == ("jobs", 300_000, 1, False)
    head, once, sweep = jobs.text("schedule", "list", "jobs").splitlines()
    assert head.startswith("schedule  rule ")
    assert once.split()[:4] == ["once", "at", "2040-01-01T00:00:00Z", "paused"]
    assert sweep.split()[:4] == ["sweep", "every", "5m", "1970-01-01T00:00:05Z"]


def test_a_schedule_is_replaced_only_in_the_given_version(jobs: QueueCommands) -> None:
    jobs.text(*SWEEP, "--version", "0")
    assert_refused(jobs.run(*SWEEP, "--version", "0"), 4, "raftmq: ")
    assert jobs.answer(*SWEEP, "--version", "1")["version"] == 2


def test_a_schedule_is_paused_resumed_run_and_deleted(jobs: QueueCommands) -> None:
    jobs.text(*SWEEP)
    assert jobs.text("schedule", "pause", "jobs", "sweep") == "schedule sweep of topic jobs paused\n"
    assert jobs.answer("schedule", "list", "jobs")[0]["is_paused"]
    jobs.text("schedule", "resume", "jobs", "sweep")
    assert not jobs.answer("schedule", "list", "jobs")[0]["is_paused"]
    answer = jobs.answer("schedule", "run", "jobs", "sweep")
    assert answer == {"topic": "jobs", "schedule": "sweep", "result": "fired"}
    assert jobs.answer("schedule", "list", "jobs")[0]["last_fired_ms"]
    assert_refused(jobs.run("schedule", "delete", "jobs", "sweep"), 2, "Delete schedule sweep", "--yes")
    assert names(jobs) == ["sweep"]
    jobs.text("schedule", "delete", "jobs", "sweep", "--yes")
    assert names(jobs) == []


@pytest.mark.parametrize("command", ["pause", "resume", "run", "delete"])
def test_an_unknown_schedule_is_refused(jobs: QueueCommands, command: str) -> None:
    options = ("--yes",) if command == "delete" else ()
    assert_refused(jobs.run("schedule", command, "jobs", "none", *options), 4, "raftmq schedule list TOPIC")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--every", "5m"), "--value VALUE or --file"),
        (("--value", "x"), "--cron, --every and --at"),
        (("--value", "x", "--every", "5m", "--at", "2040-01-01"), "--cron, --every and --at"),
        (("--value", "x", "--every", "500ms"), "outside 1s"),
        (("--value", "x", "--every", "5m", "--timezone", "Asia/Tokyo"), "--timezone"),
        (("--value", "x", "--cron", "0 9 * *"), "five fields"),
        (("--value", "x", "--at", "tomorrow"), "is not a time"),
        (("--value", "x", "--every", "5m", "-H", "x"), "NAME=VALUE"),
        (("--value", "x", "--every", "5m", "--catch-up", "some"), "--catch-up"),
    ],
)
def test_wrong_options_are_refused(jobs: QueueCommands, options: tuple[str, ...], words: str) -> None:
    assert_refused(jobs.run("schedule", "put", "jobs", "s", *options), 2, words)
    assert names(jobs) == []
