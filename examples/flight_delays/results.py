"""Run the Python part, a consumer group that reads the results with the SDK."""

from __future__ import annotations

import asyncio
import json
from typing import NamedTuple

from raftmq import Consumer, TopicPartition

GROUP = "flight-delays-picture"
MEMBERS = 2


class Delay(NamedTuple):
    """Hold one result."""

    day: str
    carrier: str
    origin: str
    flights: int
    mean_delay: float
    """Mean delay in minutes. Negative values are early departures."""


async def read_results(servers: str, topic: str, partitions: int, group: str = GROUP) -> list[Delay]:
    """Return the existing results that the consumer group has not read, using two members that share the partitions."""
    everything = [TopicPartition(topic, number) for number in range(partitions)]
    async with Consumer(bootstrap_servers=servers, group_id=group) as onlooker:
        ends = await onlooker.end_offsets(everything)
        committed = await onlooker.committed(*everything)
    left = {partition for partition, end in ends.items() if (committed[partition] or 0) < end}
    found: dict[tuple[TopicPartition, int], Delay] = {}

    async def read() -> None:
        async with Consumer(topic, bootstrap_servers=servers, group_id=group, auto_offset_reset="earliest") as member:
            while left:
                for partition, records in (await member.getmany(timeout_ms=200)).items():
                    for record in records:  # by offset, because records of a dead member are read again
                        found[partition, record.offset] = Delay(**json.loads(record.value or b"{}"))
                    if records[-1].offset + 1 >= ends[partition]:
                        left.discard(partition)

    await asyncio.gather(*(read() for _ in range(MEMBERS)))
    return list(found.values())
