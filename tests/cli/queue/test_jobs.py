"""`raftmq queue jobs` against fake brokers."""

from __future__ import annotations

from tests.support.cli.queue_commands import QueueCommands, assert_refused


def test_running_jobs_are_shown_and_stopped(wide_jobs: QueueCommands) -> None:
    jobs = wide_jobs
    jobs.cluster.is_job_endless = True
    first = {"topic": "jobs", "id": "0-1", "partition": 0, "kind": "purge", "done": 3, "is_finished": False}
    assert jobs.answer("queue", "jobs", "jobs")[0] == first
    assert jobs.text("queue", "jobs", "jobs").splitlines()[:2] == [
        "job  kind   messages  state",
        "0-1  purge  3         running",
    ]
    assert jobs.text("queue", "jobs", "jobs", "--cancel", "1-1") == "job 1-1 cancelled after 3 messages\n"
    jobs.cluster.is_job_endless = True
    stopped = jobs.answer("queue", "jobs", "jobs", "--cancel", "0-1")
    assert stopped == {"topic": "jobs", "id": "0-1", "result": "cancelled", "done": 3}
    assert [(request.partition, request.job) for request in jobs.cluster.cancelled_jobs] == [(1, 1), (0, 1)]


def test_a_job_that_is_not_there_is_refused(jobs: QueueCommands) -> None:
    assert_refused(jobs.run("queue", "jobs", "jobs", "--cancel", "0-9"), 4, "")
    assert_refused(jobs.run("queue", "jobs", "jobs", "--cancel", "7-1"), 4, "partitions 0 to 0")
    assert_refused(jobs.run("queue", "jobs", "jobs", "--cancel", "seven"), 2, "such as '0-7'")


def test_a_job_that_is_not_there_after_one_that_was_stopped_leaves_the_command_in_doubt(
    wide_jobs: QueueCommands,
) -> None:
    """It ended with exit code 4, which promises that nothing was applied."""
    wide_jobs.cluster.is_job_endless = True
    done = wide_jobs.run("queue", "jobs", "jobs", "--cancel", "1-1", "--cancel", "7-1")
    assert_refused(done, 5, "partitions 0 to ")
    assert done.stdout == "job 1-1 cancelled after 3 messages\n"
