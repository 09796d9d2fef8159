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


@pytest.fixture
def standalone(tmp_path: Path) -> Iterator[str]:
    """A master and two workers with one core each; the master's address."""
    prepare_environment()
    environment = os.environ | {"SPARK_DAEMON_MEMORY": "256m", "SPARK_LOCAL_IP": "127.0.0.1"}
    running: list[subprocess.Popen[bytes]] = []
    address = ["--host", "127.0.0.1", "--webui-port", "0"]
    try:
        master, port = tmp_path / "master.log", str(free_port())
        running.append(spark_class("master.Master", *address, "--port", port, log=master, environment=environment))
        url = wait_line(master, r"spark://127\.0\.0\.1:\d+")
        for number in (1, 2):
            log = tmp_path / f"worker-{number}.log"
            arguments = [*address, "--cores", "1", "--memory", "700m", "--work-dir", str(tmp_path / f"w{number}"), url]
            running.append(spark_class("worker.Worker", *arguments, log=log, environment=environment))
        for number in (1, 2):
            wait_line(tmp_path / f"worker-{number}.log", "Successfully registered with master")
        yield url
    finally:
        for process in running:
            process.terminate()
        for process in running:
            process.wait(30)
        for number in (1, 2):
            shutil.rmtree(tmp_path / f"w{number}", ignore_errors=True)


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


def test_a_standalone_cluster_reads_on_every_worker(standalone: str, servers: str, filled: str, tmp_path: Path) -> None:
    found = run_program(standalone, servers, filled, tmp_path)
    assert found["values"] == list(range(COUNT))
    assert found["streamed"] == list(range(COUNT))
    assert len(found["folders"]) == 2  # each executor works in a folder of its own


@pytest.mark.skipif(
    find_spec("zstandard") is None, reason="Connect's client needs zstandard: pip install 'pyspark[connect]'"
)
def test_spark_connect_reads_as_others_do(servers: str, filled: str, tmp_path: Path) -> None:
    found = run_program("connect", servers, filled, tmp_path)
    assert found["values"] == list(range(COUNT))
    assert found["streamed"] == list(range(COUNT))
