"""A replica's two files are created, replaced and removed together, at whatever point the process ends, and each is maintained."""

from __future__ import annotations

import gc
import mmap
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lmdb
import pytest
from raftmq.raft.entry import Entry, LogPosition
from raftmq.raft.hard_state import HardState
from raftmq.raft.messages import SnapshotMeta
from raftmq.storage import durable_files
from raftmq.storage.checksum import seal
from raftmq.storage.errors import (
    DamagedReplicaError,
    MissingReplicaError,
    ReplicaClosedError,
    StorageFullError,
    StorageUnavailableError,
    UnsupportedFormatError,
)
from raftmq.storage.file_check import find_problem
from raftmq.storage.lmdb_log_store import LmdbLogStore, replica_file_count
from raftmq.storage.log_scan import Verify
from raftmq.storage.log_store import Update
from raftmq.storage.replica_codec import IDENTITY_KEY, Identity, encode_identity
from raftmq.storage.row_scrub import ScrubPlace
from raftmq.storage.row_stream import KeyRange, Row, RowStream
from raftmq.storage.staged_state import LmdbStagedState
from raftmq.storage.state_codec import FORMAT_VERSION, STATE_META_KEY, StateMeta
from raftmq.storage.state_store import FilePart, StagedState, StateCopy, StateWrite, body_key, location_key
from raftmq.types import LogIndex, Offset, ReplicaId, Term

from tests.support.storage.log_builder import (
    KEY,
    OTHER,
    VOTERS,
    LogBuilder,
    append,
    hard,
    index,
    initial_state,
    lmdb_store,
    position_after,
)

MIB = 1 << 20
SNAPSHOT = SnapshotMeta(LogPosition(LogIndex(50), Term(6), Offset(70), 44), LogIndex(60), VOTERS)
OLD_ROWS = [(b"old", b"state")]
NEW_ROWS = [(b"new", b"state")]
FILES = {"7-3.mdb", "7-3.mdb-lock", "7-3.state.mdb", "7-3.state.mdb-lock"}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LmdbLogStore]:
    with lmdb_store(tmp_path / "node") as store:
        store.create_with_state_file(KEY, initial_state())
        store.open(KEY)
        append(store, *LogBuilder().many(3))
        write(store, 7, *OLD_ROWS)
        yield store


def write(store: LmdbLogStore, state_index: int, *rows: tuple[bytes, bytes | None]) -> None:
    store.write_state(KEY, StateWrite(index(state_index), rows))


def names(store: LmdbLogStore) -> set[str]:
    return {path.name for path in store.path(KEY).parent.iterdir()}


class ProcessEndedError(BaseException):
    """Simulates a kill: no code of ours may rely on running after it."""


def die_at(monkeypatch: pytest.MonkeyPatch, node: Path, left: Path, step: int, action: Callable[[], object]) -> None:
    """Run an action up to its rename number `step // 2`: before it (even) or after it (odd). Copy the files as a kill leaves them there."""
    renames: list[str] = []

    def rename(source: Path, target: Path) -> None:
        is_last = len(renames) == step // 2
        renames.append(target.name)
        if not is_last or step % 2:
            durable_files.replace_file(source, target)
        if is_last:
            os.system(f"cp -r {node} {left}")
            raise ProcessEndedError

    monkeypatch.setattr("raftmq.storage.lmdb_log_store.replace_file", rename)
    monkeypatch.setattr("raftmq.storage.trash.replace_file", rename)
    with pytest.raises(ProcessEndedError):
        action()
    monkeypatch.undo()


# ---------------------------------------------------------------------------------------------------- two files


def test_a_replica_with_a_state_file_has_two_files(store: LmdbLogStore, tmp_path: Path) -> None:
    assert names(store) == FILES
    assert store.stored_replicas() == [KEY]
    assert store.parts(KEY) == (FilePart.LOG, FilePart.STATE)
    store.create(OTHER, initial_state(), [])
    store.open(OTHER)
    assert store.parts(OTHER) == (FilePart.LOG,)
    assert replica_file_count(tmp_path / "node") == 3


def test_the_log_s_file_has_no_state_rows(store: LmdbLogStore) -> None:
    assert list(store._replica(KEY).stream()[1]) == []


def test_state_files_have_lmdb_s_default_durability(store: LmdbLogStore) -> None:
    store.install(KEY, hard(9), SNAPSHOT, [])
    flags = store._state(KEY).environment.flags()
    assert (flags["sync"], flags["metasync"], flags["writemap"], flags["map_async"]) == (True, True, False, False)


def test_the_state_file_gets_its_name_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rename of the log's file creates the replica, and the rename of the state file installs a snapshot."""
    steps: list[str] = []
    fsync, rename = os.fsync, Path.replace

    def record_fsync(descriptor: int) -> None:
        steps.append(f"sync {Path(f'/proc/self/fd/{descriptor}').readlink().name}")
        fsync(descriptor)

    def record_rename(source: Path, target: Path) -> Path:
        steps.append(f"rename {source.name}")
        return rename(source, target)

    with lmdb_store(tmp_path) as store:
        monkeypatch.setattr("os.fsync", record_fsync)
        monkeypatch.setattr(Path, "replace", record_rename)
        store.create_with_state_file(KEY, initial_state())
        first = ["sync 7-3.state.mdb.new", "rename 7-3.state.mdb.new", "sync groups"]
        assert steps == [*first, "sync 7-3.mdb.new", "rename 7-3.mdb.new", "sync groups"]
        store.open(KEY)
        steps.clear()
        store.install(KEY, hard(9), SNAPSHOT, [])
        built = ["sync 7-3.mdb.new", "sync 7-3.state.mdb.new"]
        renamed = ["rename 7-3.state.mdb.new", "sync groups", "rename 7-3.mdb.new", "sync groups"]
        assert steps == built + renamed
        steps.clear()
        store.retire(KEY)
        moved = [f"rename {name}" for name in ("7-3.mdb", "7-3.state.mdb")]
        assert [step for step in steps if step.startswith("rename")] == moved


# ---------------------------------------------------------------------------------------------------- crashes


@pytest.mark.parametrize("step", range(4))
def test_a_killed_creation_leaves_a_replica_or_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    left = tmp_path / "left"
    with lmdb_store(tmp_path / "node") as store:
        create = lambda: store.create_with_state_file(KEY, initial_state())  # noqa: E731
        die_at(monkeypatch, tmp_path / "node", left, step, create)
    with lmdb_store(left) as store:
        if step < 3:
            with pytest.raises(MissingReplicaError):
                store.open(KEY)
            store.create_with_state_file(KEY, initial_state())
        assert store.open(KEY) == initial_state()
        assert names(store) == FILES


@pytest.mark.parametrize("step", range(4))
def test_a_killed_installation_leaves_the_old_or_the_new_replica(
    tmp_path: Path, store: LmdbLogStore, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    left = tmp_path / "left"
    new = hard(9, 1, 50)
    die_at(monkeypatch, tmp_path / "node", left, step, lambda: store.install(KEY, new, SNAPSHOT, NEW_ROWS))
    for _ in range(2):  # a repair by an opening is permanent
        with lmdb_store(left) as after:
            restored = after.open(KEY)
            assert names(after) == FILES
            if step == 0:
                assert (restored.last_index, restored.state_index, restored.hard_state) == (8, 7, hard(5))
                assert list(after.state_rows(KEY)) == OLD_ROWS
                continue
            assert (restored.position, restored.last_index) == (SNAPSHOT.position, 50)
            assert (restored.state_index, restored.term_starts) == (60, ())
            # the term of a snapshot is durable with it; a later term that nobody was answered in may be lost
            assert restored.hard_state == (new if step == 3 else HardState(Term(6), ReplicaId(0), LogIndex(50)))
            assert list(after.state_rows(KEY)) == NEW_ROWS


def staged_rows(store: LmdbLogStore, rows: Sequence[Row] = tuple(NEW_ROWS)) -> StagedState:
    staged = store.stage(KEY, SNAPSHOT.position)
    staged.put(rows)
    staged.finish()
    return staged


@pytest.mark.parametrize("step", range(4))
def test_a_killed_installation_of_staged_rows_leaves_the_old_or_the_new_replica(
    tmp_path: Path, store: LmdbLogStore, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    left = tmp_path / "left"
    new = hard(9, 1, 50)
    staged = staged_rows(store)
    die_at(monkeypatch, tmp_path / "node", left, step, lambda: store.install_staged(KEY, new, SNAPSHOT, staged))
    for _ in range(2):
        with lmdb_store(left) as after:
            restored = after.open(KEY)
            assert names(after) == FILES
            expected = (8, 7, OLD_ROWS) if step == 0 else (50, 60, NEW_ROWS)
            assert (restored.last_index, restored.state_index, list(after.state_rows(KEY))) == expected
    assert find_problem(left / "groups" / "7-3.state.mdb") is None


def test_a_staged_file_is_synced_before_it_gets_its_name(store: LmdbLogStore, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []
    fsync, rename = os.fsync, Path.replace

    def record_fsync(descriptor: int) -> None:
        steps.append(f"sync {Path(f'/proc/self/fd/{descriptor}').readlink().name}")
        fsync(descriptor)

    def record_rename(source: Path, target: Path) -> Path:
        steps.append(f"rename {source.name}")
        return rename(source, target)

    staged = staged_rows(store)
    monkeypatch.setattr(os, "fsync", record_fsync)
    monkeypatch.setattr(Path, "replace", record_rename)
    store.install_staged(KEY, hard(9), SNAPSHOT, staged)
    built = ["sync 7-3.mdb.new", "sync 7-3.state.mdb.new.1"]
    renamed = ["rename 7-3.state.mdb.new.1", "sync groups", "rename 7-3.mdb.new", "sync groups"]
    assert steps == built + renamed


def test_the_next_start_deletes_unfinished_snapshots_and_copies(tmp_path: Path, store: LmdbLogStore) -> None:
    """Whole ones, one with half a chunk, and one whose copying was interrupted: nothing of them is ever used."""
    staged, copy = staged_rows(store), store.copy_state(KEY)
    groups = store.path(KEY).parent
    left = tmp_path / "left"
    os.system(f"cp -r {tmp_path / 'node'} {left}")
    (left / "groups" / "7-3.state.mdb.new.8").write_bytes((groups / "7-3.state.mdb.new.1").read_bytes()[:5000])
    (left / "groups" / "7-3.state.mdb.copy.9").write_bytes(b"half")
    assert {path.name for path in (left / "groups").glob("*.mdb.*") if "lock" not in path.name} == {
        "7-3.state.mdb.new.1",
        "7-3.state.mdb.new.8",
        "7-3.state.mdb.copy.2",
        "7-3.state.mdb.copy.9",
    }
    with lmdb_store(left) as after:
        assert after.stored_replicas() == [KEY]
        assert names(after) <= FILES
        assert after.open(KEY).state_index == 7
        assert list(after.state_rows(KEY)) == OLD_ROWS
    staged.close()
    copy.close()
    assert names(store) == FILES


def test_a_snapshot_larger_than_the_configured_map_is_received(tmp_path: Path) -> None:
    """The map of the sender's file had grown. The replica could not be built on any other broker."""
    with lmdb_store(tmp_path, map_bytes=MIB) as store:
        store.create_with_state_file(KEY, initial_state())
        store.open(KEY)
        rows = [(location_key(1, 70 + number), b"x" * 50_000) for number in range(60)]
        staged = store.stage(KEY, SNAPSHOT.position)
        for row in rows:
            staged.put([row])
        staged.finish()
        store.install_staged(KEY, hard(9), SNAPSHOT, staged)
        assert list(store.state_rows(KEY)) == rows
        store.grow_map(KEY, 8 * MIB, FilePart.STATE)  # as housekeeping does
        write(store, 61, (b"new", b"row"))


def test_a_staged_file_is_deleted_with_its_last_reference(store: LmdbLogStore) -> None:
    staged = staged_rows(store)
    assert "7-3.state.mdb.new.1" in names(store)
    del staged
    gc.collect()
    assert names(store) == FILES


def test_staged_rows_are_written_in_one_transaction_for_each_part(store: LmdbLogStore) -> None:
    """The meta rows come last, so a file with half of its rows is no state file."""
    staged = store.stage(KEY, SNAPSHOT.position)
    assert isinstance(staged, LmdbStagedState)
    before = staged._environment.info()["last_txnid"]
    for number in range(3):
        staged.put([(b"%05d" % row, b"") for row in range(number * 1000, number * 1000 + 1000)])
    assert staged._environment.info()["last_txnid"] == before + 3
    with staged._environment.begin() as transaction:
        assert transaction.stat(staged._databases.meta)["entries"] == 0
    staged.close()


def test_a_large_staged_file_is_synced_now_and_then(store: LmdbLogStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raftmq.storage.staged_state.SYNC_BYTES", 10_000)
    syncs: list[int] = []
    sync = LmdbStagedState._sync
    monkeypatch.setattr(LmdbStagedState, "_sync", lambda self: (syncs.append(self._unsynced_bytes), sync(self)))
    staged = store.stage(KEY, SNAPSHOT.position)
    for number in range(10):
        staged.put([(b"%05d" % number, bytes(4000))])
    assert len(syncs) == 3
    assert max(syncs) < 14_000
    staged.close()


def test_a_flipped_byte_in_a_staged_row_is_found_when_it_is_restored(store: LmdbLogStore) -> None:
    staged = staged_rows(store, [(b"row", b"x" * 300)])
    flip(store.path(KEY).parent / "7-3.state.mdb.new.1", b"x" * 300, 7)
    with pytest.raises(StorageUnavailableError, match="does not read back"):
        list(staged.rows([(b"", None)]))
    staged.close()


def test_a_staged_snapshot_without_room_can_be_installed_later(
    store: LmdbLogStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged = staged_rows(store)

    def no_room(path: Path) -> None:
        raise OSError(28, "No space left on device", path)

    monkeypatch.setattr("raftmq.storage.staged_state.sync_file", no_room)
    with pytest.raises(StorageFullError):
        store.install_staged(KEY, hard(9), SNAPSHOT, staged)
    assert names(store) == FILES | {"7-3.state.mdb.new.1", "7-3.state.mdb.new.1-lock"}
    assert list(store.state_rows(KEY)) == OLD_ROWS
    monkeypatch.undo()
    store.install_staged(KEY, hard(9), SNAPSHOT, staged)
    assert list(store.state_rows(KEY)) == NEW_ROWS
    assert names(store) == FILES


def test_rows_that_do_not_fit_into_the_map_give_up_the_staged_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LmdbStagedState, "_make_room", lambda *_: None)  # otherwise the map grows
    with lmdb_store(tmp_path, map_bytes=MIB) as store:
        staged = store.stage(KEY, SNAPSHOT.position)
        with pytest.raises(StorageFullError):
            staged.put([(b"%d" % number, bytes(100_000)) for number in range(20)])
        with pytest.raises(StorageUnavailableError):
            staged.put([(b"k" * 600, b"longer than any key")])
        staged.close()


# ---------------------------------------------------------------------------------------------------- copies


def test_a_copy_has_no_free_pages_and_no_lock(store: LmdbLogStore) -> None:
    churned(store)
    copy = store.copy_state(KEY)
    assert copy.file_bytes < MIB < store.state_path(KEY).stat().st_size
    assert names(store) - FILES == {"7-3.state.mdb.copy.1"}
    copy.close()
    assert names(store) == FILES


def test_write_backs_go_on_while_a_copy_is_made(store: LmdbLogStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The copy shows the state before or after a write-back, and never a part of it."""
    state = store._state(KEY)
    copy_to = state.copy_to

    def write_beside(path: Path) -> None:
        writer = threading.Thread(target=write, args=(store, 8, (b"beside", b"row"), (b"old", None)))
        writer.start()
        copy_to(path)
        writer.join(30)

    monkeypatch.setattr(state, "copy_to", write_beside)
    copy = store.copy_state(KEY)
    assert (copy.state_index, list(copy.rows_from(b""))) in [(7, OLD_ROWS), (8, [(b"beside", b"row")])]
    assert list(store.state_rows(KEY)) == [(b"beside", b"row")]
    copy.close()


def test_the_position_of_a_copy_is_read_before_its_rows(store: LmdbLogStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A truncation in between would leave the receiver without a body that was evacuated after the copy."""
    write(store, 8, (location_key(0, 0), b"home"))
    state = store._state(KEY)
    copy_to = state.copy_to

    def truncate_behind(path: Path) -> None:
        copy_to(path)
        store.evacuate(KEY, [(location_key(0, 0), b"body")], store.evacuated_through(KEY))
        last = store.entries(KEY, index(8), index(8), MIB)[0]
        store.append_batch([(KEY, Update(truncation=position_after(last)))])

    monkeypatch.setattr(state, "copy_to", truncate_behind)
    copy = store.copy_state(KEY)
    assert [key for key, _ in copy.rows_from(b"")] == [location_key(0, 0), *(key for key, _ in OLD_ROWS)]
    assert copy.position.next_offset == 0
    copy.close()


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (lmdb.DiskError("No space left on device"), StorageFullError),
        (OSError(28, "No space left on device"), StorageFullError),
        (lmdb.IncompatibleError("page leak"), StorageUnavailableError),
        (OSError(5, "Input/output error"), StorageUnavailableError),
    ],
)
def test_a_copy_that_fails_says_nothing_about_the_replica(
    store: LmdbLogStore, monkeypatch: pytest.MonkeyPatch, error: Exception, expected: type[Exception]
) -> None:
    """None of these errors ends the process or quarantines the replica. A read of the file itself reports the defect."""

    def fail(path: Path) -> None:
        path.write_bytes(b"half a copy")
        raise error

    monkeypatch.setattr(store._state(KEY), "copy_to", fail)
    with pytest.raises(expected):
        store.copy_state(KEY)
    assert names(store) == FILES
    write(store, 8, (b"beside", b"row"))


def test_a_copy_that_is_no_state_file_is_deleted(store: LmdbLogStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store._state(KEY), "copy_to", lambda path: path.write_bytes(bytes(8192)))
    with pytest.raises(StorageUnavailableError):
        store.copy_state(KEY)
    assert names(store) == FILES


def test_a_flipped_byte_in_a_copy_is_found_on_read(store: LmdbLogStore) -> None:
    write(store, 8, (b"row", b"x" * 300))
    copy = store.copy_state(KEY)
    flip(store.path(KEY).parent / "7-3.state.mdb.copy.1", b"x" * 300, 7)
    with pytest.raises(DamagedReplicaError):
        list(copy.rows_from(b""))
    copy.close()
    assert list(store.state_rows(KEY))[1] == (b"row", b"x" * 300)


@pytest.mark.parametrize("step", range(4))
def test_a_killed_retirement_is_completed_by_the_next_one(
    tmp_path: Path, store: LmdbLogStore, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    left = tmp_path / "left"
    die_at(monkeypatch, tmp_path / "node", left, step, lambda: store.retire(KEY))
    with lmdb_store(left) as after:
        after.retire(KEY)
        assert names(after) <= {"7-3.mdb-lock", "7-3.state.mdb-lock"}
        trash = {path.name for path in (left / "trash").iterdir()}
        assert trash == {"7-3.mdb.0", "7-3.state.mdb.0"}
        assert after.empty_trash(-60) == 2


def test_a_vote_survives_a_killed_installation(
    tmp_path: Path, store: LmdbLogStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.append_batch([(KEY, Update(hard(8, 2)))])
    left = tmp_path / "left"
    die_at(monkeypatch, tmp_path / "node", left, 1, lambda: store.install(KEY, hard(8, 2, 50), SNAPSHOT, NEW_ROWS))
    with lmdb_store(left) as after:
        assert after.open(KEY).hard_state == hard(8, 2, 50)


def test_a_log_that_was_truncated_after_an_installation_is_not_reset(store: LmdbLogStore) -> None:
    store.install(KEY, hard(9), SNAPSHOT, NEW_ROWS)
    entries = LogBuilder(SNAPSHOT.position).many(20)
    store.append_batch([(KEY, Update(entries=entries))])
    store.append_batch([(KEY, Update(truncation=position_after(entries[4])))])
    store.close(KEY)
    restored = store.open(KEY)
    assert (restored.position, restored.last_index) == (position_after(entries[4]), 70)


def test_the_position_of_a_snapshot_is_read_before_its_rows(
    store: LmdbLogStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A truncation in between would leave the receiver without a body that was evacuated after its rows were read."""
    write(store, 8, (location_key(0, 0), b"home"))
    state = store._state(KEY)
    stream = state.stream

    def truncate_behind(ranges: Sequence[KeyRange] | None = None) -> tuple[StateMeta, RowStream]:
        opened = stream(ranges)
        store.evacuate(KEY, [(location_key(0, 0), b"body")], store.evacuated_through(KEY))
        last = store.entries(KEY, index(8), index(8), MIB)[0]
        store.append_batch([(KEY, Update(truncation=position_after(last)))])
        return opened

    monkeypatch.setattr(state, "stream", truncate_behind)
    snapshot = store.snapshot(KEY)
    assert [key for key, _ in snapshot.rows] == [location_key(0, 0), *(key for key, _ in OLD_ROWS)]
    assert snapshot.position.next_offset == 0


# ---------------------------------------------------------------------------------------------------- missing, damaged


def test_a_missing_state_file_is_a_missing_replica(store: LmdbLogStore) -> None:
    store.close(KEY)
    store.state_path(KEY).unlink()
    with pytest.raises(MissingReplicaError, match="state file"):
        store.open(KEY)
    assert store.open_replicas() == []
    assert not store.state_path(KEY).exists()


def test_an_older_state_file_is_damage(tmp_path: Path, store: LmdbLogStore) -> None:
    older = tmp_path / "older"
    store.close(KEY)
    older.write_bytes(store.state_path(KEY).read_bytes())
    store.open(KEY)
    last = store.entries(KEY, index(8), index(8), MIB)[0]
    write(store, 8)
    store.append_batch([(KEY, Update(truncation=position_after(last)))])
    store.close(KEY)
    store.state_path(KEY).write_bytes(older.read_bytes())
    with pytest.raises(DamagedReplicaError, match="starts after entry 8"):
        store.open(KEY)


def rewrite(store: LmdbLogStore, key: bytes, value: bytes) -> None:
    """Replace a meta row as an intruder would, with a transaction that names itself where the row allows it."""
    state = store._state(KEY)
    with state.environment.begin(write=True) as transaction:
        transaction.put(key, value, db=state._databases.meta)
        if key != STATE_META_KEY:
            state._put_meta(transaction, state.meta)
    store.close(KEY)


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (encode_identity(Identity(FORMAT_VERSION, *OTHER)), DamagedReplicaError),
        (encode_identity(Identity(FORMAT_VERSION + 1, *KEY)), UnsupportedFormatError),
        (b"short", DamagedReplicaError),
    ],
)
def test_a_state_file_of_another_replica_or_version_is_refused(
    store: LmdbLogStore, row: bytes, expected: type[Exception]
) -> None:
    rewrite(store, IDENTITY_KEY, row)
    with pytest.raises(expected):
        store.open(KEY)
    assert store.open_replicas() == []


@pytest.mark.parametrize("body", [b"", b"x" * 300])
def test_a_meta_row_of_another_length_is_damage(store: LmdbLogStore, body: bytes) -> None:
    rewrite(store, STATE_META_KEY, seal(STATE_META_KEY, body))
    with pytest.raises(DamagedReplicaError):
        store.open(KEY)


def flip(path: Path, part: bytes, at: int = 0) -> None:
    """Flip a bit in every copy of `part` in a file."""
    content = path.read_bytes()
    assert part in content
    changed = part[:at] + bytes([part[at] ^ 1]) + part[at + 1 :]
    path.write_bytes(content.replace(part, changed))


@pytest.fixture
def filled(store: LmdbLogStore) -> LmdbLogStore:
    """Return a store whose closed replica has rows in leaf pages and a body in pages of its own."""
    write(store, 8, *((b"row %d" % number, b"value %d" % number) for number in range(300)), (location_key(0, 3), b""))
    store.evacuate(KEY, [(location_key(0, 3), b"large body " * 2000)], store.evacuated_through(KEY))
    store.close(KEY)
    return store


READS: list[Callable[[LmdbLogStore], object]] = [
    lambda store: store.read_rows(KEY, [(b"row", b"rox", 1000)]),
    lambda store: list(store.state_rows(KEY)),
    lambda store: list(store.resident_rows(KEY, [(b"row", b"rox")])),
]


@pytest.mark.parametrize("read", READS, ids=["ranges", "all rows", "resident rows"])
@pytest.mark.parametrize("at", [0, 7, 12, 16])
def test_a_flipped_byte_in_a_row_is_found_on_read(
    filled: LmdbLogStore, read: Callable[[LmdbLogStore], object], at: int
) -> None:
    key, body = b"row 123", b"value 123"
    flip(filled.state_path(KEY), key + seal(key, body), at)
    filled.open(KEY)
    with pytest.raises(DamagedReplicaError):
        read(filled)


def test_a_flipped_byte_in_a_body_is_found_on_read(filled: LmdbLogStore) -> None:
    flip(filled.state_path(KEY), b"large body " * 2000, 9999)
    filled.open(KEY)
    with pytest.raises(DamagedReplicaError):
        filled.read_body(KEY, 3)


def test_a_flipped_key_of_a_location_does_not_move_the_truncation(filled: LmdbLogStore) -> None:
    key = location_key(0, 3)
    flip(filled.state_path(KEY), key + seal(key, b""), len(key) - 1)
    filled.open(KEY)
    with pytest.raises(DamagedReplicaError):
        filled.first_location(KEY, -1)


def test_opening_everything_finds_a_flipped_byte_anywhere(filled: LmdbLogStore) -> None:
    filled._verify = Verify.FULL
    flip(filled.state_path(KEY), b"large body " * 2000, 9999)
    with pytest.raises(DamagedReplicaError):
        filled.open(KEY)
    assert filled.open_replicas() == []


def test_the_scrubber_reads_both_files_to_their_ends(filled: LmdbLogStore) -> None:
    filled.open(KEY)
    place, rows, size = ScrubPlace(), 0, 0
    while not place.is_done:
        part = filled.scrub(KEY, place, 4096, 16)
        rows, size = rows + part.rows, size + part.size
    assert rows == 3 + 303  # entries of the log · rows of the state
    files = filled.path(KEY).stat().st_size + filled.state_path(KEY).stat().st_size
    assert size > files


@pytest.mark.parametrize("part", [b"value 299", b"large body " * 2000], ids=["row", "body"])
def test_the_scrubber_finds_damage_in_the_state_file(filled: LmdbLogStore, part: bytes) -> None:
    flip(filled.state_path(KEY), part)
    filled.open(KEY)
    place = ScrubPlace()
    with pytest.raises(DamagedReplicaError):
        while not place.is_done:
            filled.scrub(KEY, place, 4096, 16)
    assert place.is_in_state_file


def test_a_child_checks_both_files(filled: LmdbLogStore) -> None:
    assert filled.verify(KEY) is None
    content = filled.state_path(KEY).read_bytes()
    filled.state_path(KEY).write_bytes(content[:8192] + b"\xff" * 4096 + content[12288:])
    assert filled.verify(KEY) is not None


def test_threads_record_that_they_read_the_state_file(store: LmdbLogStore) -> None:
    touched = []
    store._state(KEY)._touch = touched.append
    write(store, 8)
    store.read_rows(KEY, [])
    store.read_body(KEY, 1)
    next(store.state_rows(KEY))
    assert touched == [KEY] * 4


# ---------------------------------------------------------------------------------------------------- copies without end


class SlowlyCopied:
    """An environment whose copy has no end, unless a write of it fails."""

    def __init__(self, environment: lmdb.Environment) -> None:
        self._environment = environment
        self.has_begun = threading.Event()

    def copyfd(self, descriptor: int, compact: bool) -> None:
        assert compact
        page = mmap.mmap(-1, mmap.PAGESIZE)  # the file may take only whole pages of memory
        try:
            for _ in range(20_000):
                os.write(descriptor, page)
                self.has_begun.set()
                time.sleep(0.001)
        except OSError as error:
            raise lmdb.DiskError(error.strerror) from error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._environment, name)


@contextmanager
def copying_slowly(store: LmdbLogStore, threads: ThreadPoolExecutor) -> Iterator[Future[StateCopy]]:
    state = store._state(KEY)
    assert state._environment is not None
    slow = SlowlyCopied(state._environment)
    state._environment = slow  # type: ignore[assignment]
    copied = threads.submit(store.copy_state, KEY)
    assert slow.has_begun.wait(10)
    yield copied
    assert not list(store.state_path(KEY).parent.glob("*.copy*"))


def test_a_close_does_not_wait_for_a_copy(store: LmdbLogStore) -> None:
    """It runs on a writer, so that a quarter of the broker's replicas waited with it for as long as the copying of gigabytes took."""
    with ThreadPoolExecutor(2) as threads, copying_slowly(store, threads) as copied:
        threads.submit(store.close, KEY).result(10)
        with pytest.raises(ReplicaClosedError):
            copied.result(10)
    store.open(KEY)
    assert list(store.state_rows(KEY)) == OLD_ROWS
    store.copy_state(KEY).close()


def test_copies_end_when_the_volume_is_about_to_be_full(store: LmdbLogStore) -> None:
    """A copy begins if there is room for it. Appends took that room, and the copy went on into the reserve."""
    with ThreadPoolExecutor(2) as threads, copying_slowly(store, threads) as copied:
        store.end_copies()
        with pytest.raises(StorageFullError):
            copied.result(10)
    assert list(store.state_rows(KEY)) == OLD_ROWS


def test_a_map_that_grows_does_not_wait_for_a_copy(store: LmdbLogStore) -> None:
    """Every read of the state waited with it, also that of the log's writer before a truncation."""
    with ThreadPoolExecutor(2) as threads, copying_slowly(store, threads) as copied:
        threads.submit(store.grow_map, KEY, 1 << 29, FilePart.STATE).result(10)
        with pytest.raises(StorageFullError):
            copied.result(10)
    assert list(store.state_rows(KEY)) == OLD_ROWS


# ---------------------------------------------------------------------------------------------------- lack of space


def test_a_write_back_without_room_in_the_map_changes_nothing(tmp_path: Path) -> None:
    with lmdb_store(tmp_path, map_bytes=MIB) as store:
        store.create_with_state_file(KEY, initial_state())
        store.open(KEY)
        write(store, 5, *OLD_ROWS)
        with pytest.raises(StorageFullError):
            write(store, 6, *((b"%d" % number, b"x" * 100_000) for number in range(50)))
        assert list(store.state_rows(KEY)) == OLD_ROWS
        assert store.map_fraction(KEY, FilePart.STATE) < 1
        store.grow_map(KEY, 16 * MIB, FilePart.STATE)
        assert (store.map_bytes(KEY), store.map_bytes(KEY, FilePart.STATE)) == (MIB, 16 * MIB)
        write(store, 6, *((b"%d" % number, b"x" * 100_000) for number in range(50)))
        append(store, LogBuilder().data())


def test_a_snapshot_without_room_leaves_both_files_unchanged(
    store: LmdbLogStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync_file = durable_files.sync_file

    def no_room(path: Path) -> None:
        if ".state" in path.name:
            raise OSError(28, "No space left on device")
        sync_file(path)

    monkeypatch.setattr("raftmq.storage.lmdb_log_store.sync_file", no_room)
    with pytest.raises(StorageFullError):
        store.install(KEY, hard(9), SNAPSHOT, NEW_ROWS)
    assert names(store) == FILES
    assert list(store.state_rows(KEY)) == OLD_ROWS
    append(store, LogBuilder().many(4)[3])


# ---------------------------------------------------------------------------------------------------- maintenance


def churned(store: LmdbLogStore) -> Entry:
    """Fill the state file with rows of 20 MiB, and delete them."""
    rows = [(b"%05d" % number, b"x" * 8000) for number in range(2500)]
    write(store, 8, *rows)
    write(store, 8, *((key, None) for key, _ in rows))
    return store.entries(KEY, index(8), index(8), MIB)[0]


def test_free_pages_of_the_state_file_are_released(store: LmdbLogStore) -> None:
    churned(store)
    assert store.space(KEY, FilePart.STATE).idle_bytes > 15 * MIB
    assert store.space(KEY).allocated_bytes < MIB
    while not store.reclaim(KEY, FilePart.STATE).is_complete:
        pass
    assert store.space(KEY, FilePart.STATE).allocated_bytes < MIB
    assert store.why_without_holes(KEY, FilePart.STATE) is None
    assert list(store.state_rows(KEY)) == OLD_ROWS
    store.close(KEY)
    assert find_problem(store.state_path(KEY)) is None
    assert store.open(KEY).state_index == 8


def test_a_sparse_state_file_is_compacted(tmp_path: Path) -> None:
    with lmdb_store(tmp_path, compact_bytes_min=MIB) as store:
        store.create_with_state_file(KEY, initial_state())
        store.open(KEY)
        append(store, *LogBuilder().many(3))
        write(store, 8, *OLD_ROWS)
        churned(store)
        before = store.file_bytes(KEY)
        assert not store.compact_if_sparse(KEY)
        assert store.compact_if_sparse(KEY, FilePart.STATE)
        assert store.file_bytes(KEY) < before / 4
        write(store, 9, *NEW_ROWS)
        store.close(KEY)
        assert store.open(KEY).state_index == 9
        assert list(store.state_rows(KEY)) == NEW_ROWS + OLD_ROWS


def test_a_removed_state_file_is_noticed(store: LmdbLogStore) -> None:
    store.state_path(KEY).unlink()
    store.space(KEY)
    with pytest.raises(MissingReplicaError):
        store.space(KEY, FilePart.STATE)


@pytest.mark.parametrize("end", ["install", "close"])
def test_streams_of_the_state_end_when_its_file_is_closed_or_replaced(store: LmdbLogStore, end: str) -> None:
    write(store, 8, *((b"%04d" % number, b"") for number in range(1000)))
    snapshot, resident = store.snapshot(KEY), store.resident_rows(KEY, [(b"0", b"1")])
    next(snapshot.rows), next(resident)
    if end == "install":
        store.install(KEY, hard(9), SNAPSHOT, [])
    else:
        store.close(KEY)
    for rows in (snapshot.rows, resident):
        with pytest.raises(ReplicaClosedError):
            list(rows)


# ---------------------------------------------------------------------------------------------------- the writers


class HeldWrite:
    """A write-back that waits inside its transaction, as a long one does."""

    def __init__(self, store: LmdbLogStore) -> None:
        self.has_begun, self.may_end = threading.Event(), threading.Event()
        store._state(KEY)._undisturbed = self._hold
        self.is_written = False
        self._store = store
        self.thread = threading.Thread(target=self._write)
        self.thread.start()
        assert self.has_begun.wait(30)

    def _write(self) -> None:
        write(self._store, 8, (b"held", b"row"))
        self.is_written = True

    @contextmanager
    def _hold(self, rows: int) -> Iterator[None]:
        if rows:
            self.has_begun.set()
            assert self.may_end.wait(30)
        yield

    def end(self) -> None:
        self.may_end.set()
        self.thread.join(30)
        assert not self.thread.is_alive()
        assert self.is_written


def test_the_log_commits_and_serves_while_a_write_back_is_under_way(store: LmdbLogStore) -> None:
    """That is why the state has a file of its own: in one file an acknowledgement would wait for thousands of rows."""
    held = HeldWrite(store)
    entries = LogBuilder().rewind(store.entries(KEY, index(8), index(8), MIB)[0]).many(5)
    append(store, *entries)
    store.append_batch([(KEY, Update(truncation=position_after(LogBuilder().many(2)[1])))])
    assert store.entries(KEY, index(9), index(13), MIB) == entries
    assert list(store.state_rows(KEY)) == OLD_ROWS
    assert store.read_rows(KEY, [(b"a", b"z", 9)]) == [OLD_ROWS]
    held.end()
    assert [key for key, _ in store.state_rows(KEY)] == [b"held", b"old"]


@pytest.mark.parametrize("end", ["install", "close"])
def test_closing_and_installing_wait_for_a_write_back(
    store: LmdbLogStore, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    held = HeldWrite(store)
    ended = threading.Event()

    def close_or_install() -> None:
        if end == "close":
            store.close(KEY)
        else:
            store.install(KEY, hard(9), SNAPSHOT, NEW_ROWS)
        ended.set()

    state, asks = store._state(KEY), threading.Event()

    def changing() -> threading.Lock:
        asks.set()
        return state._writing

    monkeypatch.setattr(state, "changing", changing)
    closer = threading.Thread(target=close_or_install)
    closer.start()
    assert asks.wait(30)
    assert not ended.is_set()
    held.end()
    closer.join(30)
    assert ended.is_set()
    if end == "close":
        assert store.open(KEY).state_index == 8


def test_rows_are_written_in_bounded_undisturbed_blocks(store: LmdbLogStore) -> None:
    blocks: list[int] = []

    @contextmanager
    def undisturbed(rows: int) -> Iterator[None]:
        blocks.append(rows)
        yield

    store._state(KEY)._undisturbed = undisturbed
    rows = tuple((b"%05d" % number, b"") for number in range(1300))
    write(store, 8, *rows)
    assert blocks == [512, 512, 276]
    blocks.clear()
    write(store, 8, *((key, None) for key, _ in rows))
    assert blocks == [512, 512, 276]


def test_bodies_above_the_installed_position_are_not_in_the_file(store: LmdbLogStore) -> None:
    rows = [(location_key(0, 70), b""), (body_key(70), b"x" * MIB)]
    store.install(KEY, hard(9), SNAPSHOT, rows)
    assert store.space(KEY, FilePart.STATE).allocated_bytes < MIB


def test_the_writer_rests_after_each_block_but_the_last(store: LmdbLogStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between its blocks the event loop runs alone. The duration of a block is one second here."""
    seconds, rests = iter(range(100)), []
    # only for this module: other threads of the process have the real time
    clock = SimpleNamespace(perf_counter=lambda: next(seconds), sleep=rests.append)
    monkeypatch.setattr("raftmq.storage.lmdb_state_file.time", clock)
    write(store, 8, *((b"%05d" % number, b"") for number in range(1300)))
    assert rests == [1, 1]
    write(store, 8, *((b"%05d" % number, None) for number in range(512)))
    assert rests == [1, 1]


def test_an_evacuation_rests_as_a_write_does(store: LmdbLogStore, monkeypatch: pytest.MonkeyPatch) -> None:
    seconds, rests = iter(range(100)), []
    locations = [location_key(0, number) for number in range(1300)]
    write(store, 8, *((location, b"") for location in locations))
    clock = SimpleNamespace(perf_counter=lambda: next(seconds), sleep=rests.append)
    monkeypatch.setattr("raftmq.storage.lmdb_state_file.time", clock)
    store.evacuate(KEY, [(location, b"body") for location in locations], store.evacuated_through(KEY))
    assert rests == [1, 1]
