"""Measures consumer groups: a thousand members in fifty groups, a coordinator's death, and a rebalance of 900 partitions.

Usage: python -m bench.groups. Members are protocol members of one
process (`group_members`); three brokers, replication factor 3. Every figure is checked: nobody expires, nothing moves that
need not, every partition has one owner.
"""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import raftmq
from raftmq.testing import LocalCluster

from bench.group_members import Brokers, Leaders, ProtocolMember, wait_settled

MEMBERS = 1000
GROUPS = 50
PARTITIONS = 60
STEADY_SECONDS = 20
REBALANCED_PARTITIONS = 900
"""KIP-848's example: ten members and 900 partitions."""


async def bench_thousand_members(cluster: LocalCluster) -> dict[str, float]:
    """Join, hold still, lose the coordinator, hold still again."""
    servers = cluster.bootstrap_servers
    async with raftmq.Admin(bootstrap_servers=servers) as admin:
        await admin.create_topic("bench-groups", partitions=PARTITIONS, replication_factor=3)
    brokers = Brokers(servers.split(","))
    members = [ProtocolMember(brokers, f"group-{n % GROUPS:02d}", ("bench-groups",)) for n in range(MEMBERS)]
    for member in members:
        member.start()
    joined_seconds = await wait_settled(members, 120)
    check_division(members)
    figures = {"join_all_seconds": joined_seconds}

    beats, cpu = sum(member.heartbeats for member in members), _cpu(cluster)
    changes = sum(len(member.changes) for member in members)
    began = time.perf_counter()
    await asyncio.sleep(STEADY_SECONDS)
    seconds = time.perf_counter() - began
    figures["heartbeats_per_second"] = (sum(member.heartbeats for member in members) - beats) / seconds
    figures["brokers_cpu_percent"] = 100 * (_cpu(cluster) - cpu) / seconds
    assert sum(len(member.changes) for member in members) == changes, "nothing moves in a group that does not change"

    epochs = [member.epoch for member in members]
    coordinator = brokers.coordinator_node_id
    beats = sum(member.heartbeats for member in members)
    for member in members:
        member.slowest_seconds = 0.0
    cluster.kill(coordinator)
    killed = time.perf_counter()
    while brokers.coordinator_node_id in (0, coordinator):  # noqa: ASYNC110 -- another process
        await asyncio.sleep(0.02)
    figures["coordinator_failover_seconds"] = time.perf_counter() - killed
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
    """Ten members that have everything, and ten more: half of the partitions move, fenced in their logs before they are read."""
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


def check_division(members: list[ProtocolMember]) -> None:
    """Every partition of a group has one owner, and counts differ by at most one."""
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
    for node_id in cluster.node_ids:
        if cluster.is_running(node_id):
            fields = Path(f"/proc/{cluster.pid(node_id)}/stat").read_text().rsplit(")", 1)[1].split()
            total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


def bench_groups() -> dict[str, float]:
    """Both, each on a cluster of its own."""
    with LocalCluster(brokers=3) as cluster:
        figures = asyncio.run(bench_thousand_members(cluster))
    with LocalCluster(brokers=3) as cluster:
        return figures | asyncio.run(bench_rebalance(cluster))


if __name__ == "__main__":
    for name, value in bench_groups().items():
        print(f"{name:<30} {value:>10,.2f}")
