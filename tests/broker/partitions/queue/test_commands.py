"""The commands of a queue partition, as its leader gathers them into entries."""

from __future__ import annotations

import asyncio
from pathlib import Path

from raftmq.broker.partitions.queue.commands import ENTRY_BYTES_MAX
from raftmq.fsm.queue.commands import NEVER, PutSchedule

from tests.support.broker.queue_node import queue_node


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
