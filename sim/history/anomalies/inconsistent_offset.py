"""Inconsistent offsets: two values at one offset of a partition, among the values read and acknowledged.

An offset is assigned once. Two values mean that replicas disagree, that a committed record was replaced, or that two records got
the same place. Records sent before the end of a deletion of the topic do not count: a new topic of that name begins at 0. Nor do records
that a recovery may have lost: their offsets are assigned again.

Source: Jepsen's Kafka workload, inconsistent-offsets.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sim.history.events import Partition
from sim.history.finding import Finding, finding
from sim.history.tables import History, PartitionTable, Seen

NAME: Final = "inconsistent_offset"


def find(history: History) -> Iterator[Finding]:
    """Find offsets with more than one value."""
    for partition, table in history.partitions.items():
        deleted_until = history.deleted_until(partition.topic)
        for offset in _suspects(table):
            values = _values(table, offset)
            if deleted_until >= 0:
                values = [seen for seen in values if _is_sent_after(history, partition, seen.value, deleted_until)]
            if history.recoveries(partition):
                values = [seen for seen in values if not _may_be_lost(history, partition, offset, seen.value)]
            if len(values) > 1:
                said = " and ".join(repr(seen.value) for seen in values)
                text = f"{partition.topic}/{partition.partition} offset {offset} holds {said}"
                yield finding(NAME, text, *(seen.at for seen in values))


def _suspects(table: PartitionTable) -> list[int]:
    reads, acknowledgements = table.reads, table.acknowledgements
    suspects = {*reads.disputed, *acknowledgements.disputed}
    read_at = reads.values.get
    suspects.update(offset for offset, value in acknowledgements.values.items() if read_at(offset, value) != value)
    return sorted(suspects)


def _values(table: PartitionTable, offset: int) -> list[Seen]:
    """Return the different values at an offset, each with the first event that reports it."""
    found: dict[str, Seen] = {}
    for seen in table.acknowledgements.at(offset) + table.reads.at(offset):
        if seen.value not in found or seen.at < found[seen.value].at:
            found[seen.value] = seen
    return sorted(found.values(), key=lambda seen: seen.at)


def _is_sent_after(history: History, partition: Partition, value: str, place: float) -> bool:
    send = history.sends.get(partition.topic, {}).get(value)
    return send is not None and send.invoked_at > place


def _may_be_lost(history: History, partition: Partition, offset: int, value: str) -> bool:
    send = history.sends.get(partition.topic, {}).get(value)
    return send is not None and history.may_be_lost(partition, offset, send.invoked_at)
