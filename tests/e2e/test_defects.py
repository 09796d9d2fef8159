"""What a broker did not reckon with in its directory ends no process, and keeps nothing else from being served."""

import asyncio
import os

import pytest
from raftmq.testing import LocalCluster

from tests.e2e.test_repair import used_file, wait_replaced
from tests.support.e2e.helpers import eventually, is_ready
from tests.support.e2e.raftmq_command import raftmq
from tests.support.e2e.workload import Workload

pytestmark = [pytest.mark.e2e]

ROUND_SECONDS = 5.0
"""What looks at the files does so this often (`retention_check_seconds`)."""


async def test_directories_where_files_belong_end_no_broker(cluster: LocalCluster, workload: Workload) -> None:
    """Neither one in the trash nor one in the place of a replica's file, which keeps no other file from being opened."""
    victim = 2
    await workload.wait_progress()
    cluster.kill(victim)
    file = used_file(cluster, victim)
    file.unlink()
    file.mkdir()
    (file / "of a person").touch()
    strange = cluster.data_dir(victim) / "trash" / "a-directory"
    strange.mkdir(parents=True)
    os.utime(strange, (1000, 1000))
    await asyncio.to_thread(cluster.restart, victim)
    assert is_ready(cluster, victim)
    pid = cluster.pid(victim)
    await asyncio.sleep(2.5 * ROUND_SECONDS)
    assert cluster.is_running(victim)
    assert cluster.pid(victim) == pid
    assert strange.is_dir()
    await wait_replaced(cluster, victim, {file.name})
    await eventually(lambda: raftmq(cluster, "cluster", "status").returncode == 0)
    assert "background_work_failed" not in cluster.logs(victim)
    await workload.check()
