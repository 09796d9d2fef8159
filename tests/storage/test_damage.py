"""A flipped byte in any row is detected at start and on read, and is never mistaken for something else."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from queue import Queue

import lmdb
import pytest
from raftmq.raft.entry import GENESIS, Entry, LogPosition
from raftmq.storage import log_scan
from raftmq.storage.checksum import seal
from raftmq.storage.entry_codec import encode_entry, encode_key
from raftmq.storage.errors import DamagedReplicaError, LogRangeError, UnsupportedFormatError
from raftmq.storage.file_check import find_problem, verify_in_child
from raftmq.storage.lmdb_log_store import LmdbLogStore
from raftmq.storage.log_scan import Verify
from raftmq.storage.log_store import ReplicaKey, Update
from raftmq.storage.replica_codec import FORMAT_WITH_STATE_FILE, IDENTITY_KEY, META_KEY, Identity, encode_identity
from raftmq.storage.state_store import StateWrite, location_key
from raftmq.storage.writer_threads import Completion, WriterThreads
from raftmq.types import GroupId, ReplicaId, Term

from tests.support.storage.log_builder import (
    KEY,
    MAP_BYTES,
    OTHER,
    LogBuilder,
    append,
    hard,
    index,
    initial_state,
    lmdb_store,
    offset,
    position_after,
    renumber,
    truncate,
)

MIB = 1 << 20


@pytest.fixture
def small_file(tmp_path: Path) -> tuple[Path, tuple[Entry, ...]]:
    """Create a closed replica with state rows, and with entries in leaf pages and in overflow pages."""
    log = LogBuilder()
    entries = (
        log.empty(term=6),
        log.data(3, b"first batch"),
        log.command(b"c"),
        log.data(2, os.urandom(6000)),
        log.data(1, b"last", term=7),
    )
    with lmdb_store(tmp_path) as store:
        store.create(KEY, initial_state(), [(b"birth", b"row")])
        store.open(KEY)
        rows = ((b"state key", b"state value"), (b"empty", b""))
        store.append_batch([(KEY, Update(hard(7), entries, state_rows=rows, state_index=index(6)))])
    return tmp_path, entries


@contextmanager
def flipped(path: Path, places: list[int], mask: int) -> Iterator[None]:
    """Flip the bits of `mask` at these places of the file, and restore them at the end."""
    with path.open("r+b", buffering=0) as file:
        for place in places:
            byte = os.pread(file.fileno(), 1, place)[0]
            os.pwrite(file.fileno(), bytes([byte ^ mask]), place)
        yield
        for place in places:
            byte = os.pread(file.fileno(), 1, place)[0]
            os.pwrite(file.fileno(), bytes([byte ^ mask]), place)


def places_of(content: bytes, part: bytes) -> list[int]:
    """Find all places of `part` in the file: pages that were copied on write may hold it more than once."""
    places = []
    start = content.find(part)
    while start >= 0:
        places.append(start)
        start = content.find(part, start + 1)
    assert places
    return places


def stored_rows(path: Path) -> list[tuple[str, bytes, bytes]]:
    """Return (database, key, value) of every row, as stored by LMDB."""
    rows = []
    with lmdb.open(str(path), subdir=False, max_dbs=3, map_size=MAP_BYTES) as environment:
        for name in ("log", "meta", "state"):
            database = environment.open_db(name.encode(), create=False)
            with environment.begin() as transaction, transaction.cursor(database) as cursor:
                rows += [(name, key, value) for key, value in cursor]
    return rows


def every_flip(path: Path) -> Iterator[tuple[str, bytes, list[int], int]]:
    """Yield (database, key, places, mask) for each byte of each row. Large rows are sampled."""
    content = path.read_bytes()
    for name, key, value in stored_rows(path):
        # a value in its own pages does not follow its key
        part = key + value if key + value in content else value
        step = 1 if len(part) < 1000 else 97
        starts = places_of(content, part)
        for at in range(0, len(part), step):
            yield name, key, [start + at for start in starts], 1 << (at % 8)


def test_a_flipped_byte_in_any_row_is_found_at_start(small_file: tuple[Path, tuple[Entry, ...]]) -> None:
    directory, _ = small_file
    with lmdb_store(directory, verify="full") as store:
        path = store.path(KEY)
        seen = set()
        for name, key, places, mask in every_flip(path):
            with flipped(path, places, mask), pytest.raises(DamagedReplicaError):
                store.open(KEY)
            seen.add((name, key))
        assert len(seen) == 5 + 2 + 3
        store.open(KEY)


def read_all(store: LmdbLogStore) -> None:
    """Do every kind of read, and read each row separately as well."""
    list(store.state_rows(KEY))
    for number in range(6, 11):
        store.header(KEY, index(number))
    store.entries(KEY, index(6), index(10), MIB)
    for number in range(6):
        store.find_offset(KEY, offset(number))


def test_a_flipped_byte_in_any_row_is_found_on_read(
    small_file: tuple[Path, tuple[Entry, ...]],
) -> None:
    """The byte changes under an open file, as when a page is evicted and read back wrong."""
    directory, _ = small_file
    with lmdb_store(directory) as store:
        path = store.path(KEY)
        flips = [flip for flip in every_flip(path) if flip[0] != "meta"]
        store.open(KEY)
        read_all(store)
        for _, _, places, mask in flips:
            with flipped(path, places, mask), pytest.raises(DamagedReplicaError):
                read_all(store)
        read_all(store)


def test_tail_verification_does_not_check_old_entries(
    small_file: tuple[Path, tuple[Entry, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, entries = small_file
    monkeypatch.setattr(log_scan, "TAIL_BYTES", 1)
    with lmdb_store(directory, verify="tail") as store:
        path = store.path(KEY)
        content = path.read_bytes()
        old = places_of(content, entries[1].payload)
        with flipped(path, old, 1):
            assert store.open(KEY).term_starts == ((6, 6), (7, 10))
            with pytest.raises(DamagedReplicaError):
                store.entries(KEY, index(7), index(7), MIB)
            store.close(KEY)
        with flipped(path, places_of(content, encode_entry(entries[-1])), 1), pytest.raises(DamagedReplicaError):
            store.open(KEY)


def test_tail_and_full_verification_restore_the_same(tmp_path: Path) -> None:
    log = LogBuilder()
    with lmdb_store(tmp_path) as store, lmdb_store(tmp_path / "unused", verify=Verify.TAIL):
        store.create(KEY, initial_state(), [])
        store.open(KEY)
        for term in (5, 6, 6, 9, 12, 13):
            append(store, *(log.data(1, b"x", term=term) for _ in range(term)))
        entry = store.entries(KEY, index(9), index(9), MIB)[0]
        store.append_batch([(KEY, Update(truncation=position_after(entry), state_index=entry.index))])
        store.close(KEY)
        full = store.open(KEY)
        store.close(KEY)
    with lmdb_store(tmp_path, verify=Verify.TAIL) as tail:
        assert tail.open(KEY) == full
        assert [term for term, _ in full.term_starts] == [5, 6, 9, 12, 13]


# ------------------------------------------------------------------------- sound checksums around an impossible file


def rewrite(path: Path, change: Callable[[lmdb.Transaction, dict[str, object]], None]) -> None:
    with lmdb.open(str(path), subdir=False, max_dbs=3, map_size=MAP_BYTES) as environment:
        databases: dict[str, object] = {
            name: environment.open_db(name.encode(), create=False) for name in ("log", "meta", "state")
        }
        with environment.begin(write=True) as transaction:
            change(transaction, databases)
            renumber(transaction, databases)


@pytest.mark.parametrize("verify", list(Verify))
@pytest.mark.parametrize("lost", [6, 8, 10])
def test_a_lost_row_is_damage(small_file: tuple[Path, tuple[Entry, ...]], verify: Verify, lost: int) -> None:
    directory, _ = small_file
    with lmdb_store(directory, verify=verify) as store:
        rewrite(store.path(KEY), lambda txn, dbs: txn.delete(encode_key(lost), db=dbs["log"]))
        with pytest.raises(DamagedReplicaError):
            store.open(KEY)


def test_a_row_lost_in_the_middle_is_found_without_reading_it(
    small_file: tuple[Path, tuple[Entry, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows are counted: the check of the tail alone would not go that far back."""
    directory, _ = small_file
    monkeypatch.setattr(log_scan, "TAIL_BYTES", 1)
    with lmdb_store(directory, verify=Verify.TAIL) as store:
        rewrite(store.path(KEY), lambda txn, dbs: txn.delete(encode_key(8), db=dbs["log"]))
        with pytest.raises(DamagedReplicaError, match="4 rows between the indexes 6 and 10"):
            store.open(KEY)


def test_a_row_lost_under_an_open_replica_is_damage_and_a_trimmed_one_is_not(
    small_file: tuple[Path, tuple[Entry, ...]],
) -> None:
    directory, entries = small_file
    with lmdb_store(directory) as store:
        store.open(KEY)
        replica = store._replica(KEY)
        with replica.environment.begin(write=True) as transaction:
            transaction.delete(encode_key(8), db=replica._databases.log)
        with pytest.raises(DamagedReplicaError, match="row 8"):
            store.entries(KEY, index(6), index(10), MIB)
        with pytest.raises(DamagedReplicaError, match="row 8 is missing"):
            store.header(KEY, index(8))
        store.append_batch([(KEY, Update(truncation=position_after(entries[2]), state_index=index(8)))])
        with pytest.raises(LogRangeError):
            store.header(KEY, index(8))


def test_a_row_under_another_index_is_damage(small_file: tuple[Path, tuple[Entry, ...]]) -> None:
    directory, entries = small_file

    def swap(transaction: lmdb.Transaction, databases: dict[str, object]) -> None:
        transaction.put(encode_key(7), encode_entry(entries[2]), db=databases["log"])

    with lmdb_store(directory) as store:
        rewrite(store.path(KEY), swap)
        with pytest.raises(DamagedReplicaError, match="row 7 holds entry 8"):
            store.open(KEY)


def test_entries_that_do_not_continue_each_other_are_damage(small_file: tuple[Path, tuple[Entry, ...]]) -> None:
    directory, _ = small_file
    stranger = LogBuilder()
    stranger.empty(term=6)
    other = stranger.data(9, b"another count")

    def swap(transaction: lmdb.Transaction, databases: dict[str, object]) -> None:
        transaction.put(encode_key(7), encode_entry(other), db=databases["log"])

    with lmdb_store(directory) as store:
        rewrite(store.path(KEY), swap)
        with pytest.raises(DamagedReplicaError, match="does not continue"):
            store.open(KEY)


@pytest.mark.parametrize("verify", list(Verify))
@pytest.mark.parametrize("has_entries", [True, False])
def test_a_term_and_vote_older_than_the_log_are_damage(tmp_path: Path, verify: Verify, has_entries: bool) -> None:
    """A newer term and vote were lost, so the replica might vote twice in a term."""
    with lmdb_store(tmp_path, verify=verify) as store:
        position = LogPosition(GENESIS.index, Term(5 if has_entries else 7), GENESIS.next_offset)
        store.create(KEY, replace(initial_state(position=position), hard_state=hard(6, 1)), [])
        if has_entries:
            store.open(KEY)
            store.append_batch([(KEY, Update(entries=(LogBuilder().data(term=7),)))])
            store.close(KEY)
        with pytest.raises(DamagedReplicaError, match="ends in term 7, but the stored term is only 6"):
            store.open(KEY)


def test_a_file_under_another_name_is_damage(small_file: tuple[Path, tuple[Entry, ...]]) -> None:
    directory, _ = small_file
    other = ReplicaKey(GroupId(7), ReplicaId(99))
    with lmdb_store(directory) as store:
        store.path(KEY).rename(store.path(other))
        with pytest.raises(DamagedReplicaError, match="replica 3 of group 7"):
            store.open(other)


def test_a_newer_format_is_not_damage(small_file: tuple[Path, tuple[Entry, ...]]) -> None:
    directory, _ = small_file
    newer = encode_identity(Identity(FORMAT_WITH_STATE_FILE + 1, *KEY))
    with lmdb_store(directory) as store:
        rewrite(store.path(KEY), lambda txn, dbs: txn.put(IDENTITY_KEY, newer, db=dbs["meta"]))
        with pytest.raises(UnsupportedFormatError):
            store.open(KEY)


@pytest.mark.parametrize("content", [b"", b"not a database" * 1000], ids=["empty", "foreign"])
def test_a_file_that_is_no_database_is_damage(tmp_path: Path, content: bytes) -> None:
    with lmdb_store(tmp_path) as store:
        store.path(KEY).write_bytes(content)
        with pytest.raises(DamagedReplicaError):
            store.open(KEY)


def test_a_meta_row_of_the_wrong_shape_is_damage(small_file: tuple[Path, tuple[Entry, ...]]) -> None:
    directory, _ = small_file
    with lmdb_store(directory) as store:
        rewrite(store.path(KEY), lambda txn, dbs: txn.put(META_KEY, seal(META_KEY, b"x" * 200), db=dbs["meta"]))
        with pytest.raises(DamagedReplicaError, match="meta row"):
            store.open(KEY)


def test_a_cut_off_file_is_damage_and_ends_no_process(tmp_path: Path) -> None:
    """Reading a page past the end of the file through the map would raise SIGBUS."""
    with lmdb_store(tmp_path) as store:
        store.create(KEY, initial_state(), [])
        store.open(KEY)
        append(store, *LogBuilder().many(200, b"z" * 4000))
        store.close(KEY)
        path = store.path(KEY)
        assert verify_in_child(path) is None
        os.truncate(path, path.stat().st_size // 2)
        assert verify_in_child(path) is not None
        with pytest.raises(DamagedReplicaError):
            store.open(KEY)


def test_a_child_that_dies_of_a_signal_reports_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "dies"
    script.write_text(f"#!/bin/sh\nkill -{int(signal.SIGBUS)} $$\n")
    script.chmod(0o755)
    monkeypatch.setattr("raftmq.storage.file_check.sys.executable", str(script))
    assert verify_in_child(tmp_path / "any") == f"reading it ended a process with signal {int(signal.SIGBUS)}"


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOMEM])
def test_a_place_that_the_disk_cannot_return_is_damage(
    small_file: tuple[Path, tuple[Entry, ...]], monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Otherwise the file would be opened unverified, and the first read of the place through the map would kill the next process, too."""

    def read_page(_verifier: object, _page: int) -> bytes:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("lmdb.verify._Verifier.read_page", read_page)
    path = small_file[0] / "groups" / "7-3.mdb"
    if number == errno.EIO:
        assert find_problem(path) == "unreadable: Input/output error"
    else:
        with pytest.raises(OSError, match=os.strerror(number)):
            find_problem(path)


def test_modules_in_the_working_directory_are_not_used(
    small_file: tuple[Path, tuple[Entry, ...]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lmdb.py").write_text("raise SystemExit('another lmdb')")
    monkeypatch.chdir(tmp_path)
    assert verify_in_child(small_file[0] / "groups" / "7-3.mdb") is None


def test_builds_without_the_verifier_read_every_page(
    small_file: tuple[Path, tuple[Entry, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, _ = small_file
    path = directory / "groups" / "7-3.mdb"
    monkeypatch.setitem(__import__("sys").modules, "lmdb.verify", None)
    assert find_problem(path) is None
    (directory / "no database").write_bytes(b"x" * 10000)
    assert find_problem(directory / "no database") is not None


# ---------------------------------------------------------------------------------------------------- found by a write


def page_of(path: Path, row: bytes) -> int:
    """Return where in the file the kind of the last page with these bytes is."""
    return path.read_bytes().rfind(row) // 4096 * 4096 + 10


def test_damage_that_a_write_meets_is_no_failed_commit(tmp_path: Path) -> None:
    """It ended the process, and the next one met the same page seconds later: an opening does not read old entries."""
    entries = LogBuilder().many(3000, b"x" * 100)
    with lmdb_store(tmp_path) as store:
        store.create(KEY, initial_state(), [])
        store.open(KEY)
        append(store, *entries)
        truncate(store, entries[2500])
        store.close(KEY)
        with flipped(
            store.path(KEY),
            [page_of(store.path(KEY), encode_key(entries[1000].index) + encode_entry(entries[1000]))],
            1,
        ):
            store.open(KEY)
            with pytest.raises(DamagedReplicaError, match="PAGE_NOTFOUND"):
                while store.delete_truncated(KEY, 256):
                    pass


def test_damage_that_an_append_meets_is_reported_for_its_replica(tmp_path: Path) -> None:
    entries = LogBuilder().many(3000, b"x" * 100)
    done: Queue[Completion] = Queue()
    with lmdb_store(tmp_path) as store:
        writers = WriterThreads(store, 1, on_done=lambda some: [done.put(one) for one in some], on_error=done.put)
        for key in (KEY, OTHER):
            store.create(key, initial_state(), [])
            store.open(key)
        append(store, *entries)
        store.close(KEY)
        with flipped(
            store.path(KEY),
            [page_of(store.path(KEY), encode_key(entries[1000].index) + encode_entry(entries[1000]))],
            1,
        ):
            store.open(KEY)
            replacing = replace(entries[900], term=Term(7))
            writers.submit(KEY, Update(hard(7), (replacing,)), "damaged")
            writers.submit(OTHER, Update(entries=LogBuilder().many(1)), "intact")
            found = {one.token: one.error for one in (done.get(timeout=30), done.get(timeout=30))}
        assert isinstance(found["damaged"], DamagedReplicaError)
        assert found["intact"] is None
        writers.close()


def test_damage_that_a_write_back_meets_is_no_failed_commit(tmp_path: Path) -> None:
    rows = [(location_key(1, number), b"x" * 100) for number in range(3000)]
    with lmdb_store(tmp_path) as store:
        store.create_with_state_file(KEY, initial_state())
        store.open(KEY)
        store.write_state(KEY, StateWrite(index(6), tuple(rows)))
        store.close(KEY)
        with flipped(store.state_path(KEY), [page_of(store.state_path(KEY), b"".join(rows[1000]))], 2):
            store.open(KEY)
            with pytest.raises(DamagedReplicaError):
                store.write_state(KEY, StateWrite(index(6), ((rows[1000][0], b"changed"),)))
