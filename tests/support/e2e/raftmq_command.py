"""The ``raftmq`` command as a process, against a cluster."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from raftmq.cli.main import app
from raftmq.testing import LocalCluster
from typer.testing import CliRunner

RAFTMQ = (sys.executable, "-m", "raftmq")


def environment_of(cluster: LocalCluster) -> dict[str, str]:
    return os.environ | {"RAFTMQ_BOOTSTRAP_SERVERS": cluster.bootstrap_servers, "COLUMNS": "200"}


def raftmq(cluster: LocalCluster, *arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """Run a command to its end.

    Those that only ask and change metadata run in this process: half a second less each. What reads standard input, waits or gets
    signals runs in its own.
    """
    if arguments[0] in ("topic", "cluster", "group", "dlq"):
        done = CliRunner().invoke(app, list(arguments), input=stdin, env=environment_of(cluster), prog_name="raftmq")
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
    """What a command says as JSON."""
    done = raftmq(cluster, *arguments, "--output", "json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def lines_of(cluster: LocalCluster, *arguments: str) -> list[dict[str, Any]]:
    """What `consume` prints as JSON."""
    done = raftmq(cluster, "consume", *arguments, "--exit-at-end", "--output", "json")
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def doctor(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    """Run `raftmq doctor`, which asks no cluster."""
    return subprocess.run([*RAFTMQ, "doctor", *arguments], capture_output=True, timeout=120, check=False)


def assert_one_sentence(done: subprocess.CompletedProcess[bytes], code: int, *words: str) -> None:
    """It ended with this code, said one sentence on standard error, with these words in it, and nothing else."""
    said = done.stderr.decode()
    assert done.returncode == code, said
    assert said.startswith("raftmq: "), said
    assert said.count("\n") == 1, said
    assert "Traceback" not in said
    assert done.stdout == b""
    for word in words:
        assert word in said, said
