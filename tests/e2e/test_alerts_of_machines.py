"""Alerts of machines fire: disks that are full, slow or hang, clocks that are wrong, and machines that were off.

See `test_alerts.py`. The faults, and their requirements, are those of `tests/chaos/`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from raftmq import Admin, Consumer, Producer, Queue, TopicPartition
from raftmq.errors import RaftMQError

from tests.chaos.cluster import ChaosCluster
from tests.chaos.machine import missing_for_shim, missing_for_volumes
from tests.support.e2e.alerts import in_thread, send, watched

pytestmark = [pytest.mark.long, pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(420)]

MIB = 1 << 20
RESERVE_BYTES = 100 * MIB
OFF_SECONDS = 1000.0
"""Longer than the ten minutes of the alerts on messages that wait."""


@pytest.fixture
def shim() -> None:
    if missing := missing_for_shim():
        pytest.skip(f"{missing}: the functions of the C library cannot be replaced")


@contextlib.asynccontextmanager
async def writing(cluster: ChaosCluster, size: int, count: int) -> AsyncIterator[None]:
    """Let producers write records of this size, each one after the other, and try again when they are refused."""

    async def write(number: int) -> None:
        async with Producer(bootstrap_servers=cluster.bootstrap_servers, max_batch_size=1024) as producer:
            while True:
                with contextlib.suppress(RaftMQError):
                    await producer.send_and_wait("records", bytes(size), partition=number % 3)

    writers = [asyncio.create_task(write(number)) for number in range(count)]
    try:
        yield
    finally:
        for writer in writers:
            writer.cancel()
        await asyncio.wait(writers)


async def test_a_disk_that_fills_up(tmp_path: Path) -> None:
    if missing := missing_for_volumes():
        pytest.skip(missing)
    cluster = ChaosCluster(1, has_volumes=True, settings=(f"disk_reserve_bytes={RESERVE_BYTES}",))
    async with watched(cluster, tmp_path) as prometheus:
        filler = cluster.volume(1).path / "filler"
        labels = {"instance": cluster.http_address(1)}
        for part, name in ((1.5, "RaftMQDiskAlmostFull"), (0.5, "RaftMQWritesRefused")):
            assert "RaftMQWritesRefused" not in prometheus.firing()
            (free,) = prometheus.query("raftmq_disk_free_bytes")
            with filler.open("ab") as file:
                os.posix_fallocate(file.fileno(), filler.stat().st_size, int(free.value - part * RESERVE_BYTES))
            await in_thread(prometheus.wait_firing, name, **labels)
        filler.unlink()
        await in_thread(prometheus.wait_quiet)


@pytest.mark.usefixtures("shim")
async def test_disks_that_hang_or_are_slow(tmp_path: Path) -> None:
    cluster = ChaosCluster(3, has_disk_orders=True, settings=("uncommitted_bytes_max=1MiB",))
    async with watched(cluster, tmp_path) as prometheus:
        leader = cluster.leaders("records")[0]
        async with writing(cluster, 100, 3):
            cluster.disk(leader).hang()
            await in_thread(prometheus.wait_firing, "RaftMQCommitStuck", instance=cluster.http_address(leader))
            cluster.disk(leader).work()
            await in_thread(prometheus.wait_quiet, "RaftMQCommitStuck")
        for broker_id in cluster.broker_ids:
            cluster.disk(broker_id).be_slow(600)
        async with writing(cluster, 115_000, 60):
            labels = {"instance": cluster.http_address(cluster.leaders("records")[0])}
            await in_thread(prometheus.wait_firing, "RaftMQCommitsSlow", **labels)
            await in_thread(prometheus.wait_firing, "RaftMQAppendsSlow", **labels)
            await in_thread(prometheus.wait_firing, "RaftMQBudgetNearlyFull", budget="uncommitted")
            await in_thread(prometheus.wait_firing, "RaftMQThrottled", **labels)
        for broker_id in cluster.broker_ids:
            cluster.disk(broker_id).work()
        await in_thread(prometheus.wait_quiet, "RaftMQBudgetNearlyFull")


@pytest.mark.usefixtures("shim")
async def test_clocks_that_are_wrong(tmp_path: Path) -> None:
    cluster = ChaosCluster(3, has_clock_orders=True, settings=())
    async with watched(cluster, tmp_path) as prometheus, Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        await admin.create_topic("jobs", kind="queue", partitions=1)
        for seconds in (8.0, -3600.0):
            cluster.clock(2).be_off(seconds)
            await in_thread(prometheus.wait_firing, "RaftMQClockDiffers", instance=cluster.http_address(2))
            assert {found["instance"] for found in prometheus.firing()["RaftMQClockDiffers"]} == {
                cluster.http_address(2)
            }
            cluster.clock(2).work()
            await in_thread(prometheus.wait_quiet)
        for broker_id in cluster.broker_ids:
            cluster.clock(broker_id).be_off(60)
        await in_thread(prometheus.wait_firing, "RaftMQQueueClockDiffers", topic="jobs", partition="0")
        for broker_id in cluster.broker_ids:
            cluster.clock(broker_id).work()
        await in_thread(prometheus.wait_quiet)


@pytest.mark.usefixtures("shim")
async def test_messages_that_waited_while_a_machine_was_off(tmp_path: Path) -> None:
    """The machine's clock is set back, and right again when the broker starts the next time."""
    cluster = ChaosCluster(1, has_clock_orders=True, settings=())
    cluster.clock(1).be_off(-OFF_SECONDS)
    async with watched(cluster, tmp_path) as prometheus, Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        await admin.create_topic("jobs", kind="queue", partitions=1)
        async with Queue("jobs", bootstrap_servers=cluster.bootstrap_servers) as jobs:
            await jobs.put(b"work")
        partitions = [TopicPartition("records", number) for number in range(3)]
        async with Consumer(bootstrap_servers=cluster.bootstrap_servers, group_id="readers") as consumer:
            consumer.assign(partitions)
            await consumer.commit(dict.fromkeys(partitions, 0))
        await send(cluster, 20)
        await in_thread(cluster.stop, 1)
        cluster.clock(1).work()
        await in_thread(cluster.restart, 1)
        await in_thread(prometheus.wait_firing, "RaftMQConsumersBehind", group="readers", topic="records")
        await in_thread(prometheus.wait_firing, "RaftMQQueueNotWorked", topic="jobs", partition="0")
        async with Consumer(bootstrap_servers=cluster.bootstrap_servers, group_id="readers") as consumer:
            consumer.assign(partitions)
            await consumer.seek_to_end()
            await consumer.commit(await consumer.end_offsets(partitions))
        async with Queue("jobs", bootstrap_servers=cluster.bootstrap_servers) as jobs:
            message = await jobs.get(wait_ms=5000)
            assert message is not None
            await message.ack()
        await in_thread(prometheus.wait_quiet)
