"""The two meta pages have no checksum of their own, but every bit of them that matters is checked."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path

import lmdb
import pytest
from lmdb.verify import verify
from raftmq.storage import lmdb_replica
from raftmq.storage.entry_codec import CodecError
from raftmq.storage.errors import DamagedReplicaError, RegistryError
from raftmq.storage.file_check import _without_long_rows, find_problem
from raftmq.storage.file_inspection import examine_registry, examine_replica
from raftmq.storage.lmdb_pages import META_BYTES
from raftmq.storage.log_store import ReplicaKey, Update
from raftmq.storage.meta_pages import HEAD_BYTES, check_commits, check_pages
from raftmq.storage.page_warming import warm_opening
from raftmq.storage.registry import Registry
from raftmq.storage.replica_codec import replica_transaction_id
from raftmq.types import GroupId, ReplicaId

from tests.support.storage.log_builder import KEY, LogBuilder, append, index, initial_state, lmdb_store, truncate

PAGE = 4096
MAP_SIZE_AT = 32
"""The place of the map size. It is only a hint, and only its lower bound is checked."""
COUNTERS_AT = range(40 + 8, 40 + 24)
"""The place of the free list's page counts by kind, which LMDB does not use."""
TRANSACTION_AT = 144


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Create a closed replica with a few commits, and a closed registry."""
    with lmdb_store(tmp_path) as store:
        store.create(KEY, initial_state(), [(b"birth", b"row")])
        store.open(KEY)
        log = LogBuilder()
        for _ in range(5):
            append(store, log.data(1, b"x" * 3000))
    registry = Registry(tmp_path / "node.mdb")
    registry.set_identity(uuid="u1", node_id=3)
    registry.add_replica(KEY)
    registry.close(is_clean=True)
    return tmp_path


def flips(path: Path) -> Iterator[tuple[int, int]]:
    """Yield (byte, mask) of every bit of both meta pages. Each bit is flipped while it is yielded."""
    content = path.read_bytes()
    for slot in range(2):
        for at in range(slot * PAGE, slot * PAGE + META_BYTES):
            for bit in range(8):
                with path.open("r+b", buffering=0) as file:
                    os.pwrite(file.fileno(), bytes([content[at] ^ 1 << bit]), at)
                    yield at, 1 << bit
                    os.pwrite(file.fileno(), content[at : at + 1], at)


def is_harmless(at: int) -> bool:
    """Return whether nothing depends on the byte."""
    return MAP_SIZE_AT <= at % PAGE < MAP_SIZE_AT + 8


def test_one_flipped_bit_of_a_meta_page_is_found_at_the_next_opening(directory: Path) -> None:
    found = 0
    with lmdb_store(directory) as store:
        path = store.path(KEY)
        sound = store.open(KEY)
        store.close(KEY)
        for at, mask in flips(path):
            try:
                restored = store.open(KEY)
            except DamagedReplicaError:
                found += 1
            else:
                store.close(KEY)
                assert is_harmless(at), (at, mask)
                assert restored == sound, (at, mask)
        assert found >= 2 * 8 * (META_BYTES - 8)
        assert store.open(KEY) == sound


def test_without_the_check_a_flipped_bit_undoes_a_commit(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This is the reason for the check: LMDB shows an older state, which is intact in every byte."""
    monkeypatch.setattr(lmdb_replica, "check_pages", lambda *_: None)
    with lmdb_store(directory, verify="full") as store:
        last = store.open(KEY).last_index
        store.close(KEY)
        older = 0
        for at, _ in flips(store.path(KEY)):
            if at % PAGE >= TRANSACTION_AT:
                older += store.open(KEY).last_index == last - 1
                store.close(KEY)
        assert older > 8


def test_one_flipped_bit_of_the_registry_stops_the_node(directory: Path) -> None:
    path = directory / "node.mdb"
    for at, mask in flips(path):
        if is_harmless(at):
            continue
        with pytest.raises(RegistryError):
            Registry(path)
            pytest.fail(f"byte {at}, mask {mask}")


@pytest.mark.parametrize("slot", [0, 1])
def test_the_doctor_finds_a_flipped_bit_of_either_number(directory: Path, slot: int) -> None:
    for path, examine in (
        (directory / "groups" / "7-3.mdb", examine_replica),
        (directory / "node.mdb", examine_registry),
    ):
        assert examine(path).problems == []
        content = path.read_bytes()
        for bit in range(64):
            at = slot * PAGE + TRANSACTION_AT
            changed = bytearray(content)
            (number,) = struct.unpack_from("<Q", content, at)
            struct.pack_into("<Q", changed, at, number ^ 1 << bit)
            path.write_bytes(changed)
            assert examine(path).problems != [], (path.name, bit)
        path.write_bytes(content)


def test_the_states_that_a_crash_leaves_pass_the_check(directory: Path) -> None:
    """A crash leaves pages of a transaction without its meta page. This is tested for every number of commits and every way to create a file."""
    with lmdb_store(directory, compact_bytes_min=0) as store:
        path = store.path(KEY)
        store.open(KEY)
        log = LogBuilder()
        log.index, log.next_offset, log.time = index(10), 5, 60  # type: ignore[assignment]
        for round_number in range(12):
            before = path.read_bytes()[: 2 * PAGE]
            append(store, entry := log.data(1, b"y" * 2000))
            if round_number % 4 == 3:
                truncate(store, entry)
                while store.delete_truncated(KEY, 2):
                    pass
            content = path.read_bytes()
            torn = directory / "torn"
            torn.write_bytes(content)
            check(torn)
            if round_number % 4 != 3:
                torn.write_bytes(before + content[2 * PAGE :])
                check(torn)
        assert store.compact_if_sparse(KEY)
        check(path)
        append(store, log.data(1, b"z"))
        check(path)


def check(path: Path) -> None:
    check_commits(path, b"meta", replica_transaction_id)


def test_a_registry_can_be_killed_at_any_of_its_first_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file can be opened in each state between two commits of its creation."""
    path = tmp_path / "node.mdb"
    states: list[bytes] = [b""]

    def killed(self: Registry) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Registry, "_begin_boot", killed)
        with pytest.raises(KeyboardInterrupt):
            Registry(path)
    states.append(path.read_bytes())
    registry = Registry(path)
    states.append(path.read_bytes())
    registry.set_identity(uuid="u1", node_id=3)
    states.append(path.read_bytes())
    registry.close(is_clean=False)
    fresh = tmp_path / "fresh.mdb"
    lmdb.open(str(fresh), subdir=False, map_size=1 << 28, max_dbs=2).close()
    states.append(fresh.read_bytes())
    for number, state in enumerate(states):
        target = tmp_path / f"{number}.mdb"
        target.write_bytes(state)
        Registry(target).close(is_clean=True)
        Registry(target).close(is_clean=True)


@pytest.mark.parametrize("pages", [0.3, 0.6, 0.9])
def test_a_truncated_registry_stops_the_node_and_kills_no_process(directory: Path, pages: float) -> None:
    path = directory / "node.mdb"
    os.truncate(path, int(path.stat().st_size * pages) // PAGE * PAGE)
    with pytest.raises(RegistryError, match="damaged"):
        Registry(path)


def test_a_meta_row_of_many_members_is_found_in_its_own_pages(tmp_path: Path) -> None:
    from raftmq.raft.membership import Membership

    key = ReplicaKey(GroupId(9), ReplicaId(1))
    many = Membership(tuple(ReplicaId(number) for number in range(1, 400)))
    with lmdb_store(tmp_path) as store:
        store.create(key, initial_state(many), [])
        assert store.open(key).membership == many
        store.append_batch([(key, Update(entries=LogBuilder().many(3)))])
        store.close(key)
        assert store.open(key).membership == many
        store.close(key)
        check(store.path(key))
        content = bytearray(store.path(key).read_bytes())
        content[TRANSACTION_AT] ^= 2
        store.path(key).write_bytes(content)
        with pytest.raises(CodecError):
            check(store.path(key))


def test_shortened_rows_of_the_free_list_pass_the_check(tmp_path: Path) -> None:
    """LMDB reserves room for the numbers of free pages, and shortens a row if this reservation used up some of the pages."""

    def written_by(rows: Mapping[bytes, bytes]) -> int | None:
        return int.from_bytes(rows[b"commit"], "big") if b"commit" in rows else None

    path = tmp_path / "some.mdb"
    problems: list[str] = []
    told: list[str] = []
    with lmdb.open(str(path), subdir=False, map_size=1 << 28, max_dbs=2, sync=False) as environment:
        with environment.begin(write=True) as transaction:
            data, commits = (environment.open_db(name, transaction) for name in (b"data", b"commits"))
        for round_number in range(16):
            with environment.begin(write=True) as transaction:
                for number in range(8):
                    if round_number == 0:
                        transaction.put(b"%d" % number, bytes(900 * PAGE), db=data)
                    elif round_number == 1:
                        transaction.delete(b"%d" % number, db=data)
                transaction.put(b"commit", transaction.id().to_bytes(8, "big"), db=commits)
            check_commits(path, b"commits", written_by, may_be_new=True)
            assert find_problem(path) is None
            problems = verify(str(path), subdir=False)
            told += [problem for problem in problems if "header mp_pages" in problem]
    assert told, "no row became shorter: this test says nothing"


def test_lost_pages_are_reported_beside_shortened_rows() -> None:
    shortened = [
        "freeDB DB: overflow page 323 header mp_pages 3 != OVPAGES(8176)=2",
        "freeDB DB: walked 227 overflow pages, record says 228",
    ]
    leak = "{} page(s) are neither reachable nor in the freeDB -- a leak (first: page 325)"
    assert _without_long_rows([*shortened, leak.format(1)]) == []
    assert _without_long_rows([*shortened, leak.format(2)]) == [leak.format(2)]
    fewer = "freeDB DB: overflow page 323 header mp_pages 1 != OVPAGES(8176)=2"
    assert _without_long_rows([fewer, *shortened]) == [fewer]
    assert _without_long_rows([leak.format(1)]) == [leak.format(1)]


def test_a_short_file_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with lmdb_store(tmp_path) as store:
        store.create(KEY, initial_state(), ())
        path = store.path(KEY)
    assert path.stat().st_size <= HEAD_BYTES
    reads: list[int] = []
    pread = os.pread

    def counted(descriptor: int, size: int, at: int) -> bytes:
        reads.append(size)
        return pread(descriptor, size, at)

    monkeypatch.setattr(os, "pread", counted)
    check_pages(path, b"meta", replica_transaction_id)
    assert reads == [path.stat().st_size]
    warm_opening(path)
    assert len(reads) == 1, "the check has read everything"
