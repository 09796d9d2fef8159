"""Appends to one partition."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.broker.harness import batch, running


async def test_a_cancelled_wait_is_cancelled_and_undoes_nothing() -> None:
    """aioraft-ng caught CancelledError with everything else, so a cancelled call continued as if it had been answered."""
    async with running() as node:
        topic = await node.topic()
        node.hold_commits = True
        waiting = asyncio.create_task(node.append(topic, batch(2, sequence=0)))
        while node.partition(topic).replica.core.last_index == node.partition(topic).replica.core.commit_index:
            await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        node.release_commits()
        assert (await node.append(topic, batch(2, sequence=0))).base_offsets == [0], "it was written once"
        assert node.partition(topic).high_watermark == 2


async def test_concurrent_appends_get_distinct_offsets() -> None:
    """aioraft-ng chose an append's index before an await."""
    async with running() as node:
        topic = await node.topic()
        node.hold_commits = True
        appends = [asyncio.create_task(node.append(topic, batch(3, producer=n))) for n in range(1, 101)]
        while node.partition(topic).replica.core.last_index < 100:
            await asyncio.sleep(0)
        node.release_commits()
        offsets = [(await append).base_offsets[0] for append in appends]
    assert sorted(offsets) == list(range(0, 300, 3))
