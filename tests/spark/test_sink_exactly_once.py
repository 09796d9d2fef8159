"""Each row is written exactly once although Python workers or the driver are killed in the middle of a batch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.spark.processes import kill
from tests.support.spark.reading import counting, value_counts
from tests.support.spark.sink_run import EXPECTED, LOG_TAIL, ROWS, driver, fill, kill_session, wait_end, wait_held

pytestmark = pytest.mark.timeout(1800)
"""Each driver is a separate JVM."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return fill(tmp_path)


def test_killed_workers_leave_no_duplicate_and_no_gap(servers: str, topic: Callable[..., str], folder: Path):
    """Every task is killed twice while it writes."""
    name = topic(partitions=3)
    with driver(servers, name, folder, 2, holds=4) as process:
        for numbers in ((0, 1), (2, 3)):
            for pid in wait_held(process, folder, *numbers):
                kill(pid)
        output = wait_end(process, folder)
        assert process.returncode == 0, output[-LOG_TAIL:]
    assert value_counts(servers, name) == EXPECTED


@pytest.mark.long
def test_a_killed_driver_continues_from_its_checkpoint_only_with_the_same_tasks(
    servers: str, topic: Callable[..., str], folder: Path
):
    name = topic(partitions=3)
    with counting(servers, name) as written:
        with driver(servers, name, folder, 2, holds=2) as process:
            wait_held(process, folder, 0, 1)
            kill_session(process)
        assert 0 < written() < ROWS

        with driver(servers, name, folder, 3) as process:  # the rows are in other tasks
            output = wait_end(process, folder)
            assert process.returncode != 0
            assert "ReplayMismatchError" in output, output[-LOG_TAIL:]
        assert max(value_counts(servers, name).values()) == 1
        assert written() < ROWS

        with driver(servers, name, folder, 2) as process:
            output = wait_end(process, folder)
            assert process.returncode == 0, output[-LOG_TAIL:]
    assert value_counts(servers, name) == EXPECTED
