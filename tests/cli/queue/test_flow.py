"""`raftmq queue pause`, `resume` and `clock` against fake brokers."""

from __future__ import annotations

from raftmq.cli.durations import signed

from tests.support.cli.queue_commands import QueueCommands, assert_refused


def test_a_topic_is_paused_and_resumed(wide_jobs: QueueCommands) -> None:
    assert wide_jobs.text("queue", "pause", "jobs") == "topic jobs paused\n"
    assert [queue.paused for queue in wide_jobs.queues] == [{b""}] * 3
    assert wide_jobs.text("queue", "resume", "jobs") == "topic jobs resumed\n"
    assert [queue.paused for queue in wide_jobs.queues] == [set()] * 3


def test_a_tenant_is_paused_for_a_time(jobs: QueueCommands) -> None:
    jobs.text("queue", "put", "jobs", "--value", "x", "--tenant", "acme")
    said = jobs.text("queue", "pause", "jobs", "--tenant", "acme", "--for", "10m")
    assert said == "tenant acme of topic jobs paused for 10m\n"
    assert jobs.text("queue", "get", "jobs") == ""
    answer = jobs.answer("queue", "resume", "jobs", "--tenant", "acme")
    assert answer == {"topic": "jobs", "tenant": "acme", "result": "resumed"}
    assert jobs.text("queue", "get", "jobs", "--ack") == "x\n"


def test_the_clock_of_each_partition_is_shown(wide_jobs: QueueCommands) -> None:
    wide_jobs.queues[1].clock_behind_ms = 7_200_000
    assert [line.split() for line in wide_jobs.text("queue", "clock", "jobs").splitlines()] == [
        ["partition", "difference"],
        ["0", "0s"],
        ["1", "-2h"],
        ["2", "0s"],
    ]
    assert wide_jobs.answer("queue", "clock", "jobs")[1] == {
        "topic": "jobs",
        "partition": 1,
        "difference_seconds": -7200.0,
    }


def test_clocks_are_stepped_only_after_a_yes(jobs: QueueCommands) -> None:
    jobs.queues[0].clock_behind_ms = 7_200_000
    done = jobs.run("queue", "clock", "jobs", "--step")
    assert_refused(done, 2, "of which the last is 2h behind?", "pass --yes")
    assert jobs.queues[0].clock_behind_ms == 7_200_000
    assert jobs.text("queue", "clock", "jobs", "--step", "--yes").splitlines()[1].split() == ["0", "+2h"]
    assert jobs.queues[0].clock_behind_ms == 0


def test_a_difference_has_a_sign() -> None:
    assert [signed(seconds) for seconds in (0.0, 0.25, -90.0)] == ["0s", "+250ms", "-1m30s"]
