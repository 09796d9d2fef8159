"""Exactly once when processes are killed in the middle of a batch: the Python workers of the executors, and the driver."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.spark.processes import kill, worker_pids
from tests.spark.reading import counting, value_counts
from tests.spark.sink_run import EXPECTED, LOG_TAIL, ROWS, driver, fill, kill_session, wait_end, wait_written

pytestmark = pytest.mark.timeout(1800)
"""Each driver is a JVM of its own."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return fill(tmp_path)


def test_killed_workers_leave_no_duplicate_and_no_gap(servers: str, topic: Callable[..., str], folder: Path):
    name = topic(partitions=3)
    with counting(servers, name) as written, driver(servers, name, folder, 2) as process:
        for threshold in (200, 2000):
            wait_written(written, threshold, process, folder)
            victims = worker_pids(process.pid)
            assert victims
            for pid in victims:
                kill(pid)
            assert written() < ROWS, "the batch was over: nothing was killed in the middle of it"
        output = wait_end(process, folder)
        assert process.returncode == 0, output[-LOG_TAIL:]
    assert value_counts(servers, name) == EXPECTED


@pytest.mark.long
def test_a_killed_driver_goes_on_from_its_checkpoint_and_only_as_it_was(
    servers: str, topic: Callable[..., str], folder: Path
):
    name = topic(partitions=3)
    with counting(servers, name) as written:
        with driver(servers, name, folder, 2) as process:
            wait_written(written, 300, process, folder)
            kill_session(process)
        assert 300 <= written() < ROWS

        with driver(servers, name, folder, 3) as process:  # the rows in other tasks
            output = wait_end(process, folder)
            assert process.returncode != 0
            assert "ReplayMismatchError" in output, output[-LOG_TAIL:]
        assert max(value_counts(servers, name).values()) == 1
        assert written() < ROWS

        with driver(servers, name, folder, 2) as process:
            output = wait_end(process, folder)
            assert process.returncode == 0, output[-LOG_TAIL:]
    assert value_counts(servers, name) == EXPECTED
