"""Measure the processor time of brokers, Spark's JVM and Python processes. Linux only (``/proc``).

On a shared machine, times by the clock depend on its other work. Processor times show the cost of the work itself.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

TICKS_PER_SECOND: Final = os.sysconf("SC_CLK_TCK")


class Processors(NamedTuple):
    """Hold the processor seconds since each process began."""

    brokers: float
    jvm: float
    python: dict[int, float]
    """Seconds of this process and of Spark's Python workers, by process id."""

    def per_record(self, before: Processors, records: int) -> dict[str, list[float]]:
        """Return the microseconds for each record since `before`, by name.

        Workers that ended in between do not count. Those did a query's planning, half a second. Workers that read and write live on for
        a minute.
        """
        spent = {
            "brokers": self.brokers - before.brokers,
            "jvm": self.jvm - before.jvm,
            "python": sum(seconds - before.python.get(pid, 0.0) for pid, seconds in self.python.items()),
        }
        return {name: [seconds * 1e6 / records] for name, seconds in spent.items()}


def read_processors(brokers: Sequence[int], jvm: int) -> Processors:
    """Read the times so far, given process ids. Python workers are the JVM's descendants."""
    python = {pid: _seconds(pid) for pid in (os.getpid(), *_descendants(jvm))}
    return Processors(sum(map(_seconds, brokers)), _seconds(jvm), python)


def _seconds(pid: int) -> float:
    """Return the seconds of a process without its children, or 0 if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND


def _descendants(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, task.read_text().split()):
            found += [child, *_descendants(child)]
    return found
