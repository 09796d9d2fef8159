"""The manager hosts the replicas that metadata names, and treats existing files with care."""

import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from raftmq.broker.cluster.replica_files import create_replica, open_replica
from raftmq.broker.cluster.replica_manager import wanted_replica
from raftmq.broker.replica.initial_state import founder_state, joiner_state
from raftmq.fsm import metadata_commands as mc
from raftmq.fsm.log_partition import LogPartition
from raftmq.raft.entry import Entry, EntryKind
from raftmq.raft.hard_state import HardState
from raftmq.raft.membership import Membership
from raftmq.raft.state import RestoredState
from raftmq.storage.errors import DamagedReplicaError, MissingReplicaError
from raftmq.storage.lmdb_log_store import LmdbLogStore
from raftmq.storage.log_store import ReplicaKey, Update
from raftmq.storage.registry import Registry
from raftmq.types import GroupId, NodeId, ReplicaId

from tests.support.fsm.harness import MetadataLog
from tests.support.fsm.histories import register


def hosted(log: MetadataLog, node_id: int) -> list[ReplicaId]:
    groups = [GroupId(partition.group_id) for partition in log.state.partitions_of_node(node_id)]
    keys = [wanted_replica(log.state, NodeId(node_id), group_id) for group_id in groups]
    return [key.replica_id for key in keys if key is not None]


def test_a_replica_whose_disk_was_lost_is_never_hosted_again() -> None:
    """An empty replica under its id would vote again, and deny its earlier acknowledgements."""
    log = MetadataLog(nodes=4)
    log.run(mc.CreateTopic("t", "log", 3, {}, (mc.PartitionPlan((1, 2, 3)),)))
    (lost,) = hosted(log, 3)
    log.run(register("another disk", 3, replaces_lost=True))
    (rebuilt,) = hosted(log, 3)
    assert rebuilt != lost

    assert isinstance(log.run(mc.SetReplicas(1, (1, 2, 4), log.state.revision)), mc.Done)
    partition = log.state.partition(1)
    assert partition is not None
    assert [(replica.replica_id, replica.is_lost) for replica in partition.retiring] == [(lost, True), (rebuilt, False)]
    assert hosted(log, 3) == [rebuilt]


KEY = ReplicaKey(7, 1)
FOUNDER = founder_state(Membership((1, 2, 3)))


@pytest.fixture
def store(tmp_path: Path) -> LmdbLogStore:
    return LmdbLogStore(tmp_path, map_bytes=1 << 20)


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return Registry(tmp_path / "node.mdb")


@pytest.mark.parametrize("state", [FOUNDER, joiner_state()])
def test_the_file_of_a_creation_that_a_crash_interrupted_is_used(
    store: LmdbLogStore, registry: Registry, state: RestoredState
) -> None:
    store.create(KEY, state, ())
    create_replica(store, registry, KEY, state)
    assert registry.has_replica(KEY)
    assert store.open(KEY) == state


@pytest.mark.parametrize(
    "update",
    [
        Update(hard_state=HardState(7, 2, 5)),
        Update(hard_state=HardState(6, 0, 5), entries=(Entry(6, 6, EntryKind.DATA, 0, 1, 0, b"x"),)),
    ],
    ids=["vote", "entry"],
)
def test_a_file_that_was_written_to_is_no_interrupted_creation(
    store: LmdbLogStore, registry: Registry, update: Update
) -> None:
    """Its replica has voted or acknowledged. The registry has forgotten it, and an empty replica must not replace it."""
    store.create(KEY, FOUNDER, ())
    store.open(KEY)
    store.append_batch([(KEY, update)])
    store.close(KEY)
    before = store.path(KEY).read_bytes()
    with pytest.raises(DamagedReplicaError, match="it was written to"):
        create_replica(store, registry, KEY, FOUNDER)
    assert store.path(KEY).read_bytes() == before
    assert not registry.has_replica(KEY)
    assert not store.open_replicas()


def test_a_file_that_cannot_be_read_is_no_interrupted_creation(store: LmdbLogStore, registry: Registry) -> None:
    store.create(KEY, FOUNDER, ())
    store.path(KEY).write_bytes(b"no database")
    with pytest.raises(DamagedReplicaError, match="does not know its file"):
        create_replica(store, registry, KEY, FOUNDER)
    assert store.path(KEY).read_bytes() == b"no database"


# --------------------------------------------------------------------------------------------- after a memory fault


@pytest.fixture
def suspected(tmp_path: Path, store: LmdbLogStore) -> Registry:
    """Return a registry that suspects the file of an intact replica."""
    with_row = Registry(tmp_path / "node.mdb")
    create_replica(store, with_row, KEY, FOUNDER)
    with_row.close(is_clean=False)
    return Registry(tmp_path / "node.mdb", suspects=[KEY])


def test_a_missing_file_is_reported_without_verification(store: LmdbLogStore, suspected: Registry) -> None:
    """The verifier cannot open a missing file, which must not end the start."""
    store.path(KEY).unlink()
    assert suspected.needs_verification(KEY)
    with pytest.raises(MissingReplicaError):
        open_replica(store, suspected, KEY, LogPartition())


CHECKS_THAT_FAIL = {
    "no process": "raise BlockingIOError(11, 'Resource temporarily unavailable')",
    "no memory": "raise MemoryError",
    "took too long": "raise subprocess.TimeoutExpired('check', 60)",
    "killed": "return subprocess.CompletedProcess([], -9, '', '')",
    "no interpreter": "return subprocess.CompletedProcess([], 1, '', 'MemoryError')",
}


@pytest.mark.parametrize("what", list(CHECKS_THAT_FAIL))
def test_a_check_that_cannot_be_made_ends_no_start(
    what: str, store: LmdbLogStore, suspected: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    scope: dict[str, Any] = {"subprocess": subprocess}
    exec(f"def run(*_, **__):\n    {CHECKS_THAT_FAIL[what]}\n", scope)
    monkeypatch.setattr("raftmq.storage.file_check.subprocess.run", scope["run"])
    assert open_replica(store, suspected, KEY, LogPartition()) == FOUNDER


@pytest.mark.parametrize("number", [signal.SIGBUS, signal.SIGSEGV, signal.SIGABRT])
def test_a_check_killed_by_the_file_counts_as_damage(
    number: signal.Signals, store: LmdbLogStore, suspected: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = subprocess.CompletedProcess([], -number, "", "")
    monkeypatch.setattr("raftmq.storage.file_check.subprocess.run", lambda *_, **__: done)
    with pytest.raises(DamagedReplicaError, match=f"signal {int(number)}"):
        open_replica(store, suspected, KEY, LogPartition())


def test_a_sound_file_is_verified_once(store: LmdbLogStore, suspected: Registry) -> None:
    assert open_replica(store, suspected, KEY, LogPartition()) == FOUNDER
    assert not suspected.needs_verification(KEY)
