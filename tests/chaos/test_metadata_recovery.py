"""Metadata is recovered offline between two generations of clients, and one history of both is judged: nothing acknowledged is lost."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest
from raftmq import Admin
from raftmq.sync import Admin as SyncAdmin

from sim.history.checker import judge_files
from tests.chaos.cluster import ChaosCluster
from tests.chaos.condition import is_ready, wait_until, what_is_not_whole
from tests.chaos.run import FINISH_SECONDS, FIRST_RECORDS, HEALED_SECONDS, PARTITIONS, PROGRESS_SECONDS
from tests.chaos.workload import Workload

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.long]

TOPIC = "orders"
COMMAND_SECONDS = 60.0


def recover(action: str, data_dir: Path, *options: str) -> str:
    """Run `raftmq recover` and return its output."""
    done = subprocess.run(
        [sys.executable, "-m", "raftmq", "recover", action, str(data_dir), *options],
        capture_output=True,
        check=False,
        text=True,
        timeout=COMMAND_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def newest_metadata(cluster: ChaosCluster) -> int:
    """Return the broker whose stored metadata have the highest term and, among equal terms, the highest index."""

    def place(broker_id: int) -> tuple[int, int]:
        found = json.loads(recover("metadata", cluster.data_dir(broker_id).resolve(), "-o", "json"))
        return found["term"], found["last_index"]

    return max(cluster.broker_ids, key=place)


def metadata_voters(cluster: ChaosCluster) -> int:
    with SyncAdmin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        return sum(broker.is_metadata_voter for broker in admin.describe_cluster().brokers)


def recover_metadata(cluster: ChaosCluster) -> None:
    """Make one broker the only voter of a new cluster, and let the others join it with their data, as the guide says."""
    for broker_id in cluster.broker_ids:
        cluster.kill(broker_id)
    kept = newest_metadata(cluster)
    recover("metadata", cluster.data_dir(kept).resolve(), "--unsafe", "--yes")
    cluster.restart(kept, wait=False)
    assert wait_until(lambda: is_ready(cluster, kept), HEALED_SECONDS)
    for broker_id in cluster.broker_ids:
        if broker_id != kept:
            recover("rejoin", cluster.data_dir(broker_id).resolve(), "--unsafe", "--yes")
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
