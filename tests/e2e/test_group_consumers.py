"""The SDK's group consumers on real brokers: rebalances, a frozen process, a blocked event loop, a killed coordinator."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack

import pytest
from raftmq import Admin, Consumer, Producer, RebalanceListener, Record, TopicPartition
from raftmq.testing import LocalCluster

pytestmark = [pytest.mark.e2e]

WAIT_SECONDS = 90.0
PARTITIONS = 6


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=3) as running:
        yield running


@pytest.fixture
async def topic(cluster: LocalCluster, request: pytest.FixtureRequest) -> str:
    """Create a topic for the test and return its name, which is also the group's."""
    name = f"consumers-{abs(hash(request.node.nodeid))}"
    async with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        await admin.create_topic(name, partitions=PARTITIONS, replication_factor=3)
    return name


def member(cluster: LocalCluster, topic: str, **settings: object) -> Consumer:
    usual: dict[str, object] = {"group_id": topic, "auto_offset_reset": "earliest", "request_timeout_ms": 60_000}
    return Consumer(topic, bootstrap_servers=cluster.bootstrap_servers, **(usual | settings))


async def produce(cluster: LocalCluster, topic: str, count: int, partitions: range = range(PARTITIONS)) -> None:
    async with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        for number in partitions:
            await producer.send_many(topic, [(None, b"%d" % n) for n in range(count)], partition=number)


async def take(consumer: Consumer, seen: list[Record]) -> None:
    for records in (await consumer.getmany(timeout_ms=50)).values():
        seen += records


# ---------------------------------------------------------------------------------------------------------- rebalances


async def test_kept_partitions_are_read_during_a_rebalance_and_three_consumers_share(
    cluster: LocalCluster, topic: str
) -> None:
    """The first consumer must release three of six partitions. It does so only after it has read new records of the other three."""
    seen: dict[str, list[Record]] = {"1": [], "2": [], "3": []}
    going: list[frozenset[TopicPartition]] = []
    may_release = asyncio.Event()

    class Slow(RebalanceListener):
        async def on_revoked(self, partitions: frozenset[TopicPartition]) -> None:
            if not going:
                going.append(partitions)
                await may_release.wait()

    async with AsyncExitStack() as stack, asyncio.timeout(WAIT_SECONDS):
        first = await stack.enter_async_context(member(cluster, topic, listener=Slow()))
        while len(first.assignment()) < PARTITIONS:
            await take(first, seen["1"])
        second = await stack.enter_async_context(member(cluster, topic))
        while not going:
            await take(first, seen["1"])
            await take(second, seen["2"])
        stays = first.assignment() - going[0]
        assert len(stays) == PARTITIONS // 2
        await produce(cluster, topic, 100)
        while {(r.partition, r.offset) for r in seen["1"]} < {(p.partition, n) for p in stays for n in range(100)}:
            await take(first, seen["1"])
        assert {r.partition for r in seen["1"]} == {p.partition for p in stays}, (
            "no record of a revoked partition is delivered"
        )
        assert second.assignment() == frozenset(), "no partition is assigned before its release"
        may_release.set()
        third = await stack.enter_async_context(member(cluster, topic))
        consumers = {"1": first, "2": second, "3": third}
        while sum(map(len, seen.values())) < 100 * PARTITIONS or any(
            len(consumer.assignment()) != 2 for consumer in consumers.values()
        ):
            for name, consumer in consumers.items():
                await take(consumer, seen[name])
        assert frozenset().union(*(consumer.assignment() for consumer in consumers.values())) == {
            TopicPartition(topic, number) for number in range(PARTITIONS)
        }
        everything = sorted((r.partition, r.offset) for records in seen.values() for r in records)
        assert everything == [(p, n) for p in range(PARTITIONS) for n in range(100)], (
            "none twice, as all were processed"
        )


async def test_a_blocked_event_loop_loses_no_partition_and_is_reported(
    cluster: LocalCluster, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The loop is blocked for three times its session timeout. Heartbeats continue outside the loop."""
    await produce(cluster, topic, 10)
    settings = {"session_timeout_ms": 1500, "heartbeat_interval_ms": 300}
    async with member(cluster, topic, **settings) as consumer, asyncio.timeout(WAIT_SECONDS):
        seen: list[Record] = []
        while len(seen) < 10 * PARTITIONS:
            await take(consumer, seen)
        before = consumer.metrics()
        keep_the_loop(4.5)
        await consumer.commit()
        await produce(cluster, topic, 1)
        while len(seen) < 11 * PARTITIONS:
            await take(consumer, seen)
        after = consumer.metrics()
    assert (after.lost_total, after.assigned_total, after.revoked_total) == (0, PARTITIONS, 0)
    assert after.heartbeats_total > before.heartbeats_total + 4
    warnings = [record.getMessage() for record in caplog.records if "event_loop_blocked" in record.msg]
    assert any("keep_the_loop" in warning for warning in warnings), warnings


def keep_the_loop(seconds: float) -> None:
    time.sleep(seconds)


# --------------------------------------------------------------------------------------------------------------- fencing

FROZEN = """
import asyncio, json, sys
from raftmq import Consumer, RebalanceListener, errors

def say(**what):
    print(json.dumps(what), flush=True)

class Telling(RebalanceListener):
    async def on_assigned(self, partitions):
        say(heard="assigned", count=len(partitions))
    async def on_lost(self, partitions):
        say(heard="lost", count=len(partitions))

async def main(servers, topic):
    loop = asyncio.get_running_loop()
    async with Consumer(topic, bootstrap_servers=servers, group_id=topic, auto_offset_reset="earliest", listener=Telling(),
                        enable_auto_commit=False, session_timeout_ms=3000, heartbeat_interval_ms=500) as consumer:
        seen = {}
        while len(seen) < 1:
            for tp, records in (await consumer.getmany(timeout_ms=100, max_records=5)).items():
                seen[tp] = records[-1].offset + 1
        say(read=list(seen.values()))
        await loop.run_in_executor(None, sys.stdin.readline)
        try:
            await consumer.commit(seen)
            say(commit="ok")
        except errors.FencedError as error:
            say(commit="FencedError", text=str(error))
        while True:
            for tp, records in (await consumer.getmany(timeout_ms=100)).items():
                say(first=records[0].offset, partition=tp.partition)
                return

asyncio.run(main(*sys.argv[1:]))
"""


async def test_a_frozen_consumer_loses_its_partitions_its_commit_is_refused_and_it_rejoins(
    cluster: LocalCluster, topic: str
) -> None:
    await produce(cluster, topic, 100, range(1))
    frozen = subprocess.Popen(
        [sys.executable, "-c", FROZEN, cluster.bootstrap_servers, topic],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        async with asyncio.timeout(WAIT_SECONDS):
            await story_of_the_frozen(cluster, topic, frozen)
    finally:
        frozen.kill()
        frozen.wait()
        for stream in (frozen.stdin, frozen.stdout):
            if stream is not None:
                stream.close()


async def story_of_the_frozen(cluster: LocalCluster, topic: str, frozen: "subprocess.Popen[str]") -> None:
    assert frozen.stdin is not None
    assert frozen.stdout is not None
    lines = frozen.stdout

    async def said(key: str) -> dict[str, object]:
        while True:
            line = await asyncio.to_thread(lines.readline)
            assert line, "it ended"
            found: dict[str, object] = json.loads(line)
            if key in found:
                return found

    assert (await said("read"))["read"] == [5]
    os.kill(frozen.pid, signal.SIGSTOP)
    seen: list[Record] = []
    async with member(cluster, topic, enable_auto_commit=False) as other:
        while len(seen) < 100:
            await take(other, seen)
        assert [record.offset for record in seen] == list(range(100)), "nothing was committed before"
        await other.commit({TopicPartition(topic, 0): 60})
        frozen.stdin.write("\n")
        frozen.stdin.flush()
        os.kill(frozen.pid, signal.SIGCONT)
        assert (await said("commit"))["commit"] == "FencedError"
        assert await other.committed(TopicPartition(topic, 0)) == {TopicPartition(topic, 0): 60}
    assert await said("first") == {"first": 60, "partition": 0}
    assert await asyncio.to_thread(frozen.wait) == 0


# ------------------------------------------------------------------------------------------------------- the coordinator


async def coordinator_of(admin: Admin) -> int:
    return (await admin.describe_cluster()).metadata_leader_broker_id


@pytest.mark.long
async def test_thirty_consumers_survive_the_death_of_their_coordinator(cluster: LocalCluster, topic: str) -> None:
    """No member expires, and no partition is lost or moved, although each session is shorter than the wait of the test."""
    async with AsyncExitStack() as stack, asyncio.timeout(3 * WAIT_SECONDS):
        admin = await stack.enter_async_context(Admin(bootstrap_servers=cluster.bootstrap_servers))
        consumers = [
            await stack.enter_async_context(member(cluster, topic, session_timeout_ms=8000, heartbeat_interval_ms=1000))
            for _ in range(30)
        ]
        seen: list[Record] = []

        async def read_on() -> None:
            await asyncio.gather(*(take(consumer, seen) for consumer in consumers))

        while sum(len(consumer.assignment()) for consumer in consumers) < PARTITIONS:
            await read_on()
        for _ in range(40):
            await read_on()
        before = [consumer.assignment() for consumer in consumers]
        members = {one.member_id for one in (await admin.describe_group(topic)).members}
        assert len(members) == 30
        killed = await coordinator_of(admin)
        cluster.kill(killed)
        try:
            ends = time.monotonic() + 20
            await produce(cluster, topic, 20)
            while time.monotonic() < ends or len(seen) < 20 * PARTITIONS:
                await read_on()
            assert [consumer.assignment() for consumer in consumers] == before
            assert {one.member_id for one in (await admin.describe_group(topic)).members} == members
            assert sum(consumer.metrics().lost_total for consumer in consumers) == 0
            assert sorted((r.partition, r.offset) for r in seen) == [
                (p, n) for p in range(PARTITIONS) for n in range(20)
            ]
        finally:
            cluster.restart(killed)
