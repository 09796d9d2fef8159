"""The commands of a queue partition, as its leader gathers them into entries."""

from __future__ import annotations

import asyncio
from pathlib import Path

from raftmq.broker.partitions.queue.commands import ENTRY_BYTES_MAX
from raftmq.client.codec.queue_batch import TimeColumns
from raftmq.fsm.queue.commands import NEVER, Lease, Operation, PutSchedule, Settle
from raftmq.fsm.queue.results import Code, Leased, Settled

from tests.support.broker.harness import running
from tests.support.broker.queue_node import queue_node
from tests.support.broker.queues import poll, put, queue_of, queue_topic


async def test_large_commands_are_spread_over_entries(tmp_path: Path) -> None:
    """A deploy puts hundreds of schedules in one turn: 500 of 64 KiB once made an entry that no peer frame holds."""
    async with queue_node(tmp_path) as node:
        queue = await node.queue()
        replica = queue.partition.replica
        first = replica.core.last_index + 1
        puts = [PutSchedule(f"s{number}", bytes(60_000), NEVER) for number in range(60)]
        await asyncio.gather(*map(queue.partition.commands.submit, puts))
        entries = node.store.entries(replica.key, first, replica.core.last_index, 1 << 30)
        assert len(queue.machine.schedules.table.by_key) == 60
        assert max(len(entry.payload) for entry in entries) <= ENTRY_BYTES_MAX + 100
        assert len(entries) < 20, "they are still gathered"


async def test_a_lease_that_meets_expired_messages_leaves_work_for_the_settlements_of_its_entry() -> None:
    """A lease removes the expired messages that it meets, and so used up the work of an entry: acknowledgements after it were refused for good."""
    async with running() as node:
        topic = await queue_topic(node)
        queue = queue_of(node, topic)
        await put(node, topic, b"worked on")
        (message,) = await poll(node, topic)
        for _ in range(3):
            await put(node, topic, *[b"x"] * 500, expiry=TimeColumns(after_ms=[1_000] * 500))
        node.clock_ms += 2_000
        leased = queue.commands.submit(Lease(0, 0, 10, 30_000))
        settled = queue.commands.submit(
            Settle(0, 0, (Operation.ACCEPT,), (message.sequence,), (1,), (message.lease_number,))
        )
        first, last = await settled, await leased
        assert isinstance(first, Settled)
        assert isinstance(last, Leased)
        assert first.codes == (Code.OK,)
        assert not last.counts
