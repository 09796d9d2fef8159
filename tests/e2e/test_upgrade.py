"""Brokers of two versions serve together: upgraded one after the other, back again, and forward for good, while clients work."""

import asyncio
import sys
from pathlib import Path

import pytest
from raftmq import Admin
from raftmq.errors import UnsupportedVersionError
from raftmq.fsm.feature_levels import FEATURE_LEVEL
from raftmq.testing import LocalCluster

from tests.support.e2e import broker_of_old_level
from tests.support.e2e.broker_of_old_level import OLD_LEVEL
from tests.support.e2e.raftmq_command import raftmq
from tests.support.e2e.workload import Workload

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.long]

TOPIC = "orders"
PARTITIONS = 4
BROKERS = 3
WAIT_SECONDS = 60.0


def use_program(cluster: LocalCluster, broker_id: int, *, old: bool) -> None:
    """Choose the version with which a broker starts next."""
    marker = broker_of_old_level.marker(cluster.data_dir(broker_id))
    marker.touch() if old else marker.unlink(missing_ok=True)


async def roll(cluster: LocalCluster, admin: Admin, broker_id: int, *, old: bool) -> None:
    """Restart a broker with another version, as the guide says: stop, start, wait until the cluster has no problem."""
    assert await asyncio.to_thread(cluster.stop, broker_id) == 0
    use_program(cluster, broker_id, old=old)
    await asyncio.to_thread(cluster.restart, broker_id)
    async with asyncio.timeout(WAIT_SECONDS):
        while (await asyncio.to_thread(raftmq, cluster, "cluster", "status")).returncode != 0:
            await asyncio.sleep(0.2)
    known = {broker.broker_id: broker.feature_level_max for broker in (await admin.describe_cluster()).brokers}
    assert known[broker_id] == (OLD_LEVEL if old else FEATURE_LEVEL)


async def test_a_cluster_is_upgraded_and_downgraded_and_its_level_raised_under_load(tmp_path: Path) -> None:
    cluster = LocalCluster(
        brokers=BROKERS, directory=tmp_path, command=(sys.executable, broker_of_old_level.__file__), timeout_seconds=90
    )
    for broker_id in range(1, BROKERS + 1):
        broker_of_old_level.marker(tmp_path / f"broker-{broker_id}").touch()
    async with cluster, Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        assert (await admin.describe_cluster()).feature_level == OLD_LEVEL
        await admin.create_topic(TOPIC, partitions=PARTITIONS, replication_factor=3)
        async with Workload(cluster.bootstrap_servers, TOPIC, PARTITIONS) as workload:
            await workload.wait_progress()
            for broker_id in (1, 2):
                await roll(cluster, admin, broker_id, old=False)
                await workload.wait_progress()
                with pytest.raises(UnsupportedVersionError):
                    await admin.alter_config({"log_level": "debug"})
                with pytest.raises(UnsupportedVersionError, match="upgrade these brokers first"):
                    await admin.raise_feature_level(FEATURE_LEVEL)
            await roll(cluster, admin, 1, old=True)  # back
            await workload.wait_progress()
            for broker_id in (1, 3):
                await roll(cluster, admin, broker_id, old=False)
            assert (await admin.describe_cluster()).feature_level == OLD_LEVEL, "only an operator raises it"
            assert await admin.raise_feature_level(FEATURE_LEVEL) == FEATURE_LEVEL
            await admin.alter_config({"log_level": "debug"})
            await workload.wait_progress()
            await workload.check()
        await asyncio.to_thread(cluster.stop, 2)
        use_program(cluster, 2, old=True)
        await asyncio.to_thread(cluster.restart, 2, wait=False)
        async with asyncio.timeout(WAIT_SECONDS):
            while "start a newer version of the broker" not in cluster.logs(2):
                await asyncio.sleep(0.2)
        assert cluster.is_running(2), "it falls silent, and keeps its data"
