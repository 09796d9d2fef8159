"""Repeated processing: a worker began with a record that another worker had finished before it properly released the partition.

Only partitions whose openings and releases are in the history are judged. A worker that stops, or releases a partition to another worker,
stores which records it has finished, even those after unfinished ones. Every worker that opens the partition later is told and does not
begin with them. Finished records that could not be stored (because of a crash or a failed release) may be repeated. A record moved to a
dead-letter topic counts as finished.

Source: the promise of `Worker` about rebalances and stops. Processing is at least once, and this anomaly defines when it is exactly once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sim.history.events import Partition
from sim.history.finding import Finding, finding
from sim.history.tables import NEVER, GroupWork, History

NAME: Final = "repeated_processing"


def find(history: History) -> Iterator[Finding]:
    """Find records that were begun once too often."""
    for group, partitions in history.groups.items():
        for partition, work in partitions.items():
            if history.recoveries(partition):
                continue  # a recovery may lose progress, too
            yield from _find(group, partition, work)


def _find(group: str, partition: Partition, work: GroupWork) -> Iterator[Finding]:
    released = sorted((one for one in work.tenures if one.released_at != NEVER), key=lambda one: one.released_at)
    finished: dict[int, tuple[int, str]] = {}
    for tenure in sorted(work.tenures, key=lambda one: one.opened_at):
        while released and released[0].released_at < tenure.opened_at:
            before = released.pop(0)
            for offset, at in before.done.items():
                if at <= max(before.releasing_at, before.stored_at):
                    finished.setdefault(offset, (at, before.process))
        for offset, at in tenure.begun:
            if offset in finished:
                done_at, process = finished[offset]
                text = (
                    f"{tenure.process} of group {group} began with {partition.topic}/{partition.partition} offset {offset}, "
                    f"which {process} had finished before it released the partition"
                )
                yield finding(NAME, text, at, done_at)
