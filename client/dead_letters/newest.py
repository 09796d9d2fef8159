"""Reads the newest record of partitions, and keeps those that a worker moved there. This identifies dead-letter topics."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final

from raftmq.client.consumer.consumer import Consumer
from raftmq.client.dead_letters.letter import DeadLetter, read_letter
from raftmq.errors import NoLeaderError, RaftMQError
from raftmq.types import TopicPartition

PARTITIONS_AT_A_TIME: Final = 500
"""Maximum number of partitions read together. Their newest batches usually are far smaller than a consumer's buffer. Large ones take more polls."""
POLL_MS: Final = 500


async def answering(consumer: Consumer, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
    """Return the partitions whose leader answers. The others are waited for, but only once. Raises `RaftMQError` if none of some answers."""
    found: list[TopicPartition] = []
    for chunk in _chunks(partitions):
        try:
            await consumer.end_offsets(chunk)
        except RaftMQError:
            ends = await asyncio.gather(*(consumer.end_offsets([tp]) for tp in chunk), return_exceptions=True)
            some = [tp for tp, end in zip(chunk, ends, strict=True) if isinstance(end, dict)]
            if not some:
                raise
            found += some
        else:
            found += chunk
    return found


async def newest_letters(
    consumer: Consumer, partitions: Iterable[TopicPartition], timeout_seconds: float
) -> list[DeadLetter]:
    """Return the newest record of each partition where that record is a dead letter.

    The consumer has no partitions afterwards. Raises `NoLeaderError` when a partition returns no record in time, and `RaftMQError`.
    """
    letters = []
    for chunk in _chunks(partitions):
        letters += await _newest_letters(consumer, chunk, timeout_seconds)
    consumer.assign([])
    return letters


async def _newest_letters(
    consumer: Consumer, partitions: list[TopicPartition], timeout_seconds: float
) -> list[DeadLetter]:
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
            raise NoLeaderError(f"{waiting.topic}/{waiting.partition}: no record arrived within {timeout_seconds:g} s")
    return letters


def _chunks(partitions: Iterable[TopicPartition]) -> Iterator[list[TopicPartition]]:
    rest = iter(partitions)
    while chunk := list(islice(rest, PARTITIONS_AT_A_TIME)):
        yield chunk
