"""Run `raftmq` with a wall clock that a test sets: the file `<data directory>.clock` has the hours to add to it.

This is a program with the arguments of `raftmq broker start`. It changes nothing else of the product.
"""

import runpy
import sys
import time
from pathlib import Path

HOUR_NS = 3_600_000_000_000


def clock_file(data_dir: Path) -> Path:
    """Return the file with the clock's offset for the broker with this data directory."""
    return data_dir.with_name(f"{data_dir.name}.clock")


def wrong_clock(path: Path) -> None:
    """Add the hours in the file, which may change at any time, to this process's wall clock."""
    right = time.time_ns

    def time_ns() -> int:
        try:
            return right() + int(path.read_text()) * HOUR_NS
        except (FileNotFoundError, ValueError):
            return right()

    time.time_ns = time_ns


if __name__ == "__main__":
    if "--data-dir" in sys.argv:
        wrong_clock(clock_file(Path(sys.argv[sys.argv.index("--data-dir") + 1])))
    sys.path.pop(0)  # this folder's modules must not hide the product's
    runpy.run_module("raftmq", run_name="__main__", alter_sys=True)
