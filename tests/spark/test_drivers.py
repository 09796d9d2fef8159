"""Spark as people run it: a standalone cluster of processes, and Spark Connect. Each in a process of its own."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from raftmq import sync

from tests.spark.conftest import prepare_environment
from tests.spark.processes import end, executor_pids, kill, worker_pids
from tests.spark.reading import counting, value_counts
from tests.spark.sink_run import EXPECTED, LOG_TAIL, ROWS, driver, fill, wait_end, wait_written

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]
PROGRAM = Path(__file__).with_name("driver_program.py")
START_SECONDS = 300
COUNT = 100


def spark_class(name: str, *arguments: str, log: Path, environment: dict[str, str]) -> subprocess.Popen[bytes]:
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

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = ""
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        prepare_environment()
        environment = os.environ | {"SPARK_DAEMON_MEMORY": "256m", "SPARK_LOCAL_IP": "127.0.0.1"}
        address = ["--host", "127.0.0.1", "--webui-port", "0"]
        master, port = self.folder / "master.log", str(free_port())
        arguments = [*address, "--port", port]
        self.processes.append(spark_class("master.Master", *arguments, log=master, environment=environment))
        self.url = wait_line(master, r"spark://127\.0\.0\.1:\d+")
        logs = [self.folder / f"worker-{number}.log" for number in (1, 2)]
        for log in logs:
            room = ["--cores", "1", "--memory", "700m", "--work-dir", str(log.with_suffix(""))]
            arguments = [*address, *room, self.url]
            self.processes.append(spark_class("worker.Worker", *arguments, log=log, environment=environment))
        for log in logs:
            wait_line(log, "Successfully registered with master")

    @property
    def workers(self) -> list[int]:
        return [process.pid for process in self.processes[1:]]


@pytest.fixture(scope="module")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    cluster = Standalone(tmp_path_factory.mktemp("standalone"))
    try:
        cluster.start()
        yield cluster
    finally:
        end(cluster.processes)
        shutil.rmtree(cluster.folder)  # what executors leave is large


def run_program(master: str, servers: str, topic: str, folder: Path) -> dict[str, Any]:
    prepare_environment()
    done = subprocess.run(
        [sys.executable, str(PROGRAM), master, servers, topic, str(folder)],
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-5000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.fixture
def filled(producer: sync.Producer, topic: Callable[..., str]) -> str:
    name = topic(partitions=2)
    for partition in range(2):
        records = [(None, b"%d" % number) for number in range(partition, COUNT, 2)]
        producer.send_many(name, records, partition=partition).result()
    return name


def test_a_standalone_cluster_reads_on_every_worker(
    standalone: Standalone, servers: str, filled: str, tmp_path: Path
) -> None:
    found = run_program(standalone.url, servers, filled, tmp_path)
    assert found["values"] == list(range(COUNT))
    assert found["streamed"] == list(range(COUNT))
    assert len(found["folders"]) == 2  # each executor works in a folder of its own


def test_a_standalone_cluster_writes_once_whatever_is_killed(
    standalone: Standalone, servers: str, topic: Callable[..., str], tmp_path: Path
) -> None:
    """First every Python worker of both executors, then one executor with its JVM, in the middle of the only batch."""
    name, folder = topic(partitions=3), fill(tmp_path)
    with counting(servers, name) as written, driver(servers, name, folder, 2, standalone.url) as process:
        wait_written(written, 200, process, folder)
        victims = {worker: worker_pids(worker) for worker in standalone.workers}
        assert all(victims.values()), "an executor had no task"
        for pids in victims.values():
            for pid in pids:
                kill(pid)
        assert written() < ROWS
        wait_written(written, 2000, process, folder)
        [executor] = executor_pids(standalone.workers[0])
        kill(executor)
        assert written() < ROWS, "the batch was over: nothing was killed in the middle of it"
        output = wait_end(process, folder)
        assert process.returncode == 0, output[-LOG_TAIL:]
    assert value_counts(servers, name) == EXPECTED


@pytest.mark.skipif(
    find_spec("zstandard") is None, reason="Connect's client needs zstandard: pip install 'pyspark[connect]'"
)
def test_spark_connect_reads_as_others_do(servers: str, filled: str, tmp_path: Path) -> None:
    found = run_program("connect", servers, filled, tmp_path)
    assert found["values"] == list(range(COUNT))
    assert found["streamed"] == list(range(COUNT))
