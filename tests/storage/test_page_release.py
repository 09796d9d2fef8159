"""Free pages of a live file return to the volume as holes, without copying and without touching pages in use."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from raftmq.storage import lmdb_replica, page_release
from raftmq.storage.errors import DamagedReplicaError
from raftmq.storage.file_check import find_problem
from raftmq.storage.free_list import FreeListError, read_free_list, runs
from raftmq.storage.lmdb_file import LmdbFile
from raftmq.storage.lmdb_log_store import LmdbLogStore
from raftmq.storage.log_store import Update

from tests.support.storage.log_builder import KEY, LogBuilder, append, initial_state, lmdb_store, truncate

MIB = 1024 * 1024
KIB = 1024


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LmdbLogStore]:
    with lmdb_store(tmp_path) as store:
        store.create(KEY, initial_state(), [(b"k", b"v")])
        store.open(KEY)
        yield store


def delete_rows(store: LmdbLogStore) -> None:
    while store.delete_truncated(KEY, 256):
        pass


def reclaim(store: LmdbLogStore) -> int:
    """Reclaim until it is complete, and return the number of released bytes."""
    released = 0
    for _ in range(1000):
        done = store.reclaim(KEY)
        released += done.volume_bytes
        if done.is_complete:
            return released
    pytest.fail("it never ends")


@pytest.mark.parametrize("payload_bytes", [300, 8_000, 400_000])
def test_space_of_deleted_rows_is_released_without_further_writes(store: LmdbLogStore, payload_bytes: int) -> None:
    """An idle replica's file releases its pages too: it needs no append."""
    entries = LogBuilder().many(24 * MIB // payload_bytes, b"x" * payload_bytes)
    for start in range(0, len(entries), 1000):
        append(store, *entries[start : start + 1000])
    full = store.file_bytes(KEY)
    assert full > 20 * MIB
    truncate(store, entries[-1])
    delete_rows(store)
    assert store.space(KEY).idle_bytes > 20 * MIB

    assert reclaim(store) > 20 * MIB

    assert store.file_bytes(KEY) < MIB
    assert store.why_without_holes(KEY) is None
    assert list(store.state_rows(KEY)) == [(b"k", b"v")]
    more = LogBuilder().rewind(entries[-1]).many(40, b"y" * payload_bytes)
    append(store, *more)
    store.close(KEY)
    assert find_problem(store.path(KEY)) is None
    assert store.open(KEY).last_index == more[-1].index
    assert store.entries(KEY, more[0].index, more[-1].index, 1 << 40) == more


def test_large_data_in_use_are_neither_copied_nor_moved(store: LmdbLogStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Copying a file with much data in use takes long, but holes copy nothing."""
    entries = LogBuilder().many(400, b"x" * 100_000)
    append(store, *entries)
    truncate(store, entries[99])
    delete_rows(store)
    inode = store.path(KEY).stat().st_ino
    monkeypatch.setattr(LmdbLogStore, "compact_if_sparse", lambda *_: pytest.fail("copied"))
    assert 9 * MIB < reclaim(store) < 11 * MIB
    assert store.path(KEY).stat().st_ino == inode
    assert store.entries(KEY, entries[100].index, entries[-1].index, 1 << 40) == entries[100:]


def test_pages_that_an_open_stream_sees_are_kept(store: LmdbLogStore) -> None:
    rows = tuple((b"row%d" % number, b"old" * 10_000) for number in range(400))
    entry = LogBuilder().data()
    store.append_batch([(KEY, Update(entries=(entry,), state_rows=rows, state_index=entry.index))])
    stream = store.state_rows(KEY)
    seen = [next(stream)]
    gone = tuple((key, None) for key, _ in rows)
    store.append_batch([(KEY, Update(state_rows=gone, state_index=entry.index))])
    for _ in range(3):
        store.append_batch([(KEY, Update(state_rows=((b"k", b"w"),), state_index=entry.index))])
        reclaim(store)
    assert store.file_bytes(KEY) > 11 * MIB
    seen += list(stream)
    assert dict(seen) == {b"k": b"v", **dict(rows)}
    reclaim(store)
    assert store.file_bytes(KEY) < 2 * MIB


def test_a_file_with_holes_keeps_all_its_data(store: LmdbLogStore) -> None:
    """Appends, trims and holes are random. After each round the rows are compared and the file is verified page by page."""
    chance = random.Random(7)
    log, held = LogBuilder(), []
    released = 0
    for turn in range(120):
        new = log.many(chance.randrange(1, 40), chance.randbytes(chance.randrange(20, 60_000)))
        append(store, *new)
        held += new
        if turn % 4 == 3:
            cut = chance.randrange(1, len(held))
            truncate(store, held[cut - 1])
            del held[:cut]
            delete_rows(store)
        if turn % 3 == 2:
            released += store.reclaim(KEY).volume_bytes
        assert store.entries(KEY, held[0].index, held[-1].index, 1 << 40) == tuple(held)
        if turn % 20 == 19:
            store.close(KEY)
            assert find_problem(store.path(KEY)) is None
            store.open(KEY)
    assert released > 20 * MIB
    reclaim(store)
    space = store.space(KEY)
    assert space.idle_bytes < 2 * MIB


def test_one_call_is_bounded_and_the_next_one_continues(store: LmdbLogStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_release, "RELEASE_SECONDS", 0.0)
    log = LogBuilder()
    for _ in range(8):
        entries = log.many(20, b"x" * 50_000)
        append(store, *entries)
    truncate(store, entries[-1])
    delete_rows(store)
    first = store.reclaim(KEY)
    assert not first.is_complete
    assert reclaim(store) > 0
    assert store.file_bytes(KEY) < MIB


def test_without_support_for_holes_the_file_is_compacted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_release, "_FALLOCATE", None)
    with lmdb_store(tmp_path, compact_bytes_min=MIB) as store:
        store.create(KEY, initial_state(), [(b"k", b"v")])
        store.open(KEY)
        entries = LogBuilder().many(800, b"x" * 8000)
        append(store, *entries)
        truncate(store, entries[-21])
        delete_rows(store)
        assert reclaim(store) > 5 * MIB
        assert "fallocate" in (store.why_without_holes(KEY) or "")
        assert store.file_bytes(KEY) < MIB
        assert store.entries(KEY, entries[-20].index, entries[-1].index, MIB) == entries[-20:]


# --------------------------------------------------------------------------------------------------------- the free list


@pytest.fixture
def descriptor(store: LmdbLogStore) -> Iterator[int]:
    entries = LogBuilder().many(300, b"x" * 8000)
    append(store, *entries)
    truncate(store, entries[200])
    delete_rows(store)
    descriptor = os.open(store.path(KEY), os.O_RDWR)
    yield descriptor
    os.close(descriptor)


def test_the_list_accounts_for_every_page(descriptor: int) -> None:
    free_list = read_free_list(descriptor)
    pages = [
        page
        for record in free_list.records
        for first, count in runs(descriptor, free_list, record)
        for page in range(first, first + count)
    ]
    assert len(pages) == len(set(pages)) == sum(record.page_count for record in free_list.records)
    free_list.check(free_list.page_count - 2 - free_list.own_pages - len(pages))
    with pytest.raises(FreeListError, match="accounted"):
        free_list.check(free_list.page_count - 1 - free_list.own_pages - len(pages))


def test_a_list_of_another_format_is_not_used(store: LmdbLogStore, descriptor: int) -> None:
    for meta in (0, 4096):
        os.pwrite(descriptor, b"\x02", meta + 20)
    with pytest.raises(FreeListError, match="not known"):
        read_free_list(descriptor)
    before = store.file_bytes(KEY)
    store.reclaim(KEY)
    assert "not known" in (store.why_without_holes(KEY) or "")
    assert store.file_bytes(KEY) == before


def test_the_pages_of_the_commit_before_the_last_are_kept(store: LmdbLogStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the newest meta page is lost, LMDB uses the older one, so none of its pages may have become a hole."""
    log = LogBuilder()
    entries = log.many(60, b"x" * 8000)
    rows = tuple((b"row%d" % number, b"old" * 2_000) for number in range(20))
    append(store, *entries)
    store.append_batch([(KEY, Update(state_rows=rows, state_index=entries[-1].index))])
    changed = tuple((key, b"new" * 2_000) for key, _ in rows)
    store.append_batch([(KEY, Update(state_rows=changed, state_index=entries[-1].index))])
    store.reclaim(KEY)
    store.close(KEY)

    path = store.path(KEY)
    with path.open("r+b") as file:
        newest = max((0, 4096), key=lambda page: os.pread(file.fileno(), 8, page + 144)[::-1])
        os.pwrite(file.fileno(), bytes(8), newest + 144)
    assert find_problem(path) is None
    with pytest.raises(DamagedReplicaError, match="meta pages"):
        store.open(KEY)
    monkeypatch.setattr(lmdb_replica, "check_pages", lambda *_: None)
    store.open(KEY)
    assert dict(store.state_rows(KEY)) == {b"k": b"v", **dict(rows)}
    assert store.entries(KEY, entries[0].index, entries[-1].index, 1 << 40) == entries


def test_a_file_is_counted_again_only_after_a_write_or_a_replacement(
    store: LmdbLogStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = LogBuilder().many(40, b"x" * 8_000)
    append(store, *entries)
    reads: list[str] = []

    def counted(owner: type, name: str) -> None:
        original = getattr(owner, name)

        def read(*arguments: object) -> object:
            reads.append(name)
            return original(*arguments)

        monkeypatch.setattr(owner, name, read)

    counted(LmdbFile, "_count_pages")
    counted(lmdb_replica.LmdbReplica, "_first_index")

    def look() -> tuple[int, bool, list[str]]:
        reads.clear()
        space, has_rows = store.look(KEY)
        return space.used_bytes, has_rows, list(reads)

    used, _, first_reads = look()
    assert first_reads == ["_count_pages", "_first_index"]
    assert look() == (used, False, []), "nothing was written"

    truncate(store, entries[29])
    assert look()[1], "the write made rows superfluous"
    assert look()[1], "they wait for their deletion"
    delete_rows(store)
    after_deletion, has_rows, _ = look()
    assert after_deletion < used
    assert not has_rows

    store.close(KEY)
    store.open(KEY)
    assert look()[2] == ["_count_pages", "_first_index"], "another open file was never counted"


def test_a_count_during_a_commit_does_not_pass_for_one_after_it(
    store: LmdbLogStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a commit ends, LMDB already names its transaction, but a reader still sees the one before."""
    entries = LogBuilder().many(40, b"x" * 8_000)
    append(store, *entries)
    truncate(store, entries[29])
    before = store.space(KEY).used_bytes
    last = LmdbFile._last_transaction
    with monkeypatch.context() as during_the_commit:
        during_the_commit.setattr(LmdbFile, "_last_transaction", lambda file: last(file) + 1)
        assert store.space(KEY).used_bytes == before
    delete_rows(store)
    assert store.space(KEY).used_bytes < before
