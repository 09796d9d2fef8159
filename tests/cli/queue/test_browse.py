"""`raftmq queue browse` and `peek` against fake brokers."""

from __future__ import annotations

import pytest
from raftmq.cli.queue import browse

from tests.support.cli.queue_commands import QueueCommands, assert_refused


@pytest.fixture(autouse=True)
def messages(jobs: QueueCommands) -> None:
    put = ("queue", "put", "jobs", "--value")
    jobs.text(*put, "ready", "--id", "r", "--tenant", "acme.eu", "--key", "k")
    jobs.text(*put, "delayed", "--id", "d", "--delay", "1h")
    jobs.text(*put, "taken", "--id", "l", "--priority", "-1", "--tenant", "globex")
    jobs.text("queue", "get", "jobs", "--tenant", "globex")
    jobs.text(*put, "gone\nwrong", "--id", "x", "--tenant", "failing")
    (message,) = jobs.lines("queue", "get", "jobs", "--tenant", "failing")
    jobs.text("queue", "settle", "jobs", message["token"], "--reject", "--error", "no such address")


def ids(jobs: QueueCommands, *options: str) -> list[str]:
    return [line["id"] for line in jobs.lines("queue", "browse", "jobs", *options)]


def test_messages_are_chosen_by_state_tenant_and_id(jobs: QueueCommands) -> None:
    assert ids(jobs) == ["r", "d", "l", "x"]
    assert [ids(jobs, "--state", state) for state in ("ready", "delayed", "leased", "dead")] == [
        ["r"],
        ["d"],
        ["l"],
        ["x"],
    ]
    assert ids(jobs, "--tenant", "acme") == ["r"]
    assert ids(jobs, "--id", "d") == ["d"]
    assert ids(jobs, "-n", "2") == ["r", "d"]


def test_a_table_has_the_time_that_matters_and_the_error(jobs: QueueCommands) -> None:
    head, ready, delayed, leased, dead = jobs.text("queue", "browse", "jobs").splitlines()
    assert head.split() == [*browse.COLUMNS, "note"]
    assert ready.split()[:7] == ["0", "0", "r", "acme.eu", "k", "0", "ready"]
    assert "since" in ready
    assert "in 59m" in delayed or "in 1h" in delayed
    assert "left" in leased
    assert dead.split()[4:6] == ["0", "rejected"]
    assert dead.endswith("no such address")


def test_values_are_shown_only_on_request_and_on_one_line(jobs: QueueCommands) -> None:
    assert "value" not in jobs.lines("queue", "browse", "jobs")[0]
    assert jobs.lines("queue", "browse", "jobs", "--values", "--state", "dead")[0]["value"] == "gone\nwrong"
    assert jobs.text("queue", "browse", "jobs", "--values", "-s", "dead").splitlines()[1].endswith("gone wrong")


def test_peek_shows_ready_messages_without_leasing_them(jobs: QueueCommands) -> None:
    (message,) = jobs.lines("queue", "peek", "jobs")
    assert (message["id"], message["value"], message["state"]) == ("r", "ready", "ready")
    assert jobs.text("queue", "peek", "jobs").splitlines()[1].endswith("ready")
    assert jobs.lines("queue", "peek", "jobs", "--tenant", "globex") == []
    assert ids(jobs, "--state", "ready") == ["r"]


def test_a_long_table_is_cut_with_a_note(jobs: QueueCommands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(browse, "TEXT_ROWS_MAX", 3)
    done = jobs.run("queue", "browse", "jobs")
    assert len(done.stdout.splitlines()) == 4
    assert done.stderr == "there are more than 3 messages: use a filter, -n or --output json\n"
    assert len(jobs.lines("queue", "browse", "jobs")) == 4
    assert "more than" not in jobs.run("queue", "browse", "jobs", "-n", "4").stderr
    assert len(jobs.text("queue", "browse", "jobs", "-n", "4").splitlines()) == 5
    monkeypatch.setattr(browse, "TEXT_ROWS_MAX", 4)
    done = jobs.run("queue", "browse", "jobs")
    assert (len(done.stdout.splitlines()), done.stderr) == (5, "")


def test_messages_that_are_waiting_for_long_are_chosen_by_a_time_ago(jobs: QueueCommands) -> None:
    assert_refused(jobs.run("queue", "browse", "jobs", "--enqueued-before", "yesterday"), 2, "is not a time")
    assert jobs.run("queue", "browse", "jobs", "--enqueued-before", "15m").returncode == 0


def test_an_unknown_state_is_refused(jobs: QueueCommands) -> None:
    assert_refused(jobs.run("queue", "browse", "jobs", "--state", "done"), 2, "'ready', 'delayed'")
