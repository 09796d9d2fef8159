"""A named producer that was frozen until another one took its name: it writes nothing more and reports that it is fenced."""

import asyncio
import json
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from raftmq import Admin, Consumer, Producer, Record, TopicPartition
from raftmq.errors import ProducerFencedError
from raftmq.testing import LocalCluster

pytestmark = [pytest.mark.e2e]

TOPIC = "jobs"
NAME = "nightly"
PARTITIONS = 3
PROGRAM = f"""
# arguments: the brokers, and optionally the only partition to write to after the first round
import asyncio, json, sys
from raftmq import Producer
from raftmq.errors import ProducerFencedError

async def main():
    acknowledged = []
    async with Producer(bootstrap_servers=sys.argv[1], producer_name={NAME!r}) as producer:
        number = 0
        try:
            while True:
                for partition in map(int, sys.argv[2:]) if number and sys.argv[2:] else range({PARTITIONS}):
                    await producer.send_and_wait({TOPIC!r}, b"old-%d" % number, partition=partition)
                    acknowledged.append(number)
                    number += 1
                print(json.dumps(dict(acknowledged=len(acknowledged))), flush=True)
        except ProducerFencedError as error:
            refused = []
            for partition in range({PARTITIONS}):
                try:
                    await producer.send_and_wait({TOPIC!r}, b"zombie", partition=partition)
                except ProducerFencedError:
                    refused.append(partition)
            print(json.dumps(dict(fenced=str(error), acknowledged=acknowledged, refused=refused)), flush=True)

asyncio.run(main())
"""


@pytest.fixture
async def cluster() -> AsyncIterator[LocalCluster]:
    async with LocalCluster(brokers=3) as running:
        async with Admin(bootstrap_servers=running.bootstrap_servers) as admin:
            await admin.create_topic(TOPIC, partitions=PARTITIONS, replication_factor=3)
        yield running


@asynccontextmanager
async def at_work(*arguments: str) -> AsyncIterator[Process]:
    """Run a producer with the name in its own process, and yield the process after its first round."""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", PROGRAM, *arguments, stdout=PIPE, stderr=PIPE)
    try:
        assert process.stdout is not None
        async with asyncio.timeout(60):
            await process.stdout.readline()
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@pytest.fixture
async def first(cluster: LocalCluster) -> AsyncIterator[Process]:
    async with at_work(cluster.bootstrap_servers) as process:
        yield process


async def all_records(servers: str) -> list[list[Record]]:
    partitions = [TopicPartition(TOPIC, n) for n in range(PARTITIONS)]
    async with Consumer(bootstrap_servers=servers, auto_offset_reset="earliest") as consumer:
        ends = await consumer.end_offsets(partitions)
        consumer.assign(partitions)
        found: list[list[Record]] = [[] for _ in partitions]
        async with asyncio.timeout(60):
            while sum(map(len, found)) < sum(ends.values()):
                for partition, records in (await consumer.getmany(timeout_ms=1000)).items():
                    found[partition.partition] += records
    return found


@pytest.mark.parametrize("is_frozen", [True, pytest.param(False, marks=pytest.mark.long)], ids=["frozen", "running"])
async def test_a_second_producer_of_the_name_fences_the_first(
    cluster: LocalCluster, first: Process, is_frozen: bool
) -> None:
    servers = cluster.bootstrap_servers
    if is_frozen:
        first.send_signal(signal.SIGSTOP)
    async with Producer(bootstrap_servers=servers, producer_name=NAME) as second:
        for partition in range(PARTITIONS):
            await second.send_and_wait(TOPIC, b"new", partition=partition)
        if is_frozen:
            first.send_signal(signal.SIGCONT)
        async with asyncio.timeout(60):
            said, complained = await first.communicate()
        assert first.returncode == 0, complained.decode()
        told = json.loads(said.splitlines()[-1])
        assert "another one took over" in told["fenced"]
        assert told["refused"] == list(range(PARTITIONS))
        for partition in range(PARTITIONS):
            await second.send_and_wait(TOPIC, b"newer", partition=partition)
    found = await all_records(servers)
    values = [[record.value or b"" for record in records] for records in found]
    for records in values:
        assert records[records.index(b"new") :] == [b"new", b"newer"], (
            "nothing of the first after its successor's first record"
        )
    old = [int(value.split(b"-")[1]) for records in values for value in records if value.startswith(b"old-")]
    assert len(set(old)) == len(old)
    assert set(told["acknowledged"]) <= set(old), "acknowledged records of the first are present"


@pytest.mark.parametrize("is_frozen", [True, pytest.param(False, marks=pytest.mark.long)], ids=["frozen", "running"])
@pytest.mark.long
async def test_a_zombie_writes_nothing_to_a_partition_without_records_of_its_successor(
    cluster: LocalCluster, is_frozen: bool
) -> None:
    """The successor reads the end of the partition in which the zombie continues, and writes only to another partition.

    The zombie may write nothing after that end, although the partition never received a record of the successor.
    """
    servers = cluster.bootstrap_servers
    elsewhere = TopicPartition(TOPIC, 1)
    async with at_work(servers, "1") as first:
        if is_frozen:
            first.send_signal(signal.SIGSTOP)
        async with (
            Producer(bootstrap_servers=servers, producer_name=NAME) as second,
            Consumer(bootstrap_servers=servers) as consumer,
        ):
            end = (await consumer.end_offsets([elsewhere]))[elsewhere]
            await second.send_and_wait(TOPIC, b"new", partition=0)
            if is_frozen:
                first.send_signal(signal.SIGCONT)
            async with asyncio.timeout(60):
                said, complained = await first.communicate()
            assert first.returncode == 0, complained.decode()
            told = json.loads(said.splitlines()[-1])
            assert "another one took over" in told["fenced"]
            assert told["refused"] == list(range(PARTITIONS))
            assert end >= 1, "the first was at work there"
            assert (await consumer.end_offsets([elsewhere]))[elsewhere] == end
    old = [int((record.value or b"").split(b"-")[1]) for record in (await all_records(servers))[1]]
    assert len(set(old)) == len(old) == end
    assert set(told["acknowledged"]) - {0, 2} <= set(old), "acknowledged records of the first are present"


@pytest.mark.long
async def test_a_zombie_is_fenced_while_a_broker_is_frozen(cluster: LocalCluster) -> None:
    """The successor cannot ask the frozen leader of the zombie's partition, and waits until that leader accepts nothing more."""
    servers = cluster.bootstrap_servers
    async with Producer(bootstrap_servers=servers, producer_name=NAME) as first:
        await first.send_and_wait(TOPIC, b"old", partition=1)
        async with Admin(bootstrap_servers=servers) as admin:
            leader = (await admin.describe_topic(TOPIC)).partitions[1].leader_broker_id
        cluster.pause(leader)
        try:
            second = Producer(bootstrap_servers=servers, producer_name=NAME)
            await second.start()
        finally:
            cluster.resume(leader)
        with pytest.raises(ProducerFencedError, match="took over"):
            await first.send_and_wait(TOPIC, b"zombie", partition=1)
        await second.close()
    assert [record.value for record in (await all_records(servers))[1]] == [b"old"]


@pytest.mark.long
async def test_the_epoch_of_a_name_survives_the_metadata_leader(cluster: LocalCluster) -> None:
    """Epochs are replicated: after a change of leaders, the next producer of the name still fences the previous one."""
    servers = cluster.bootstrap_servers
    async with Producer(bootstrap_servers=servers, producer_name=NAME) as first:
        await first.send_and_wait(TOPIC, b"old", partition=0)
        async with Admin(bootstrap_servers=servers) as admin:
            leader = (await admin.describe_cluster()).metadata_leader_broker_id
        cluster.kill(leader)
        async with Producer(bootstrap_servers=servers, producer_name=NAME) as second:
            await second.send_and_wait(TOPIC, b"new", partition=0)
            with pytest.raises(ProducerFencedError, match="took over"):
                await first.send_and_wait(TOPIC, b"zombie", partition=0)
    assert [record.value for record in (await all_records(servers))[0]] == [b"old", b"new"]
