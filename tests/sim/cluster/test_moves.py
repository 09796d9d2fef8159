"""Planned moves in virtual time: their rate, their progress, and how they end."""

from __future__ import annotations

import pytest
from raftmq.fsm.metadata_commands import ReplaceReplica, SetBalancing, SetReplicas
from raftmq.types import GroupId

from tests.support.sim.calm_cluster import CalmCluster

KIB = 1024
RATE = 256 * KIB
ENTRIES, ENTRY_BYTES = 32, 64 * KIB
COPY_SECONDS = ENTRIES * ENTRY_BYTES / RATE
"""The time of a copy of the whole log at `RATE`."""


def filled(cluster: CalmCluster) -> GroupId:
    """Return a partition on brokers 1 and 2 with `ENTRIES` entries."""
    (group_id,) = cluster.create("t", (1, 2))
    cluster.fill(group_id, ENTRIES, ENTRY_BYTES)
    return group_id


def move(cluster: CalmCluster, group_id: GroupId, *node_ids: int) -> float:
    """Begin a move, and return the time."""
    cluster.change(SetReplicas(group_id, node_ids, cluster.metadata.revision))
    return cluster.now


def is_settled(cluster: CalmCluster, group_id: GroupId) -> bool:
    return not cluster.partition(group_id).is_unsettled


def test_a_copy_takes_the_time_that_its_rate_needs() -> None:
    with CalmCluster(3) as cluster:
        group_id = filled(cluster)
        cluster.change(SetBalancing(auto_balance=False, bytes_per_second=RATE))
        began_at = move(cluster, group_id, 1, 3)
        cluster.until(lambda: is_settled(cluster, group_id))
        assert cluster.now - began_at == pytest.approx(COPY_SECONDS, rel=0.2)


def test_another_rate_holds_for_a_running_copy() -> None:
    with CalmCluster(3) as cluster:
        group_id = filled(cluster)
        cluster.change(SetBalancing(auto_balance=False, bytes_per_second=RATE))
        began_at = move(cluster, group_id, 1, 3)
        cluster.run(COPY_SECONDS / 4)
        assert not is_settled(cluster, group_id)
        cluster.change(SetBalancing(bytes_per_second=0))
        cluster.until(lambda: is_settled(cluster, group_id))
        assert cluster.now - began_at < COPY_SECONDS / 2


def test_several_copies_share_the_rate_of_their_broker_evenly() -> None:
    with CalmCluster(3) as cluster:
        group_ids = cluster.create("t", (1,), (1,))
        for group_id in group_ids:
            cluster.fill(group_id, ENTRIES // 2, ENTRY_BYTES)
        cluster.change(SetBalancing(auto_balance=False, bytes_per_second=RATE))
        began_at = cluster.now
        for group_id, node_id in zip(group_ids, (2, 3), strict=True):
            move(cluster, group_id, node_id)
        cluster.until(lambda: any(is_settled(cluster, group_id) for group_id in group_ids))
        assert cluster.now - began_at > 0.7 * COPY_SECONDS, "neither has the whole rate"
        cluster.until(lambda: all(is_settled(cluster, group_id) for group_id in group_ids))
        assert cluster.now - began_at == pytest.approx(COPY_SECONDS, rel=0.25)


def test_a_repair_is_not_slowed_by_the_rate_nor_by_a_slow_move() -> None:
    with CalmCluster(4) as cluster:
        slow, damaged = cluster.create("t", (1, 2, 3), (1, 2, 3))
        for group_id in (slow, damaged):
            cluster.fill(group_id, ENTRIES, ENTRY_BYTES)
        cluster.change(SetBalancing(auto_balance=False, bytes_per_second=64 * KIB))
        move(cluster, slow, 1, 2, 4)
        lost = cluster.partition(damaged).replicas[2].replica_id
        cluster.change(ReplaceReplica(damaged, lost))
        cluster.until(lambda: is_settled(cluster, damaged), seconds=6.0)
        assert not is_settled(cluster, slow)


def test_replication_to_voters_is_not_slowed_by_the_rate() -> None:
    with CalmCluster(3) as cluster:
        (group_id,) = cluster.create("t", (1, 2))
        cluster.change(SetBalancing(auto_balance=False, bytes_per_second=64 * KIB))
        began_at = cluster.now
        cluster.fill(group_id, ENTRIES, ENTRY_BYTES)
        assert cluster.now - began_at < 2.0


def test_the_copied_bytes_of_a_move_are_described_as_they_grow() -> None:
    with CalmCluster(3) as cluster:
        group_id = filled(cluster)
        cluster.change(SetBalancing(auto_balance=False, bytes_per_second=RATE))
        move(cluster, group_id, 1, 3)
        shares = []
        for _ in range(3):
            cluster.run(COPY_SECONDS / 4)
            (described,) = cluster.describe_moves().moves
            assert described.bytes >= ENTRIES * ENTRY_BYTES
            shares.append(described.copied_bytes / described.bytes)
        assert shares == pytest.approx([0.25, 0.5, 0.75], abs=0.15)
