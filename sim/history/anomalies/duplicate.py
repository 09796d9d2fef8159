"""A duplicate: one value at more than one place (partition and offset), among the values read and acknowledged.

An acknowledgement that names another place than the one where the record is read is a duplicate too. Sends without an idempotent
producer may be written twice when they are retried, so they do not count.

Source: Jepsen's Kafka workload, duplicate, and KIP-98.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sim.history.events import Partition
from sim.history.finding import Finding, finding
from sim.history.tables import History, Send

NAME: Final = "duplicate"


def find(history: History) -> Iterator[Finding]:
    """Find values at a second place."""
    for topic, sends in history.sends.items():
        places: dict[str, tuple[int, int, int]] = {}
        for partition, table in history.partitions.items():
            if partition.topic != topic:
                continue
            number = partition.partition
            for log in (table.reads, table.acknowledgements):
                for offset, value, at in log:
                    known = places.setdefault(value, (number, offset, at))
                    if known[1] != offset or known[0] != number:
                        if _may_be_lost(history, topic, sends.get(value), known, (number, offset, at)):
                            continue  # it was written again after the first one was lost
                        yield from _judge(topic, sends, value, known, (number, offset, at))


def _may_be_lost(history: History, topic: str, send: Send | None, *places: tuple[int, int, int]) -> bool:
    return send is not None and all(
        history.may_be_lost(Partition(topic, number), offset, send.invoked_at) for number, offset, _ in places
    )


def _judge(
    topic: str, sends: dict[str, Send], value: str, one: tuple[int, int, int], other: tuple[int, int, int]
) -> Iterator[Finding]:
    send = sends.get(value)
    if send is None or send.producer is None:
        return
    first, second = sorted((one, other), key=lambda place: place[2])
    text = f"{value} is at {_name(topic, first)} and at {_name(topic, second)}, and {send.process} sent it once"
    yield finding(NAME, text, send.invoked_at, first[2], second[2])


def _name(topic: str, place: tuple[int, int, int]) -> str:
    partition = Partition(topic, place[0])
    return f"{partition.topic}/{partition.partition} offset {place[1]}"
