"""Real brokers of which one has a wall clock that is days away: nothing is deleted before its time, nothing is there twice."""

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
"""Two of a broker's looks at what is too old."""


@pytest.fixture
async def cluster() -> AsyncIterator[LocalCluster]:
    """Three brokers whose clocks can be set, with the topic `TOPIC`, which keeps records for a week."""
    async with cluster_with_topic(command=(sys.executable, broker_with_clock.__file__)) as running:
        yield running


def set_clock(cluster: LocalCluster, broker_id: int, hours: int) -> None:
    broker_with_clock.clock_file(cluster.data_dir(broker_id)).write_text(str(hours))


@pytest.mark.parametrize("hours", [200, 25])
async def test_a_leader_whose_clock_is_days_ahead_costs_nothing(
    cluster: LocalCluster, workload: Workload, hours: int
) -> None:
    """200 h are longer than records are kept, 25 h longer than producers are remembered: nothing is deleted, nothing is written twice."""
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
