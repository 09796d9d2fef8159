"""Misordered processing: a worker began with a record before an earlier record of its key had been processed by a worker of its group.

A record is processed when a handler that began with it has ended without an error, or when it was moved to a dead-letter topic. A record
may be processed again, even by a worker that does not know that it has lost the partition, but never before all earlier records of its
key have been processed once. Only records that any worker began with are examined: the others are `unprocessed`.

Source: the order per key that `Worker(ordering="key")` promises, across workers and over crashes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sim.history.events import Partition
from sim.history.finding import Finding, finding
from sim.history.tables import NEVER, Begun, GroupWork, History

NAME: Final = "misordered_processing"


def find(history: History) -> Iterator[Finding]:
    """Find records that a worker began too early."""
    for group, partitions in history.groups.items():
        for partition, work in partitions.items():
            if history.recoveries(partition):
                continue  # a recovery may lose progress, too
            for key, begun in work.begun.items():
                yield from _find(group, partition, work, key, begun)


def _find(group: str, partition: Partition, work: GroupWork, key: str, begun: list[Begun]) -> Iterator[Finding]:
    done_at, before = -1.0, -1  # the last processing time among the earlier records, and its record
    offset_done_at, offset = -1.0, -1
    for one in sorted(begun):
        if one.offset != offset:
            if offset_done_at > done_at:
                done_at, before = offset_done_at, offset
            offset, offset_done_at = one.offset, work.done.get(one.offset, NEVER)
        if done_at > one.at:
            when = "never" if done_at == NEVER else "later"
            text = (
                f"{one.process} of group {group} began with {partition.topic}/{partition.partition} offset {one.offset}, key {key}, "
                f"and offset {before} of the same key was processed {when}"
            )
            yield finding(NAME, text, one.at, None if done_at == NEVER else int(done_at))
