"""Several administrators change the same topics on real brokers: their answers fit one order of all changes."""

import asyncio
import time
from random import Random

import pytest
from raftmq import Admin
from raftmq.errors import RaftMQError
from raftmq.testing import LocalCluster

from sim.history.checker import judge
from sim.history.events import Event
from sim.history.recorder import Recorder
from sim.history.recording_admin import RecordingAdmin

pytestmark = [pytest.mark.e2e]

TOPICS = ("one", "two")
ADMINS = 3
OPERATIONS = 40
"""Operations of each administrator."""


async def administer(admin: RecordingAdmin, random: Random, operations: int) -> None:
    """Run random operations one after the other, and ignore refusals."""
    for _ in range(operations):
        topic = random.choice(TOPICS)
        try:
            match random.choices(["create", "alter", "describe", "add", "delete"], [3, 3, 4, 2, 1])[0]:
                case "create":
                    await admin.create_topic(topic, partitions=random.randint(1, 2), config={"retention.ms": 60_000})
                case "alter":
                    await admin.alter_topic_config(topic, {"retention.ms": 60_000 + random.randrange(1000)})
                case "describe":
                    await admin.describe_topic(topic)
                case "add":
                    await admin.add_partitions(topic, random.randint(2, 4))
                case _:
                    await admin.delete_topic(topic)
        except RaftMQError:
            continue


@pytest.mark.parametrize("is_a_broker_killed", [False, True])
@pytest.mark.long
async def test_changes_and_descriptions_by_several_administrators_are_linearizable(
    cluster: LocalCluster, is_a_broker_killed: bool
) -> None:
    """A broker without contact to a metadata leader may give stale descriptions, but says so. Everything else stays linearizable."""
    events: list[Event] = []
    recorder = Recorder(events.append, time.monotonic_ns)

    async def one(number: int) -> None:
        client = Admin(bootstrap_servers=cluster.bootstrap_servers)
        async with RecordingAdmin(client, recorder, f"admin-{number}") as admin:
            await administer(admin, Random(number), OPERATIONS)

    async with asyncio.TaskGroup() as running:
        for number in range(ADMINS):
            running.create_task(one(number))
        if is_a_broker_killed:
            cluster.kill(1)
            await asyncio.to_thread(cluster.restart, 1)
    verdict = judge(events)
    verdict.demand_clean()
    assert verdict.operation_count == ADMINS * OPERATIONS
    assert sum(by_status.get("ok", 0) for by_status in verdict.outcomes.values()) > OPERATIONS
