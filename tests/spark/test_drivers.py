"""A standalone cluster of processes and Spark Connect, each with its driver in a separate process."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from raftmq import sync

from tests.spark.conftest import prepare_environment
from tests.support.spark import driver_program
from tests.support.spark.processes import executor_pids, kill
from tests.support.spark.reading import value_counts
from tests.support.spark.sink_run import EXPECTED, LOG_TAIL, driver, fill, wait_end, wait_held
from tests.support.spark.standalone import Standalone, running

pytestmark = pytest.mark.timeout(1800)
COUNT = 100
ONCE = {b"%d" % number: 1 for number in range(COUNT)}


@pytest.fixture(scope="module")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    prepare_environment()
    with running(tmp_path_factory.mktemp("standalone"), os.environ) as cluster:
        yield cluster


def run_program(master: str, servers: str, topic: str, target: str, folder: Path) -> dict[str, Any]:
    prepare_environment()
    done = subprocess.run(
        [sys.executable, "-m", driver_program.__name__, master, servers, topic, target, str(folder)],
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


@pytest.mark.long
def test_a_standalone_cluster_reads_on_every_worker(
    standalone: Standalone, servers: str, filled: str, topic: Callable[..., str], tmp_path: Path
) -> None:
    target = topic()
    found = run_program(standalone.url, servers, filled, target, tmp_path)
    assert found["values"] == list(range(COUNT))
    assert found["lags"] == [[COUNT // 2, COUNT // 2, 0]]  # the offsets and the lag
    assert value_counts(servers, target) == ONCE
    assert len(found["folders"]) == 2  # each executor works in a separate folder


@pytest.mark.long
def test_a_standalone_cluster_writes_each_row_once_despite_killed_executors(
    standalone: Standalone, servers: str, topic: Callable[..., str], tmp_path: Path
) -> None:
    """In the only batch, first the Python workers of both executors are killed, then one executor with its JVM."""
    name, folder = topic(partitions=3), fill(tmp_path)
    with driver(servers, name, folder, 2, holds=4, master=standalone.url) as process:
        for pid in wait_held(process, folder, 0, 1):
            kill(pid)
        workers = wait_held(process, folder, 2, 3)
        [executor] = executor_pids(standalone.workers[0])
        for pid in (executor, *workers):
            kill(pid)
        output = wait_end(process, folder)
        assert process.returncode == 0, output[-LOG_TAIL:]
    assert value_counts(servers, name) == EXPECTED


@pytest.mark.long
def test_spark_connect_reads_and_writes_each_record_once(
    servers: str, filled: str, topic: Callable[..., str], tmp_path: Path
) -> None:
    target = topic()
    found = run_program("connect", servers, filled, target, tmp_path)
    assert found["values"] == list(range(COUNT))
    assert found["lags"] == [[COUNT // 2, COUNT // 2, 0]]  # the offsets and the lag
    assert value_counts(servers, target) == ONCE
