"""Partitions without a majority, and their recovery, against fake brokers."""

from __future__ import annotations

import pytest
from raftmq import Admin, LostPartition, PartitionRecovery, ReplicaKnowledge, errors, sync
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
        served = ReplicaKnowledge(1, "served", "", 7, 30, 28, 2, 20, 18, 0.0)
        damaged = ReplicaKnowledge(2, "quarantined", "its file is missing", 0, 0, 0, 0, 23, 0, 0.0)
        silent = ReplicaKnowledge(3, "unreachable", "its broker does not answer", 0, 0, 0, 0, 0, 0, 61.4)
        assert (found.count, found.partitions) == (1, (LostPartition("t", 0, 5, (served, damaged, silent)),))
        assert (await admin.list_lost_partitions("other")).count == 0
        assert await admin.recover_partition("t", 0, 1, unsafe=True, group_id=5) == RECOVERY
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
