"""Compare a durable transaction with a durable write to a journal. ADR 0027 uses this measurement.

Run: ``python -m bench.journal``. Figures are milliseconds for one small entry, medians and 90th percentiles, for one broker and for three
that write on the same disk simultaneously. Each writes an entry, rests for a millisecond and writes the next one, so the ways take turns:

- `transaction`: `LmdbLogStore.append_batch`, as a broker commits today
- `journal`: one write to a file that has its final size, and one flush
- `both`: the journal, and then a transaction that nothing flushes
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.synchronize import Barrier
from pathlib import Path

import lmdb
from raftmq.storage.lmdb_env import disturbed

from bench.commits import StoreWrites

ENTRIES = 600
ROUNDS = 3
PAYLOAD_BYTES = 200
JOURNAL_BYTES = 16 * 1024 * 1024
REST_SECONDS = 0.001
BROKERS = (1, 3)

Write = Callable[[int], object]


@contextmanager
def _transaction(directory: Path) -> Iterator[Write]:
    writes = StoreWrites(directory, disturbed)
    try:
        yield lambda _: writes.append(1)
    finally:
        writes.close()


@contextmanager
def _journal(directory: Path) -> Iterator[Write]:
    file = os.open(directory / "journal", os.O_RDWR | os.O_CREAT, 0o600)
    os.pwrite(file, bytes(JOURNAL_BYTES), 0)
    os.fsync(file)
    entry = os.urandom(PAYLOAD_BYTES)

    def write(number: int) -> None:
        os.pwrite(file, entry, number * PAYLOAD_BYTES)
        os.fdatasync(file)

    try:
        yield write
    finally:
        os.close(file)


@contextmanager
def _both(directory: Path) -> Iterator[Write]:
    with _journal(directory) as journal, lmdb.open(str(directory), map_size=1 << 30, sync=False) as file:
        entry = os.urandom(PAYLOAD_BYTES)

        def write(number: int) -> None:
            journal(number)
            with file.begin(write=True) as transaction:
                transaction.put(number.to_bytes(8, "big"), entry, append=True)

        yield write


WAYS = {"transaction": _transaction, "journal": _journal, "both": _both}


def _run(way: str, directory: str, start: Barrier, found: multiprocessing.Queue[list[float]]) -> None:
    with WAYS[way](Path(directory)) as write:
        write(0)
        start.wait()
        times = []
        for number in range(1, ENTRIES + 1):
            began_at = time.perf_counter()
            write(number)
            times.append((time.perf_counter() - began_at) * 1000)
            time.sleep(REST_SECONDS)
    found.put(times)


def _times(way: str, brokers: int) -> list[float]:
    context = multiprocessing.get_context("spawn")
    start, found = context.Barrier(brokers), context.Queue()
    with tempfile.TemporaryDirectory() as parent:
        directories = [Path(parent, str(number)) for number in range(brokers)]
        processes = []
        for directory in directories:
            directory.mkdir()
            processes.append(context.Process(target=_run, args=(way, str(directory), start, found)))
        for process in processes:
            process.start()
        times = [milliseconds for _ in processes for milliseconds in found.get()]
        for process in processes:
            process.join()
    return times


def main() -> None:
    for round_number in range(1, ROUNDS + 1):
        for brokers in BROKERS:
            for way in WAYS:
                times = _times(way, brokers)
                nine_tenths = statistics.quantiles(times, n=10)[-1]
                print(
                    f"round {round_number}, {brokers} brokers, {way:<12} {statistics.median(times):.3f} {nine_tenths:.3f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
