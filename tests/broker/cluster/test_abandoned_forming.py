"""Whole nodes: a broker whose forming of a cluster was interrupted joins another one, and never goes back to what it began."""

from __future__ import annotations

from raftmq.broker.cluster.replica_files import create_replica
from raftmq.broker.replica.initial_state import founder_state
from raftmq.raft.membership import Membership
from raftmq.storage.lmdb_log_store import LmdbLogStore
from raftmq.storage.log_store import ReplicaKey
from raftmq.storage.registry import Registry
from raftmq.types import METADATA_GROUP_ID, ReplicaId

from tests.broker.cluster.test_metadata_recovery import until
from tests.support.broker.whole_nodes import Nodes

FIRST = ReplicaKey(METADATA_GROUP_ID, ReplicaId(1))


async def test_a_damaged_metadata_replica_is_not_followed_by_that_of_an_abandoned_forming(nodes: Nodes) -> None:
    """The process ended between the replica's creation and the cluster's id. Later the broker joined another cluster."""
    first = await nodes.serve("one", bootstrap=True)
    directory = nodes.directory / "two"
    directory.mkdir()
    registry, store = Registry(directory / "node.mdb"), LmdbLogStore(directory)
    registry.set_identity(uuid="2" * 32, node_id=2)
    create_replica(store, registry, FIRST, founder_state(Membership((FIRST.replica_id,))))
    registry.close(is_clean=False)
    joined = await nodes.serve("two", join=(first.addresses.peer,), broker_id=2)
    damaged = joined.view.metadata.key
    assert damaged != FIRST
    await nodes.stop(joined)
    registry = Registry(directory / "node.mdb")
    registry.quarantine(damaged, "a bit flipped")
    registry.close(is_clean=True)
    again = await nodes.serve("two", join=(first.addresses.peer,), broker_id=2)
    assert again.view.metadata.key != FIRST
    assert not again.view.metadata.is_leader
    await until(lambda: len(again.view.metadata.state_machine.nodes()) == 2)
