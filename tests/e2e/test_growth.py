"""A cluster grows and shrinks under load: a broker joins and fills up by itself, another is drained and removed, and topics get more and
fewer replicas. Clients notice nothing.
"""

import asyncio

import pytest
from raftmq import Admin, Consumer, TopicPartition
from raftmq.methods import SET_REPLICATION_FACTOR
from raftmq.proto import queue_pb2 as pb
from raftmq.testing import LocalCluster

from tests.support.e2e.workload import Workload

pytestmark = [pytest.mark.e2e]

TOPIC = "growth"
PARTITIONS = 8
WAIT_SECONDS = 90.0


async def replica_brokers(admin: Admin) -> list[tuple[int, ...]]:
    return [partition.replica_brokers for partition in (await admin.describe_topic(TOPIC)).partitions]


async def wait_replicas(admin: Admin, *, each: int, on: set[int]) -> None:
    """Wait until every partition has this many replicas, all brokers have some, and no other has any."""
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            found = await replica_brokers(admin)
            if all(len(one) == each for one in found) and {broker for one in found for broker in one} == on:
                return
            await asyncio.sleep(0.2)


async def change_replication_factor(cluster: LocalCluster, wanted: int) -> None:
    request = pb.SetReplicationFactorRequest(topic=TOPIC, replication_factor=wanted)
    await asyncio.to_thread(cluster._ask, SET_REPLICATION_FACTOR, request)


async def wait_metadata_voters(admin: Admin, count: int) -> None:
    async with asyncio.timeout(WAIT_SECONDS):
        while sum(one.is_metadata_voter for one in (await admin.describe_cluster()).brokers) != count:
            await asyncio.sleep(0.2)


async def consume(consumer: Consumer, stopped: asyncio.Event) -> dict[TopicPartition, list[int]]:
    """Read as a member of a group until told to stop. Return the offsets in the order in which they came."""
    offsets = dict[TopicPartition, list[int]]()
    while not stopped.is_set():
        found = await consumer.getmany(timeout_ms=200)
        for partition, records in found.items():
            offsets.setdefault(partition, []).extend(record.offset for record in records)
        await consumer.commit()
    return offsets


def assert_each_once(offsets: dict[TopicPartition, list[int]], partitions: int = PARTITIONS) -> None:
    """Check that a group with one member got every record of every partition once and in order, up to some record."""
    assert len(offsets) == partitions
    assert all(found == list(range(len(found))) for found in offsets.values())


async def test_a_broker_fills_up_and_another_is_drained_and_removed_under_load() -> None:
    async with (
        LocalCluster(brokers=3, broker_arguments=("--set", "stable_seconds=1s")) as cluster,
        Admin(bootstrap_servers=cluster.bootstrap_servers) as admin,
    ):
        await admin.create_topic(TOPIC, partitions=PARTITIONS, replication_factor=3)
        stopped = asyncio.Event()
        async with (
            Workload(cluster.bootstrap_servers, TOPIC, PARTITIONS) as workload,
            Consumer(
                TOPIC, group_id="growth", bootstrap_servers=cluster.bootstrap_servers, auto_offset_reset="earliest"
            ) as member,
        ):
            consuming = asyncio.create_task(consume(member, stopped))
            await workload.wait_progress()
            assert await asyncio.to_thread(cluster.add_broker) == 4
            await wait_replicas(admin, each=3, on={1, 2, 3, 4})
            await workload.wait_progress()
            await asyncio.to_thread(cluster.remove_broker, 1)
            await wait_replicas(admin, each=3, on={2, 3, 4})
            assert cluster.broker_ids == (2, 3, 4)
            await workload.wait_progress()
            stopped.set()
            assert_each_once(await consuming)
            await workload.check()
            assert workload.unsuccessful == []


@pytest.mark.long
async def test_a_topic_gets_more_and_fewer_replicas_under_load() -> None:
    async with (
        LocalCluster(brokers=3, broker_arguments=("--set", "stable_seconds=1s")) as cluster,
        Admin(bootstrap_servers=cluster.bootstrap_servers) as admin,
    ):
        await admin.create_topic(TOPIC, partitions=PARTITIONS, replication_factor=1)
        async with Workload(cluster.bootstrap_servers, TOPIC, PARTITIONS) as workload:
            await workload.wait_progress()
            for wanted in (3, 1):
                await change_replication_factor(cluster, wanted)
                await wait_replicas(admin, each=wanted, on={1, 2, 3})
                await workload.wait_progress()
            await workload.check()
            assert workload.unsuccessful == []


@pytest.mark.long
async def test_a_cluster_grows_from_one_broker_to_five_and_shrinks_to_three_under_load() -> None:
    """The topic gets 1, 3, 5 and 3 replicas, and the metadata as many voters. The first broker and the bootstrap address leave."""
    settings = ("--set", "stable_seconds=1s", "--set", "metadata_voters=5")
    async with (
        LocalCluster(brokers=1, broker_arguments=settings) as cluster,
        Admin(bootstrap_servers=cluster.bootstrap_servers) as admin,
    ):
        await admin.create_topic(TOPIC, partitions=PARTITIONS, replication_factor=1)
        stopped = asyncio.Event()
        async with (
            Workload(cluster.bootstrap_servers, TOPIC, PARTITIONS) as workload,
            Consumer(
                TOPIC, group_id="growth", bootstrap_servers=cluster.bootstrap_servers, auto_offset_reset="earliest"
            ) as member,
        ):
            consuming = asyncio.create_task(consume(member, stopped))
            await workload.wait_progress()
            for count in (3, 5):
                while len(cluster.broker_ids) < count:
                    await asyncio.to_thread(cluster.add_broker)
                await wait_metadata_voters(admin, count)
                await admin.set_replication_factor(TOPIC, count)
                await wait_replicas(admin, each=count, on=set(cluster.broker_ids))
                await workload.wait_progress()
            await admin.set_replication_factor(TOPIC, 3)
            for victim in (1, 2):
                await asyncio.to_thread(cluster.remove_broker, victim)
            await wait_replicas(admin, each=3, on={3, 4, 5})
            await wait_metadata_voters(admin, 3)
            await workload.wait_progress()
            stopped.set()
            assert_each_once(await consuming)
            workload.bootstrap_servers = cluster.bootstrap_servers
            await workload.check()
            assert workload.unsuccessful == []
