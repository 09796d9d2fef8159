"""Opening checks the entries after the clean point, and scrubbing in slices moves the clean point."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from raftmq.raft.messages import SnapshotMeta
from raftmq.storage import lmdb_replica, log_scan, page_warming
from raftmq.storage.errors import DamagedReplicaError, StorageUnavailableError
from raftmq.storage.lmdb_log_store import LmdbLogStore
from raftmq.storage.lmdb_replica import LmdbReplica
from raftmq.storage.log_store import Update
from raftmq.storage.row_scrub import ScrubPlace

from tests.support.storage.log_builder import (
    KEY,
    VOTERS,
    LogBuilder,
    append,
    hard,
    index,
    initial_state,
    lmdb_store,
    offset,
    position_after,
    truncate,
)


def scrub(store: LmdbLogStore, *, bytes_max: int = 1 << 16, rows_max: int = 64) -> int:
    """Do a whole pass, and return the number of rows that it read."""
    place, rows = ScrubPlace(), 0
    while not place.is_done:
        rows += store.scrub(KEY, place, bytes_max, rows_max).rows
    return rows


def reopened(store: LmdbLogStore) -> int:
    """Reopen the replica, and return the number of entries that this checks."""
    store.close(KEY)
    store.open(KEY)
    return store._replica(KEY).scanned.rows_checked


def opened(store: LmdbLogStore) -> LogBuilder:
    store.create(KEY, initial_state(), [(b"birth", b"row")])
    store.open(KEY)
    return LogBuilder()


def test_opening_checks_a_bounded_tail_of_any_log(tmp_path: Path) -> None:
    with lmdb_store(tmp_path) as store:
        log = opened(store)
        for _ in range(10):
            append(store, *log.many(1000, b"x" * 100))
        assert reopened(store) == log_scan.TAIL_ROWS_MAX
        append(store, *log.many(40, b"x" * 100_000))
        assert reopened(store) <= log_scan.TAIL_BYTES // 100_000 + 1


def test_opening_does_not_check_scrubbed_entries(tmp_path: Path) -> None:
    with lmdb_store(tmp_path) as store:
        log = opened(store)
        append(store, *log.many(300))
        assert reopened(store) == 300
        assert scrub(store) == 300 + 1
        store.store_verified(KEY)
        assert reopened(store) == 0
        append(store, *log.many(7))
        assert reopened(store) == 7
        append(store, log.data())
        assert reopened(store) == 1, "the clean point rides along with the next write"


def test_unchecked_entries_before_the_tail_keep_the_clean_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_scan, "TAIL_ROWS_MAX", 10)
    with lmdb_store(tmp_path) as store:
        log = opened(store)
        append(store, *log.many(100))
        for _ in range(3):
            assert reopened(store) == 10
            append(store, log.data())
        assert store._replica(KEY).verified_index == 5
        scrub(store)
        assert store._replica(KEY).verified_index == 108


def test_entries_that_replace_verified_ones_are_not_verified(tmp_path: Path) -> None:
    with lmdb_store(tmp_path) as store:
        log = opened(store)
        entries = log.many(50)
        append(store, *entries)
        scrub(store)
        assert store._replica(KEY).verified_index == 55
        append(store, *log.rewind(entries[19]).many(4))
        assert store._replica(KEY).verified_index == 25
        assert reopened(store) == 4


def test_entries_replaced_during_a_slice_are_not_verified(tmp_path: Path) -> None:
    """The slice began with the old entries, and the writer replaced them before it ended."""
    with lmdb_store(tmp_path) as store:
        log = opened(store)
        entries = log.many(50)
        append(store, *entries)
        replica = store._replica(KEY)
        meta_in = replica._meta_in
        replacements = iter([lambda: append(store, *log.rewind(entries[19]).many(4))])

        def replaced(transaction: object) -> object:
            meta = meta_in(transaction)
            for replace in replacements:
                replace()
            return meta

        replica._meta_in = replaced  # type: ignore[method-assign,assignment]
        place = ScrubPlace(is_file_read=True)
        assert store.scrub(KEY, place, 1 << 20, 1000).verified_to == 55
        assert replica.verified_index == 5
        replica._meta_in = meta_in  # type: ignore[method-assign]
        assert reopened(store) == 24


def test_a_pass_continues_through_truncation_and_installation(tmp_path: Path) -> None:
    with lmdb_store(tmp_path) as store:
        log = opened(store)
        entries = log.many(200)
        append(store, *entries)
        place = ScrubPlace(is_file_read=True)
        store.scrub(KEY, place, 1 << 20, 20)
        truncate(store, entries[99])
        while store.delete_truncated(KEY, 30):
            pass
        assert store.scrub(KEY, place, 1 << 20, 20).verified_from == 106
        last = position_after(entries[-1])
        store.install(KEY, hard(9), SnapshotMeta(last, last.index, VOTERS), [(b"other", b"row")])
        while not place.is_done:
            store.scrub(KEY, place, 1 << 20, 20)
        assert reopened(store) == 0


def test_a_pass_ends_although_more_is_written_than_it_reads(tmp_path: Path) -> None:
    """One partition with more than the rate of the scrubber kept it from all others, for as long as its producers ran."""
    with lmdb_store(tmp_path) as store:
        log = opened(store)
        place, state_index, slices = ScrubPlace(), 5, 0
        while not place.is_done:
            append(store, *log.many(20, b"x" * 1000))
            state_index += 20
            rows = tuple((b"row %09d" % number, b"x" * 1000) for number in range(state_index, state_index + 20))
            store.append_batch([(KEY, Update(state_rows=rows, state_index=index(state_index)))])
            store.scrub(KEY, place, 1 << 13, 8)
            slices += 1
            assert slices < 300
        append(store, *log.many(1))
        assert reopened(store) < 20 * slices


def flip(path: Path, part: bytes) -> None:
    content = path.read_bytes()
    assert part in content
    path.write_bytes(content.replace(part, bytes([part[0] ^ 1]) + part[1:]))


@pytest.mark.parametrize("part", [b"an old entry", b"an old state row", b"birth"])
def test_a_pass_finds_damage_that_opening_does_not_check(
    part: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_scan, "TAIL_ROWS_MAX", 10)
    with lmdb_store(tmp_path) as store:
        log = opened(store)
        append(store, log.data(1, b"the first entry"))
        old = log.data(1, b"an old entry")
        rows = ((b"key", b"an old state row"),)
        store.append_batch([(KEY, Update(entries=(old,), state_rows=rows, state_index=index(7)))])
        append(store, *log.many(500))
        store.close(KEY)
        flip(store.path(KEY), part)
        store.open(KEY)
        with pytest.raises(DamagedReplicaError, match="checksum"):
            scrub(store)


@pytest.mark.parametrize(
    ("number", "kind"), [(errno.EIO, DamagedReplicaError), (errno.ENOMEM, StorageUnavailableError)]
)
def test_a_bad_sector_is_damage_and_raises_no_signal(
    number: int, kind: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with lmdb_store(tmp_path) as store:
        append_to = opened(store)
        append(store, *append_to.many(100, b"x" * 2000))
        pread = os.pread

        def failing(descriptor: int, size: int, at: int) -> bytes:
            if at >= 1 << 16:
                raise OSError(number, os.strerror(number))
            return pread(descriptor, size, at)

        monkeypatch.setattr(os, "pread", failing)
        with pytest.raises(kind):
            scrub(store)
        monkeypatch.undo()


@pytest.mark.parametrize(("looker", "name"), [(log_scan, "_term_at"), (page_warming._Warming, "_term_at")])
def test_many_terms_are_found_by_reading_few_rows(
    looker: object, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0
    term_at = getattr(looker, name)

    def counted(*arguments: object) -> int:
        nonlocal looks
        looks += 1
        return int(term_at(*arguments))

    with lmdb_store(tmp_path) as store:
        log = opened(store)
        starts = []
        for term in range(6, 60):
            entries = [log.data(1, b"x", term=term), *log.many(term * 7 % 113)]
            starts.append((term, entries[0].index))
            append(store, *entries)
        store.close(KEY)
        if looker is log_scan:
            monkeypatch.setattr(lmdb_replica, "warm_opening", lambda _: ())
        monkeypatch.setattr(looker, name, counted)
        assert list(store.open(KEY).term_starts) == starts
        assert 0 < looks < 14 * len(starts)


def test_the_first_record_is_found_by_reading_two_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Housekeeping asks for it in every opened replica, and examining a row reads all of it, which may be megabytes."""
    with lmdb_store(tmp_path) as store:
        log = opened(store)
        append(store, log.empty(term=6), *log.many(300))
        looked = []
        row = LmdbReplica._row

        def counted(replica: LmdbReplica, transaction: object, number: int) -> object:
            looked.append(number)
            return row(replica, transaction, number)

        monkeypatch.setattr(LmdbReplica, "_row", counted)
        assert store.find_offset(KEY, offset(0)) == 7
        assert looked == [6, 7]
