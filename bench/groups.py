"""Measure consumer groups: a thousand members in fifty groups, a coordinator's death, and a rebalance of 900 partitions.

Usage: python -m bench --only groups, or python -m bench.groups. The thousand members are protocol members in one process
(`group_members`). The rebalanced members are consumers of the SDK. There are three brokers, with replication factor 3. Every run is
checked: no member expires, no partition moves needlessly, and every partition has one owner.
"""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import AsyncExitStack
from pathlib import Path

import raftmq
from raftmq.testing import LocalCluster

from bench.group_members import Brokers, Leaders, ProtocolMember, wait_settled
from bench.workloads import Figure

MEMBERS = 1000
GROUPS = 50
PARTITIONS = 60
STEADY_SECONDS = 20
MEMBERS_REBALANCED = 10
REBALANCED_PARTITIONS = 900
"""KIP-848's example: ten members and 900 partitions."""


async def bench_thousand_members(cluster: LocalCluster) -> dict[str, float]:
    """Measure the join, a steady time, the loss of the coordinator, and another steady time."""
    servers = cluster.bootstrap_servers
    async with raftmq.Admin(bootstrap_servers=servers) as admin:
        await admin.create_topic("bench-groups", partitions=PARTITIONS, replication_factor=3)
    brokers = Brokers(servers.split(","))
    members = [ProtocolMember(brokers, f"group-{n % GROUPS:02d}", ("bench-groups",)) for n in range(MEMBERS)]
    for member in members:
        member.start()
    joined_seconds = await wait_settled(members, 120)
    check_division(members)
    figures = {"join_all": joined_seconds}

    heartbeats, cpu = sum(member.heartbeats for member in members), _cpu(cluster)
    changes = sum(len(member.changes) for member in members)
    began = time.perf_counter()
    await asyncio.sleep(STEADY_SECONDS)
    seconds = time.perf_counter() - began
    figures["heartbeats"] = (sum(member.heartbeats for member in members) - heartbeats) / seconds
    figures["brokers_cpu"] = 100 * (_cpu(cluster) - cpu) / seconds
    assert sum(len(member.changes) for member in members) == changes, "nothing moves in a group that does not change"

    epochs = [member.epoch for member in members]
    coordinator = brokers.coordinator_broker_id
    heartbeats = sum(member.heartbeats for member in members)
    for member in members:
        member.slowest_seconds = 0.0
    cluster.kill(coordinator)
    killed = time.perf_counter()
    while brokers.coordinator_broker_id in (0, coordinator):  # noqa: ASYNC110 -- another process
        await asyncio.sleep(0.02)
    figures["coordinator_failover"] = time.perf_counter() - killed
    await asyncio.sleep(STEADY_SECONDS)
    await wait_settled(members, 60)
    assert sum(member.lost for member in members) == 0, "a coordinator's death expires nobody"
    assert [member.epoch for member in members] == epochs, "and moves nothing"
    check_division(members)
    for member in members:
        member.kill()
    await brokers.close()
    return figures


async def bench_rebalance(cluster: LocalCluster) -> dict[str, float]:
    """Measure ten members, and ten more. Half of the partitions move, and their logs fence the former owners."""
    servers = cluster.bootstrap_servers
    async with raftmq.Admin(bootstrap_servers=servers) as admin:
        await admin.create_topic("bench-rebalance", partitions=REBALANCED_PARTITIONS, replication_factor=3)
    await asyncio.to_thread(cluster.wait_leaders, "bench-rebalance")
    brokers = Brokers(servers.split(","))
    leaders = Leaders(brokers)
    members = [ProtocolMember(brokers, "rebalance", ("bench-rebalance",), leaders=leaders) for _ in range(10)]
    for member in members:
        member.start()
    first = await wait_settled(members, 120)
    check_division(members)
    kept = {part: epoch for member in members for part, epoch in member.held.items()}
    newcomers = [ProtocolMember(brokers, "rebalance", ("bench-rebalance",), leaders=leaders) for _ in range(10)]
    for member in newcomers:
        member.start()
    second = await wait_settled([*members, *newcomers], 120)
    check_division([*members, *newcomers])
    for member in members:
        assert all(kept[part] == epoch for part, epoch in member.held.items()), "what stays is never touched"
    moved = sum(len(member.held) for member in newcomers)
    assert moved == REBALANCED_PARTITIONS // 2
    for member in (*members, *newcomers):
        member.kill()
    await brokers.close()
    return {"assign_all_seconds": first, "move_half_seconds": second, "moved_partitions": moved}


class _Timed(raftmq.RebalanceListener):
    """Record the last time that an SDK consumer was told to get or release partitions."""

    def __init__(self) -> None:
        self.heard_at = 0.0
        self.revoked: set[raftmq.TopicPartition] = set()

    async def on_assigned(self, partitions: frozenset[raftmq.TopicPartition]) -> None:
        self.heard_at = time.perf_counter()

    async def on_revoked(self, partitions: frozenset[raftmq.TopicPartition]) -> None:
        self.heard_at = time.perf_counter()
        self.revoked |= partitions


async def bench_sdk_rebalance(cluster: LocalCluster, partitions: int = REBALANCED_PARTITIONS) -> dict[str, float]:
    """Measure ten SDK consumers, and ten more. Half of the partitions move while the others are still read."""
    servers, topic, half = cluster.bootstrap_servers, "bench-rebalance", MEMBERS_REBALANCED
    async with raftmq.Admin(bootstrap_servers=servers) as admin:
        await admin.create_topic(topic, partitions=partitions, replication_factor=3)
    await asyncio.to_thread(cluster.wait_leaders, topic)
    async with AsyncExitStack() as stack:
        listeners = [_Timed() for _ in range(2 * half)]
        consumers = [
            raftmq.Consumer(topic, bootstrap_servers=servers, group_id="rebalance", listener=listener)
            for listener in listeners
        ]
        reading: list[asyncio.Task[None]] = []
        first = await _started(stack, consumers[:half], reading, partitions // half)
        states = [dict(consumer._fetcher.partitions) for consumer in consumers[:half]]
        second = await _started(stack, consumers[half:], reading, partitions // half // 2, consumers[:half])
        for consumer, listener, before in zip(consumers[:half], listeners, states, strict=False):
            after = consumer._fetcher.partitions
            assert all(after[partition] is before[partition] for partition in after), "what stays is never touched"
            assert listener.revoked == before.keys() - after.keys()
            assert consumer.metrics().lost_total == 0
        everything = [partition for consumer in consumers for partition in consumer.assignment()]
        assert len(everything) == len(set(everything)) == partitions
        for task in reading:
            task.cancel()
        await asyncio.gather(*reading, return_exceptions=True)
    return {"assign_all": first, "move_half": second}


async def _started(
    stack: AsyncExitStack,
    starting: list[raftmq.Consumer],
    reading: list[asyncio.Task[None]],
    share: int,
    running: list[raftmq.Consumer] | None = None,
) -> float:
    """Start consumers simultaneously. Return the seconds until all of the consumer group have their share."""
    began = time.perf_counter()
    await asyncio.gather(*(stack.enter_async_context(consumer) for consumer in starting))
    reading += [asyncio.create_task(_read(consumer)) for consumer in starting]
    everyone = [*starting, *(running or ())]
    async with asyncio.timeout(120):
        while any(len(consumer.assignment()) != share for consumer in everyone):  # noqa: ASYNC110 -- brokers in other processes
            await asyncio.sleep(0.01)
    return time.perf_counter() - began


async def _read(consumer: raftmq.Consumer) -> None:
    while True:
        await consumer.getmany(timeout_ms=100)


def check_division(members: list[ProtocolMember]) -> None:
    """Check that every partition of a consumer group has one owner, and that counts differ by at most one."""
    by_group: dict[str, list[ProtocolMember]] = {}
    for member in members:
        by_group.setdefault(member.group, []).append(member)
    for group in by_group.values():
        held = [part for member in group for part in member.held]
        assert len(held) == len(set(held)) > 0
        counts = [len(member.held) for member in group]
        assert max(counts) - min(counts) <= 1


def _cpu(cluster: LocalCluster) -> float:
    total = 0.0
    for broker_id in cluster.broker_ids:
        if cluster.is_running(broker_id):
            fields = Path(f"/proc/{cluster.pid(broker_id)}/stat").read_text().rsplit(")", 1)[1].split()
            total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


def figures() -> tuple[Figure, ...]:
    """Return the figures and their targets."""
    return (
        Figure("join_all", "s", is_higher_better=False),
        Figure("heartbeats", "/s", is_higher_better=True),
        Figure("brokers_cpu", "% of a core", is_higher_better=False),
        Figure("coordinator_failover", "s", is_higher_better=False),
        Figure("assign_all", "s", is_higher_better=False, target=5.0),
        Figure("move_half", "s", is_higher_better=False, target=5.0),
    )


def measure() -> dict[str, float]:
    """Measure both, each on its own cluster."""
    with LocalCluster(brokers=3) as cluster:
        found = asyncio.run(bench_thousand_members(cluster))
    with LocalCluster(brokers=3) as cluster:
        return found | asyncio.run(bench_sdk_rebalance(cluster))


def _protocol_rebalance() -> dict[str, float]:
    with LocalCluster(brokers=3) as cluster:
        return asyncio.run(bench_rebalance(cluster))


if __name__ == "__main__":
    for name, value in (measure() | _protocol_rebalance()).items():
        print(f"{name:<30} {value:>10,.2f}")
