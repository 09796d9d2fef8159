"""Metadata is recovered offline between two generations of clients, and one history of both is judged: nothing acknowledged is lost."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from raftmq import Admin
from raftmq.sync import Admin as SyncAdmin

from sim.history.checker import judge_files
from tests.chaos.cluster import ChaosCluster
from tests.chaos.condition import is_ready, wait_until, what_is_not_whole
from tests.chaos.run import FINISH_SECONDS, FIRST_RECORDS, HEALED_SECONDS, PARTITIONS, PROGRESS_SECONDS
from tests.chaos.workload import Workload
from tests.support.e2e.raftmq_command import raftmq
from tests.support.e2e.stored_metadata import newest_metadata

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.long]

TOPIC = "orders"


def recover(cluster: ChaosCluster, action: str, broker_id: int) -> None:
    """Run `raftmq recover` on the data of a broker that does not run."""
    done = raftmq(cluster, "recover", action, str(cluster.data_dir(broker_id)), "--unsafe", "--yes")
    assert done.returncode == 0, done.stderr


def metadata_voters(cluster: ChaosCluster) -> int:
    with SyncAdmin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        return sum(broker.is_metadata_voter for broker in admin.describe_cluster().brokers)


def recover_metadata(cluster: ChaosCluster) -> None:
    """Make one broker the only voter of a new cluster, and let the others join it with their data, as the guide says."""
    for broker_id in cluster.broker_ids:
        cluster.kill(broker_id)
    kept = newest_metadata(cluster, *cluster.broker_ids)
    recover(cluster, "metadata", kept)
    cluster.restart(kept, wait=False)
    assert wait_until(lambda: is_ready(cluster, kept), HEALED_SECONDS)
    for broker_id in cluster.broker_ids:
        if broker_id != kept:
            recover(cluster, "rejoin", broker_id)
            cluster.rejoin(broker_id, kept)
            assert wait_until(lambda: is_ready(cluster, broker_id), HEALED_SECONDS)  # noqa: B023 -- called now
    assert wait_until(lambda: not what_is_not_whole(cluster, TOPIC), HEALED_SECONDS), what_is_not_whole(cluster, TOPIC)
    assert wait_until(lambda: metadata_voters(cluster) == len(cluster.broker_ids), HEALED_SECONDS)


async def test_clients_find_everything_again_after_a_recovery_of_metadata(tmp_path: Path) -> None:
    """The newest metadata have every acknowledged change, so that no record and no topic is lost."""
    histories = [tmp_path / "before.jsonl", tmp_path / "after.jsonl"]
    async with ChaosCluster() as cluster:
        async with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
            await admin.create_topic(TOPIC, PARTITIONS, 3)
        async with Workload(lambda: cluster.bootstrap_servers, TOPIC, PARTITIONS, histories[0], seed=1) as before:
            assert await before.wait_progress(5 * FIRST_RECORDS, PROGRESS_SECONDS)
            for broker_id in cluster.broker_ids:
                cluster.pause(broker_id)  # with records and changes of topics in flight
        await asyncio.to_thread(recover_metadata, cluster)
        after = Workload(lambda: cluster.bootstrap_servers, TOPIC, PARTITIONS, histories[1], seed=2, prefix="later-")
        async with after:
            assert await after.wait_progress(FIRST_RECORDS, PROGRESS_SECONDS)
            await after.stop(FINISH_SECONDS)
            await after.read_back(FINISH_SECONDS)
    verdict = judge_files(histories)
    assert verdict.is_clean, verdict.report()
    assert verdict.is_read_to_the_end
    assert before.acknowledged
    assert after.read >= before.acknowledged
