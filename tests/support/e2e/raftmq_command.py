"""Run the ``raftmq`` command against a cluster."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from typing import Any

from raftmq.cli.input_lines import READ_BYTES
from raftmq.testing import LocalCluster

from tests.support.cli.runner import run_here

RAFTMQ = (sys.executable, "-m", "raftmq")
HANDLE_SIGNALS = ("consume", "produce", "queue")
"""Commands that only the main thread can run."""


def environment_of(cluster: LocalCluster) -> dict[str, str]:
    return os.environ | {"RAFTMQ_BOOTSTRAP_SERVERS": cluster.bootstrap_servers, "COLUMNS": "200"}


def raftmq(cluster: LocalCluster, *arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """Run a command to its end.

    It runs in this process, which saves half a second. Two kinds run in a process of their own: those that handle signals, unless this is the
    main thread, and those with so much input that the thread that reads it may outlive a refusal.
    """
    environment = environment_of(cluster)
    may_handle_signals = threading.current_thread() is threading.main_thread()
    if len(stdin) <= READ_BYTES and (may_handle_signals or arguments[0] not in HANDLE_SIGNALS):
        return run_here(*arguments, stdin=stdin, environment=environment)
    return subprocess.run(
        [*RAFTMQ, *arguments], input=stdin, capture_output=True, check=False, timeout=60, env=environment
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
