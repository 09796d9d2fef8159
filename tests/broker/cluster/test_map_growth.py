"""Maps of real files grow before they are full, while the broker runs and when it opens a file."""

import asyncio
import resource
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from raftmq.broker.base.limits import Timing
from raftmq.broker.cluster.housekeeping import Housekeeping
from raftmq.broker.cluster.map_growth import NEARLY_FULL_FRACTION, grow_map_if_nearly_full
from raftmq.broker.cluster.replica_files import create_replica, open_replica
from raftmq.broker.cluster.replica_manager import ReplicaManager
from raftmq.broker.replica.initial_state import founder_state
from raftmq.fsm.log_partition import LogPartition
from raftmq.fsm.queue.partition import QueuePartition
from raftmq.raft.entry import Entry, EntryKind
from raftmq.raft.hard_state import HardState
from raftmq.raft.membership import Membership
from raftmq.storage.errors import (
    DamagedReplicaError,
    ReplicaClosedError,
    StorageFullError,
    StorageUnavailableError,
)
from raftmq.storage.lmdb_log_store import LmdbLogStore
from raftmq.storage.log_store import ReplicaKey, Update
from raftmq.storage.registry import Registry
from raftmq.storage.state_store import FilePart, StateWrite
from raftmq.storage.writer_threads import WriterThreads
from structlog.testing import capture_logs

from tests.support.broker.harness import StrictSupervisor

MIB = 1024 * 1024
KEY = ReplicaKey(7, 1)
PAYLOAD = b"x" * 50_000


@pytest.fixture
def registry(tmp_path):
    registry = Registry(tmp_path / "node.mdb")
    yield registry
    registry.close(is_clean=True)


def new_store(tmp_path, registry) -> LmdbLogStore:
    store = LmdbLogStore(tmp_path, map_bytes=MIB)
    if not registry.has_replica(KEY):
        create_replica(store, registry, KEY, founder_state(Membership((1,))))
    return store


def append(store: LmdbLogStore, first: int, count: int) -> None:
    for index in range(first, first + count):
        entry = Entry(index, 6, EntryKind.DATA, index - 6, 1, 0, PAYLOAD)
        store.append_batch([(KEY, Update(hard_state=HardState(6, 0, 5), entries=(entry,)))])


def fill(store: LmdbLogStore) -> int:
    """Append until the map is nearly full. Return the next index."""
    index = 6
    while store.map_fraction(KEY) <= NEARLY_FULL_FRACTION:
        append(store, index, 1)
        index += 1
    return index


def test_a_map_with_room_is_left_alone(tmp_path, registry):
    store = new_store(tmp_path, registry)
    store.open(KEY)
    assert not grow_map_if_nearly_full(store, KEY)
    assert store.map_bytes(KEY) == MIB
    store.close(KEY)


async def test_housekeeping_doubles_a_nearly_full_map_and_appends_go_on(tmp_path, registry):
    store = new_store(tmp_path, registry)
    store.open(KEY)
    index = fill(store)
    loop = asyncio.get_running_loop()
    writers = WriterThreads(store, thread_count=1, on_done=lambda _: None, on_error=lambda _: None)
    engine = SimpleNamespace(loop=loop, replicas={7: SimpleNamespace(key=KEY)}, map_used_fraction_max=0.0)
    replicas = ReplicaManager(
        loop, engine, store, writers, registry, StrictSupervisor(), lambda *_: None, lambda *_: None, lambda _: None
    )
    with ThreadPoolExecutor(1) as readers:
        housekeeping = Housekeeping(
            engine, store, readers, replicas, None, {}, lambda _: None, Timing(), StrictSupervisor()
        )
        await housekeeping.grow_maps()
        assert engine.map_used_fraction_max > NEARLY_FULL_FRACTION, "the gauge shows the largest fraction found"
        assert store.map_bytes(KEY) == 2 * MIB
        await housekeeping.grow_maps()
        assert store.map_bytes(KEY) == 2 * MIB
        assert engine.map_used_fraction_max <= NEARLY_FULL_FRACTION
    writers.close()
    append(store, index, 10)  # would not have fitted
    assert store.entries(KEY, 6, index + 9, 10 * MIB)[-1].payload == PAYLOAD
    store.close(KEY)


def test_without_growth_the_same_appends_find_the_map_full(tmp_path, registry):
    store = new_store(tmp_path, registry)
    store.open(KEY)
    index = fill(store)
    with pytest.raises(StorageFullError):
        append(store, index, 10)
    store.close(KEY)


def test_a_file_that_outgrew_the_configured_map_is_opened_with_room(tmp_path, registry):
    """The larger size is not stored. LMDB opens such a file with a map that has no free page."""
    store = new_store(tmp_path, registry)
    store.open(KEY)
    store.grow_map(KEY, 4 * MIB)
    append(store, 6, 40)
    store.close(KEY)
    store = new_store(tmp_path, registry)
    restored = open_replica(store, registry, KEY, LogPartition())
    assert restored.last_index == 45
    assert store.map_fraction(KEY) <= NEARLY_FULL_FRACTION
    append(store, 46, 10)
    store.close(KEY)


async def test_the_map_of_a_state_file_grows_too(tmp_path, registry):
    store = LmdbLogStore(tmp_path, map_bytes=MIB)
    create_replica(store, registry, KEY, founder_state(Membership((1,))), has_state_file=True)
    store.open(KEY)
    row = 0
    while store.map_fraction(KEY, FilePart.STATE) <= NEARLY_FULL_FRACTION:
        store.write_state(KEY, StateWrite(5, ((b"\x7f%05d" % row, PAYLOAD),)))
        row += 1
    loop = asyncio.get_running_loop()
    engine = SimpleNamespace(loop=loop, replicas={7: SimpleNamespace(key=KEY)}, map_used_fraction_max=0.0)
    replicas = ReplicaManager(
        loop, engine, store, None, registry, StrictSupervisor(), lambda *_: None, lambda *_: None, lambda _: None
    )
    with ThreadPoolExecutor(1) as readers:
        housekeeping = Housekeeping(
            engine, store, readers, replicas, None, {}, lambda _: None, Timing(), StrictSupervisor()
        )
        await housekeeping.grow_maps()
    assert engine.map_used_fraction_max > NEARLY_FULL_FRACTION
    assert (store.map_bytes(KEY), store.map_bytes(KEY, FilePart.STATE)) == (MIB, 2 * MIB)
    for more in range(row, row + 8):  # would not have fitted
        store.write_state(KEY, StateWrite(5, ((b"\x7f%05d" % more, PAYLOAD),)))
    store.close(KEY)


def test_a_state_file_that_outgrew_the_configured_map_is_opened_with_room(tmp_path, registry):
    store = LmdbLogStore(tmp_path, map_bytes=MIB)
    create_replica(store, registry, KEY, founder_state(Membership((1,))), has_state_file=True)
    store.open(KEY)
    store.grow_map(KEY, 4 * MIB, FilePart.STATE)
    store.write_state(KEY, StateWrite(5, tuple((b"\x7f%05d" % row, PAYLOAD) for row in range(40))))
    store.close(KEY)
    store = LmdbLogStore(tmp_path, map_bytes=MIB)
    open_replica(store, registry, KEY, QueuePartition())
    assert store.map_fraction(KEY, FilePart.STATE) <= NEARLY_FULL_FRACTION
    store.close(KEY)


@contextmanager
def little_address_space(size: int):
    """Leave this process so many bytes of address space."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@pytest.mark.parametrize("part", list(FilePart))
def test_a_map_without_address_space_to_grow_keeps_its_size_and_its_file_is_used(tmp_path, registry, part):
    """LMDB had unmapped the file by then: the next write was a failed commit, which ended the process."""
    gib = 1024 * MIB
    store = LmdbLogStore(tmp_path, map_bytes=gib)
    create_replica(store, registry, KEY, founder_state(Membership((1,))), has_state_file=True)
    store.open(KEY)
    append(store, 6, 3)
    with little_address_space(gib), pytest.raises(StorageUnavailableError):
        store.grow_map(KEY, 8 * gib, part)
    assert store.map_bytes(KEY, part) == gib
    append(store, 9, 1)
    store.write_state(KEY, StateWrite(5, ((b"\x7frow", b"value"),)))
    assert store.entries(KEY, 6, 9, MIB)[-1].payload == PAYLOAD
    store.close(KEY)


async def test_a_file_is_opened_and_reported_although_its_map_cannot_grow(tmp_path, registry, monkeypatch):
    store = new_store(tmp_path, registry)
    store.open(KEY)
    fill(store)
    store.close(KEY)

    def refuse(*_):
        raise StorageUnavailableError(KEY, "no address space")

    monkeypatch.setattr(LmdbLogStore, "grow_map", refuse)
    assert open_replica(store, registry, KEY, LogPartition()).last_index > 6
    loop = asyncio.get_running_loop()
    writers = WriterThreads(store, thread_count=1, on_done=lambda _: None, on_error=lambda _: None)
    engine = SimpleNamespace(loop=loop, replicas={7: SimpleNamespace(key=KEY)}, map_used_fraction_max=0.0)
    replicas = ReplicaManager(
        loop, engine, store, writers, registry, StrictSupervisor(), lambda *_: None, lambda *_: None, lambda _: None
    )
    with ThreadPoolExecutor(1) as readers, capture_logs() as logs:
        housekeeping = Housekeeping(
            engine, store, readers, replicas, None, {}, lambda _: None, Timing(), StrictSupervisor()
        )
        await housekeeping.grow_maps()
    assert "map_not_grown" in [entry["event"] for entry in logs]
    writers.close()
    store.close(KEY)


@pytest.mark.parametrize("error", [ReplicaClosedError(KEY, "on purpose"), DamagedReplicaError(KEY, "on purpose")])
async def test_a_replica_whose_file_stays_closed_after_a_growth_is_stopped(tmp_path, registry, monkeypatch, error):
    """It went on without its file. Its next write ended the process."""
    store = new_store(tmp_path, registry)
    store.open(KEY)
    fill(store)

    def refuse(*_):
        raise error

    monkeypatch.setattr(LmdbLogStore, "grow_map", refuse)
    loop, broken = asyncio.get_running_loop(), []
    writers = WriterThreads(store, thread_count=1, on_done=lambda _: None, on_error=lambda _: None)
    replica = SimpleNamespace(key=KEY)
    engine = SimpleNamespace(
        loop=loop, replicas={7: replica}, map_used_fraction_max=0.0, break_replica=lambda *what: broken.append(what)
    )
    replicas = ReplicaManager(
        loop, engine, store, writers, registry, StrictSupervisor(), lambda *_: None, lambda *_: None, lambda _: None
    )
    with ThreadPoolExecutor(1) as readers:
        await Housekeeping(
            engine, store, readers, replicas, None, {}, lambda _: None, Timing(), StrictSupervisor()
        ).grow_maps()
    assert broken == [(replica, error)]
    writers.close()
    store.close(KEY)
