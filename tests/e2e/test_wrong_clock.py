"""Real brokers, one of which has a wall clock days ahead: no record is deleted too early or duplicated."""

import asyncio
import sys
from collections.abc import AsyncIterator

import pytest
from raftmq.testing import LocalCluster

from tests.support.e2e import broker_with_clock
from tests.support.e2e.helpers import busiest_leader, cluster_with_topic, eventually, gauge, is_ready, readiness
from tests.support.e2e.workload import Workload

pytestmark = [pytest.mark.e2e]

RETENTION_ROUNDS_SECONDS = 11.0
"""Time for two of a broker's checks for expired data."""


@pytest.fixture
async def cluster() -> AsyncIterator[LocalCluster]:
    """Yield three brokers whose clocks can be set, with the topic `TOPIC`, which keeps records for a week."""
    async with cluster_with_topic(command=(sys.executable, broker_with_clock.__file__)) as running:
        yield running


def set_clock(cluster: LocalCluster, broker_id: int, hours: int) -> None:
    broker_with_clock.clock_file(cluster.data_dir(broker_id)).write_text(str(hours))


@pytest.mark.parametrize("hours", [200, pytest.param(25, marks=pytest.mark.long)])
@pytest.mark.long
async def test_a_leader_whose_clock_is_days_ahead_causes_no_loss_and_no_duplicate(
    cluster: LocalCluster, workload: Workload, hours: int
) -> None:
    """200 hours exceed the retention of records, and 25 hours exceed the expiry of producers."""
    wrong = busiest_leader(cluster)
    set_clock(cluster, wrong, hours)
    await eventually(lambda: "clock_differs" in readiness(cluster, wrong))
    assert gauge(cluster, wrong, "raftmq_clock_offset_seconds") == pytest.approx(hours * 3600, abs=10)
    await eventually(lambda: gauge(cluster, wrong, "raftmq_groups_led") == 0)
    await asyncio.sleep(RETENTION_ROUNDS_SECONDS)
    await workload.wait_progress()
    set_clock(cluster, wrong, 0)
    await eventually(lambda: is_ready(cluster, wrong))
    await workload.wait_progress()
    await workload.check()
