"""A replica's files are closed, opened, enlarged, compacted and retired while other threads read them: no read touches unmapped memory."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

import pytest
from raftmq.storage.errors import ReplicaClosedError
from raftmq.storage.lmdb_log_store import LmdbLogStore
from raftmq.storage.row_scrub import ScrubPlace
from raftmq.storage.state_store import FilePart, StateWrite, location_key
from raftmq.types import Offset

from tests.support.storage.log_builder import KEY, LogBuilder, append, index, initial_state, lmdb_store

MIB = 1 << 20
ENTRIES = 200
ROWS = 600
"""Several slices of a row stream."""
WAIT_SECONDS = 60.0
THREADS = 4

Read = Callable[[LmdbLogStore], object]


def _scrub(store: LmdbLogStore) -> None:
    place = ScrubPlace()
    while not place.is_done:
        store.scrub(KEY, place, MIB, 100)


READS: dict[str, Read] = {
    "entries": lambda store: store.entries(KEY, index(6), index(ENTRIES), MIB),
    "header": lambda store: store.header(KEY, index(ENTRIES)),
    "find_offset": lambda store: store.find_offset(KEY, Offset(ENTRIES // 2)),
    "find_time": lambda store: store.find_time(KEY, 1),
    "find_timestamp": lambda store: store.find_timestamp(KEY, 1, Offset(0)),
    "read_rows": lambda store: store.read_rows(KEY, [(location_key(1, 0), b"\x21", ROWS)]),
    "read_body": lambda store: store.read_body(KEY, 1),
    "first_location": lambda store: store.first_location(KEY, 0),
    "state_rows": lambda store: list(store.state_rows(KEY)),
    "abandoned_rows": lambda store: next(store.state_rows(KEY)),
    "has_truncated_rows": lambda store: store.has_truncated_rows(KEY),
    "look": lambda store: [store.look(KEY, part) for part in FilePart],
    "space": lambda store: [store.space(KEY, part) for part in FilePart],
    "map_fraction": lambda store: [store.map_fraction(KEY, part) for part in FilePart],
    "file_bytes": lambda store: store.file_bytes(KEY),
    "scrub": _scrub,
}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LmdbLogStore]:
    with lmdb_store(tmp_path / "node", compact_bytes_min=0) as store:
        store.create_with_state_file(KEY, initial_state())
        store.open(KEY)
        append(store, *LogBuilder().many(ENTRIES))
        rows = tuple((location_key(1, number), b"x" * 500) for number in range(1, ROWS + 1))
        store.write_state(KEY, StateWrite(index(7), rows))
        yield store


@contextmanager
def _reading(store: LmdbLogStore) -> Iterator[Counter[str]]:
    """Run all kinds of reads repeatedly, in a few threads. Yield the number of each kind's complete reads.

    With a thread for each kind, a read that releases the GIL at every row waited for all others at every row: a minute on a slow machine.
    """
    stop = threading.Event()
    done: Counter[str] = Counter()
    problems: list[BaseException] = []

    def run(reads: Sequence[tuple[str, Read]]) -> None:
        try:
            while not stop.is_set():
                for name, read in reads:
                    with suppress(ReplicaClosedError):
                        read(store)
                        done[name] += 1
        except BaseException as error:  # noqa: BLE001 -- shown by the test
            problems.append(error)

    reads = list(READS.items())
    threads = [threading.Thread(target=run, args=(reads[number::THREADS],)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    try:
        yield done
    finally:
        stop.set()
        for thread in threads:
            thread.join(WAIT_SECONDS)
    assert problems == []
    assert not any(thread.is_alive() for thread in threads)


def _reopen(store: LmdbLogStore) -> None:
    store.close(KEY)
    store.open(KEY)


def _grow(store: LmdbLogStore) -> None:
    for part in FilePart:
        store.grow_map(KEY, store.map_bytes(KEY, part) + MIB, part)


def _compact(store: LmdbLogStore) -> None:
    rows = tuple((location_key(2, number), b"y" * 500) for number in range(2 * ROWS))
    store.write_state(KEY, StateWrite(index(7), rows))
    store.delete_rows(KEY, (location_key(2, 0), b"\x21"), len(rows))
    assert store.compact_if_sparse(KEY, FilePart.STATE)


@pytest.mark.parametrize(("change", "turns"), [(_reopen, 6), (_grow, 6), (_compact, 2)])
def test_every_read_ends_or_is_refused_while_files_change(
    store: LmdbLogStore, change: Callable[[LmdbLogStore], None], turns: int
) -> None:
    with _reading(store) as done:
        for _ in range(turns):
            change(store)
        end = time.monotonic() + WAIT_SECONDS
        while done.keys() != READS.keys() and time.monotonic() < end:
            time.sleep(0.01)
    assert done.keys() == READS.keys()


def test_every_read_is_refused_after_the_replica_is_retired(store: LmdbLogStore) -> None:
    with _reading(store):
        store.retire(KEY)
    for name, read in READS.items():
        if name != "file_bytes":
            with pytest.raises(ReplicaClosedError):
                read(store)


def test_no_snapshot_is_empty_because_the_state_file_was_closed_first(
    store: LmdbLogStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log's file has no state rows. They were taken for the state, and another broker could have installed them."""
    gate = store._replicas[KEY].gate
    alone = gate.alone
    refused: list[ReplicaClosedError] = []

    def between_the_files() -> AbstractContextManager[None]:
        with pytest.raises(ReplicaClosedError) as raised:
            store.snapshot(KEY)
        refused.append(raised.value)
        return alone()

    monkeypatch.setattr(gate, "alone", between_the_files)
    store.close(KEY)
    assert refused
