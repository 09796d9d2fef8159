"""`raftmq queue get` and `settle` against fake brokers."""

from __future__ import annotations

import pytest
from raftmq.cli.queue.get import TOKENS_MAX

from tests.support.cli.queue_commands import QueueCommands, assert_refused


@pytest.fixture(autouse=True)
def messages(jobs: QueueCommands) -> None:
    for number in range(3):
        jobs.text("queue", "put", "jobs", "--value", f"work {number}", "--tenant", f"t{number}", "--id", f"id{number}")


def states(jobs: QueueCommands) -> list[str]:
    return [line["state"] for line in jobs.lines("queue", "browse", "jobs")]


def test_a_message_remains_leased_with_a_token_that_settles_it(jobs: QueueCommands) -> None:
    done = jobs.run("queue", "get", "jobs", "--lease", "5m")
    token, value = done.stdout.rstrip("\n").split("\t")
    assert value == "work 0"
    assert done.stderr == "1 message leased for 5m; settle with: raftmq queue settle jobs TOKEN\n"
    assert states(jobs) == ["leased", "ready", "ready"]
    assert jobs.text("queue", "settle", "jobs", token) == f"message {token} done\n"
    assert states(jobs) == ["ready", "ready"]
    assert jobs.queues[0].settled == [("ACCEPT", 0)]


def test_with_ack_a_message_is_done_when_it_is_printed(jobs: QueueCommands) -> None:
    done = jobs.run("queue", "get", "jobs", "--ack", "-n", "2")
    assert (done.stdout, done.stderr, done.returncode) == ("work 0\nwork 1\n", "", 0)
    assert jobs.text("queue", "get", "jobs", "--ack", "-o", "raw") == "work 2"
    assert jobs.queues[0].messages == {}


def test_json_has_all_of_a_message(jobs: QueueCommands) -> None:
    (message,) = jobs.lines("queue", "get", "jobs", "--tenant", "t1", "--wait", "10s")
    assert (message["value"], message["tenant"], message["id"], message["attempt"]) == ("work 1", "t1", "id1", 1)
    assert jobs.answer("queue", "settle", "jobs", message["token"]) == [{"token": message["token"], "result": "done"}]
    (message,) = jobs.lines("queue", "get", "jobs", "--ack")
    assert message["token"] is None


def test_an_empty_queue_is_no_error_and_says_why(jobs: QueueCommands) -> None:
    jobs.text("queue", "get", "jobs")
    jobs.text("queue", "move", "jobs", "id1", "--delay", "1h")
    jobs.text("queue", "pause", "jobs", "--tenant", "t2")
    done = jobs.run("queue", "get", "jobs")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == "no message is ready (1 delayed, 1 leased, paused: t2)\n"


def test_messages_are_released_rejected_and_renewed(jobs: QueueCommands) -> None:
    first, second, third = (line["token"] for line in jobs.lines("queue", "get", "jobs", "-n", "3"))
    settle = ("queue", "settle", "jobs")
    assert jobs.text(*settle, first, "--release", "--delay", "1h", "--error", "busy") == f"message {first} released\n"
    assert jobs.text(*settle, second, "--reject", "--error", "no address") == f"message {second} dead\n"
    assert jobs.text(*settle, third, "--renew", "--lease", "1h", "--progress", "half") == f"message {third} renewed\n"
    found = jobs.lines("queue", "browse", "jobs")
    assert [(m["state"], m["error"], m["progress"]) for m in found] == [
        ("delayed", "busy", ""),
        ("dead", "no address", ""),
        ("leased", "", "half"),
    ]
    assert jobs.queues[0].releases[0].delay_ms == 3_600_000


@pytest.mark.parametrize("lease", ["60d", "500ms", "13h"])
def test_a_lease_that_is_too_short_or_too_long_is_refused(jobs: QueueCommands, lease: str) -> None:
    assert_refused(jobs.run("queue", "get", "jobs", "--lease", lease), 2, "--lease", "outside 1s to 12h")
    renewal = jobs.run("queue", "settle", "jobs", "12-0-341-1", "--renew", "--lease", lease)
    assert_refused(renewal, 2, "--lease", "outside 1s to 12h")


def test_the_next_message_of_a_key_is_leased(jobs: QueueCommands) -> None:
    jobs.cluster.create_queue("ordered", 2, ordered_by_key="true")
    for value in ("one", "two"):
        jobs.text("queue", "put", "ordered", "--value", value, "--key", "k", "--tenant", "t")
    get = ("queue", "get", "ordered", "--key", "k", "--tenant", "t")
    assert jobs.text(*get).endswith("\tone\n")
    assert jobs.text(*get) == ""
    assert_refused(jobs.run("queue", "get", "jobs", "--key", "k"), 2, "not ordered by key")


def test_a_release_is_immediate_or_after_the_back_off_of_the_topic(jobs: QueueCommands) -> None:
    first, second = (line["token"] for line in jobs.lines("queue", "get", "jobs", "-n", "2"))
    jobs.text("queue", "settle", "jobs", first, "--release", "--priority", "-1")
    jobs.text("queue", "settle", "jobs", second, "--release", "--back-off")
    immediate, later = jobs.queues[0].releases
    assert (immediate.HasField("delay_ms"), immediate.delay_ms, immediate.priority) == (True, 0, -1)
    assert not later.HasField("delay_ms")


def test_a_release_after_the_last_attempt_says_that_the_message_is_dead(jobs: QueueCommands) -> None:
    jobs.queues[0].attempts_max = 1
    (message,) = jobs.lines("queue", "get", "jobs")
    (result,) = jobs.answer("queue", "settle", "jobs", message["token"], "--release")
    assert result["result"] == "dead"


def test_every_token_is_tried_and_each_failure_is_reported(jobs: QueueCommands) -> None:
    first, second = (line["token"] for line in jobs.lines("queue", "get", "jobs", "-n", "2", "--lease", "1m"))
    jobs.queues[0].offset_ms += 60_001
    (third,) = (line["token"] for line in jobs.lines("queue", "get", "jobs"))
    done = jobs.run("queue", "settle", "jobs", second, third)
    assert_refused(done, 4, "message 1 of partition 0: this lease has ended")
    assert done.stdout == f"message {third} done\n"
    assert_refused(jobs.run("queue", "settle", "jobs", third), 5, "it is gone; treat the message as done")
    assert_refused(jobs.run("queue", "settle", "jobs", first), 4, "message 0")
    both = jobs.run("queue", "settle", "jobs", first, third)
    assert both.returncode == 5, "an unknown outcome comes before a refusal"
    assert [line.split(": ")[:3] for line in both.stderr.splitlines()] == [
        ["raftmq", f"token {first}", "message 0 of partition 0"],
        ["raftmq", f"token {third}", "message 2 of partition 0"],
    ]


def test_nothing_is_settled_if_one_of_the_tokens_is_none(jobs: QueueCommands) -> None:
    (message,) = jobs.lines("queue", "get", "jobs")
    assert_refused(jobs.run("queue", "settle", "jobs", message["token"], "12"), 2, "'12' is not the token")
    assert jobs.queues[0].settled == []


def test_too_many_tokens_are_refused(jobs: QueueCommands) -> None:
    tokens = [f"1-0-{number}-1" for number in range(TOKENS_MAX + 1)]
    assert_refused(jobs.run("queue", "settle", "jobs", *tokens), 2, f"at most {TOKENS_MAX} tokens are allowed")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("get", "jobs", "-o", "raw"), "use it with --ack"),
        (("get", "jobs", "-n", "1001"), "1 to 1000"),
        (("get", "jobs", "--wait", "5"), "write 5s"),
        (("settle", "jobs"), "TOKEN"),
        (("settle", "jobs", "12"), "is not the token"),
        (("settle", "jobs", "1-0-0-1", "--release", "--reject"), "only one"),
        (("settle", "jobs", "1-0-0-1", "--delay", "1s"), "--release"),
        (("settle", "jobs", "1-0-0-1", "--renew", "--error", "x"), "--release or --reject"),
        (("settle", "jobs", "1-0-0-1", "--reject", "--progress", "x"), "--renew"),
        (("settle", "jobs", "1-0-0-1", "--release", "--delay", "1s", "--back-off"), "--delay"),
    ],
)
def test_wrong_options_are_refused(jobs: QueueCommands, options: tuple[str, ...], words: str) -> None:
    assert_refused(jobs.run("queue", *options), 2, words)
    assert states(jobs) == ["ready"] * 3


def test_a_message_that_cannot_be_printed_is_not_done(jobs: QueueCommands) -> None:
    with jobs.process("queue", "get", "jobs", "--ack", "--wait", "30s", "--tenant", "nobody") as process:
        assert process.stdout is not None
        process.stdout.close()
        jobs.text("queue", "put", "jobs", "--value", "x" * 100_000, "--tenant", "nobody", "--id", "large")
        assert process.wait(60) == 141
    (state,) = [line["state"] for line in jobs.lines("queue", "browse", "jobs", "--id", "large")]
    assert state == "leased"
