"""Processor time of the three kinds of processes that work together: brokers, Spark's JVM, Python. Linux only (``/proc``).

On a machine that others use, too, times by the clock say what the neighbours left; these say what the work takes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

TICKS_PER_SECOND: Final = os.sysconf("SC_CLK_TCK")


class Processors(NamedTuple):
    """Seconds since each process began."""

    brokers: float
    jvm: float
    python: float
    """Spark's Python workers, those that have ended included, and this process."""

    def per_record(self, before: Processors, records: int) -> dict[str, list[float]]:
        """Microseconds for each record since `before`, by name."""
        spent = {name: getattr(self, name) - getattr(before, name) for name in self._fields}
        return {name: [seconds * 1e6 / records] for name, seconds in spent.items()}


def read_processors(brokers: Sequence[int], jvm: int) -> Processors:
    """The times so far, by process ids; Python workers are the JVM's descendants."""
    own, ended = _seconds(jvm)
    workers = sum(sum(_seconds(pid)) for pid in _descendants(jvm))
    return Processors(sum(_seconds(pid)[0] for pid in brokers), own, ended + workers + time.process_time())


def _seconds(pid: int) -> tuple[float, float]:
    """Of the process, and of its children that have ended; (0, 0) for one that is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return 0.0, 0.0
    own, ended = int(fields[11]) + int(fields[12]), int(fields[13]) + int(fields[14])
    return own / TICKS_PER_SECOND, ended / TICKS_PER_SECOND


def _descendants(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, task.read_text().split()):
            found += [child, *_descendants(child)]
    return found
