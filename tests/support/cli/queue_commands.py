"""Run ``raftmq`` commands against fake brokers over real gRPC."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from typing import Any

import pytest
from raftmq.client.base.loop_thread import LoopThread

from tests.support.cli.runner import invoke
from tests.support.client.fake_broker import FakeCluster
from tests.support.client.fake_queue import FakeQueue


class QueueCommands:
    """Fake brokers with the queue topic ``jobs``, and commands against them.

    The brokers run on the background loop of `raftmq.sync`. Commands run there, too, because a process has a single gRPC event loop.
    """

    def __init__(self, cluster: FakeCluster, queues: list[FakeQueue]) -> None:
        self.cluster = cluster
        self.queues = queues

    @classmethod
    def start(cls, monkeypatch: pytest.MonkeyPatch, partitions: int = 1) -> QueueCommands:
        loop = LoopThread.get()

        async def make() -> QueueCommands:
            cluster = await FakeCluster(brokers=2).__aenter__()
            return cls(cluster, cluster.create_queue("jobs", partitions))

        monkeypatch.setattr(asyncio, "run", loop.run)
        return loop.run(make())

    def close(self) -> None:
        LoopThread.get().run(self.cluster.__aexit__(None, None, None))

    @property
    def environment(self) -> dict[str, str]:
        return os.environ | {"RAFTMQ_BOOTSTRAP_SERVERS": self.cluster.bootstrap_servers, "COLUMNS": "200"}

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command in this process."""
        done = invoke(*arguments, env=self.environment)
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        return subprocess.CompletedProcess(arguments, done.exit_code, done.stdout, done.stderr)

    def text(self, *arguments: str) -> str:
        """Run a command that succeeds, and return its standard output."""
        done = self.run(*arguments)
        assert done.returncode == 0, done.stderr
        return str(done.stdout)

    def answer(self, *arguments: str) -> Any:
        """Run a command that succeeds, and return its JSON document."""
        return json.loads(self.text(*arguments, "--output", "json"))

    def lines(self, *arguments: str) -> list[dict[str, Any]]:
        """Run a command that succeeds, and return its JSON lines."""
        return [json.loads(line) for line in self.text(*arguments, "--output", "json").splitlines()]

    def process(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start a command in a process of its own, with pipes."""
        return subprocess.Popen(
            [sys.executable, "-m", "raftmq", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self.environment,
        )

    def wait_job(self) -> None:
        """Wait until a job was started."""
        LoopThread.get().run(self.cluster.wait_queue(lambda: bool(self.cluster.job_requests)))

    def fed(self, *arguments: str, stdin: bytes) -> subprocess.CompletedProcess[str]:
        """Run a command in a process of its own that reads standard input."""
        process = self.process(*arguments)
        output, errors = process.communicate(stdin, timeout=60)
        return subprocess.CompletedProcess(arguments, process.returncode, output.decode(), errors.decode())


def assert_refused(done: subprocess.CompletedProcess[str], code: int, *words: str) -> None:
    """Check the exit code, and that the last line on standard error is one sentence with these words."""
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in done.stderr, done.stderr
