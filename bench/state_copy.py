"""Measure a copy of a state file beside commits of another file, with LMDB's unchanged and compacting copy. ADR 0017 uses this measurement.

A thread commits 1 kB at a time without a pause, as the log of another replica would, and another one looks for delays of the interpreter.

Usage: python -m bench.state_copy
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import lmdb
from raftmq.storage.page_release import allocated_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

ROWS = 1_000_000
BATCH_ROWS = 10_000
VALUE_BYTES = 200
MAP_BYTES = 1 << 34
PAUSE_SECONDS = 0.001


class Beside:
    """Two threads that record delays while something else is done."""

    def __init__(self, directory: Path) -> None:
        self.commits: list[float] = []
        """Seconds of each commit."""
        self.delays: list[float] = []
        """Seconds by which each pause was too long."""
        self._directory = directory
        self._is_over = False

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run the threads during the block."""
        threads = [threading.Thread(target=self._commit), threading.Thread(target=self._pause)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._is_over = True
            for thread in threads:
                thread.join()

    def _commit(self) -> None:
        with lmdb.open(str(self._directory / "log.mdb"), map_size=MAP_BYTES, subdir=False) as environment:
            while not self._is_over:
                began_at = time.perf_counter()
                with environment.begin(write=True) as transaction:
                    transaction.put(b"%016d" % len(self.commits), bytes(1000))
                self.commits.append(time.perf_counter() - began_at)

    def _pause(self) -> None:
        while not self._is_over:
            began_at = time.perf_counter()
            time.sleep(PAUSE_SECONDS)
            self.delays.append(time.perf_counter() - began_at - PAUSE_SECONDS)


def filled(path: Path, *, is_sparse: bool) -> lmdb.Environment:
    """Return an open file with many rows, of which two thirds were deleted if it is to be sparse."""
    environment = lmdb.open(str(path), map_size=MAP_BYTES, subdir=False, max_dbs=1, sync=False)
    rows = environment.open_db(b"rows")
    for first in range(0, ROWS, BATCH_ROWS):
        with environment.begin(write=True) as transaction, transaction.cursor(rows) as cursor:
            cursor.putmulti([(b"%021d" % (first + n), bytes(VALUE_BYTES)) for n in range(BATCH_ROWS)])
    for first in range(0, ROWS if is_sparse else 0, BATCH_ROWS):
        if first // BATCH_ROWS % 3:
            with environment.begin(write=True) as transaction:
                for number in range(first, first + BATCH_ROWS):
                    transaction.delete(b"%021d" % number, db=rows)
    environment.sync(True)
    return environment


def measured(name: str, action: Callable[[], object], written: Callable[[], int]) -> None:
    """Print the cost of an action, and the delays of the threads beside it."""
    with tempfile.TemporaryDirectory() as directory:
        beside = Beside(Path(directory))
        with beside.running():
            began_at, began_processor = time.perf_counter(), time.process_time()
            action()
            elapsed, processor = time.perf_counter() - began_at, time.process_time() - began_processor
    commits = sorted(beside.commits)
    print(
        f"{name:>24}: {elapsed:6.2f} s, {processor:5.2f} s of processor time for all threads, {written() / 1e6:4.0f} MB, "
        f"commits p50 {commits[len(commits) // 2] * 1e3:6.2f} ms, p99 {commits[len(commits) * 99 // 100] * 1e3:6.2f} ms, "
        f"longest delay {max(beside.delays, default=0.0) * 1e3:5.1f} ms"
    )


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        for is_sparse in (False, True):
            path = Path(directory) / f"state-{is_sparse}.mdb"
            copy = path.with_suffix(".copy")
            with filled(path, is_sparse=is_sparse) as environment:
                measured("nothing", lambda: time.sleep(1), lambda: 0)
                for is_compact in (False, True):
                    name = f"{'sparse' if is_sparse else 'full'}, {'compacted' if is_compact else 'unchanged'}"
                    copying = partial(environment.copy, str(copy), compact=is_compact)
                    measured(name, copying, partial(allocated_bytes, copy))
                    copy.unlink()


if __name__ == "__main__":
    main()
