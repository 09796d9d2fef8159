"""Every alert fires when its fault happens, and ends with it: a real Prometheus watches real brokers.

Rules are those of `examples/monitoring/alerts.yml` with shorter times. Each test begins with a healthy cluster on which no alert fires.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import resource
import shutil
import sys
from pathlib import Path

import pytest
from raftmq import Admin, Consumer, NewMessage, Producer, Queue, TopicPartition
from raftmq.errors import BrokerInUseError, QueueFullError, RaftMQError
from raftmq.testing import LocalCluster

from tests.chaos.damage import flip_in_newest_row, log_files
from tests.support.e2e import broker_with_defects
from tests.support.e2e.alerts import in_thread, send, watched

pytestmark = [pytest.mark.long, pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(420)]


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


async def test_a_follower_that_is_far_behind(tmp_path: Path) -> None:
    cluster = LocalCluster(brokers=3)
    async with watched(cluster, tmp_path) as prometheus:
        await in_thread(cluster.stop, 3)
        async with Producer(bootstrap_servers=cluster.bootstrap_servers, max_batch_size=1024) as producer:
            for _ in range(11_000):  # each a batch, and thereby an entry
                await producer.send("records", bytes(1000), partition=0)
        await in_thread(prometheus.wait_firing, "RaftMQFollowersBehind", topic="records", partition="0")
        await in_thread(cluster.restart, 3)
        await in_thread(prometheus.wait_quiet, seconds=90)


async def test_a_removed_broker_that_comes_back(tmp_path: Path) -> None:
    cluster = LocalCluster(brokers=3)
    async with watched(cluster, tmp_path) as prometheus, Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        cluster.kill(3)
        async with asyncio.timeout(60):
            while True:
                with contextlib.suppress(BrokerInUseError):  # the metadata leader has not noticed its end
                    await admin.remove_broker(3, force=True)
                    break
                await asyncio.sleep(0.5)
        await in_thread(cluster.restart, 3, wait=False)
        await in_thread(prometheus.wait_firing, "RaftMQBrokerRemoved", instance=cluster.http_address(3))


async def test_an_old_copy_of_a_data_directory(tmp_path: Path) -> None:
    cluster = LocalCluster(brokers=3)
    async with watched(cluster, tmp_path) as prometheus:
        await in_thread(cluster.stop, 3)
        directory = cluster.data_dir(3)
        backup = directory.with_name("backup")
        shutil.copytree(directory, backup)
        await in_thread(cluster.restart, 3)
        await send(cluster, 100)
        await in_thread(cluster.stop, 3)
        shutil.rmtree(directory)
        shutil.move(backup, directory)
        await in_thread(cluster.restart, 3, wait=False)
        await in_thread(prometheus.wait_firing, "RaftMQStaleDirectory", instance=cluster.http_address(3))


async def test_another_cluster_at_the_address_of_a_broker(tmp_path: Path) -> None:
    cluster = LocalCluster(brokers=3)
    with LocalCluster(brokers=3, directory=tmp_path / "stranger") as stranger:
        strange = stranger.data_dir(3)
    async with watched(cluster, tmp_path) as prometheus:
        cluster.kill(3)
        own = cluster.data_dir(3)
        parked = own.with_name("parked")
        shutil.move(own, parked)
        shutil.copytree(strange, own)
        await in_thread(cluster.restart, 3, wait=False)
        for broker_id in (1, 2):
            labels = {"instance": cluster.http_address(broker_id)}
            await in_thread(prometheus.wait_firing, "RaftMQOtherCluster", **labels)
        cluster.kill(3)
        shutil.rmtree(own)
        shutil.move(parked, own)
        await in_thread(cluster.restart, 3)
        await in_thread(prometheus.wait_quiet, seconds=120)  # an address is remembered for a minute
