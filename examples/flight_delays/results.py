"""The Python part: a consumer group reads the results with the SDK."""

from __future__ import annotations

import asyncio
import json
from typing import NamedTuple

from raftmq import Consumer, TopicPartition

GROUP = "flight-delays-picture"
MEMBERS = 2


class Delay(NamedTuple):
    """One result."""

    day: str
    carrier: str
    origin: str
    flights: int
    mean_delay: float
    """In minutes; early is negative."""


async def read_results(servers: str, topic: str, partitions: int, group: str = GROUP) -> list[Delay]:
    """What is there now and the group has not read before, read by two members that share the partitions."""
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
                    for record in records:  # by offset: a member that dies would leave some to be read again
                        found[partition, record.offset] = Delay(**json.loads(record.value or b"{}"))
                    if records[-1].offset + 1 >= ends[partition]:
                        left.discard(partition)

    await asyncio.gather(*(read() for _ in range(MEMBERS)))
    return list(found.values())
