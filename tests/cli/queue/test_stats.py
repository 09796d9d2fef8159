"""`raftmq queue stats` and `top` against fake brokers."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys

import pytest

from tests.support.cli.queue_commands import QueueCommands, assert_refused


@pytest.fixture(autouse=True)
def messages(jobs: QueueCommands) -> None:
    for number in range(3):
        jobs.text("queue", "put", "jobs", "--value", "x", "--tenant", "acme" if number else "globex")
    jobs.text("queue", "put", "jobs", "--value", "x", "--delay", "1h", "--tenant", "acme")


def test_stats_show_states_totals_and_tenants(jobs: QueueCommands) -> None:
    jobs.text("queue", "get", "jobs", "--ack", "--tenant", "globex")
    jobs.text("queue", "pause", "jobs", "--tenant", "acme")
    text = jobs.text("queue", "stats", "jobs")
    assert text.startswith("topic jobs: oldest ready ")
    assert re.search(r"^ready +2$", text, re.MULTILINE)
    assert re.search(r"^delayed +1$", text, re.MULTILINE)
    assert re.search(r"^enqueued +4$", text, re.MULTILINE)
    assert re.search(r"^accepted +1$", text, re.MULTILINE)
    assert re.search(r"^acme +2 +1 +0 +0 +0 +paused until resumed$", text, re.MULTILINE)
    answer = jobs.answer("queue", "stats", "jobs", "--tenants", "1")
    assert (answer["topic"], answer["ready"], answer["accepted_total"]) == ("jobs", 2, 1)
    assert answer["tenants"] == {"acme": {"ready": 2, "delayed": 1, "leased": 0, "dead": 0, "blocked": 0}}
    assert answer["paused"] == {"acme": None}


def test_top_prints_one_state_with_rates_and_ends(jobs: QueueCommands) -> None:
    text = jobs.text("queue", "top", "jobs", "--once", "--interval", "200ms")
    assert text.count("topic jobs: ") == 1
    assert re.search(r"^event +per second +total$", text, re.MULTILINE)
    assert re.search(r"^enqueued +0\.0 +4$", text, re.MULTILINE)
    (state,) = jobs.lines("queue", "top", "jobs", "--once", "-i", "200ms")
    assert (state["ready"], state["per_second"]["enqueued"]) == (3, 0.0)


def test_top_prints_one_state_after_the_other_into_a_pipe(jobs: QueueCommands) -> None:
    with jobs.process("queue", "top", "jobs", "--interval", "200ms") as process:
        assert process.stdout is not None
        heads = 0
        while heads < 3:
            heads += process.stdout.readline().startswith(b"topic jobs: ")
        process.send_signal(signal.SIGINT)
        assert b"\x1b" not in process.communicate(timeout=60)[0]
        assert process.returncode == 130


def test_top_ends_when_the_reader_of_a_pipe_is_gone(jobs: QueueCommands) -> None:
    with jobs.process("queue", "top", "jobs", "--interval", "200ms", "-o", "json") as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["per_second"]["enqueued"] is None
        assert json.loads(process.stdout.readline())["per_second"]["enqueued"] == 0.0
        process.stdout.close()
        assert process.wait(60) == 141


def test_top_refreshes_a_terminal_in_place(jobs: QueueCommands) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "raftmq", "queue", "top", "jobs", "-i", "200ms"]
    with subprocess.Popen(command, stdout=theirs, env=jobs.environment | {"TERM": "xterm", "LINES": "50"}) as process:
        os.close(theirs)
        seen = b""
        while seen.count(b"topic jobs: ") < 3:
            seen += os.read(ours, 65_536)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    os.close(ours)
    assert b"\x1b[1A" in seen, "the cursor goes up to the first line"


def test_top_shows_ten_tenants_on_a_terminal_of_80_by_24(jobs: QueueCommands) -> None:
    for number in range(8):
        jobs.text("queue", "put", "jobs", "--value", "x", "--tenant", f"tenant-{number}")
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "raftmq", "queue", "top", "jobs", "-i", "200ms"]
    size = {"TERM": "xterm", "LINES": "24", "COLUMNS": "80"}
    with subprocess.Popen(command, stdout=theirs, env=jobs.environment | size) as process:
        os.close(theirs)
        seen = b""
        while seen.count(b"topic jobs: ") < 3:
            seen += os.read(ours, 65_536)
        process.send_signal(signal.SIGINT)
        process.wait(60)
    os.close(ours)
    first = seen.split(b"topic jobs: ")[1].decode()
    assert re.search(r"^ready +11 +enqueued +- +12\s", first, re.MULTILINE), "states and rates are side by side"
    for tenant in ("acme", "globex", *(f"tenant-{number}" for number in range(8))):
        assert re.search(rf"^{tenant} ", first, re.MULTILINE), tenant


def test_a_cluster_that_does_not_answer_ends_the_command(jobs: QueueCommands) -> None:
    assert_refused(jobs.run("queue", "top", "jobs", "-b", "127.0.0.1:1", "--timeout", "1s"), 3, "127.0.0.1:1")
    assert_refused(jobs.run("queue", "top", "jobs", "--interval", "1ms"), 2, "outside 200ms to 1h")
