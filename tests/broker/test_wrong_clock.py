"""On real disks and sockets, one of three whole nodes leads with a wall clock that is days wrong."""

from __future__ import annotations

import asyncio

import pytest
from raftmq.broker.base.clock import WallClock
from raftmq.broker.base.readiness import Reason
from raftmq.broker.environment import NodeEnvironment
from raftmq.client.admin.admin import Admin
from raftmq.client.producer.producer import Producer

from tests.support.broker.whole_nodes import WAIT_SECONDS, three_voters, until

HOUR_MS = 3_600_000


class SetParts(NodeEnvironment):
    """Parts of a node whose wall clock the test sets."""

    def clock(self):
        self.wall = WallClock()
        self.wrong_ms = 0
        return self

    def now_ms(self):
        return self.wall.now_ms() + self.wrong_ms

    def boottime_ns(self):
        return self.wall.boottime_ns()


@pytest.mark.parametrize("hours", [200, -200])
async def test_a_leader_with_a_wrong_clock_deletes_nothing_says_so_and_hands_over(nodes, hours):
    """Records are kept for a week. By a clock that is 200 h ahead every record is too old."""
    first = await nodes.serve("one", SetParts, bootstrap=True)
    others = [await nodes.serve(name, join=(first.addresses.peer,)) for name in ("two", "three")]
    everyone = [first, *others]
    await three_voters(first)
    async with Admin(bootstrap_servers=first.addresses.client) as admin:
        await admin.create_topic("flights", 3, 3)
    async with Producer(bootstrap_servers=first.addresses.client) as producer:
        for number in range(3):
            await producer.send_and_wait("flights", b"before", partition=number)
        await lead_everything(first, others)
        first._parts.wrong_ms = hours * HOUR_MS
        for number in range(3):
            await producer.send_and_wait("flights", b"after", partition=number)
        await until(first, Reason.CLOCK_DIFFERS)
        assert first.clock_watch.offset_seconds == pytest.approx(hours * 3600, abs=5)
        for node in everyone:
            await node.upkeep.housekeeping.round()
        async with asyncio.timeout(WAIT_SECONDS):
            while any(replica.is_leader for replica in first.engine.replicas.values()):
                await asyncio.sleep(0.05)
        for number in range(3):
            await producer.send_and_wait("flights", b"later", partition=number)
        first._parts.wrong_ms = 0
        await until(first)
    for node in everyone:
        await node.upkeep.housekeeping.round()
        for partition in node.partitions.values():
            assert partition.log_start_offset == 0
            async with asyncio.timeout(WAIT_SECONDS):
                while partition.high_watermark < 3:
                    await asyncio.sleep(0.01)
    times = [entry.append_time_ms for entry in await everyone[1].partitions[1].read(0, 1 << 20)]
    assert times[-1] - times[0] < HOUR_MS, "entries are stamped with the majority's time"


async def lead_everything(node, others):
    """Wait until it leads all partitions."""
    async with asyncio.timeout(WAIT_SECONDS):
        while not all(partition.replica.is_leader for partition in node.partitions.values()):
            for other in others:
                for group_id, partition in other.partitions.items():
                    if partition.replica.is_leader:
                        partition.replica.core.transfer_leader(node.partitions[group_id].replica.replica_id)
                        other.engine.mark_dirty(partition.replica)
            await asyncio.sleep(0.3)
