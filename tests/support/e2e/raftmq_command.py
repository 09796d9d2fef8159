"""Run the ``raftmq`` command against a cluster."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from raftmq.testing import LocalCluster

from tests.support.cli.runner import invoke

RAFTMQ = (sys.executable, "-m", "raftmq")


def environment_of(cluster: LocalCluster) -> dict[str, str]:
    return os.environ | {"RAFTMQ_BOOTSTRAP_SERVERS": cluster.bootstrap_servers, "COLUMNS": "200"}


def raftmq(cluster: LocalCluster, *arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """Run a command to its end.

    Commands that ask the cluster and end run in this process, which saves half a second each. Commands that read standard input, wait or get
    signals run in a process of their own.
    """
    if arguments[0] in ("topic", "cluster", "partition", "group", "dlq", "schedule") or (
        arguments[0] == "queue" and not stdin
    ):
        done = invoke(*arguments, input=stdin, env=environment_of(cluster))
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        return subprocess.CompletedProcess(arguments, done.exit_code, done.stdout_bytes, done.stderr_bytes)
    return subprocess.run(
        [*RAFTMQ, *arguments], input=stdin, capture_output=True, check=False, timeout=60, env=environment_of(cluster)
    )


def started(cluster: LocalCluster, *arguments: str) -> subprocess.Popen[bytes]:
    """Start a command, with pipes."""
    return subprocess.Popen(
        [*RAFTMQ, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment_of(cluster),
    )


def answer(cluster: LocalCluster, *arguments: str) -> object:
    """Run a command and return its JSON output."""
    done = raftmq(cluster, *arguments, "--output", "json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def lines_of(cluster: LocalCluster, *arguments: str) -> list[dict[str, Any]]:
    """Run `consume` and return the JSON objects that it prints."""
    done = raftmq(cluster, "consume", *arguments, "--exit-at-end", "--output", "json")
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def doctor(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    """Run `raftmq doctor`, which needs no cluster."""
    return subprocess.run([*RAFTMQ, "doctor", *arguments], capture_output=True, timeout=120, check=False)


def assert_one_sentence(done: subprocess.CompletedProcess[bytes], code: int, *words: str) -> None:
    """Check the exit code, and that the only output is one sentence on standard error with these words."""
    said = done.stderr.decode()
    assert done.returncode == code, said
    assert said.startswith("raftmq: "), said
    assert said.count("\n") == 1, said
    assert "Traceback" not in said
    assert done.stdout == b""
    for word in words:
        assert word in said, said
