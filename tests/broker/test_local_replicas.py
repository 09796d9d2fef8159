"""Which replicas a node hosts, by what metadata says; and what becomes of a file that is there already."""

from pathlib import Path

import pytest
from raftmq.broker.founding import born, unborn
from raftmq.broker.local_replicas import LocalReplicas, create_replica
from raftmq.fsm import metadata_commands as mc
from raftmq.raft.entry import Entry, EntryKind
from raftmq.raft.hard_state import HardState
from raftmq.raft.membership import Membership
from raftmq.raft.state import RestoredState
from raftmq.storage.errors import DamagedReplicaError
from raftmq.storage.lmdb_log_store import LmdbLogStore
from raftmq.storage.log_store import ReplicaKey, Update
from raftmq.storage.registry import Registry
from raftmq.types import NodeId, ReplicaId

from tests.fsm.harness import MetadataLog
from tests.fsm.histories import register


def hosted(log: MetadataLog, node_id: int) -> list[ReplicaId]:
    return [key.replica_id for key in LocalReplicas._wanted(log.state, NodeId(node_id))]


def test_a_replica_whose_disk_was_lost_is_never_hosted_again() -> None:
    """An empty one under its id would vote again, and deny what it had acknowledged."""
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
FOUNDER = born(Membership((1, 2, 3)))


@pytest.fixture
def store(tmp_path: Path) -> LmdbLogStore:
    return LmdbLogStore(tmp_path, map_bytes=1 << 20)


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return Registry(tmp_path / "node.mdb")


@pytest.mark.parametrize("state", [FOUNDER, unborn()])
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
    """Its replica has voted or acknowledged: the registry has forgotten it, and an empty one must not take its place."""
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
