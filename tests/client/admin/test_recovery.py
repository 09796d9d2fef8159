"""Partitions without a majority, and their recovery, against fake brokers."""

from __future__ import annotations

import pytest
from raftmq import Admin, LostPartition, PartitionRecovery, ReplicaKnowledge, errors, sync
from raftmq.client.admin.recovery import ReplicaCondition
from raftmq.client.base.loop_thread import LoopThread

from tests.support.client.fake_broker import FakeCluster
from tests.support.client.fake_recovery import lose
from tests.support.client.memory_transport import MemoryTransport

RECOVERY = PartitionRecovery("t", 0, 1, 20, 23, (2, 3), 1_700_000_000_000, 1007)


@pytest.fixture
def fake() -> FakeCluster:
    cluster = FakeCluster(brokers=3)
    cluster.create_topic("t", partitions=1, replication_factor=3)
    lose(cluster.losses, "t", 0)
    return cluster


async def test_lost_partitions_and_recoveries_are_read(fake: FakeCluster) -> None:
    transport = MemoryTransport(fake)
    async with Admin(bootstrap_servers=transport.addresses, transport=transport) as admin:
        found = await admin.list_lost_partitions()
        served = ReplicaKnowledge(1, "served", "", 7, 6, 30, 28, 2, 20, 18, 0.0)
        damaged = ReplicaKnowledge(2, "quarantined", "its file is missing", 0, 0, 0, 0, 0, 23, 0, 0.0)
        silent = ReplicaKnowledge(3, "unreachable", "its broker does not answer", 0, 0, 0, 0, 0, 0, 0, 61.4)
        assert (found.count, found.partitions) == (1, (LostPartition("t", 0, 5, (served, damaged, silent)),))
        assert (await admin.list_lost_partitions("other")).count == 0
        assert found.partitions[0].newest == served
        done = await admin.recover_partition("t", 0, 1, unsafe=True, group_id=5)
        assert (done, done.replicas) == (RECOVERY, (served, damaged, silent))
        assert (done.newer, done.is_newest_certain) == (None, True), "the others cannot be kept"
        assert RECOVERY.known_loss == 3
        assert fake.losses.requests[-1].group_id == 5
        assert (await admin.list_lost_partitions()).recoveries == (RECOVERY,)


async def test_a_recovery_that_is_not_meant_is_refused_before_it_is_asked_for(fake: FakeCluster) -> None:
    transport = MemoryTransport(fake)
    async with Admin(bootstrap_servers=transport.addresses, transport=transport) as admin:
        with pytest.raises(errors.InvalidArgumentError, match="pass unsafe=True"):
            await admin.recover_partition("t", 0, 1, unsafe=False)
        with pytest.raises(errors.InvalidArgumentError, match="keep_broker_id must be positive"):
            await admin.recover_partition("t", 0, 0, unsafe=True)
        with pytest.raises(TypeError, match="group_id must be a whole number"):
            await admin.recover_partition("t", 0, 1, unsafe=True, group_id="5")
        with pytest.raises(TypeError, match="topic must be a string"):
            await admin.list_lost_partitions(7)
    assert fake.losses.requests == []


def test_the_synchronous_twins(fake: FakeCluster) -> None:
    async def start() -> FakeCluster:
        return await fake.__aenter__()

    LoopThread.get().run(start())
    try:
        with sync.Admin(bootstrap_servers=fake.bootstrap_servers) as admin:
            assert admin.list_lost_partitions("t").count == 1
            assert admin.recover_partition("t", 0, 1, unsafe=True) == RECOVERY
    finally:
        LoopThread.get().run(fake.__aexit__(None, None, None))


def replica(
    broker_id: int,
    last_leader_epoch: int,
    last_index: int,
    *,
    commit: int = 0,
    end: int = 0,
    condition: ReplicaCondition = "served",
) -> ReplicaKnowledge:
    return ReplicaKnowledge(broker_id, condition, "", 9, last_leader_epoch, last_index, commit, 0, end, 0, 0.0)


@pytest.mark.parametrize(
    ("replicas", "newest", "is_certain"),
    [
        # the first one led term 1, was cut off, and has the higher end
        ((replica(1, 1, 205, commit=100, end=200), replica(2, 2, 155, commit=90, end=150)), 2, True),
        ((replica(1, 2, 155, commit=154), replica(2, 2, 156, commit=90)), 2, True),
        ((replica(1, 2, 155), replica(2, 2, 155)), 1, True),
        ((replica(1, 1, 7), replica(2, 2, 9, condition="rebuilding")), 1, True),
        ((replica(1, 0, 7), replica(2, 0, 0, condition="unreachable")), 1, True),
        # a broker of an older version reports no term
        ((replica(1, 0, 205, commit=90, end=200), replica(2, 2, 155, commit=100, end=150)), 2, False),
        ((replica(1, 0, 155, commit=90, end=150), replica(2, 0, 205, commit=90, end=200)), 2, False),
        ((replica(1, 0, 0, condition="unreachable"),), None, True),
    ],
)
def test_the_newest_replica_is_the_one_that_raft_would_elect(
    replicas: tuple[ReplicaKnowledge, ...], newest: int | None, *, is_certain: bool
) -> None:
    """Thesis 3.6.1: the last entries' terms are compared first, then their indexes."""
    lost = LostPartition("t", 0, 5, replicas)
    found = lost.newest
    assert (found.broker_id if found is not None else None, lost.is_newest_certain) == (newest, is_certain)
    served = [one for one in replicas if one.condition == "served"]
    for one in served:
        recovery = PartitionRecovery("t", 0, one.broker_id, one.log_end_offset, one.log_end_offset, (), 0, 9, replicas)
        assert recovery.is_newest_certain is is_certain
        is_as_new = (one.last_leader_epoch, one.last_index) == (
            served[0].last_leader_epoch,
            served[0].last_index,
        ) and newest == 1
        assert (recovery.newer is None) == (one.broker_id == newest or is_as_new)


def test_nothing_is_certain_of_a_recovery_that_an_older_metadata_leader_decided() -> None:
    assert (RECOVERY.newer, RECOVERY.is_newest_certain) == (None, False)
