"""A skipping poll: a reader received a record without the records before it, within a poll or in a later one.

Offsets are dense, so every gap is a skipped record. Gaps are allowed only after an assignment that adds the partition, after a seek, or
if the records in between were trimmed.

Source: Jepsen's Kafka workload, int-poll-skip and poll-skip, which allow gaps without known records.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sim.history.finding import Finding, finding
from sim.history.positions import Walk

NAME: Final = "skipped_poll"


def find(walked: Walk) -> Iterator[Finding]:
    """Find gaps."""
    for found in walked.breaks:
        if found.kind == "skip":
            where = "within one poll" if found.at == found.since else "in a later poll"
            text = (
                f"{found.process} was handed {found.partition.topic}/{found.partition.partition} offset {found.found} "
                f"where {found.expected} comes next, {where}"
            )
            yield finding(NAME, text, found.since, found.at)
