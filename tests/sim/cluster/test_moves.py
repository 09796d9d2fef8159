"""Planned moves in virtual time: their rate, their progress, and how they end."""

from __future__ import annotations

import pytest
from raftmq.broker.cluster import balance_plan, layout
from raftmq.fsm.metadata_commands import (
    ReplaceReplica,
    SetBalancing,
    SetNodeState,
    SetReplicas,
    SetReplicationFactor,
)
from raftmq.fsm.metadata_views import GivenUpMove
from raftmq.types import GroupId

from sim.cluster.cluster import STUCK_SECONDS
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


def test_the_copies_for_a_raised_replication_factor_take_the_time_that_the_rate_needs() -> None:
    with CalmCluster(3) as cluster:
        group_id = filled(cluster)
        cluster.change(SetBalancing(auto_balance=False, bytes_per_second=RATE))
        began_at = cluster.now
        cluster.change(SetReplicationFactor(cluster.partition(group_id).topic_id, 3))
        cluster.until(lambda: len(cluster.partition(group_id).replicas) == 3 and is_settled(cluster, group_id))
        assert cluster.now - began_at > 0.8 * COPY_SECONDS


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
        assert shares == pytest.approx([0.25, 0.5, 0.75], abs=0.3), "a message has a quarter of the log"
        assert shares == sorted(set(shares))


# ---------------------------------------------------------------------------------------------------------- moves that stick


def given_up(cluster: CalmCluster, group_id: GroupId) -> GivenUpMove:
    found = cluster.partition(group_id).given_up
    assert found is not None
    return found


def test_a_move_whose_new_replica_makes_no_progress_is_given_up_and_not_repeated_soon() -> None:
    with CalmCluster(3) as cluster:
        group_id = filled(cluster)
        before = cluster.partition(group_id).replicas
        cluster.cluster.crash(cluster.cluster.machines["n3"])
        began_at = move(cluster, group_id, 1, 3)
        cluster.until(lambda: cluster.partition(group_id).given_up is not None)
        assert cluster.now - began_at == pytest.approx(STUCK_SECONDS, abs=1.5)
        assert cluster.partition(group_id).replicas == before
        cluster.until(lambda: is_settled(cluster, group_id))
        assert (given_up(cluster, group_id).node_ids, given_up(cluster, group_id).count) == ((3,), 1)
        (described,) = cluster.describe_moves().given_up
        assert described.reason.startswith("broker 3 is unreachable")
        assert described.retry_at_ms - described.at_ms == 600_000


def test_the_plan_uses_the_broker_of_a_given_up_move_after_a_while_and_then_forgets_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(layout, "GIVEN_UP_SECONDS", 8)
    with CalmCluster(3) as cluster:
        group_id = filled(cluster)
        cluster.change(SetBalancing(auto_balance=False))
        cluster.cluster.crash(cluster.cluster.machines["n3"])
        move(cluster, group_id, 1, 3)
        cluster.until(lambda: cluster.partition(group_id).given_up is not None)
        cluster.cluster.start(cluster.cluster.machines["n3"])
        cluster.change(SetNodeState(2, "draining"))
        cluster.run(6.0)
        assert [one.node_id for one in cluster.partition(group_id).replicas] == [1, 2], (
            "broker 3 would be the only other"
        )
        cluster.until(lambda: cluster.partition(group_id).given_up is None, seconds=12.0)
        assert sorted(one.node_id for one in cluster.partition(group_id).replicas) == [1, 3]


def grow_onto_a_dead_broker(cluster: CalmCluster) -> GroupId:
    """Raise the replication factor of a partition on brokers 1 and 2, so that the third replica is for a broker that has just died."""
    group_id = filled(cluster)
    cluster.change(SetBalancing(auto_balance=False))
    cluster.cluster.crash(cluster.cluster.machines["n3"], is_power_cut=False)
    cluster.change(SetReplicationFactor(cluster.partition(group_id).topic_id, 3))
    cluster.change(SetReplicas(group_id, (1, 2, 3), cluster.metadata.revision))
    return group_id


def test_a_further_replica_that_makes_no_progress_is_placed_on_another_broker() -> None:
    with CalmCluster(4) as cluster:
        group_id = grow_onto_a_dead_broker(cluster)
        began_at = cluster.now
        cluster.until(lambda: [one.node_id for one in cluster.partition(group_id).replicas] == [1, 2, 4])
        assert cluster.now - began_at == pytest.approx(STUCK_SECONDS, abs=1.5)
        cluster.until(lambda: is_settled(cluster, group_id))
        assert len(cluster.node(1).engine.replicas[group_id].core.membership.voters) == 3


def test_a_further_replica_without_another_broker_waits_for_its_own() -> None:
    with CalmCluster(3) as cluster:
        group_id = grow_onto_a_dead_broker(cluster)
        cluster.run(3 * STUCK_SECONDS)
        assert [one.node_id for one in cluster.partition(group_id).replicas] == [1, 2, 3]
        assert not is_settled(cluster, group_id)
        (shown,) = cluster.describe_moves().stuck
        assert (shown.topic, shown.partition, shown.broker_id) == ("t", 0, 3)
        assert shown.reason == "broker 3 is not connected"
        assert cluster.stuck_in_health() == [shown]
        cluster.cluster.start(cluster.cluster.machines["n3"])
        cluster.until(lambda: is_settled(cluster, group_id))
        assert not cluster.describe_moves().stuck
        assert not cluster.stuck_in_health()


def test_a_further_replica_that_a_connected_broker_does_not_get_is_shown_with_the_leaders_reason() -> None:
    with CalmCluster(3) as cluster:
        group_id = filled(cluster)
        cluster.change(SetBalancing(auto_balance=False))
        cluster.cluster.machines["n3"].disk.stalled_until = cluster.now + 1000.0
        cluster.change(SetReplicationFactor(cluster.partition(group_id).topic_id, 3))
        cluster.until(lambda: bool(cluster.stuck_in_health()))
        (shown,) = cluster.describe_moves().stuck
        assert (shown.broker_id, shown.reason) == (
            3,
            f"the new replica on broker 3 has made no progress for {STUCK_SECONDS:g} s",
        )


def test_a_slow_move_is_not_given_up() -> None:
    with CalmCluster(3) as cluster:
        (group_id,) = cluster.create("t", (1, 2))
        cluster.fill(group_id, 2, 512 * KIB)
        cluster.change(SetBalancing(auto_balance=False, bytes_per_second=64 * KIB))
        move(cluster, group_id, 1, 3)
        cluster.until(lambda: is_settled(cluster, group_id))
        assert cluster.partition(group_id).given_up is None
        assert [one.node_id for one in cluster.partition(group_id).replicas] == [1, 3]


# ------------------------------------------------------------------------------------------------------------------- pins


def test_automatic_balancing_leaves_a_pinned_partition_until_a_rebalancing_is_wished() -> None:
    with CalmCluster(2) as cluster:
        cluster.change(SetBalancing(auto_balance=False))
        group_ids = cluster.create("t", (1,), (2,))
        cluster.change(SetReplicas(group_ids[1], (1,), cluster.metadata.revision, is_pinned=True))
        cluster.until(lambda: is_settled(cluster, group_ids[1]))
        cluster.change(SetReplicas(group_ids[0], (1,), cluster.metadata.revision, is_pinned=True))
        cluster.change(SetBalancing(auto_balance=True))
        cluster.run(10.0)
        assert [cluster.partition(one).replicas[0].node_id for one in group_ids] == [1, 1]
        cluster.change(SetBalancing(rebalance="replicas"))
        cluster.until(lambda: sorted(cluster.partition(one).replicas[0].node_id for one in group_ids) == [1, 2])
        assert not any(cluster.partition(one).is_pinned for one in group_ids)


# ------------------------------------------------------------------------------------------------------------------ bytes


def test_the_bytes_of_brokers_are_evened_and_then_nothing_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "SIZE_UNIT", 1)
    monkeypatch.setattr(balance_plan, "UNEVEN_BYTES_MIN", 512 * KIB)
    with CalmCluster(2) as cluster:
        cluster.change(SetBalancing(auto_balance=False))
        group_ids = cluster.create("t", (1,), (1,), (2,), (2,))
        for group_id in group_ids[:2]:
            cluster.fill(group_id, 16, ENTRY_BYTES)
        cluster.change(SetBalancing(rebalance="replicas"))
        cluster.until(lambda: not cluster.metadata.balancing.rebalance)
        nodes = [cluster.partition(group_id).replicas[0].node_id for group_id in group_ids]
        assert sorted(nodes[:2]) == sorted(nodes[2:]) == [1, 2]


def test_a_replica_moves_to_the_broker_that_leads_the_metadata() -> None:
    """The controller asked its own broker over a connection that no broker has to itself, and took it for one that is not ready."""
    with CalmCluster(2) as cluster:
        (group_id,) = cluster.create("t", (2,))
        cluster.change(SetNodeState(2, "draining"))
        cluster.until(lambda: cluster.partition(group_id).replicas[0].node_id == 1, seconds=20.0)
