"""Whole nodes: a broker whose forming of a cluster was interrupted joins another one, and never goes back to what it began."""

from __future__ import annotations

import pytest
from raftmq.broker.cluster.replica_files import create_replica
from raftmq.broker.node import Node
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


async def ended(nodes: Nodes, interrupted: Node) -> None:
    with pytest.raises(OSError, match="the power failed"):
        await nodes.stop(interrupted)  # the error of the start
    await interrupted.stop()


async def test_a_broker_whose_forming_was_interrupted_does_not_claim_the_number_of_another_one(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It called itself 1 before it had formed anything. Then it asked another cluster for that number, as if its operator had configured it:
    it was refused, or took the place of broker 1 if that was down.
    """
    first = await nodes.serve("one", bootstrap=True)

    def crash(registry: Registry, cluster_id: str) -> None:
        raise OSError("the power failed")

    monkeypatch.setattr(Registry, "set_cluster", crash)
    with pytest.raises(OSError, match="the power failed"):
        await nodes.serve("two", bootstrap=True)
    monkeypatch.undo()
    (interrupted,) = set(nodes.running()) - {first}
    await ended(nodes, interrupted)
    joined = await nodes.serve("two", join=(first.addresses.peer,))
    assert joined.view.node_id == 2


async def test_a_broker_that_formed_a_cluster_and_ended_before_it_had_a_number_gets_it(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(registry: Registry, *, uuid: str, node_id: int) -> None:
        if node_id:
            raise OSError("the power failed")
        set_identity(registry, uuid=uuid, node_id=node_id)

    set_identity = Registry.set_identity
    monkeypatch.setattr(Registry, "set_identity", crash)
    with pytest.raises(OSError, match="the power failed"):
        await nodes.serve("one", bootstrap=True, broker_id=7)
    monkeypatch.undo()
    (interrupted,) = nodes.running()
    cluster_id = interrupted.registry.cluster_id
    await ended(nodes, interrupted)
    again = await nodes.serve("one", bootstrap=True, broker_id=7)
    assert (again.view.node_id, again.view.cluster_id) == (7, cluster_id)
    metadata = again._metadata.require().state_machine
    await until(lambda: [node.node_id for node in metadata.nodes()] == [7])
