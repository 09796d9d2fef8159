"""The reader of bodies keeps some in memory, over real files."""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from raftmq.broker.partitions.queue.bodies import CACHED_COLUMNS_BYTES_MAX
from raftmq.queue_batch import MessageColumns

from tests.support.broker.queue_node import Queue, queue_node


@pytest.fixture
async def queue(tmp_path: Path) -> AsyncIterator[Queue]:
    async with queue_node(tmp_path) as node:
        yield await node.queue()


async def test_a_body_that_was_read_keeps_no_entry_in_memory(queue: Queue) -> None:
    first = await queue.put_columns(MessageColumns([b"one", b"two"]))
    recent = queue.partition.replica.log.recent
    index = recent.index_of_offset(first)
    assert index is not None
    entry = recent.get(index)
    assert entry is not None
    holders = sys.getrefcount(entry.payload)
    found = queue.partition.bodies.in_memory([first, first + 1])
    values = [] if found is None else [bytes(one.body) for one in found]
    holders_meanwhile = sys.getrefcount(entry.payload)
    del found
    holders_afterwards = sys.getrefcount(entry.payload)
    assert holders_afterwards == holders
    assert holders_meanwhile > holders, "a body shares the memory of its entry"
    assert values == [b"one", b"two"]


async def test_unpacked_columns_have_a_bound_in_bytes(queue: Queue) -> None:
    bodies, recent = queue.partition.bodies, queue.partition.replica.log.recent
    half = 8 * 1024
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for number in range(4 * CACHED_COLUMNS_BYTES_MAX // (16 * 2 * half)):
            headers = [bytes([number, place]) * half for place in range(16)]
            sequence = await queue.put_columns(MessageColumns([b""] * 16, headers=headers))
            del headers
            assert bodies.in_memory([sequence])
            recent.clear()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 2 * CACHED_COLUMNS_BYTES_MAX
