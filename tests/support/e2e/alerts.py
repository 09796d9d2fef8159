"""Start real brokers that a real Prometheus finds healthy, for tests of alerts."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from raftmq import Admin, Producer
from raftmq.testing import LocalCluster

from tests.support.e2e.prometheus import Prometheus, running

QUIET_SECONDS = 3
"""Time without an alert that shows a healthy cluster: longer than the shortened times of the rules."""


@contextlib.asynccontextmanager
async def watched(cluster: LocalCluster, directory: Path) -> AsyncIterator[Prometheus]:
    """Start a cluster with the topic "records" and a Prometheus that finds it healthy."""
    async with cluster, Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        brokers = len(cluster.broker_ids)
        await admin.create_topic("records", partitions=3, replication_factor=min(3, brokers))
        await send(cluster, 20)
        with running(directory / "prometheus", [cluster.http_address(n) for n in cluster.broker_ids]) as prometheus:
            await asyncio.sleep(QUIET_SECONDS)
            await in_thread(prometheus.wait, lambda: not prometheus.fired(QUIET_SECONDS), "the cluster is healthy")
            assert len(prometheus.query("raftmq_ready == 1")) == brokers
            yield prometheus


async def in_thread(function, *arguments, **named):
    return await asyncio.to_thread(function, *arguments, **named)


async def send(cluster: LocalCluster, count: int, size: int = 100, topic: str = "records") -> None:
    async with Producer(bootstrap_servers=cluster.bootstrap_servers, max_batch_size=1024) as producer:
        for start in range(0, count, 500):
            await asyncio.gather(
                *[
                    producer.send(topic, b"%d" % n * (size // len(b"%d" % n)))
                    for n in range(start, min(count, start + 500))
                ]
            )
        await producer.flush()
