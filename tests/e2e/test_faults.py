"""Faults of the processes of three real brokers while a producer and a consumer work.

No acknowledged record is lost, no record is duplicated, offsets stay dense, order per key holds, and repeated reads agree.
"""

import asyncio
from collections import Counter

import pytest
from raftmq.testing import LocalCluster

from tests.support.e2e.helpers import TOPIC, busiest_leader, restart_all
from tests.support.e2e.workload import Workload

pytestmark = [pytest.mark.e2e]

FREEZE_SECONDS = 10.0


def leader_of_nothing_or_least(cluster: LocalCluster) -> int:
    led = Counter(dict.fromkeys(cluster.broker_ids, 0))
    led.update(cluster.wait_leaders(TOPIC).values())
    return led.most_common()[-1][0]


@pytest.mark.long
async def test_nothing_is_lost_when_a_leader_is_killed(cluster: LocalCluster, workload: Workload) -> None:
    victim = busiest_leader(cluster)
    cluster.kill(victim)
    await workload.wait_progress()
    assert victim not in cluster.wait_leaders(TOPIC, avoiding=victim).values()
    await asyncio.to_thread(cluster.restart, victim)
    await workload.wait_progress()
    await workload.check()


@pytest.mark.long
async def test_nothing_is_lost_when_a_follower_is_killed(cluster: LocalCluster, workload: Workload) -> None:
    victim = leader_of_nothing_or_least(cluster)
    cluster.kill(victim)
    await workload.wait_progress()
    await asyncio.to_thread(cluster.restart, victim)
    await workload.wait_progress()
    await workload.check()


async def test_nothing_acknowledged_is_lost_when_all_brokers_are_killed_simultaneously(
    cluster: LocalCluster, workload: Workload
) -> None:
    for broker_id in cluster.broker_ids:
        cluster.kill(broker_id)
    await restart_all(cluster)
    await workload.wait_progress()
    await workload.check()


@pytest.mark.long
async def test_a_restarted_replica_catches_up_and_completes_the_majority(
    cluster: LocalCluster, workload: Workload
) -> None:
    """Every majority afterwards needs the broker that was down, so the records it missed must have reached its disk."""
    first, second, _ = cluster.broker_ids
    cluster.kill(first)
    await workload.wait_progress()
    await asyncio.to_thread(cluster.restart, first)
    await workload.wait_progress()
    cluster.kill(second)
    await workload.wait_progress()
    await asyncio.to_thread(cluster.restart, second)
    await workload.check()


@pytest.mark.long
async def test_nothing_is_lost_when_brokers_are_restarted_one_after_the_other(
    cluster: LocalCluster, workload: Workload
) -> None:
    for broker_id in cluster.broker_ids:
        assert await asyncio.to_thread(cluster.stop, broker_id) == 0
        await workload.wait_progress()
        await asyncio.to_thread(cluster.restart, broker_id)
        await workload.wait_progress()
    await workload.check()


@pytest.mark.long
async def test_a_leader_frozen_for_ten_seconds_is_replaced_and_nothing_is_lost(
    cluster: LocalCluster, workload: Workload
) -> None:
    victim = busiest_leader(cluster)
    loop = asyncio.get_running_loop()
    cluster.pause(victim)
    thaw_at = loop.time() + FREEZE_SECONDS
    replaced = await asyncio.to_thread(cluster.wait_leaders, TOPIC, avoiding=victim)
    assert victim not in replaced.values()
    await workload.wait_progress()
    while loop.time() < thaw_at:
        await workload.wait_progress(records=100)
    cluster.resume(victim)
    await workload.wait_progress()
    await workload.check()


@pytest.mark.long
async def test_acknowledged_records_survive_a_restart_of_the_whole_cluster(
    cluster: LocalCluster, workload: Workload
) -> None:
    await workload.finish()
    for broker_id in cluster.broker_ids:
        await asyncio.to_thread(cluster.stop, broker_id)
    await restart_all(cluster)
    await workload.check()
