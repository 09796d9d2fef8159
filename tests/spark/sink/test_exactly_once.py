"""Each row is written exactly once although Python workers or the driver are killed in the middle of a batch."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from raftmq import sync

from tests.support.spark.processes import kill
from tests.support.spark.reading import counting, take_all, value_counts
from tests.support.spark.sink_run import EXPECTED, LOG_TAIL, ROWS, driver, fill, kill_session, wait_end, wait_held

pytestmark = pytest.mark.timeout(1800)
"""Each driver is a separate JVM."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return fill(tmp_path)


@pytest.fixture
def queue(admin: sync.Admin) -> Iterator[str]:
    name = f"q-{uuid.uuid4().hex[:12]}"
    admin.create_topic(name, partitions=3, kind="queue")
    yield name
    admin.delete_topic(name)


@pytest.mark.long
@pytest.mark.parametrize("kills", [1, 2])
def test_killed_workers_leave_no_duplicate_and_no_gap(
    servers: str, topic: Callable[..., str], folder: Path, kills: int
):
    name = topic(partitions=3)
    write_with_killed_workers(servers, name, folder, kills)
    assert value_counts(servers, name) == EXPECTED


@pytest.mark.long
def test_killed_workers_enqueue_no_message_twice_and_leave_none_out(servers: str, queue: str, folder: Path):
    write_with_killed_workers(servers, queue, folder, kills=2)
    assert Counter(message.value for message in take_all(servers, queue)) == EXPECTED


def write_with_killed_workers(servers: str, name: str, folder: Path, kills: int) -> None:
    """Run a driver whose two tasks are each killed so many times while they write."""
    with driver(servers, name, folder, 2, holds=2 * kills) as process:
        for first in range(0, 2 * kills, 2):
            for pid in wait_held(process, folder, first, first + 1):
                kill(pid)
        output = wait_end(process, folder)
        assert process.returncode == 0, output[-LOG_TAIL:]


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


@pytest.mark.long
def test_a_killed_driver_finishes_its_batch_with_other_tasks(servers: str, topic: Callable[..., str], folder: Path):
    name = topic(partitions=3)
    with counting(servers, name) as written:
        with driver(servers, name, folder, 2, holds=2) as process:
            wait_held(process, folder, 0, 1)
            kill_session(process)
        assert 0 < written() < ROWS
        with driver(servers, name, folder, 3, master="local[1,4]", delivery="finish") as process:
            output = wait_end(process, folder)
            assert process.returncode == 0, output[-LOG_TAIL:]
    assert value_counts(servers, name) == EXPECTED
