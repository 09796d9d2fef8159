"""A lost write: a committed record (acknowledged, or read by anybody) is gone: a reader went past its place without it.

Proven by a complete reading from the beginning (`read_all`) that began after the record was committed and saw higher offsets; or by any
reader that went through its offset, when nobody at all ever read it.

Source: Jepsen's Kafka workload, lost-write.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sim.history.finding import Finding, finding
from sim.history.losses import Losses, each, place_of

NAME: Final = "lost_write"


def find(losses: Losses) -> Iterator[Finding]:
    """Every record that was passed."""
    for loss in each(losses.passed):
        text = f"{loss.value} was committed at {place_of(loss)}, and {loss.missed_by} went past without reading it"
        yield finding(NAME, text, loss.invoked_at, loss.committed_at, loss.missed_at)
