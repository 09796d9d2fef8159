"""Every alert fires when its fault happens, and ends with it: a real Prometheus watches real brokers.

Rules are those of `examples/monitoring/alerts.yml` with shorter times. Each test begins with a healthy cluster on which no alert fires.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import resource
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from raftmq import Admin, Consumer, NewMessage, Producer, Queue, TopicPartition
from raftmq.errors import QueueFullError, RaftMQError
from raftmq.testing import LocalCluster

from tests.chaos.damage import flip_in_newest_row, log_files
from tests.support.e2e import broker_with_defects
from tests.support.e2e.prometheus import Prometheus, running

pytestmark = [pytest.mark.long, pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(420)]

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


async def test_brokers_that_end(tmp_path: Path) -> None:
    cluster = LocalCluster(brokers=3)
    async with watched(cluster, tmp_path) as prometheus:
        gone = cluster.http_address(3)
        cluster.kill(3)
        assert (await in_thread(prometheus.wait_firing, "RaftMQBrokerDown", instance=gone))["severity"] == "critical"
        for left in (1, 2):
            labels = {"instance": cluster.http_address(left), "peer_id": "3"}
            await in_thread(prometheus.wait_firing, "RaftMQPeerDisconnected", **labels)
        await in_thread(prometheus.wait_firing, "RaftMQUnderReplicatedPartitions", job="raftmq", severity="warning")
        assert not prometheus.firing().keys() & {"RaftMQNoMetadataLeader", "RaftMQPartitionsWithoutLeader"}
        cluster.kill(2)
        await in_thread(prometheus.wait_firing, "RaftMQNoMetadataLeader", job="raftmq", severity="critical")
        await in_thread(prometheus.wait_firing, "RaftMQPartitionsWithoutLeader", job="raftmq", severity="critical")
        await in_thread(prometheus.wait_firing, "RaftMQBrokerNotReady", instance=cluster.http_address(1))
        for broker_id in (2, 3):
            await in_thread(cluster.restart, broker_id, wait=False)
        await in_thread(prometheus.wait_quiet, seconds=90)


async def test_damaged_replicas_without_a_majority_to_rebuild_them(tmp_path: Path) -> None:
    cluster = LocalCluster(brokers=3)
    async with watched(cluster, tmp_path) as prometheus:
        await in_thread(cluster.stop, 1)
        damaged = [path for path in log_files(cluster.data_dir(1)) if flip_in_newest_row(path)]
        assert damaged
        cluster.kill(3)
        await in_thread(cluster.restart, 1, wait=False)
        labels = {"instance": cluster.http_address(1)}
        await in_thread(prometheus.wait_firing, "RaftMQReplicasQuarantined", **labels)
        await in_thread(prometheus.wait_firing, "RaftMQReplicasNotServing", reason="quarantined", **labels)
        await in_thread(cluster.restart, 3, wait=False)
        await in_thread(prometheus.wait_quiet, seconds=90)


async def test_limits_of_the_process(tmp_path: Path) -> None:
    cluster = LocalCluster(brokers=1, broker_arguments=("--set", "partitions_max=10"))
    async with watched(cluster, tmp_path) as prometheus, Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        labels = {"instance": cluster.http_address(1)}
        await admin.create_topic("more", partitions=7, replication_factor=1)
        await in_thread(prometheus.wait_firing, "RaftMQSlotsNearlyUsed", slot="replicas", **labels)
        await admin.delete_topic("more")
        await in_thread(prometheus.wait_quiet)

        limits = resource.prlimit(cluster.pid(1), resource.RLIMIT_NOFILE)
        (open_files,) = prometheus.query("process_open_fds")
        resource.prlimit(cluster.pid(1), resource.RLIMIT_NOFILE, (int(open_files.value / 0.85), limits[1]))
        await in_thread(prometheus.wait_firing, "RaftMQOpenFiles", **labels)
        resource.prlimit(cluster.pid(1), resource.RLIMIT_NOFILE, limits)
        await in_thread(prometheus.wait_quiet)

        cluster.pause(1)
        await asyncio.sleep(2.0)
        cluster.resume(1)
        await in_thread(prometheus.wait_firing, "RaftMQLoopStalls", **labels)


async def test_leaderships_that_move_repeatedly(tmp_path: Path) -> None:
    cluster = LocalCluster(brokers=3)
    async with watched(cluster, tmp_path) as prometheus, Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        for broker_id, partition in itertools.product((1, 2, 3, 1, 2, 3), range(3)):
            with contextlib.suppress(RaftMQError):  # it leads already
                await admin.transfer_leader("records", partition, broker_id)
        await in_thread(prometheus.wait_firing, "RaftMQLeadershipFlapping", job="raftmq")


async def test_defects_and_clients_that_use_too_much(tmp_path: Path) -> None:
    """The brokers have low limits of producers and lags, and defects while a file exists."""
    cluster = LocalCluster(brokers=1, command=(sys.executable, broker_with_defects.__file__))
    async with watched(cluster, tmp_path) as prometheus, Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        labels = {"instance": cluster.http_address(1)}
        for number in range(broker_with_defects.READERS_MAX + 1):
            name = f"group-{number}"
            async with Consumer(bootstrap_servers=cluster.bootstrap_servers, group_id=name) as consumer:
                consumer.assign([TopicPartition("records", 0)])
                await consumer.commit({TopicPartition("records", 0): 0})
        await in_thread(prometheus.wait_firing, "RaftMQConsumerLagLeftOut", what="readers", **labels)
        for number in range(broker_with_defects.NAMES_MAX - 1):
            name = f"producer-{number}"
            async with Producer(bootstrap_servers=cluster.bootstrap_servers, producer_name=name) as producer:
                await producer.send_and_wait("records", b"one", partition=0)
        await in_thread(prometheus.wait_firing, "RaftMQProducerNamesUsedUp")
        for _ in range(broker_with_defects.PRODUCERS_MAX - broker_with_defects.NAMES_MAX):
            async with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
                await producer.send_and_wait("records", b"one", partition=0)
        await in_thread(prometheus.wait_firing, "RaftMQProducerTableFull", **labels)

        broker_with_defects.marker(cluster.data_dir(1)).touch()
        with pytest.raises(RaftMQError):
            await admin.list_topics()
        await in_thread(prometheus.wait_firing, "RaftMQBrokerDefects", method="ListTopics", **labels)
        await in_thread(prometheus.wait_firing, "RaftMQBackgroundFailures", loop="housekeeping", **labels)


async def test_queues_that_nobody_looks_after(tmp_path: Path) -> None:
    cluster = LocalCluster(brokers=1)
    async with watched(cluster, tmp_path) as prometheus, Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        servers = cluster.bootstrap_servers
        await admin.create_topic("small", kind="queue", partitions=1, config={"partition.max.messages": "1"})
        await admin.create_topic("jobs", kind="queue", partitions=1, config={"dead.letter.topic": "small"})
        await in_thread(
            prometheus.wait, lambda: len(prometheus.query("raftmq_queue_expired_leases_total")) == 2, "scraped"
        )
        async with Queue("small", bootstrap_servers=servers) as small:
            await small.put(b"fills it")
            for _ in range(20):
                with pytest.raises(QueueFullError):
                    await small.put(b"too much")
                await asyncio.sleep(0.2)
            await in_thread(prometheus.wait_firing, "RaftMQQueueFull", topic="small")
        async with Queue("jobs", bootstrap_servers=servers) as jobs:
            await jobs.put(b"bad")
            message = await jobs.get(wait_ms=5000)
            assert message is not None
            await message.reject("no such thing")
            await in_thread(prometheus.wait_firing, "RaftMQQueueDeadMessages", topic="jobs")
            await in_thread(prometheus.wait_firing, "RaftMQQueueDeadLettersWait", topic="jobs", partition="0")
            await jobs.put_many(NewMessage(b"%d" % n) for n in range(300))
            leased = 0
            while leased < 300:
                leased += len(await jobs.get_many(max_messages=300 - leased, wait_ms=5000, lease_ms=1000))
        # the program has ended, and nobody renews its leases
        await in_thread(prometheus.wait_firing, "RaftMQQueueLeasesExpire", topic="jobs")
