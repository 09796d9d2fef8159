"""`raftmq queue move`, `cancel`, `redrive` and `purge` against fake brokers."""

from __future__ import annotations

import signal
import time

import pytest
from raftmq.client.base.loop_thread import LoopThread

from tests.support.cli.queue_commands import QueueCommands, assert_refused


def put(jobs: QueueCommands, name: str, *options: str) -> None:
    jobs.text("queue", "put", "jobs", "--value", name, "--id", name, *options)


def states(jobs: QueueCommands) -> dict[str, str]:
    return {line["id"]: line["state"] for line in jobs.lines("queue", "browse", "jobs")}


def reject(jobs: QueueCommands, tenant: str) -> None:
    (message,) = jobs.lines("queue", "get", "jobs", "--tenant", tenant)
    jobs.text("queue", "settle", "jobs", message["token"], "--reject")


def test_a_message_is_moved_by_its_id_or_by_its_sequence(wide_jobs: QueueCommands) -> None:
    jobs = wide_jobs
    put(jobs, "later", "--delay", "1h")
    assert jobs.text("queue", "move", "jobs", "later", "--delay", "0s") == "message later moved\n"
    assert states(jobs) == {"later": "ready"}
    (message,) = jobs.lines("queue", "browse", "jobs")
    place = ("--partition", str(message["partition"]), "--sequence", str(message["sequence"]))
    version = ("--version", str(message["version"]))
    answer = jobs.answer("queue", "move", "jobs", *place, *version, "--priority", "-5")
    assert answer == {"topic": "jobs", "result": "moved", "version": message["version"] + 1}
    moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 3600))
    jobs.text("queue", "move", "jobs", "later", "--not-before", moment)
    (message,) = jobs.lines("queue", "browse", "jobs")
    assert (message["state"], message["priority"]) == ("delayed", -5)


def test_a_change_of_an_earlier_version_or_of_a_leased_message_is_refused(jobs: QueueCommands) -> None:
    put(jobs, "one")
    assert_refused(jobs.run("queue", "cancel", "jobs", "one", "--version", "7"), 4, "message 'one': it has changed")
    jobs.text("queue", "get", "jobs")
    assert_refused(jobs.run("queue", "cancel", "jobs", "one"), 3, "message 'one': a consumer works on it")
    assert_refused(
        jobs.run("queue", "cancel", "jobs", "two"), 4, "message 'two': it is done, was cancelled, or never existed"
    )
    assert states(jobs) == {"one": "leased"}


def test_a_message_is_cancelled(jobs: QueueCommands) -> None:
    put(jobs, "one")
    put(jobs, "two")
    put(jobs, "three")
    assert jobs.text("queue", "cancel", "jobs", "one") == "message one cancelled\n"
    assert jobs.text("queue", "cancel", "jobs", "--sequence", "1") == "message 1 of partition 0 cancelled\n"
    assert jobs.answer("queue", "cancel", "jobs", "three") == {"topic": "jobs", "result": "cancelled"}
    assert states(jobs) == {}


def test_one_dead_message_is_redriven_without_a_question(jobs: QueueCommands) -> None:
    put(jobs, "one", "--tenant", "a")
    reject(jobs, "a")
    assert jobs.text("queue", "redrive", "jobs", "one") == "1 message of jobs redriven\n"
    assert states(jobs) == {"one": "ready"}
    assert_refused(jobs.run("queue", "redrive", "jobs", "one"), 4, "message 'one': its state")


def test_all_dead_messages_are_redriven_after_a_yes(jobs: QueueCommands) -> None:
    for name in ("one", "two"):
        put(jobs, name, "--tenant", name)
        reject(jobs, name)
    done = jobs.fed("queue", "redrive", "jobs", stdin=b"n\n")
    assert (done.returncode, done.stdout.strip()) == (130, "")
    assert done.stderr.startswith("messages of jobs: 2 dead\nMake all dead messages of jobs ready?")
    assert states(jobs) == {"one": "dead", "two": "dead"}
    assert jobs.fed("queue", "redrive", "jobs", stdin=b"y\n").stdout.strip() == "2 messages of jobs redriven"
    assert states(jobs) == {"one": "ready", "two": "ready"}


def test_a_redrive_is_filtered_and_limited(jobs: QueueCommands) -> None:
    put(jobs, "one", "--tenant", "a")
    reject(jobs, "a")
    options = ("--tenant", "a", "--died-before", "0s", "--rate", "100/s")
    done = jobs.run("queue", "redrive", "jobs", *options, "--yes", "-o", "json")
    assert done.stdout == '{"topic": "jobs", "redriven": 1}\n'
    assert done.stderr == "messages of jobs before the filters: 1 dead\n"
    (job,) = jobs.cluster.job_requests
    assert (list(job.tenants), job.messages_per_second) == (["a"], 100)
    assert abs(job.before_ms - time.time() * 1000) < 60_000


def test_a_purge_shows_the_messages_and_asks(jobs: QueueCommands) -> None:
    put(jobs, "one")
    put(jobs, "two", "--delay", "1h")
    done = jobs.run("queue", "purge", "jobs")
    assert_refused(done, 2, "messages of jobs: 1 ready, 1 delayed, 0 leased, 0 dead, 0 blocked", "pass --yes")
    assert len(states(jobs)) == 2
    done = jobs.run("queue", "purge", "jobs", "--state", "delayed", "--yes")
    assert (done.stdout, done.stderr) == ("1 message of jobs purged\n", "messages of jobs: 1 delayed\n")
    assert states(jobs) == {"one": "ready"}
    assert jobs.answer("queue", "purge", "jobs", "--yes") == {"topic": "jobs", "purged": 1}
    assert states(jobs) == {}


def test_a_purge_has_filters(jobs: QueueCommands) -> None:
    options = ("--tenant", "a", "--tenant", "b", "--enqueued-before", "1h", "-s", "ready", "-s", "dead")
    jobs.text("queue", "purge", "jobs", *options, "--yes")
    (job,) = jobs.cluster.job_requests
    assert (list(job.tenants), len(job.states)) == (["a", "b"], 2)
    assert abs(job.before_ms - (time.time() - 3600) * 1000) < 60_000


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("move", "jobs", "--delay", "1s"), "ID or --sequence"),
        (("move", "jobs", "a", "--sequence", "1", "--delay", "1s"), "ID or --sequence"),
        (("move", "jobs", "a", "--partition", "1", "--delay", "1s"), "--sequence"),
        (("move", "jobs", "a"), "a move needs a --delay"),
        (("move", "jobs", "a", "--delay", "1s", "--not-before", "2031-01-01"), "--not-before"),
        (("cancel", "jobs"), "ID or --sequence"),
        (("redrive", "jobs", "a", "--tenant", "b"), "--tenant"),
        (("redrive", "jobs", "--version", "1"), "--version"),
        (("redrive", "jobs", "--rate", "10/m"), "less than 1/s"),
        (("purge", "jobs", "--rate", "fast"), "is not a rate"),
        (("purge", "jobs", "--rate", "5/s", "--yes"), "use it with --state"),
        (("purge", "jobs", *(f"--tenant=t{n}" for n in range(17)), "--yes"), "at most 16"),
    ],
)
def test_wrong_options_are_refused(jobs: QueueCommands, options: tuple[str, ...], words: str) -> None:
    assert_refused(jobs.run("queue", *options), 2, words)


def test_the_rate_0_is_no_limit(jobs: QueueCommands) -> None:
    jobs.text("queue", "redrive", "jobs", "--rate", "0", "--yes")
    assert [request.messages_per_second for request in jobs.cluster.job_requests] == [0]


def test_an_interrupted_command_says_that_the_work_continues(jobs: QueueCommands) -> None:
    jobs.cluster.is_job_endless = True
    with jobs.process("queue", "purge", "jobs", "--yes") as process:
        assert process.stderr is not None
        assert process.stderr.readline().startswith(b"messages of jobs: ")
        jobs.wait_job()
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        assert process.stderr.read() == b"the cluster continues the work; to stop it: raftmq queue jobs jobs\n"


def test_a_purge_that_began_is_not_reported_as_not_applied(jobs: QueueCommands) -> None:
    jobs.cluster.is_job_endless = True

    async def lose_the_leader() -> None:
        jobs.cluster.move_leader("jobs", 0, 0)

    with jobs.process("queue", "purge", "jobs", "--yes", "--timeout", "2s") as process:
        jobs.wait_job()
        LoopThread.get().run(lose_the_leader())
        assert process.wait(60) == 5
        assert process.stderr is not None
        said = process.stderr.read().decode()
    assert "the cluster may continue the work; to stop it: raftmq queue jobs jobs\n" in said
    assert said.splitlines()[-1].startswith("raftmq: partition 0 has no leader")
