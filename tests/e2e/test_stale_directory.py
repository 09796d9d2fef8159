"""An older copy of a broker's data directory, restored while another broker lags, with real processes."""

from __future__ import annotations

import asyncio
import shutil
import subprocess

import pytest
from raftmq.testing import LocalCluster

from tests.e2e.test_broker_start import ANY
from tests.support.e2e.helpers import eventually, readiness
from tests.support.e2e.raftmq_command import RAFTMQ, assert_one_sentence
from tests.support.e2e.workload import Workload

pytestmark = [pytest.mark.e2e]


@pytest.mark.long
async def test_an_older_copy_and_a_lagging_broker_do_not_form_a_majority(
    cluster: LocalCluster, workload: Workload
) -> None:
    """Both lack records that were acknowledged after the copy was made. Trusting the copy would lose these records."""
    stale, whole, lagging = 1, 2, 3
    await asyncio.to_thread(cluster.stop, stale)
    directory = cluster.data_dir(stale)
    backup = directory.with_name("backup")
    shutil.copytree(directory, backup)
    await asyncio.to_thread(cluster.restart, stale)
    await workload.wait_progress()
    cluster.kill(lagging)  # it knows the newer boot and lacks all later records
    await workload.wait_progress()
    await workload.finish()
    for broker_id in (whole, stale):
        cluster.kill(broker_id)
    shutil.rmtree(directory)
    shutil.move(backup, directory)
    for broker_id in (lagging, stale):
        cluster.restart(broker_id, wait=False)
    await eventually(lambda: "stale_directory" in readiness(cluster, stale))
    await asyncio.to_thread(cluster.stop, stale)  # a clean stop, so that the refusal is on its disk
    for _ in range(2):
        command = [*RAFTMQ, "broker", "start", "--data-dir", str(directory), *ANY]
        again = await asyncio.to_thread(subprocess.run, command, capture_output=True, timeout=60, check=False)
        assert_one_sentence(again, 6, "refuses this data directory permanently", "--broker-id")

    cluster.restart(whole, wait=False)
    for broker_id in (lagging, whole):
        await asyncio.to_thread(cluster.wait_ready, broker_id)
    await workload.check()
