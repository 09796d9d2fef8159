"""Run `sink_driver.py` as a process that can be killed, with workers that stop in the middle of its only batch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.spark import holding_daemon
from tests.support.spark.processes import descendants, kill

ROWS = 2_000
"""Enough rows that each of two or three tasks sends several requests of 64 rows to a partition."""
LOG_TAIL = 3000
HELD = "held"


@contextmanager
def driver(
    servers: str,
    topic: str,
    folder: Path,
    tasks: int,
    holds: int = 0,
    master: str = "local[2,4]",
    **options: str,
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a driver with its JVM and workers in a separate session. Kill the remaining processes at the end.

    `holds` task runs stop in the middle (`wait_held`). `options` are options of the sink.
    """
    (folder / HELD).mkdir(exist_ok=True)
    environment = os.environ | {holding_daemon.FOLDER: str(folder / HELD), holding_daemon.HOLDS: str(holds)}
    with (folder / "driver.log").open("wb") as log:
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.support.spark.sink_driver",
                servers,
                topic,
                str(folder),
                str(tasks),
                master,
                json.dumps(options),
            ],
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=environment,
        )
    try:
        yield process
    finally:
        kill_session(process)


def kill_session(process: subprocess.Popen[bytes]) -> None:
    for pid in descendants(process.pid):  # the Python daemon leads a separate process group
        kill(pid)
    kill(process.pid)
    process.wait()


def wait_held(process: subprocess.Popen[bytes], folder: Path, *numbers: int) -> list[int]:
    """Wait until the task runs with those numbers (from 0) have stopped in the middle, and return their workers' pids."""
    files = [folder / HELD / str(number) for number in numbers]
    while not all(file.exists() for file in files):
        if process.poll() is not None:
            pytest.fail("the driver ended too early\n" + log_tail(folder))
        time.sleep(0.02)
    return [int(file.read_text()) for file in files]


def log_tail(folder: Path) -> str:
    return (folder / "driver.log").read_text(errors="replace")[-LOG_TAIL:]


def wait_end(process: subprocess.Popen[bytes], folder: Path) -> str:
    """Wait until the driver ends by itself and return its output."""
    process.wait()
    return (folder / "driver.log").read_text(errors="replace")


def fill(folder: Path) -> Path:
    """Create the file with the rows that the driver writes."""
    (folder / "in").mkdir()
    (folder / "in" / "rows.txt").write_text("\n".join(f"row {n}" for n in range(ROWS)))
    return folder


EXPECTED = Counter(f"row {n}".encode() for n in range(ROWS))
