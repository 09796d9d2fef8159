"""Exactly once when processes are killed in the middle of a batch: the Python workers of the executors, and the driver."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.spark.reading import counting, value_counts

pytestmark = pytest.mark.timeout(1800)
"""Each driver is a JVM of its own."""
ROWS = 5_000
LOG_TAIL = 3000


@contextmanager
def driver(servers: str, topic: str, folder: Path, tasks: int) -> Iterator[subprocess.Popen[bytes]]:
    """A driver process with its JVM and workers in a session of their own; whatever is left of it is killed at the end."""
    with (folder / "driver.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.sink_driver", servers, topic, str(folder), str(tasks)],
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        kill_session(process)


def kill_session(process: subprocess.Popen[bytes]) -> None:
    for pid in descendants(process.pid):  # the Python daemon leads a group of its own
        kill(pid)
    kill(process.pid)
    process.wait()


def kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def parents() -> dict[int, int]:
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                found[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:  # it ended
                continue
    return found


def descendants(root: int) -> list[int]:
    by_parent: dict[int, list[int]] = {}
    for pid, parent in parents().items():
        by_parent.setdefault(parent, []).append(pid)
    found, todo = [], [root]
    while todo:
        children = by_parent.get(todo.pop(), [])
        found += children
        todo += children
    return found


def worker_pids(root: int) -> list[int]:
    """Python workers: forked by the `pyspark.daemon` that is a descendant of the driver, so by their parent."""
    below = descendants(root)
    daemons = {pid for pid in below if is_daemon(pid)}
    return [pid for pid, parent in parents().items() if parent in daemons]


def is_daemon(pid: int) -> bool:
    try:
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    # a worker is a fork of the daemon and has its command line; it has no JVM for a parent
    return b"pyspark.daemon" in arguments and not is_fork(pid)


def is_fork(pid: int) -> bool:
    parent = parents().get(pid)
    try:
        return parent is not None and b"pyspark.daemon" in Path(f"/proc/{parent}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False


def wait_written(written: Callable[[], int], count: int, process: subprocess.Popen[bytes], folder: Path) -> None:
    """Until the topic holds that many records."""
    while process.poll() is None:
        if written() >= count:
            return
    pytest.fail("the driver ended too early\n" + log_tail(folder))


def log_tail(folder: Path) -> str:
    return (folder / "driver.log").read_text(errors="replace")[-LOG_TAIL:]


def wait_end(process: subprocess.Popen[bytes], folder: Path) -> str:
    """The driver's output once it has ended by itself."""
    process.wait()
    return (folder / "driver.log").read_text(errors="replace")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "rows.txt").write_text("\n".join(f"row {n}" for n in range(ROWS)))
    return tmp_path


EXPECTED = Counter(f"row {n}".encode() for n in range(ROWS))


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
