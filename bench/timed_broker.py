"""Run the command `raftmq` unchanged, and record when the write-backs of queues begin and end.

Usage: python -P bench/timed_broker.py ARGUMENTS

Each write-back is a line of `write-backs.txt` in the working directory, which the brokers of a `LocalCluster` share. The times are those
of `perf_counter`, as in `queue_probe.py`. A write-back begins before its rows are encoded and ends when the event loop knows that they
are durable.
"""

import os
import runpy
import sys
import time
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

TIMES = "write-backs.txt"
COMMAND = (sys.executable, "-P", str(Path(__file__).resolve()))
"""The command for `LocalCluster`. Without -P the modules beside this file would hide others."""


class Span(NamedTuple):
    """The time of a write-back."""

    began_at: float
    ended_at: float


def read_spans(directory: Path) -> list[Span]:
    """Return the write-backs so far of the brokers in this directory."""
    path = directory / TIMES
    lines = path.read_text().splitlines() if path.exists() else []
    return [Span(float(began_at), float(ended_at)) for began_at, ended_at in map(str.split, lines)]


def main() -> None:
    """Wrap the two methods that a write-back begins and ends with, and run the command."""
    from raftmq.fsm.queue.partition import QueuePartition  # readers of the times need no broker

    take, end = QueuePartition.take_dirty_rows, QueuePartition.on_rows_written
    file = os.open(TIMES, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    began_at: dict[int, float] = {}

    def timed_take(machine: QueuePartition) -> object:
        began_at[id(machine)] = time.perf_counter()
        return take(machine)

    def timed_end(machine: QueuePartition) -> None:
        end(machine)
        os.write(file, f"{began_at.pop(id(machine))} {time.perf_counter()}\n".encode())

    sys.argv[0] = "raftmq"
    with (
        patch.object(QueuePartition, "take_dirty_rows", timed_take),
        patch.object(QueuePartition, "on_rows_written", timed_end),
    ):
        runpy.run_module("raftmq", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
