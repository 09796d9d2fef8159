"""Warming reads the pages that the opening needs, within its limit, and never decides whether a file is intact."""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from raftmq.raft.core import RestoredState
from raftmq.storage import lmdb_replica, log_scan, page_warming
from raftmq.storage.disk_space import TIMES_SUFFIX
from raftmq.storage.errors import DamagedReplicaError, StorageUnavailableError
from raftmq.storage.lmdb_log_store import LmdbLogStore
from raftmq.storage.lmdb_pages import BRANCH, PAGE_HEADER, child_page, node_places
from raftmq.storage.log_scan import term_at
from raftmq.storage.log_store import Update
from raftmq.storage.meta_pages import check_pages
from raftmq.storage.page_warming import WARM_BYTES_MAX, warm_opening
from raftmq.storage.replica_codec import replica_transaction_id
from raftmq.storage.time_bounds import Covered, TimeBounds

from tests.support.storage.log_builder import KEY, LogBuilder, append, hard, initial_state, lmdb_store, truncate

PAGE = 4096
IO_COUNTERS = Path("/proc/thread-self/io")

pytestmark = pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="the system takes no advice about files")


_FILLED: dict[tuple[tuple[int, ...], int], tuple[bytes, tuple[int, ...]]] = {}
"""The content of each file that `fill` made, and its result: the largest takes seconds."""


def fill(store: LmdbLogStore, sizes: tuple[int, ...], rows: int) -> tuple[int, ...]:
    """Create a closed replica with entries of these sizes in four terms, and state rows. Return the starts of the later terms."""
    path = store.path(KEY)
    if (sizes, rows) not in _FILLED:
        borders = _fill(store, sizes, rows)
        _FILLED[sizes, rows] = path.read_bytes(), borders
        return borders
    content, borders = _FILLED[sizes, rows]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return borders


def _fill(store: LmdbLogStore, sizes: tuple[int, ...], rows: int) -> tuple[int, ...]:
    store.create(KEY, initial_state(), [(b"birth", b"row")])
    store.open(KEY)
    log, chance = LogBuilder(), random.Random(7)
    borders = []
    for number in range(0, rows, 10):
        term = 6 + 4 * number // rows
        entries = [log.data(1, chance.randbytes(chance.choice(sizes)), term=term) for _ in range(10)]
        if number and term > 6 + 4 * (number - 10) // rows:
            borders.append(int(entries[0].index))
        state = ((b"key %d" % (number % 400), chance.randbytes(200)), (b"large", chance.randbytes(9000)))
        last = entries[-1].index
        store.append_batch([(KEY, Update(hard(term), tuple(entries), state_rows=state, state_index=last))])
    store.close(KEY)
    return tuple(borders)


def forget(path: Path) -> None:
    """Have the system drop a file's pages from memory."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def read_from_disk(work: Callable[[], object]) -> int:
    """Return the number of bytes that this thread read from the disk."""

    def count() -> int:
        return int(dict(line.split(": ") for line in IO_COUNTERS.read_text().splitlines())["read_bytes"])

    before = count()
    work()
    return count() - before


def open_and_restore(store: LmdbLogStore) -> RestoredState:
    restored = store.open(KEY)
    for _ in store.state_rows(KEY):
        pass
    return restored


@pytest.fixture
def disk_counts(tmp_path: Path) -> None:
    """Skip the test if the system does not count reads, or keeps files only in memory."""
    path = tmp_path / "some file"
    path.write_bytes(bytes(1 << 20))
    forget(path)
    if not IO_COUNTERS.exists() or read_from_disk(path.read_bytes) < 1 << 20:
        pytest.skip("what is read from the disk is not counted here")


SHAPES = {"small": ((60, 300, 900), 20_000), "large": ((5_000, 40_000), 1_000), "huge": ((900_000,), 40)}


@pytest.mark.usefixtures("disk_counts")
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("is_scrubbed", [False, True])
def test_opening_reads_only_warmed_pages(shape: str, is_scrubbed: bool, tmp_path: Path) -> None:
    with lmdb_store(tmp_path) as store:
        fill(store, *SHAPES[shape])
        if is_scrubbed:
            store.open(KEY)
            store._replica(KEY).verified_index = store._replica(KEY).meta.last_index
            store.store_verified(KEY)
            store.close(KEY)
        path = store.path(KEY)
        forget(path)
        check_pages(path, b"meta", replica_transaction_id)  # this reads the commit before the last as well
        assert read_from_disk(lambda: warm_opening(path)) > 0
        assert read_from_disk(lambda: open_and_restore(store)) == 0, "it was in memory"


@pytest.mark.usefixtures("disk_counts")
def test_taking_saved_bounds_of_times_reads_nothing(tmp_path: Path) -> None:
    """They name an entry within the log and its term, which the starts of terms tell."""
    with lmdb_store(tmp_path) as store:
        fill(store, *SHAPES["large"])
        store.open(KEY)
        replica = store._replica(KEY)
        first, last = replica.meta.position.index + 1, replica.meta.last_index
        middle = (2 * first + last) // 3
        covered = Covered(first, middle, term_at(replica.term_starts, middle))
        store.close(KEY)
        bounds = TimeBounds(0, -1)
        for index in range(middle + 1):
            bounds.raise_to(index, 7)
        path = store.path(KEY)
        path.with_suffix(TIMES_SUFFIX).write_bytes(bounds.encode(KEY, covered))
        forget(path)
        check_pages(path, b"meta", replica_transaction_id)
        warm_opening(path)
        assert read_from_disk(lambda: open_and_restore(store)) == 0
        unknown = store._replica(KEY)._times.next_block(first, 8)
        assert unknown is not None
        assert unknown.last_index > middle, "the bounds were taken"


@pytest.mark.usefixtures("disk_counts")
@pytest.mark.parametrize("shape", ["small", "large"])
def test_opening_reads_little_of_a_large_file(shape: str, tmp_path: Path) -> None:
    """Without warming, each touched page causes a read of the volume's read-ahead."""
    with lmdb_store(tmp_path) as store:
        fill(store, *SHAPES[shape])
        forget(store.path(KEY))
        read = read_from_disk(lambda: open_and_restore(store))
        assert read <= 1_500_000 < store.path(KEY).stat().st_size / 4


@pytest.mark.usefixtures("disk_counts")
def test_warming_reads_no_more_than_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with lmdb_store(tmp_path) as store:
        fill(store, *SHAPES["huge"])
        path = store.path(KEY)
        limit = 2 * 900_000
        monkeypatch.setattr(page_warming, "WARM_BYTES_MAX", limit)
        forget(path)
        assert read_from_disk(lambda: warm_opening(path)) <= limit + 2 * PAGE, "the meta pages are not counted"
        assert limit < WARM_BYTES_MAX
        open_and_restore(store)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_starts_of_terms_are_found_without_lmdb(
    shape: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The binding reads the whole of every requested value, and a row may have megabytes."""
    with lmdb_store(tmp_path) as store:
        borders = fill(store, *SHAPES[shape])
        assert len(borders) == 3
        assert warm_opening(store.path(KEY)) == borders
        monkeypatch.setattr(log_scan, "_term_at", None)
        restored = store.open(KEY)
        assert [start for _, start in restored.term_starts] == [6, *borders]


def test_warming_finds_the_starts_of_terms_beside_truncated_rows(tmp_path: Path) -> None:
    with lmdb_store(tmp_path) as store:
        store.create(KEY, initial_state(), [])
        store.open(KEY)
        log = LogBuilder()
        entries = log.many(300, b"x" * 500)
        append(store, *entries)
        append(store, log.empty(term=7))
        truncate(store, entries[199])
        store.delete_truncated(KEY, 50)
        store.close(KEY)
        assert warm_opening(store.path(KEY)) == (entries[-1].index + 1,)
        store.open(KEY)
        truncate(store, entries[-1])
        while store.delete_truncated(KEY, 256):
            pass
        store.close(KEY)
        assert warm_opening(store.path(KEY)) == ()
        store.open(KEY)


def test_presumed_borders_are_proven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with lmdb_store(tmp_path) as store:
        right = fill(store, *SHAPES["large"])
        wrong = [
            (),
            right[1:],
            right[:1],
            (right[0] + 1,),
            (0, 6, 7),
            (right[0] - 1, *right),
            (10**9,),
            (right[2],) * 3,
        ]
        for borders in wrong:
            monkeypatch.setattr(lmdb_replica, "warm_opening", lambda _, borders=borders: borders)
            assert [start for _, start in store.open(KEY).term_starts] == [6, *right]
            store.close(KEY)


def test_a_file_opens_without_posix_fadvise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with lmdb_store(tmp_path) as store:
        borders = fill(store, *SHAPES["large"])
        monkeypatch.delattr(os, "posix_fadvise")
        assert warm_opening(store.path(KEY)) == ()
        assert [start for _, start in store.open(KEY).term_starts] == [6, *borders]


def outcome(store: LmdbLogStore) -> object:
    """Return the result of the opening, or the type of its error."""
    try:
        restored = open_and_restore(store)
    except (DamagedReplicaError, StorageUnavailableError) as error:
        return type(error)  # the message may name another row near the damage
    else:
        return restored
    finally:
        store.close(KEY)


def test_a_damaged_file_has_the_same_result_as_without_warming(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The key of a row, or its header, is damaged, which the search for terms uses.

    LMDB's search for a row may meet another one with a damaged key, which the search here may not meet. In that case the file opens
    normally, and the damage is left to readers and the scrubber, like any damage outside the checked rows.
    """
    with lmdb_store(tmp_path) as store:
        borders = fill(store, (300, 6_000), 200)
        path = store.path(KEY)
        content = path.read_bytes()
        whole = outcome(store)
        refused = 0
        ends = {6, 205, *borders, *(border - 1 for border in borders)}
        for number in sorted({*range(6, 206, 4), *ends}):
            keys = [at + 3 for at in positions(content, struct.pack("=H", 8) + number.to_bytes(8, "big"))]
            terms = [at + 8 for at in positions(content, number.to_bytes(8, "little"))]
            for at in keys + terms:
                spoiled = bytearray(content)
                spoiled[at] ^= 1 << number % 8
                path.write_bytes(spoiled)
                with_warming = outcome(store)
                with monkeypatch.context() as without:
                    without.setattr(lmdb_replica, "warm_opening", lambda _: ())
                    without_warming = outcome(store)
                assert with_warming in (without_warming, whole)
                refused += with_warming != whole
                if number in ends:
                    assert with_warming == without_warming
        assert refused > 10
        path.write_bytes(content)
        assert outcome(store) == whole
        assert warm_opening(path) == borders


def positions(content: bytes, part: bytes) -> list[int]:
    found, at = [], content.find(part)
    while at >= 0:
        found.append(at)
        at = content.find(part, at + 1)
    return found


def test_no_damage_makes_warming_raise(tmp_path: Path) -> None:
    with lmdb_store(tmp_path) as store:
        fill(store, (60, 300, 6_000), 2_000)
        path = store.path(KEY)
    content = path.read_bytes()
    chance = random.Random(3)
    pages = [number for number in range(len(content) // PAGE) if tree_page(content, number)]
    with path.open("r+b", buffering=0) as file:
        for turn in range(800):
            number = turn % 2 if turn % 5 == 0 else chance.choice(pages)
            whole = content[number * PAGE : (number + 1) * PAGE]
            spoiled = bytearray(whole)
            kind = chance.randrange(4)
            if kind == 0:
                spoiled = bytearray(chance.randbytes(PAGE))
            elif kind == 1:
                spoiled[16:] = chance.randbytes(PAGE - 16)  # the page header is kept
            else:
                for _ in range(kind):
                    spoiled[chance.randrange(200)] ^= 1 << chance.randrange(8)
            os.pwrite(file.fileno(), spoiled, number * PAGE)
            warm_opening(path)
            os.pwrite(file.fileno(), whole, number * PAGE)
        for size in (0, 1, PAGE, 2 * PAGE - 1, 2 * PAGE, len(content) // 2, len(content) - 1):
            path.write_bytes(content[:size])
            warm_opening(path)
    path.unlink()
    assert warm_opening(path) == ()


def tree_page(content: bytes, number: int) -> bool:
    itself, _, flags, lower, upper = PAGE_HEADER.unpack_from(content, number * PAGE)
    return itself == number > 1 and flags in (1, 2) and PAGE_HEADER.size < lower <= upper <= PAGE


def test_a_tree_with_a_cycle_ends_the_warming(tmp_path: Path) -> None:
    with lmdb_store(tmp_path) as store:
        fill(store, (60,), 2_000)
        path = store.path(KEY)
    content = bytearray(path.read_bytes())
    for number in range(2, len(content) // PAGE):
        page = bytes(content[number * PAGE : (number + 1) * PAGE])
        if tree_page(content, number) and PAGE_HEADER.unpack_from(page)[2] == BRANCH:
            for at in node_places(page):
                assert child_page(page, at) != number
                content[number * PAGE + at : number * PAGE + at + 4] = number.to_bytes(4, "little")
    path.write_bytes(content)
    assert warm_opening(path) == ()
