"""All brokers are restarted in the order of the plan while clients work, which notice nothing."""

import asyncio
import json

import pytest
from raftmq import Admin, Consumer
from raftmq.testing import LocalCluster

from sim.history.events import Event
from tests.e2e.test_growth import assert_each_once, consume
from tests.support.e2e.raftmq_command import raftmq
from tests.support.e2e.workload import Workload

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.long]

TOPIC = "orders"
PARTITIONS = 6
WAIT_SECONDS = 60.0


def longest_append_seconds(events: list[Event]) -> float:
    """Return the longest time from a send to its acknowledgement."""
    sent = {event.id: event.time for event in events if event.operation == "send" and event.kind == "invoke"}
    return (
        max(event.time - sent[event.id] for event in events if event.operation == "send" and event.kind == "ok") / 1e9
    )


async def wait_until_free(cluster: LocalCluster) -> None:
    """Wait until the next broker may be restarted."""
    async with asyncio.timeout(WAIT_SECONDS):
        while (await asyncio.to_thread(raftmq, cluster, "cluster", "status")).returncode != 0:
            await asyncio.sleep(0.2)


async def test_a_rolling_restart_of_all_brokers_is_not_noticed_by_clients() -> None:
    """No error, no duplicate, nothing lost, neither for a member of a group. The longest append is printed: its time depends on the machine.
    `tests/sim/cluster/test_rolling_restart.py` limits it in virtual time.
    """
    async with LocalCluster(brokers=3) as cluster, Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        await admin.create_topic(TOPIC, partitions=PARTITIONS, replication_factor=3)
        stopped = asyncio.Event()
        async with (
            Workload(cluster.bootstrap_servers, TOPIC, PARTITIONS) as workload,
            Consumer(
                TOPIC, group_id="restarts", bootstrap_servers=cluster.bootstrap_servers, auto_offset_reset="earliest"
            ) as member,
        ):
            consuming = asyncio.create_task(consume(member, stopped))
            await workload.wait_progress()
            await wait_until_free(cluster)
            planned = await asyncio.to_thread(raftmq, cluster, "cluster", "restart-plan", "--output", "json")
            assert planned.returncode == 0
            order = [restart["broker_id"] for restart in json.loads(planned.stdout)["restarts"]]
            assert sorted(order) == [1, 2, 3]
            for broker_id in order:
                assert await asyncio.to_thread(cluster.stop, broker_id) == 0
                await asyncio.to_thread(cluster.restart, broker_id)
                await wait_until_free(cluster)
                await workload.wait_progress()
                assert not consuming.done(), "an error ended the member"
            stopped.set()
            assert_each_once(await consuming, PARTITIONS)
            await workload.check()
            print(f"the longest append took {longest_append_seconds(workload.events):.3f} s")
