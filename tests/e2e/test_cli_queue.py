"""`raftmq queue` and `raftmq schedule` with real brokers, from the first put to a purge."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from raftmq.testing import LocalCluster

from tests.support.e2e.raftmq_command import completions, raftmq, started

pytestmark = [pytest.mark.e2e]


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=3) as running:
        yield running


@pytest.fixture
def jobs(cluster: LocalCluster, request: pytest.FixtureRequest) -> str:
    """Create a queue topic of one partition, and return its name."""
    name = f"jobs-{abs(hash(request.node.nodeid))}"
    said = text(cluster, "topic", "create", name, "--kind", "queue", "--config", "lease.ms=1m")
    assert said.startswith(f"topic {name} created: kind queue, partitions 1, ")
    return name


def succeeded(done: subprocess.CompletedProcess[bytes]) -> str:
    assert done.returncode == 0, done.stderr
    return done.stdout.decode()


def text(cluster: LocalCluster, *arguments: str, stdin: bytes = b"") -> str:
    return succeeded(raftmq(cluster, *arguments, stdin=stdin))


def lines(cluster: LocalCluster, *arguments: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text(cluster, *arguments, "-o", "json").splitlines()]


def states(cluster: LocalCluster, topic: str) -> dict[str, str]:
    return {line["id"]: line["state"] for line in lines(cluster, "queue", "browse", topic)}


def test_messages_are_put_leased_and_settled(cluster: LocalCluster, jobs: str) -> None:
    assert text(cluster, "queue", "put", jobs, stdin=b"one\ntwo\nthree\n") == f"3 messages put into {jobs}\n"
    first, second, third = lines(cluster, "queue", "get", jobs, "-n", "3", "--wait", "20s")
    assert [message["value"] for message in (first, second, third)] == ["one", "two", "three"]
    settle = ("queue", "settle", jobs)
    assert text(cluster, *settle, first["token"]) == f"message {first['token']} done\n"
    assert text(cluster, *settle, second["token"], "--renew", "--lease", "2m") == f"message {second['token']} renewed\n"
    assert text(cluster, *settle, second["token"], "--release", "--error", "busy").endswith("released\n")
    assert text(cluster, *settle, third["token"], "--reject", "--error", "no address").endswith("dead\n")
    assert text(cluster, "queue", "get", jobs, "--ack", "--wait", "20s") == "two\n"
    lost = raftmq(cluster, *settle, third["token"])
    assert lost.returncode == 4, lost.stderr
    gone = raftmq(cluster, *settle, first["token"])
    assert gone.returncode == 5, gone.stderr


def test_settled_messages_are_browsed_with_their_errors(cluster: LocalCluster, jobs: str) -> None:
    text(cluster, "queue", "put", jobs, stdin=b"one\ntwo\n")
    first, second = lines(cluster, "queue", "get", jobs, "-n", "2", "--wait", "20s")
    assert text(cluster, "queue", "get", jobs) == ""
    text(cluster, "queue", "settle", jobs, first["token"], "--release", "--error", "busy")
    text(cluster, "queue", "settle", jobs, second["token"], "--reject", "--error", "no address")
    found = {line["value"]: line for line in lines(cluster, "queue", "browse", jobs, "--values")}
    assert {value: line["state"] for value, line in found.items()} == {"one": "ready", "two": "dead"}
    assert [found[value]["error"] for value in ("one", "two")] == ["busy", "no address"]
    assert found["two"]["dead_reason"] == "rejected"


@pytest.mark.long
def test_a_waiting_message_is_moved_deduplicated_and_cancelled(cluster: LocalCluster, jobs: str) -> None:
    text(cluster, "queue", "put", jobs, "--value", "later", "--id", "later", "--delay", "1h", "--tenant", "acme.eu")
    again = text(cluster, "queue", "put", jobs, "--value", "later", "--id", "later")
    assert again == f"nothing put into {jobs}: the id is known\n"
    assert states(cluster, jobs) == {"later": "delayed"}
    text(cluster, "queue", "move", jobs, "later", "--delay", "0s", "--priority", "-5")
    (message,) = lines(cluster, "queue", "peek", jobs, "--tenant", "acme")
    assert (message["state"], message["priority"], message["value"]) == ("ready", -5, "later")
    place = ("--partition", str(message["partition"]), "--sequence", str(message["sequence"]))
    stale = raftmq(cluster, "queue", "cancel", jobs, *place, "--version", str(message["version"] - 1))
    assert stale.returncode == 4, stale.stderr
    text(cluster, "queue", "cancel", jobs, *place, "--version", str(message["version"]))
    assert states(cluster, jobs) == {}


def test_dead_messages_are_redriven_and_purged(cluster: LocalCluster, jobs: str) -> None:
    for name in ("a", "b"):
        text(cluster, "queue", "put", jobs, "--value", name, "--id", name, "--tenant", name)
        (message,) = lines(cluster, "queue", "get", jobs, "--wait", "20s")
        text(cluster, "queue", "settle", jobs, message["token"], "--reject")
    assert text(cluster, "queue", "redrive", jobs, "a") == f"1 message of {jobs} redriven\n"
    assert states(cluster, jobs) == {"a": "ready", "b": "dead"}
    text(cluster, "queue", "redrive", jobs, "--yes")
    assert states(cluster, jobs) == {"a": "ready", "b": "ready"}
    text(cluster, "queue", "purge", jobs, "--tenant", "a", "--yes")
    assert states(cluster, jobs) == {"b": "ready"}
    refused = raftmq(cluster, "queue", "purge", jobs)
    assert (refused.returncode, b"pass --yes" in refused.stderr) == (2, True)
    text(cluster, "queue", "purge", jobs, "--yes")
    assert states(cluster, jobs) == {}


@pytest.mark.long
def test_a_paused_tenant_is_not_delivered(cluster: LocalCluster, jobs: str) -> None:
    text(cluster, "queue", "put", jobs, "--value", "x", "--tenant", "acme")
    text(cluster, "queue", "pause", jobs, "--tenant", "acme")
    assert text(cluster, "queue", "get", jobs) == ""
    text(cluster, "queue", "resume", jobs, "--tenant", "acme")
    assert text(cluster, "queue", "get", jobs, "--ack", "--wait", "20s") == "x\n"


@pytest.mark.long
def test_the_state_is_shown_once_and_live(cluster: LocalCluster, jobs: str) -> None:
    text(cluster, "queue", "put", jobs, "--tenant", "acme", stdin=b"x\n" * 5)
    (stats,) = lines(cluster, "queue", "stats", jobs)
    assert (stats["ready"], stats["enqueued_total"], stats["tenants"]["acme"]["ready"]) == (5, 5, 5)
    shown = text(cluster, "queue", "top", jobs, "--once", "--interval", "200ms")
    assert shown.startswith(f"topic {jobs}: oldest ready ")
    with started(cluster, "queue", "top", jobs, "--interval", "200ms", "-o", "json") as top:
        assert top.stdout is not None
        assert json.loads(top.stdout.readline())["ready"] == 5
        text(cluster, "queue", "get", jobs, "--ack", "-n", "5", "--wait", "20s")
        while json.loads(top.stdout.readline())["ready"]:
            pass
        top.send_signal(signal.SIGINT)
        assert top.wait(60) == 130
    clocks = json.loads(text(cluster, "queue", "clock", jobs, "-o", "json"))
    assert [row["partition"] for row in clocks] == [0]


def test_commands_of_logs_name_those_of_queues(cluster: LocalCluster, jobs: str) -> None:
    """Each refusal is one sentence that names the right client."""
    for arguments, remedy in (
        (("produce", jobs, "--value", "x"), "raftmq queue put"),
        (("consume", jobs, "--from-beginning", "--exit-at-end"), "raftmq queue get"),
        (("consume", jobs, "--group", "g"), "raftmq queue get"),
    ):
        done = raftmq(cluster, *arguments)
        assert done.returncode == 4, done.stderr
        assert done.stderr.decode().startswith(f"raftmq: '{jobs}' is a queue topic")
        assert remedy in done.stderr.decode()
        assert done.stderr.count(b"\n") == 1
    text(cluster, "topic", "create", f"{jobs}-log")
    done = raftmq(cluster, "queue", "put", f"{jobs}-log", "--value", "x")
    assert done.returncode == 4
    assert b"raftmq produce" in done.stderr


def test_a_schedule_fires_and_is_deleted(cluster: LocalCluster, jobs: str) -> None:
    text(cluster, "schedule", "put", jobs, "sweep", "--value", "sweep", "--every", "1h")
    (schedule,) = json.loads(text(cluster, "schedule", "list", jobs, "-o", "json"))
    assert (schedule["name"], schedule["every_ms"], schedule["is_paused"]) == ("sweep", 3_600_000, False)
    assert completions(cluster, f"raftmq schedule run {jobs} sw") == ["sweep"]
    assert completions(cluster, f"raftmq schedule run {jobs} x") == []
    text(cluster, "schedule", "run", jobs, "sweep")
    assert text(cluster, "queue", "get", jobs, "--ack", "--wait", "20s") == "sweep\n"
    text(cluster, "schedule", "pause", jobs, "sweep")
    assert json.loads(text(cluster, "schedule", "list", jobs, "-o", "json"))[0]["is_paused"]
    text(cluster, "schedule", "delete", jobs, "sweep", "--yes")
    assert json.loads(text(cluster, "schedule", "list", jobs, "-o", "json")) == []


@pytest.mark.long
def test_the_topic_is_described_and_deleted_after_a_count(cluster: LocalCluster, jobs: str) -> None:
    text(cluster, "queue", "put", jobs, "--value", "x")
    described = text(cluster, "topic", "describe", jobs)
    assert "kind queue" in described
    assert "next" in described.splitlines()[2]
    refused = raftmq(cluster, "topic", "delete", jobs)
    assert (refused.returncode, b"1 ready" in refused.stderr) == (2, True), refused.stderr
    text(cluster, "topic", "delete", jobs, "--yes")
    gone = raftmq(cluster, "queue", "stats", jobs, "--timeout", "5s")
    assert gone.returncode == 4, gone.stderr
