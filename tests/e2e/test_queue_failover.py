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

MESSAGES = 3_000
"""Messages that are put before each kill."""
KILLS = 2
LEASE_MS = 5_000
"""What the killed leader leased and did not deliver comes back after this time, counted from the next leader's confirmation."""


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
            await admin.create_topic("jobs", kind="queue", replication_factor=3, config={"lease.ms": str(LEASE_MS)})
        async with Queue("jobs", bootstrap_servers=servers) as queue:
            acknowledged: Counter[bytes] = Counter()
            in_flight = 0
            is_over = False

            async def ack(message: Message[bytes]) -> None:
                nonlocal in_flight
                in_flight += 1
                await message.ack()
                in_flight -= 1
                acknowledged[message.value] += 1

            async def work() -> None:
                async with asyncio.TaskGroup() as acks:
                    while not is_over:
                        for message in await queue.get_many(max_messages=50, wait_ms=200, lease_ms=LEASE_MS):
                            acks.create_task(ack(message))

            async with asyncio.timeout(2 * WAIT_SECONDS), asyncio.TaskGroup() as tasks:
                tasks.create_task(work())
                for kill in range(KILLS):
                    leader = cluster.wait_leaders("jobs")[0]
                    first = kill * MESSAGES
                    await queue.put_many(NewMessage(b"%d" % number) for number in range(first, first + MESSAGES))
                    while in_flight < 20:
                        await asyncio.sleep(0)
                    assert len(acknowledged) < first + MESSAGES
                    cluster.kill(leader)
                    while len(acknowledged) < first + MESSAGES:
                        await asyncio.sleep(0.01)
                    await asyncio.to_thread(cluster.restart, leader)
                is_over = True

            assert acknowledged == Counter(dict.fromkeys((b"%d" % number for number in range(KILLS * MESSAGES)), 1))
            stats = await queue.stats()
            assert (stats.ready, stats.delayed, stats.leased, stats.dead) == (0, 0, 0, 0)
