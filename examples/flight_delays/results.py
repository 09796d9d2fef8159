"""The Python part: reads the results with the SDK."""

from __future__ import annotations

import json
from typing import NamedTuple

from raftmq import Consumer, TopicPartition


class Delay(NamedTuple):
    """One result."""

    day: str
    carrier: str
    origin: str
    flights: int
    mean_delay: float
    """In minutes; early is negative."""


async def read_results(servers: str, topic: str, partitions: int) -> list[Delay]:
    """Every result that is there now."""
    found: list[Delay] = []
    async with Consumer(bootstrap_servers=servers, auto_offset_reset="earliest") as consumer:
        assigned = [TopicPartition(topic, number) for number in range(partitions)]
        consumer.assign(assigned)
        left = {partition: end for partition, end in (await consumer.end_offsets(assigned)).items() if end}
        while left:
            for partition, records in (await consumer.getmany(timeout_ms=500)).items():
                for record in records:
                    fields = json.loads(record.value or b"{}")
                    found.append(Delay(**fields))
                if records[-1].offset + 1 >= left.get(partition, 0):
                    left.pop(partition, None)
    return found
