"""Run a standalone Spark cluster on loopback."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.support.spark.processes import end

START_SECONDS = 300


def spark_class(name: str, *arguments: str, log: Path, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    import pyspark

    command = [str(Path(pyspark.__file__).parent / "bin/spark-class"), f"org.apache.spark.deploy.{name}", *arguments]
    with log.open("wb") as output:
        return subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment)


def wait_line(log: Path, pattern: str) -> str:
    deadline = time.monotonic() + START_SECONDS
    while not (match := re.search(pattern, log.read_text(errors="replace"))):
        assert time.monotonic() < deadline, log.read_text(errors="replace")
        time.sleep(0.1)
    return match[0]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


class Standalone:
    """A master and two workers with one core each."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self.folder = folder
        self.environment = {**environment, "SPARK_DAEMON_MEMORY": "256m", "SPARK_LOCAL_IP": "127.0.0.1"}
        self.url = ""
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        address = ["--host", "127.0.0.1", "--webui-port", "0"]
        master, port = self.folder / "master.log", str(free_port())
        arguments = [*address, "--port", port]
        self.processes.append(spark_class("master.Master", *arguments, log=master, environment=self.environment))
        self.url = wait_line(master, r"spark://127\.0\.0\.1:\d+")
        logs = [self.folder / f"worker-{number}.log" for number in (1, 2)]
        for log in logs:
            room = ["--cores", "1", "--memory", "700m", "--work-dir", str(log.with_suffix(""))]
            arguments = [*address, *room, self.url]
            self.processes.append(spark_class("worker.Worker", *arguments, log=log, environment=self.environment))
        for log in logs:
            wait_line(log, "Successfully registered with master")

    @property
    def workers(self) -> list[int]:
        return [process.pid for process in self.processes[1:]]


@contextmanager
def running(folder: Path, environment: Mapping[str, str]) -> Iterator[Standalone]:
    """Run the cluster with that environment. Remove its folder at the end, since executors leave large files."""
    cluster = Standalone(folder, environment)
    try:
        cluster.start()
        yield cluster
    finally:
        end(cluster.processes)
        shutil.rmtree(folder)
