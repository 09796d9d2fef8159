"""Reads the newest record of partitions, to see which of them hold dead letters."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Final

from raftmq.client.consumer import Consumer
from raftmq.client.dead_letter import DeadLetter, read_letter
from raftmq.errors import NoLeaderError
from raftmq.types import TopicPartition

POLL_MS: Final = 500


async def newest_letters(
    consumer: Consumer, partitions: Collection[TopicPartition], timeout_seconds: float
) -> list[DeadLetter]:
    """The newest record of each partition where that is a letter."""
    starts = await consumer.beginning_offsets(partitions)
    ends = await consumer.end_offsets(partitions)
    left = {tp for tp in partitions if ends[tp] > starts[tp]}
    consumer.assign(left)
    for tp in left:
        await consumer.seek(tp, ends[tp] - 1)
    loop = asyncio.get_running_loop()
    heard_at = loop.time()
    letters = []
    while left:
        for tp, records in (await consumer.getmany(timeout_ms=POLL_MS)).items():
            heard_at = loop.time()
            if tp in left:
                left.remove(tp)
                consumer.pause(tp)
                letter = read_letter(records[0])
                letters += [letter] if letter is not None else []
        if loop.time() - heard_at > timeout_seconds:
            waiting = min(left)
            raise NoLeaderError(f"{waiting.topic}/{waiting.partition}: no record came within {timeout_seconds:g} s")
    return letters
