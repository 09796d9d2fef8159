"""A cluster grows and shrinks under load: a broker joins and fills up by itself, another is drained and removed, and topics get more and
fewer replicas. Clients notice nothing.
"""

import asyncio

import pytest
from raftmq import Admin, Consumer
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


async def consume(consumer: Consumer, stopped: asyncio.Event) -> int:
    """Read as a member of a group until told to stop. Return the number of records."""
    count = 0
    while not stopped.is_set():
        found = await consumer.getmany(timeout_ms=200)
        count += sum(len(records) for records in found.values())
        await consumer.commit()
    return count


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
            assert await consuming > 0
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
