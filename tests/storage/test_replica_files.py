"""Files are created, replaced and removed atomically, at whatever point the process ends."""

from __future__ import annotations

import gc
import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import lmdb
import pytest
from raftmq.raft.entry import LogPosition
from raftmq.raft.messages import SnapshotMeta
from raftmq.storage import durable_files
from raftmq.storage.errors import (
    CommitFailedError,
    DamagedReplicaError,
    LogRangeError,
    MissingReplicaError,
    ReplicaClosedError,
    StorageFullError,
    StorageUnavailableError,
)
from raftmq.storage.lmdb_log_store import LmdbLogStore
from raftmq.storage.log_store import Update
from raftmq.storage.snapshot_spool import SnapshotSpools, SpoolError
from raftmq.types import LogIndex, Offset, Term

from tests.support.storage.descriptors import free_descriptors
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
    truncate,
)
from tests.support.storage.permissions import read_only

MIB = 1 << 20
SNAPSHOT = SnapshotMeta(LogPosition(LogIndex(50), Term(5), Offset(70)), LogIndex(60), VOTERS)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LmdbLogStore]:
    with lmdb_store(tmp_path) as store:
        store.create(KEY, initial_state(), [(b"old", b"state")])
        store.open(KEY)
        append(store, *LogBuilder().many(3))
        yield store


def names(store: LmdbLogStore) -> set[str]:
    return {path.name for path in store.path(KEY).parent.iterdir()}


class ProcessEndedError(BaseException):
    """Simulates a kill: no code of ours may rely on running after it."""


def test_a_killed_creation_leaves_no_replica(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files are copied at each step of `create`, as a kill would leave them, and the copies are checked."""
    left = tmp_path / "left"
    with lmdb_store(tmp_path / "node") as store:

        def copy_and_die(_source: Path, _target: Path) -> None:
            os.system(f"cp -r {tmp_path / 'node'} {left}")
            raise ProcessEndedError

        monkeypatch.setattr("raftmq.storage.lmdb_log_store.replace_file", copy_and_die)
        with pytest.raises(ProcessEndedError):
            store.create(KEY, initial_state(), [])
    assert {path.name for path in (left / "groups").iterdir()} >= {"7-3.mdb.new"}
    with lmdb_store(left) as store:
        assert names(store) == set()
        with pytest.raises(MissingReplicaError):
            store.open(KEY)
        monkeypatch.undo()
        store.create(KEY, initial_state(), [])
        assert store.open(KEY) == initial_state()


@pytest.mark.parametrize("is_renamed", [False, True])
def test_a_killed_installation_leaves_the_old_or_the_new_replica(
    tmp_path: Path, store: LmdbLogStore, monkeypatch: pytest.MonkeyPatch, is_renamed: bool
) -> None:
    left = tmp_path / "left"

    def copy_and_die(source: Path, target: Path) -> None:
        if is_renamed:
            durable_files.replace_file(source, target)
        left.mkdir()
        os.system(f"cp -r {target.parent} {left}")
        raise ProcessEndedError

    monkeypatch.setattr("raftmq.storage.lmdb_log_store.replace_file", copy_and_die)
    with pytest.raises(ProcessEndedError):
        store.install(KEY, hard(9, 1), SNAPSHOT, [(b"new", b"state")])
    with lmdb_store(left) as after:
        restored = after.open(KEY)
        if is_renamed:
            assert (restored.position, restored.hard_state) == (SNAPSHOT.position, hard(9, 1))
            assert list(after.state_rows(KEY)) == [(b"new", b"state")]
        else:
            assert (restored.last_index, restored.hard_state.term) == (8, 5)
            assert list(after.state_rows(KEY)) == [(b"old", b"state")]
        assert names(after) == {"7-3.mdb", "7-3.mdb-lock"}


def test_a_snapshot_that_the_disk_cannot_return_leaves_the_replica_unchanged(tmp_path: Path) -> None:
    """Any other error than that of the spool counts as one of the new file, after which nobody knows what is on disk."""
    spool = SnapshotSpools(tmp_path, memory_bytes=0, files_max=1).new()
    spool.append(b"row")
    assert spool._file is not None
    with Path("/proc/self/mem").open("rb") as unreadable:  # at its beginning is nobody's memory: EIO
        os.dup2(unreadable.fileno(), spool._file.number)
    with lmdb_store(tmp_path) as store:
        store.create(KEY, initial_state(), [])
        store.open(KEY)
        with pytest.raises(SpoolError, match="cannot be read: Input/output error"):
            store.install(KEY, hard(9), SNAPSHOT, ((chunk, b"") for chunk in spool.chunks()))
        store.close(KEY)
        assert store.open(KEY) == initial_state()


def test_live_files_have_lmdb_s_default_durability(store: LmdbLogStore) -> None:
    """NOMETASYNC may undo the last commit, NOSYNC loses any, WRITEMAP turns a full disk into a signal."""
    store.install(KEY, hard(9), SNAPSHOT, [])
    flags = store._replica(KEY).environment.flags()
    assert (flags["sync"], flags["metasync"], flags["writemap"], flags["map_async"]) == (True, True, False, False)


def test_a_new_file_is_synced_before_its_name_and_the_name_after(
    store: LmdbLogStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    fsync, rename = os.fsync, Path.replace

    def record_fsync(descriptor: int) -> None:
        steps.append(f"sync {Path(f'/proc/self/fd/{descriptor}').readlink().name}")
        fsync(descriptor)

    def record_rename(source: Path, target: Path) -> Path:
        steps.append(f"rename {source.name} {target.name}")
        return rename(source, target)

    monkeypatch.setattr("os.fsync", record_fsync)
    monkeypatch.setattr(Path, "replace", record_rename)
    expected = ["sync 8-4.mdb.new", "rename 8-4.mdb.new 8-4.mdb", "sync groups"]
    store.create(OTHER, initial_state(), [])
    assert steps == expected
    store.open(OTHER)
    steps.clear()
    store.install(OTHER, hard(9), SNAPSHOT, [])
    assert steps == expected
    steps.clear()
    store.retire(OTHER)
    assert steps == ["rename 8-4.mdb 8-4.mdb.0", "sync trash", "sync groups"]


@pytest.mark.parametrize("is_exhausted", [False, True])
def test_a_stream_that_ended_keeps_no_pages(store: LmdbLogStore, is_exhausted: bool) -> None:
    """An open read transaction would keep every page freed after its beginning."""
    stream = store.state_rows(KEY)
    assert next(stream) == (b"old", b"state")
    if is_exhausted:
        assert list(stream) == []
    else:
        stream.close()
    size = churned_bytes(store)
    assert churned_bytes(store) <= size * 1.1


def churned_bytes(store: LmdbLogStore) -> int:
    """Return the file's size after rewriting the same rows many times."""
    rows = tuple((b"%d" % number, b"x" * 3000) for number in range(20))
    for _ in range(20):
        store.append_batch([(KEY, Update(state_rows=rows, state_index=index(5)))])
    return store.file_bytes(KEY)


def test_an_abandoned_stream_blocks_nothing(store: LmdbLogStore) -> None:
    stream = store.state_rows(KEY)
    del stream
    gc.collect()
    store.install(KEY, hard(9), SNAPSHOT, [])
    assert store._replica(KEY).environment.readers().count("\n") <= 2


def test_a_snapshot_without_room_in_the_map_leaves_the_replica_unchanged(tmp_path: Path) -> None:
    with lmdb_store(tmp_path, map_bytes=MIB) as store:
        store.create(KEY, initial_state(), [(b"old", b"state")])
        store.open(KEY)
        with pytest.raises(StorageFullError):
            store.install(KEY, hard(9), SNAPSHOT, [(b"%d" % number, b"x" * 100_000) for number in range(50)])
        assert names(store) == {"7-3.mdb", "7-3.mdb-lock"}
        assert list(store.state_rows(KEY)) == [(b"old", b"state")]
        append(store, LogBuilder().data())


def test_a_snapshot_without_room_on_the_volume_leaves_the_replica_unchanged(
    store: LmdbLogStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(_path: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("raftmq.storage.lmdb_log_store.sync_file", no_room)
    with pytest.raises(StorageFullError):
        store.install(KEY, hard(9), SNAPSHOT, [])
    assert names(store) == {"7-3.mdb", "7-3.mdb-lock"}
    append(store, LogBuilder().many(4)[3])


def test_a_failed_rename_ends_the_process(store: LmdbLogStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_source: Path, _target: Path) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("raftmq.storage.lmdb_log_store.replace_file", fail)
    with pytest.raises(CommitFailedError):
        store.install(KEY, hard(9), SNAPSHOT, [])


def test_an_installed_file_can_be_opened_by_the_next_process(tmp_path: Path, store: LmdbLogStore) -> None:
    store.install(KEY, hard(9, 2), SNAPSHOT, [(b"%05d" % number, b"v") for number in range(10_000)])
    store.close(KEY)
    with lmdb_store(tmp_path) as again:
        assert again.open(KEY).hard_state == hard(9, 2)
        assert sum(1 for _ in again.state_rows(KEY)) == 10_000


def test_unfinished_files_are_removed_and_others_kept(tmp_path: Path, store: LmdbLogStore) -> None:
    groups = store.path(KEY).parent
    for name in ("9-9.mdb.new", "9-9.mdb.new-lock"):
        (groups / name).write_bytes(b"part")
    store.close(KEY)
    with lmdb_store(tmp_path) as again:
        assert again.stored_replicas() == [KEY]
        assert not list(groups.glob("9-9*"))


def test_the_trash_keeps_files_for_the_grace_period(tmp_path: Path, store: LmdbLogStore) -> None:
    store.create(OTHER, initial_state(), [])
    store.retire(KEY)
    store.create(KEY, initial_state(), [])
    store.retire(KEY)
    trash = tmp_path / "trash"
    retired = sorted(trash.iterdir())
    assert [path.name for path in retired] == ["7-3.mdb.0", "7-3.mdb.1"]
    os.utime(retired[0], (1000, 1000))
    os.utime(retired[1], (2000, 2000))
    assert store.empty_trash(500, now_seconds=1499) == 0
    assert store.empty_trash(500, now_seconds=1500) == 1
    assert list(trash.iterdir()) == [retired[1]]
    assert store.stored_replicas() == [OTHER]


def test_the_trash_folder_may_be_removed(tmp_path: Path, store: LmdbLogStore) -> None:
    """An operator deleted the folder to free space, and the next round of housekeeping ended the broker."""
    (tmp_path / "trash").rmdir()
    assert store.empty_trash(0) == 0
    store.retire(KEY)
    assert [path.name for path in (tmp_path / "trash").iterdir()] == ["7-3.mdb.0"]


def test_a_directory_in_the_trash_stays_and_does_not_prevent_deletions(tmp_path: Path, store: LmdbLogStore) -> None:
    """A directory in the trash was made by a person."""
    trash = tmp_path / "trash"
    (trash / "0-of-a-person").mkdir()
    (trash / "0-of-a-person" / "kept").touch()
    (trash / "1-dangling").symlink_to("nowhere")
    (trash / "z-file").write_text("of somebody")
    store.retire(KEY)
    assert store.empty_trash(-60) == 3
    assert [path.name for path in trash.iterdir()] == ["0-of-a-person"]


def test_a_file_that_cannot_be_deleted_does_not_prevent_other_deletions(
    tmp_path: Path, store: LmdbLogStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    trash = tmp_path / "trash"
    for name in ("a", "b", "c"):
        (trash / name).touch()
    unlink = Path.unlink

    def refuse(path: Path, missing_ok: bool = False) -> None:
        if path.name == "a":
            raise PermissionError(13, "not permitted", str(path))
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(PermissionError):
        store.empty_trash(-60)
    assert [path.name for path in trash.iterdir()] == ["a"]


def test_a_sparse_file_is_compacted_and_keeps_everything(tmp_path: Path) -> None:
    with lmdb_store(tmp_path, compact_bytes_min=MIB) as store:
        store.create(KEY, initial_state(), [(b"k", b"v")])
        store.open(KEY)
        entries = LogBuilder().many(800, b"x" * 8000)
        append(store, *entries)
        assert not store.compact_if_sparse(KEY)
        truncate(store, entries[-21])
        while store.delete_truncated(KEY, 256):
            pass
        before = store.file_bytes(KEY)
        assert store.compact_if_sparse(KEY)
        assert store.file_bytes(KEY) < before / 4
        assert not store.compact_if_sparse(KEY)
        assert store.entries(KEY, entries[-20].index, entries[-1].index, MIB) == entries[-20:]
        assert list(store.state_rows(KEY)) == [(b"k", b"v")]
        new = LogBuilder().rewind(entries[-1]).data()
        append(store, new)
        store.close(KEY)
        assert store.open(KEY).last_index == new.index


@pytest.mark.parametrize(
    "bound", [{"spare_bytes": lambda: 100_000}, {"compact_live_bytes_max": 100_000}], ids=["disk reserve", "live bytes"]
)
def test_a_compaction_that_takes_too_much_space_or_time_is_skipped(tmp_path: Path, bound: dict[str, Any]) -> None:
    with lmdb_store(tmp_path, compact_bytes_min=MIB, **bound) as store:
        store.create(KEY, initial_state(), [(b"k", b"v")])
        store.open(KEY)
        entries = LogBuilder().many(800, b"x" * 8000)
        append(store, *entries)
        truncate(store, entries[-21])
        while store.delete_truncated(KEY, 256):
            pass
        before = store.file_bytes(KEY)
        assert not store.compact_if_sparse(KEY)
        assert store.file_bytes(KEY) == before
        assert list(tmp_path.glob("groups/*.new*")) == []


def test_a_file_that_cannot_be_opened_again_after_a_compaction_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stayed closed, and nobody was told: the next write ended the process."""
    with lmdb_store(tmp_path, compact_bytes_min=0) as store:
        store.create(KEY, initial_state(), ())
        store.open(KEY)
        entries = LogBuilder().many(200, b"x" * 8000)
        append(store, *entries)
        truncate(store, entries[-2])
        while store.delete_truncated(KEY, 256):
            pass

        def refuse(*_: object) -> None:
            raise lmdb.Error("Too many open files")

        with monkeypatch.context() as patch:
            patch.setattr("raftmq.storage.lmdb_replica.open_environment", refuse)
            with pytest.raises(ReplicaClosedError, match="cannot be opened again"):
                store.compact_if_sparse(KEY)
        store.close(KEY)
        assert store.open(KEY).last_index == entries[-1].index


def test_a_damaged_page_that_a_compaction_meets_is_damage_of_its_replica(tmp_path: Path) -> None:
    """It was a failed commit, which ended the process. So did each next one, after the same time."""
    with lmdb_store(tmp_path, compact_bytes_min=0) as store:
        store.create(KEY, initial_state(), ())
        store.open(KEY)
        entries = LogBuilder().many(3000, b"x" * 3000)
        append(store, *entries)
        truncate(store, entries[-700])
        while store.delete_truncated(KEY, 256):
            pass
        store.close(KEY)
        # in a leaf, the key of a large row is followed by the number of its first page
        row = re.compile(re.escape(b"\x01\x00\x08\x00" + entries[-500].index.to_bytes(8, "big")) + b".{8}", re.DOTALL)
        content = store.path(KEY).read_bytes()
        store.path(KEY).write_bytes(row.sub(lambda found: found[0][:-8] + (1 << 30).to_bytes(8, "little"), content))
        store.open(KEY)
        with pytest.raises(DamagedReplicaError, match="MDB_PAGE_NOTFOUND"):
            store.compact_if_sparse(KEY)
        assert list(tmp_path.glob("groups/*.new*")) == []


def test_small_files_are_never_compacted(store: LmdbLogStore) -> None:
    entries = LogBuilder().rewind(store.entries(KEY, index(8), index(8), MIB)[0]).many(300, b"x" * 8000)
    append(store, *entries)
    truncate(store, entries[-1])
    while store.delete_truncated(KEY, 256):
        pass
    assert not store.compact_if_sparse(KEY)


def test_readers_see_whole_states_while_the_writer_writes_and_swaps_files(store: LmdbLogStore) -> None:
    """Other threads read during commits, suffix replacements, trims and snapshot installations."""
    stop = threading.Event()
    problems: list[BaseException] = []
    reads = [0, 0]

    def read_entries() -> None:
        last = 6
        while not stop.is_set():
            try:
                found = store.entries(KEY, index(last), index(last), MIB)
                assert found[0].payload == b"%d" % found[0].index
                reads[0] += 1
            except LogRangeError as error:
                last = int(error.what.rpartition("..")[2]) if ".." in error.what else last + 1

    def read_rows() -> None:
        while not stop.is_set():
            _, state_index, _, rows = store.snapshot(KEY)
            try:
                values = {value for _, value in rows}
            except ReplicaClosedError:  # the file was swapped between two slices
                continue
            assert values <= {b"%d" % state_index, b"state"}
            reads[1] += 1

    def guarded(read: object) -> None:
        try:
            read()  # type: ignore[operator]
        except BaseException as error:  # noqa: BLE001 -- shown by the test
            problems.append(error)

    store.install(KEY, hard(5), SnapshotMeta(LogPosition(LogIndex(5), Term(5), Offset(0)), LogIndex(5), VOTERS), [])
    threads = [threading.Thread(target=guarded, args=(read,)) for read in (read_entries, read_rows)]
    log = LogBuilder()
    for thread in threads:
        thread.start()
    try:
        for turn in range(150):
            number = log.index + 1
            entry = log.data(1, b"%d" % number)
            rows = tuple((b"row%d" % row, b"%d" % number) for row in range(20))
            store.append_batch([(KEY, Update(entries=(entry,), state_rows=rows, state_index=index(number)))])
            if turn % 10 == 9:
                truncate(store, entry)
                store.delete_truncated(KEY, 100)
            if turn % 25 == 24:
                position = LogPosition(entry.index, entry.term, entry.next_offset, entry.append_time_ms)
                state = [(row, b"%d" % number) for row, _ in rows]
                store.install(KEY, hard(5), SnapshotMeta(position, entry.index, VOTERS), state)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert problems == []
    assert min(reads) > 0


def test_rows_are_written_in_undisturbed_blocks_between_which_other_threads_run(tmp_path: Path) -> None:
    blocks: list[int] = []

    @contextmanager
    def undisturbed(rows: int) -> Iterator[None]:
        blocks.append(rows)
        yield

    with lmdb_store(tmp_path, undisturbed=undisturbed) as store:
        store.create(KEY, initial_state(), [(b"row %d" % number, b"") for number in range(700)])
        store.open(KEY)
        assert blocks == [512, 188]
        entries = LogBuilder().many(1100)
        blocks.clear()
        append(store, *entries)
        assert [rows for rows in blocks if rows] == [512, 512, 76]
        truncate(store, entries[-1])
        blocks.clear()
        while store.delete_truncated(KEY, 256):
            pass
        assert [rows for rows in blocks if rows] == [256, 256, 256, 256, 76]


def test_a_rename_that_a_kill_kept_from_being_synced_is_synced_before_its_file_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next process appended to the new file, and a power failure could have brought the old one back."""

    def rename_and_die(source: Path, target: Path) -> None:
        source.replace(target)
        raise ProcessEndedError

    with lmdb_store(tmp_path) as store:
        store.create(KEY, initial_state(), [(b"old", b"state")])
        store.open(KEY)
        with monkeypatch.context() as killed, pytest.raises(ProcessEndedError):
            killed.setattr("raftmq.storage.lmdb_log_store.replace_file", rename_and_die)
            store.install(KEY, hard(5), SNAPSHOT, [(b"new", b"state")])
    synced: list[Path] = []
    monkeypatch.setattr("raftmq.storage.lmdb_log_store.sync_directory", synced.append)
    with lmdb_store(tmp_path) as store:
        assert synced == [store.path(KEY).parent]
        store.open(KEY)
        assert list(store.state_rows(KEY)) == [(b"new", b"state")]


# ---------------------------------------------------------------------------------------------------- too few descriptors


@pytest.mark.parametrize("count", range(5))
def test_a_creation_without_descriptors_leaves_nothing_and_can_be_repeated(tmp_path: Path, count: int) -> None:
    """It counted as a failed commit, and ended the process."""
    with lmdb_store(tmp_path) as store:
        with free_descriptors(count):
            try:
                store.create_with_state_file(KEY, initial_state())
            except StorageUnavailableError:
                assert not store.exists(KEY)
        if not store.exists(KEY):
            store.create_with_state_file(KEY, initial_state())
        assert store.open(KEY) == initial_state()


def test_a_creation_in_a_directory_without_permission_leaves_nothing_and_can_be_repeated() -> None:
    """It counted as a failed commit, and ended the process, again after each restart, although the other replicas could be served."""
    with TemporaryDirectory() as directory, lmdb_store(Path(directory)) as store:
        Path(directory).chmod(0o755)
        with read_only(store.path(KEY).parent):
            with pytest.raises(StorageUnavailableError, match="Permission denied"):
                store.create(KEY, initial_state(), ())
            with pytest.raises(StorageUnavailableError, match="Permission denied"):
                store.create_with_state_file(KEY, initial_state())
            assert not store.exists(KEY)
        store.create_with_state_file(KEY, initial_state())
        assert store.open(KEY) == initial_state()


@pytest.mark.parametrize("count", range(5))
def test_a_snapshot_without_descriptors_leaves_the_old_file_or_the_new_one(tmp_path: Path, count: int) -> None:
    with lmdb_store(tmp_path) as store:
        store.create(KEY, initial_state(), [(b"old", b"state")])
        store.open(KEY)
        with free_descriptors(count), suppress(StorageUnavailableError):
            store.install(KEY, hard(5), SNAPSHOT, [(b"new", b"state")])
        store.close(KEY)
        found = store.open(KEY)
        rows = list(store.state_rows(KEY))
        assert (found.state_index, rows) in [(5, [(b"old", b"state")]), (60, [(b"new", b"state")])]
