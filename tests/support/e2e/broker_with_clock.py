"""`raftmq` with a wall clock that a test sets: what the file `<data directory>.clock` says, in hours, is added to it.

Run as a program, with the arguments of `raftmq broker start`. Everything else of the process is the product's.
"""

import runpy
import sys
import time
from pathlib import Path

HOUR_NS = 3_600_000_000_000


def clock_file(data_dir: Path) -> Path:
    """Where the hours of the broker with this data directory are."""
    return data_dir.with_name(f"{data_dir.name}.clock")


def wrong_clock(path: Path) -> None:
    """Set this process's wall clock by what the file says, now and later."""
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
    sys.path.pop(0)  # this folder's modules are the tests'
    runpy.run_module("raftmq", run_name="__main__", alter_sys=True)
