"""A skipping poll: a reader was handed a record before those that precede it, within a poll or in a later one.

Offsets are dense, so every gap is a record that was passed over. Allowed only after an assignment that gives the partition anew, after
a seek, or where the records in between were trimmed.

Source: Jepsen's Kafka workload, int-poll-skip and poll-skip; there, gaps without known records are allowed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sim.history.finding import Finding, finding
from sim.history.positions import Walk

NAME: Final = "skipped_poll"


def find(walked: Walk) -> Iterator[Finding]:
    """Every gap."""
    for found in walked.breaks:
        if found.kind == "skip":
            where = "within one poll" if found.at == found.since else "in a later poll"
            text = (
                f"{found.process} was handed {found.partition.topic}/{found.partition.partition} offset {found.found} "
                f"where {found.expected} comes next, {where}"
            )
            yield finding(NAME, text, found.since, found.at)
