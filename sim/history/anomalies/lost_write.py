"""A lost write: a committed record (acknowledged, or read by anybody) is missing, since a reader went past its place without reading it.

There are two proofs: a complete reading from the beginning (`read_all`) began after the record was committed and saw higher offsets, or
any reader went through the record's offset and nobody ever read the record.

Source: Jepsen's Kafka workload, lost-write.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sim.history.finding import Finding, finding
from sim.history.losses import Losses, each, place_of

NAME: Final = "lost_write"


def find(losses: Losses) -> Iterator[Finding]:
    """Find committed records that readers passed without reading them."""
    for loss in each(losses.passed):
        text = f"{loss.value} was committed at {place_of(loss)}, and {loss.missed_by} went past without reading it"
        yield finding(NAME, text, loss.invoked_at, loss.committed_at, loss.missed_at)
