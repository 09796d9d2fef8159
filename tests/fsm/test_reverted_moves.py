"""A move that is given up: the replicas of before are wanted again, and metadata remembers the attempt."""

from __future__ import annotations

import pytest
from raftmq.fsm import codes
from raftmq.fsm import metadata_commands as mc
from raftmq.fsm.metadata_replicas import with_replicas, without_move
from raftmq.fsm.metadata_views import PartitionView, ReplicaView

from tests.fsm.test_metadata import Cluster
from tests.support.fsm.histories import register


@pytest.fixture
def cluster() -> Cluster:
    cluster = Cluster()
    for name in ("u4", "u5"):
        cluster.run(register(name))
    cluster.create("t", (1, 2, 3))
    return cluster


def revert(cluster: Cluster) -> mc.MetadataResult | None:
    return cluster.run(mc.RevertReplicas(1, cluster.state.revision, "no progress"))


def test_the_replicas_of_before_are_wanted_again_with_their_ids_and_order(cluster: Cluster) -> None:
    before = cluster.partition()
    cluster.run(mc.SetReplicas(1, (4, 2, 5), cluster.state.revision))
    moved = cluster.partition()
    assert isinstance(revert(cluster), mc.Done)
    after = cluster.partition()
    assert after.replicas == before.replicas
    assert set(after.retiring) == {moved.replicas[0], moved.replicas[2]}
    assert after.given_up is not None
    assert (after.given_up.node_ids, after.given_up.count, after.given_up.reason) == ((4, 5), 1, "no progress")
    assert cluster.state.given_up_partitions() == (after,)
    assert cluster.code(mc.RemoveReplica(1, before.replicas[0].replica_id)) == codes.CONFLICT


def test_a_partition_that_does_not_move_is_not_changed(cluster: Cluster) -> None:
    before = cluster.partition()
    assert isinstance(revert(cluster), mc.Done)
    assert cluster.partition() == before
    assert cluster.code(mc.RevertReplicas(9, 0, "")) == codes.UNKNOWN_PARTITION


def test_a_report_about_an_earlier_move_is_refused(cluster: Cluster) -> None:
    planned_at = cluster.state.revision
    cluster.run(mc.SetReplicas(1, (1, 2, 4), planned_at))
    assert cluster.code(mc.RevertReplicas(1, planned_at, "")) == codes.CONFLICT


def test_repeated_failures_are_counted_and_forgotten_after_a_success(cluster: Cluster) -> None:
    for count in (1, 2):
        cluster.run(mc.SetReplicas(1, (1, 2, 4), cluster.state.revision))
        revert(cluster)
        found = cluster.partition().given_up
        assert found is not None
        assert found.count == count
        for gone in cluster.partition().retiring:
            cluster.run(mc.RemoveReplica(1, gone.replica_id))
    assert cluster.partition().given_up is not None, "the end of the reverted move is no success"
    cluster.run(mc.SetReplicas(1, (1, 2, 4), cluster.state.revision))
    for gone in cluster.partition().retiring:
        cluster.run(mc.RemoveReplica(1, gone.replica_id))
    assert cluster.partition().given_up is None
    assert cluster.state.given_up_partitions() == ()


def test_a_lost_replica_is_not_wanted_again_and_a_replica_of_a_growing_partition_stays() -> None:
    partition = PartitionView(1, 0, 7, (), tuple(ReplicaView(one, one) for one in (1, 2, 3)), (), 1)
    lost = PartitionView(1, 0, 7, (), partition.replicas[:2], (ReplicaView(3, 3, is_lost=True),), 1)
    repaired = with_replicas(lost, (1, 2, 4), 10)
    assert without_move(repaired) == repaired
    grown = with_replicas(partition, (1, 2, 3, 4), 10)
    assert without_move(grown) == grown


def test_a_pin_ends_with_any_other_change_of_the_replicas(cluster: Cluster) -> None:
    def pin() -> None:
        node_ids = tuple(one.node_id for one in cluster.partition().replicas)
        cluster.run(mc.SetReplicas(1, node_ids, cluster.state.revision, is_pinned=True))
        assert cluster.partition().is_pinned

    pin()
    cluster.run(mc.ReplaceReplica(1, cluster.partition().replicas[0].replica_id))
    assert cluster.partition().is_pinned, "the damaged replica is rebuilt on the same broker"
    cluster.run(mc.SetReplicas(1, (1, 2, 4), cluster.state.revision))
    assert not cluster.partition().is_pinned
    pin()
    cluster.run(mc.SetBalancing(rebalance="leaders"))
    assert cluster.partition().is_pinned
    cluster.run(mc.SetBalancing(rebalance="replicas"))
    assert not cluster.partition().is_pinned
    pin()
    cluster.run(mc.RemoveNode(2, is_forced=True))
    assert not cluster.partition().is_pinned
