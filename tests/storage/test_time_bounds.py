"""Bounds of record timestamps: a slow twin, the file that keeps them, and what a search reads."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from raftmq.storage import lmdb_replica, time_bounds
from raftmq.storage.entry_codec import CodecError
from raftmq.storage.lmdb_log_store import LmdbLogStore
from raftmq.storage.time_bounds import NOTHING, UNKNOWN, Covered, TimeBounds, decode_bounds

from tests.support.storage.log_builder import (
    KEY,
    OTHER,
    LogBuilder,
    append,
    initial_state,
    lmdb_store,
    offset,
    truncate,
)

FIRST = 6
"""The first index of a new log."""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LmdbLogStore]:
    with lmdb_store(tmp_path) as store:
        store.create(KEY, initial_state(), [])
        store.open(KEY)
        yield store


@pytest.fixture
def saved_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raftmq.storage.time_index.TimesFile.save_bytes", 1)


def times_file(tmp_path: Path) -> Path:
    return tmp_path / "groups" / f"{KEY.group_id}-{KEY.replica_id}.times"


def blocks_read(monkeypatch: pytest.MonkeyPatch, store: LmdbLogStore, time_ms: int) -> tuple[int | None, int]:
    """Search, and return the index found and the number of blocks that were read."""
    read = lmdb_replica.LmdbReplica._read_times
    count = 0

    def counted(*arguments: object) -> lmdb_replica.BlockTimes:
        nonlocal count
        count += 1
        return read(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(lmdb_replica.LmdbReplica, "_read_times", counted)
        while not (search := store.find_timestamp(KEY, time_ms, offset(0))).is_complete:
            pass
    return (search.header.index if search.header is not None else None), count


# ---------------------------------------------------------------------------------------------------- bounds


@given(
    first=st.integers(1, 500),
    times=st.lists(st.one_of(st.none(), st.integers(0, 30)), max_size=600),
    dropped=st.integers(0, 600),
    wanted=st.integers(0, 31),
)
def test_no_bound_is_too_low_however_blocks_are_merged(
    first: int, times: list[int | None], dropped: int, wanted: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time_bounds, "BLOCKS_MAX", 4)
        patch.setattr(time_bounds, "BLOCK_ENTRIES", 2)
        bounds = TimeBounds(first, first - 1)
        for index, time_ms in enumerate(times, first):
            if time_ms is not None:
                bounds.raise_to(index, time_ms)
        start = min(first + dropped, first + len(times))
        bounds.drop_before(start)
        assert len(list(bounds)) <= 4
    hits = [index for index, time_ms in enumerate(times, first) if index >= start and time_ms and time_ms >= wanted]
    block = bounds.next_block(start, wanted)
    assert not hits or (block is not None and block.first_index <= hits[0])
    exact = {block: bound for block, bound in bounds if block.first_index >= start}
    for block, bound in exact.items():
        inside = times[block.first_index - first : block.last_index + 1 - first]
        assert bound == max((time_ms for time_ms in inside if time_ms is not None), default=NOTHING)


def test_bounds_of_a_long_log_have_larger_blocks() -> None:
    bounds = TimeBounds(1, time_bounds.BLOCKS_MAX * time_bounds.BLOCK_ENTRIES)
    assert len(list(bounds)) <= time_bounds.BLOCKS_MAX / 2 + 1
    assert all(bound == UNKNOWN for _, bound in bounds)


def test_saved_bounds_are_adopted_by_blocks_of_another_size() -> None:
    saved = TimeBounds(0, -1)
    for index in range(1000):
        saved.raise_to(index, index)
    for factor in (1, 2, 8):
        bounds = TimeBounds.restored(time_bounds.BLOCK_ENTRIES * factor, 0, [UNKNOWN] * (1000 // 64 // factor))
        bounds.adopt(saved, 900)
        for block, bound in bounds:
            assert bound == (block.last_index if block.last_index <= 900 else UNKNOWN)


@given(st.binary(max_size=200))
def test_other_bytes_are_no_saved_bounds(content: bytes) -> None:
    with pytest.raises(CodecError):
        decode_bounds(content)


def test_every_flipped_bit_of_a_file_is_found() -> None:
    bounds = TimeBounds.restored(64, 3, [1, 2, UNKNOWN])
    content = bounds.encode((7, 3), Covered(200, 300, 9))
    found = decode_bounds(content)
    assert (found.key, found.covered, list(found.bounds)) == ((7, 3), Covered(200, 300, 9), list(bounds))
    for at in range(len(content) * 8):
        damaged = bytearray(content)
        damaged[at // 8] ^= 1 << at % 8
        with pytest.raises(CodecError):
            decode_bounds(bytes(damaged))
    for end in range(len(content)):
        with pytest.raises(CodecError):
            decode_bounds(content[:end])


# ---------------------------------------------------------------------------------------------------- what a search reads


def test_a_search_in_a_log_that_was_written_since_the_start_reads_one_block(
    store: LmdbLogStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = LogBuilder()
    append(store, *(log.batch(time_ms) for time_ms in range(1000)))
    assert blocks_read(monkeypatch, store, 900) == (FIRST + 900, 1)
    assert blocks_read(monkeypatch, store, 5000) == (None, 0)


def test_a_search_after_a_restart_reads_one_block(store: LmdbLogStore, monkeypatch: pytest.MonkeyPatch) -> None:
    log = LogBuilder()
    append(store, *(log.batch(time_ms) for time_ms in range(1000)))
    store.close(KEY)
    store.open(KEY)
    assert blocks_read(monkeypatch, store, 900) == (FIRST + 900, 1)
    append(store, *(log.batch(time_ms) for time_ms in range(1000, 1200)))
    assert blocks_read(monkeypatch, store, 1150)[0] == FIRST + 1150


def test_without_its_file_a_log_is_read_once_in_steps(
    store: LmdbLogStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(lmdb_replica, "SEARCH_ROWS_MAX", 64)
    log = LogBuilder()
    append(store, *(log.batch(time_ms) for time_ms in range(1000)))
    store.close(KEY)
    times_file(tmp_path).unlink()
    store.open(KEY)
    assert not store.find_timestamp(KEY, 900, offset(0)).is_complete
    index, first_count = blocks_read(monkeypatch, store, 900)
    assert (index, first_count) == (FIRST + 900, 14)
    assert blocks_read(monkeypatch, store, 890) == (FIRST + 890, 1)


def test_an_unfinished_block_is_read_after_each_opening_only(
    store: LmdbLogStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = LogBuilder()
    append(store, *(log.batch(1) for _ in range(10)))
    store.close(KEY)
    store.open(KEY)
    assert blocks_read(monkeypatch, store, 5) == (None, 1)


def test_a_killed_process_loses_only_the_bounds_since_they_were_saved(
    store: LmdbLogStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, saved_often: None
) -> None:
    log = LogBuilder()
    for start in range(0, 1000, 100):
        append(store, *(log.batch(time_ms) for time_ms in range(start, start + 100)))
    saved = times_file(tmp_path).read_bytes()
    append(store, *(log.batch(time_ms) for time_ms in range(1000, 1200)))
    store.close(KEY)
    times_file(tmp_path).write_bytes(saved)  # the file as it was 200 entries ago
    store.open(KEY)
    index, count = blocks_read(monkeypatch, store, 1150)
    assert index == FIRST + 1150
    assert count <= 1 + 300 // 64


# ---------------------------------------------------------------------------------------------------- files that do not fit


def test_bounds_of_replaced_entries_are_not_believed(store: LmdbLogStore, tmp_path: Path) -> None:
    """A search would miss records if the bounds of a replaced suffix were taken for those of the entries that replaced it."""
    log = LogBuilder()
    kept = log.batch(1)
    append(store, kept, *(log.batch(1) for _ in range(300)))
    store.close(KEY)
    outdated = times_file(tmp_path).read_bytes()
    store.open(KEY)
    log.rewind(kept)
    append(store, *(log.batch(time_ms, term=9) for time_ms in range(1000, 1300)))
    store.close(KEY)
    times_file(tmp_path).write_bytes(outdated)
    store.open(KEY)
    assert find_all(store, 1299) == FIRST + 300


def test_bounds_of_a_longer_or_a_shorter_log_or_of_another_replica_are_not_believed(
    store: LmdbLogStore, tmp_path: Path
) -> None:
    log = LogBuilder()
    append(store, *(log.batch(1000) for _ in range(200)))
    store.close(KEY)
    lies = TimeBounds.restored(64, 0, [0] * 4)
    for key, covered in (
        (KEY, Covered(FIRST, FIRST + 200, 5)),
        (KEY, Covered(FIRST + 1, FIRST + 199, 5)),
        (KEY, Covered(FIRST, FIRST + 199, 6)),
        (OTHER, Covered(FIRST, FIRST + 199, 5)),
    ):
        times_file(tmp_path).write_bytes(lies.encode(key, covered))
        store.open(KEY)
        assert find_all(store, 1000) == FIRST
        store.close(KEY)
    times_file(tmp_path).write_bytes(lies.encode(KEY, Covered(FIRST, FIRST + 199, 5)))
    store.open(KEY)
    assert find_all(store, 1000) != FIRST, "the bounds would be believed if they fit"


def test_the_file_goes_with_its_replica(store: LmdbLogStore, tmp_path: Path) -> None:
    append(store, LogBuilder().batch(1))
    store.close(KEY)
    assert times_file(tmp_path).exists()
    store.retire(KEY)
    assert not times_file(tmp_path).exists()


def test_a_file_without_its_replica_is_removed_at_the_next_start(store: LmdbLogStore, tmp_path: Path) -> None:
    append(store, LogBuilder().batch(1))
    store.close(KEY)
    orphan = tmp_path / "groups" / "9-9.times"
    orphan.write_bytes(b"")
    LmdbLogStore(tmp_path)
    assert times_file(tmp_path).exists()
    assert not orphan.exists()


def test_a_disk_that_refuses_the_file_refuses_no_append(store: LmdbLogStore, tmp_path: Path, saved_often: None) -> None:
    times_file(tmp_path).with_suffix(".times.new").mkdir()
    log = LogBuilder()
    append(store, *(log.batch(time_ms) for time_ms in range(200)))
    assert find_all(store, 150) == FIRST + 150
    assert not times_file(tmp_path).exists()


def test_bounds_outlive_a_compaction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with lmdb_store(tmp_path, compact_bytes_min=0) as store:
        store.create(KEY, initial_state(), [])
        store.open(KEY)
        log = LogBuilder()
        dead = [log.batch(1, body=b"x" * 4000) for _ in range(200)]
        append(store, *dead, *(log.batch(time_ms) for time_ms in range(1000, 1500)))
        truncate(store, dead[-1])
        while store.delete_truncated(KEY, 1000):
            pass
        assert store.compact_if_sparse(KEY)
        index, count = blocks_read(monkeypatch, store, 1400)
        assert index == FIRST + 600
        assert count <= 2


def find_all(store: LmdbLogStore, time_ms: int) -> int | None:
    while not (search := store.find_timestamp(KEY, time_ms, offset(0))).is_complete:
        pass
    return search.header.index if search.header is not None else None
