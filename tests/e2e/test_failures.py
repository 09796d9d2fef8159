"""Failures other than a killed process: a failing disk, damaged data, a frozen process, stale or foreign metadata.

Real brokers run under load, and the final check covers the whole history.
"""

import asyncio
import resource
import shutil
from functools import partial
from pathlib import Path

import lmdb
import pytest
from raftmq import Admin, Consumer, Producer, TopicPartition
from raftmq.errors import RaftMQError, UnknownTopicError
from raftmq.testing import LocalCluster

from tests.support.e2e.helpers import (
    PARTITIONS,
    POLL_SECONDS,
    TOPIC,
    WAIT_SECONDS,
    busiest_leader,
    data_files,
    eventually,
    is_ready,
    restart_all,
)
from tests.support.e2e.workload import Workload

pytestmark = [pytest.mark.e2e]

FREEZE_SECONDS = 30.0


async def test_a_failed_commit_ends_the_process_and_nothing_is_lost(cluster: LocalCluster, workload: Workload) -> None:
    """The kernel lets no file of the broker grow, which causes a write error of the kind that must never be retried."""
    victim = busiest_leader(cluster)
    largest = max(path.stat().st_size for path in data_files(cluster, victim))
    pid = cluster.pid(victim)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (largest, largest))
    await eventually(lambda: not cluster.is_running(victim))
    last_words = cluster.logs(victim)
    assert '"broker_exits"' in last_words
    assert str(cluster.data_dir(victim)) in last_words
    assert "CommitFailedError" in last_words
    await workload.wait_progress()
    await asyncio.to_thread(cluster.restart, victim)
    await workload.wait_progress()
    await workload.check()


@pytest.mark.long
async def test_damage_found_while_reading_is_never_delivered(cluster: LocalCluster, workload: Workload) -> None:
    """The oldest rows of a leader are damaged while it runs, after its start found them intact."""
    await workload.finish()
    for broker_id in cluster.broker_ids:  # no broker keeps the first records in memory
        await asyncio.to_thread(cluster.stop, broker_id)
    await restart_all(cluster)
    victim = busiest_leader(cluster)
    led = [partition for partition, broker_id in cluster.wait_leaders(TOPIC).items() if broker_id == victim]
    assert led
    for path in data_files(cluster, victim):
        flip_the_oldest_record(path)
    await workload.check()
    assert "replica_stopped" in cluster.logs(victim)


def flip_the_oldest_record(path: Path) -> None:
    """Flip one bit of the first data row in the file that the broker has mapped, in every copy that copy-on-write left."""
    with lmdb.open(str(path), subdir=False, readonly=True, lock=False, max_dbs=3) as environment:
        database = environment.open_db(b"log", create=False)
        with environment.begin(db=database) as transaction, transaction.cursor() as cursor:
            row = max((value for _, value in zip(range(8), cursor.iternext(keys=False), strict=False)), key=len)
    content = path.read_bytes()
    at = content.find(row)
    assert at >= 0
    with path.open("r+b") as file:
        while at >= 0:
            place = at + len(row) // 2
            file.seek(place)
            file.write(bytes([content[place] ^ 1]))
            at = content.find(row, at + 1)


@pytest.mark.long
async def test_the_busiest_leader_frozen_for_thirty_seconds_rejoins_and_nothing_is_lost(
    cluster: LocalCluster, workload: Workload
) -> None:
    victim = busiest_leader(cluster)
    loop = asyncio.get_running_loop()
    cluster.pause(victim)
    thaw_at = loop.time() + FREEZE_SECONDS
    await asyncio.to_thread(cluster.wait_leaders, TOPIC, avoiding=victim)
    while loop.time() < thaw_at:
        await workload.wait_progress(records=1000)
    cluster.resume(victim)
    await workload.wait_progress()
    await eventually(lambda: is_ready(cluster, victim))
    await workload.check()


@pytest.mark.long
async def test_a_topic_created_again_under_load_while_a_broker_is_down_starts_empty(cluster: LocalCluster) -> None:
    """Producers and consumers of the old topic learn of its deletion. The new one is empty, also on the broker that was down."""
    servers = cluster.bootstrap_servers
    sleeper = 3
    async with (
        Admin(bootstrap_servers=servers) as admin,
        Producer(bootstrap_servers=servers, delivery_timeout_ms=20_000) as producer,
        Consumer(bootstrap_servers=servers, auto_offset_reset="earliest") as consumer,
    ):
        consumer.assign([TopicPartition(TOPIC, n) for n in range(PARTITIONS)])
        for number in range(300):
            await producer.send_and_wait(TOPIC, b"old %d" % number, partition=number % PARTITIONS)
        old_files = {path.name for path in data_files(cluster, sleeper)}
        assert len(old_files) == PARTITIONS
        cluster.kill(sleeper)
        writing = asyncio.create_task(write_until_refused(producer))
        reading = asyncio.create_task(read_until_refused(consumer))
        await admin.delete_topic(TOPIC)
        async with asyncio.timeout(WAIT_SECONDS):
            assert isinstance(await writing, UnknownTopicError)
            assert isinstance(await reading, UnknownTopicError)
        await admin.create_topic(TOPIC, partitions=PARTITIONS, replication_factor=2)
    await asyncio.to_thread(cluster.restart, sleeper)
    await eventually(lambda: not old_files & {path.name for path in data_files(cluster, sleeper)})
    async with (
        Producer(bootstrap_servers=cluster.address(sleeper)) as producer,
        Consumer(bootstrap_servers=cluster.address(sleeper), auto_offset_reset="earliest") as consumer,
    ):
        first = await producer.send_and_wait(TOPIC, b"new", partition=1)
        assert first.offset == 0
        consumer.assign([TopicPartition(TOPIC, n) for n in range(PARTITIONS)])
        async with asyncio.timeout(WAIT_SECONDS):
            assert (await anext(consumer)).value == b"new"


async def write_until_refused(producer: Producer) -> RaftMQError:
    while True:
        try:
            await producer.send_and_wait(TOPIC, b"old, too", partition=0)
        except RaftMQError as error:
            return error


async def read_until_refused(consumer: Consumer) -> RaftMQError:
    while True:
        try:
            await consumer.getmany(timeout_ms=200)
        except RaftMQError as error:
            return error


@pytest.mark.long
async def test_a_broker_with_stale_metadata_is_not_ready_before_it_has_caught_up(cluster: LocalCluster) -> None:
    """It was down while topics were created and deleted, and it starts while the up-to-date brokers are frozen."""
    stale, others = 3, (1, 2)
    cluster.kill(stale)
    async with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        await admin.create_topic("new", partitions=2, replication_factor=2)
        await admin.delete_topic(TOPIC)
    for broker_id in others:
        cluster.pause(broker_id)
    cluster.restart(stale, wait=False)
    for _ in range(30):
        assert not is_ready(cluster, stale)
        await asyncio.sleep(POLL_SECONDS)
    for broker_id in others:
        cluster.resume(broker_id)
    await asyncio.to_thread(cluster.wait_ready, stale)
    async with Admin(bootstrap_servers=cluster.address(stale)) as admin:
        assert [topic.name for topic in await admin.list_topics()] == ["new"]
    await eventually(lambda: all(path.name[0] != "1" for path in data_files(cluster, stale)))


def is_refused_by_stranger(cluster: LocalCluster, broker_id: int) -> bool:
    return "this broker belongs to cluster" in cluster.logs(broker_id)


@pytest.mark.long
async def test_a_broker_of_another_cluster_is_refused_by_both_other_brokers(
    cluster: LocalCluster, workload: Workload
) -> None:
    """Its data directory replaces that of a broker of this cluster, with the same broker id and the same addresses."""
    async with LocalCluster(brokers=3) as stranger:
        taken = 3
        cluster.kill(taken)
        stranger.kill(taken)
        own, foreign = cluster.data_dir(taken), stranger.data_dir(taken)
        parked = own.with_name("parked")
        shutil.move(own, parked)
        shutil.copytree(foreign, own)
        cluster.restart(taken, wait=False)
        await workload.wait_progress()
        for broker_id in (1, 2):
            await eventually(partial(is_refused_by_stranger, cluster, broker_id))
        await workload.wait_progress()
        cluster.kill(taken)
        shutil.rmtree(own)
        shutil.move(parked, own)
        await asyncio.to_thread(cluster.restart, taken)
        await workload.wait_progress()
        await workload.check()
