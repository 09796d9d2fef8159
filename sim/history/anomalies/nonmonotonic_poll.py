"""A nonmonotonic poll: a reader received a record again, or an earlier one, within a poll or in a later one.

This is allowed only after an assignment that adds the partition, or after a seek.

Source: Jepsen's Kafka workload, int-nonmonotonic-poll and nonmonotonic-poll.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sim.history.finding import Finding, finding
from sim.history.positions import Walk

NAME: Final = "nonmonotonic_poll"


def find(walked: Walk) -> Iterator[Finding]:
    """Find steps back."""
    for found in walked.breaks:
        if found.kind == "back":
            where = "within one poll" if found.at == found.since else "in a later poll"
            text = (
                f"{found.process} was handed {found.partition.topic}/{found.partition.partition} offset {found.found} "
                f"after {found.expected - 1}, {where}"
            )
            yield finding(NAME, text, found.since, found.at)
