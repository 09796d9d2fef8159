"""Reordered sends: of two records that a producer sent one after the other, the later one is read at a lower offset of the same
partition.

Records of an idempotent producer are in each partition in the order of their sends, acknowledged or not.

Source: Jepsen's Kafka workload, int-nonmonotonic-send and nonmonotonic-send, with the offsets taken from polls.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sim.history.events import Partition
from sim.history.finding import Finding, finding
from sim.history.tables import History, Send

NAME: Final = "reordered_sends"


def find(history: History) -> Iterator[Finding]:
    """Find records at a lower offset than an earlier record of their producer."""
    for topic, sends in history.sends.items():
        places = _places(history, topic)
        deleted_until = history.deleted_until(topic)
        last: dict[tuple[str, int], tuple[int, int, Send]] = {}
        for send in sends.values():
            place = places.get(send.value)
            if place is None or send.producer is None or send.invoked_at <= deleted_until:
                continue
            partition, offset, at = place
            if history.may_be_lost(Partition(topic, partition), offset, send.invoked_at):
                continue
            key = (send.producer, partition)
            known = last.get(key)
            if known is not None and offset < known[0]:
                earlier = known[2]
                text = (
                    f"{topic}/{partition}: {send.process} sent {earlier.value} before {send.value}, "
                    f"and they are at offsets {known[0]} and {offset}"
                )
                yield finding(NAME, text, earlier.invoked_at, send.invoked_at, known[1], at)
            else:
                last[key] = (offset, at, send)


def _places(history: History, topic: str) -> dict[str, tuple[int, int, int]]:
    """Return a map from value to partition, offset and the first event that shows them."""
    places: dict[str, tuple[int, int, int]] = {}
    for partition, table in history.partitions.items():
        if partition.topic == topic:
            number = partition.partition
            for offset, value, at in table.reads:
                places.setdefault(value, (number, offset, at))
    return places
