"""An unprocessed record: a group's progress was stored beyond it before any worker of the group had processed it.

The next owner of the partition begins at the progress, so the record would never be processed. Offsets are dense, so every offset below
the progress is a record to process, with two exceptions: the record was trimmed, or it was processed before the history began. The latter
applies to offsets below the first progress that was read, if the history does not have the topic's creation. A commit makes its claim when
it is requested, whatever its outcome, unless it definitely failed. Progress that is read makes its claim when the read is answered. A
record moved to a dead-letter topic counts as processed.

Source: at-least-once processing as consumer groups promise it: a commit covers a prefix of processed records without gaps.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Final

from sim.history.events import Partition
from sim.history.finding import Finding, finding
from sim.history.tables import NEVER, GroupWork, History

NAME: Final = "unprocessed"


def find(history: History) -> Iterator[Finding]:
    """Find an unprocessed record for each false claim."""
    for group, partitions in history.groups.items():
        if not any(work.has_begun for work in partitions.values()):
            continue  # not a group of recorded workers
        for partition, work in partitions.items():
            if history.recoveries(partition):
                continue  # a recovery may lose progress, too
            began_at = 0 if history.is_created(partition.topic) else work.stood_at
            yield from _find(group, partition, work, max(began_at, history.trimmed_before(partition)))


def _find(group: str, partition: Partition, work: GroupWork, began_at: float) -> Iterator[Finding]:
    if began_at == NEVER:
        return
    # at each offset from `first`: the last processing time up to it, and its offset
    latest: list[tuple[float, int]] = []
    first = int(began_at)
    offsets = count(first)
    for claim in sorted(work.progress, key=lambda one: one.offset):
        while first + len(latest) < claim.offset:
            offset = next(offsets)
            done = (work.done.get(offset, NEVER), offset)
            latest.append(max(latest[-1], done, key=lambda one: one[0]) if latest else done)
        if claim.offset <= first:
            continue
        done_at, offset = latest[claim.offset - first - 1]
        if done_at > claim.at:
            when = "never" if done_at == NEVER else "later"
            text = (
                f"{claim.process}: the progress of group {group} in {partition.topic}/{partition.partition} is {claim.offset}, "
                f"and offset {offset} was processed {when}"
            )
            yield finding(NAME, text, claim.at, None if done_at == NEVER else int(done_at))
