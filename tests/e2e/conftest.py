"""Fixtures: three brokers, and clients at work on them."""

from collections.abc import AsyncIterator

import pytest
from raftmq.testing import LocalCluster

from tests.support.e2e.helpers import PARTITIONS, TOPIC, cluster_with_topic
from tests.support.e2e.workload import Workload


@pytest.fixture
async def cluster() -> AsyncIterator[LocalCluster]:
    """Yield three brokers with the topic `TOPIC`."""
    async with cluster_with_topic() as running:
        yield running


@pytest.fixture
async def workload(cluster: LocalCluster) -> AsyncIterator[Workload]:
    """Yield a workload whose producer and consumer have made progress."""
    async with Workload(cluster.bootstrap_servers, TOPIC, PARTITIONS) as running:
        await running.wait_progress()
        yield running
