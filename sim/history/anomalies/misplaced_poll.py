"""A misplaced poll: after a seek to a committed record, or an assignment that begins with the first record, reading began elsewhere.

Only offsets that were known to be committed when the seek ended are judged: beyond them the reader's own policy decides.

Source: spurious zero offsets, in Jepsen's report on Bufstream 0.1.0.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sim.history.finding import Finding, finding
from sim.history.positions import Walk

NAME: Final = "misplaced_poll"


def find(walked: Walk) -> Iterator[Finding]:
    """Find first records that are not the ones sought."""
    for found in walked.breaks:
        if found.kind == "misplaced":
            text = (
                f"{found.process} was to go on at {found.partition.topic}/{found.partition.partition} offset {found.expected}, "
                f"and was handed {found.found}"
            )
            yield finding(NAME, text, found.since, found.at)
