"""A consumer keeps its stream and its unanswered settlements while the leader of its partition is killed, over both transports."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from raftmq import Admin, Message, NewMessage, Queue
from raftmq.client.connection.data_port import DataPort
from raftmq.testing import LocalCluster

from tests.support.e2e.helpers import WAIT_SECONDS
from tests.support.e2e.raftmq_command import RAFTMQ

pytestmark = [pytest.mark.e2e, pytest.mark.long]

MESSAGES = 6_000
KILLS = 2
LEASE_MS = 5_000


@pytest.mark.parametrize("transport", ["data connections", "gRPC"])
async def test_settlements_in_flight_are_answered_after_the_leader_was_killed(
    transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each ack returns, and no message comes again after its ack."""
    if transport == "gRPC":
        monkeypatch.setattr(DataPort, "connection", lambda _port, _method_number: None)
    async with LocalCluster(brokers=3, command=RAFTMQ) as cluster:
        servers = cluster.bootstrap_servers
        async with Admin(bootstrap_servers=servers) as admin:
            await admin.create_topic("jobs", kind="queue", replication_factor=3)
        async with Queue("jobs", bootstrap_servers=servers) as queue:
            await queue.put_many(NewMessage(b"%d" % number) for number in range(MESSAGES))
            acknowledged: Counter[bytes] = Counter()
            in_flight = 0
            killed_during: list[int] = []

            async def ack(message: Message[bytes]) -> None:
                nonlocal in_flight
                in_flight += 1
                await message.ack()
                in_flight -= 1
                acknowledged[message.value] += 1

            async def work() -> None:
                async with asyncio.TaskGroup() as acks:
                    while len(acknowledged) < MESSAGES:
                        for message in await queue.get_many(max_messages=50, wait_ms=200, lease_ms=LEASE_MS):
                            acks.create_task(ack(message))
                        await asyncio.sleep(0)

            async def kill_leaders() -> None:
                for number in range(KILLS):
                    while len(acknowledged) < MESSAGES * (number + 1) // (KILLS + 2) or in_flight < 20:
                        await asyncio.sleep(0)
                    leader = cluster.wait_leaders("jobs")[0]
                    while not in_flight and len(acknowledged) < MESSAGES:
                        await asyncio.sleep(0)
                    killed_during.append(in_flight)
                    cluster.kill(leader)
                    await asyncio.to_thread(cluster.restart, leader)

            async with asyncio.timeout(2 * WAIT_SECONDS), asyncio.TaskGroup() as tasks:
                tasks.create_task(work())
                tasks.create_task(kill_leaders())

            assert len(killed_during) == KILLS
            assert all(killed_during), "settlements were in flight"
            assert acknowledged == Counter(dict.fromkeys((b"%d" % number for number in range(MESSAGES)), 1))
            stats = await queue.stats()
            assert (stats.ready, stats.delayed, stats.leased, stats.dead) == (0, 0, 0, 0)
