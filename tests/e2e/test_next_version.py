"""Brokers of this version and of a next one serve together. The next one has an added command, added fields and a higher wire version."""

import asyncio
import sys
from pathlib import Path

import pytest
from raftmq import Admin
from raftmq.errors import RaftMQError, UnsupportedVersionError
from raftmq.fsm.feature_levels import FEATURE_LEVEL
from raftmq.testing import LocalCluster

from tests.support.e2e import broker_of_next_version
from tests.support.e2e.raftmq_command import raftmq
from tests.support.e2e.workload import Workload

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.long]

TOPIC = "orders"
PARTITIONS = 4
BROKERS = 3
NEXT_LEVEL = FEATURE_LEVEL + 1
WAIT_SECONDS = 90.0


async def roll(cluster: LocalCluster, admin: Admin, broker_id: int, *, is_next: bool) -> None:
    """Restart a broker with one of the versions, and wait until the cluster has no problem."""
    assert await asyncio.to_thread(cluster.stop, broker_id) == 0
    marker = broker_of_next_version.marker(cluster.data_dir(broker_id))
    marker.touch() if is_next else marker.unlink(missing_ok=True)
    await asyncio.to_thread(cluster.restart, broker_id)
    async with asyncio.timeout(WAIT_SECONDS):
        while (await asyncio.to_thread(raftmq, cluster, "cluster", "status")).returncode != 0:
            await asyncio.sleep(0.2)
    known = {broker.broker_id: broker.feature_level_max for broker in (await admin.describe_cluster()).brokers}
    assert known[broker_id] == (NEXT_LEVEL if is_next else FEATURE_LEVEL)


async def metadata_leader(admin: Admin) -> int:
    async with asyncio.timeout(WAIT_SECONDS):
        while not (leader := (await admin.describe_cluster()).metadata_leader_broker_id):
            await asyncio.sleep(0.1)
    return leader


async def let_a_next_version_lead(cluster: LocalCluster, admin: Admin, old: int) -> None:
    """Restart the only broker of this version until one of the next version leads the metadata."""
    async with asyncio.timeout(WAIT_SECONDS):
        while await metadata_leader(admin) == old:
            await roll(cluster, admin, old, is_next=False)


async def refused_by_level(admin: Admin) -> None:
    """Use the added field and the added command, which the level must not permit yet."""
    for order in (lambda: admin.set_balancing(moves_max=5), admin.rebalance):
        with pytest.raises(UnsupportedVersionError):
            await order()


async def accepted(admin: Admin) -> None:
    """Use them until a metadata leader answers."""
    for order in (lambda: admin.set_balancing(moves_max=5), admin.rebalance):
        async with asyncio.timeout(WAIT_SECONDS):
            while True:
                try:
                    await order()
                    break
                except UnsupportedVersionError:
                    raise
                except RaftMQError:
                    await asyncio.sleep(0.2)


async def test_a_next_version_is_rolled_in_and_back_and_its_level_raised_under_load(tmp_path: Path) -> None:
    cluster = LocalCluster(
        brokers=BROKERS,
        directory=tmp_path,
        command=(sys.executable, broker_of_next_version.__file__),
        timeout_seconds=90,
    )
    async with cluster, Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        await admin.create_topic(TOPIC, partitions=PARTITIONS, replication_factor=3)
        async with Workload(cluster.bootstrap_servers, TOPIC, PARTITIONS) as workload:
            await workload.wait_progress()
            for broker_id in (1, 2):
                await roll(cluster, admin, broker_id, is_next=True)
                await workload.wait_progress()
            await let_a_next_version_lead(cluster, admin, old=3)
            await refused_by_level(admin)
            with pytest.raises(UnsupportedVersionError, match="upgrade these brokers first"):
                await admin.raise_feature_level(NEXT_LEVEL)
            await roll(cluster, admin, 1, is_next=False)  # back
            await workload.wait_progress()
            for broker_id in (1, 3):
                await roll(cluster, admin, broker_id, is_next=True)
            await refused_by_level(admin)
            assert await admin.raise_feature_level(NEXT_LEVEL) == NEXT_LEVEL
            await accepted(admin)
            await roll(cluster, admin, 1, is_next=True)  # with a row that has the added field
            await workload.wait_progress()
            await workload.check()
        said = "".join(cluster.logs(broker_id) for broker_id in cluster.broker_ids)
        assert "next version: greetings_kept" in said, "the lower wire version was used"
        assert "next version: greetings_received" in said, "the higher wire version was used"
        await asyncio.to_thread(cluster.stop, 2)
        broker_of_next_version.marker(cluster.data_dir(2)).unlink()
        await asyncio.to_thread(cluster.restart, 2, wait=False)
        async with asyncio.timeout(WAIT_SECONDS):
            while "Upgrade this broker" not in cluster.logs(2):
                await asyncio.sleep(0.2)
        assert cluster.is_running(2), "it falls silent, and keeps its data"
        await roll(cluster, admin, 2, is_next=True)
