"""Runs `sink_driver.py` as a process that can be killed, and waits for what it has written."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.spark.processes import descendants, kill

ROWS = 10_000
"""Requests of 64: time enough to kill between two of them."""
LOG_TAIL = 3000


@contextmanager
def driver(
    servers: str, topic: str, folder: Path, tasks: int, master: str = "local[2,4]"
) -> Iterator[subprocess.Popen[bytes]]:
    """A driver process with its JVM and workers in a session of their own; whatever is left of it is killed at the end."""
    with (folder / "driver.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.sink_driver", servers, topic, str(folder), str(tasks), master],
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


def wait_written(written: Callable[[], int], count: int, process: subprocess.Popen[bytes], folder: Path) -> None:
    """Until the topic holds that many records."""
    while process.poll() is None:
        if written() >= count:
            return
        time.sleep(0.02)  # asking takes time from those who write
    pytest.fail("the driver ended too early\n" + log_tail(folder))


def log_tail(folder: Path) -> str:
    return (folder / "driver.log").read_text(errors="replace")[-LOG_TAIL:]


def wait_end(process: subprocess.Popen[bytes], folder: Path) -> str:
    """The driver's output once it has ended by itself."""
    process.wait()
    return (folder / "driver.log").read_text(errors="replace")


def fill(folder: Path) -> Path:
    """The rows that the driver writes."""
    (folder / "in").mkdir()
    (folder / "in" / "rows.txt").write_text("\n".join(f"row {n}" for n in range(ROWS)))
    return folder


EXPECTED = Counter(f"row {n}".encode() for n in range(ROWS))
