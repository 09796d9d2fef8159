"""Unseen: nobody ever read an acknowledged record, and a reading of the whole partition was tried and given up.

The record may exist: the reader is stuck, or the partition does not become available again. A reading that ended only because its client
ended does not count.

Source: Jepsen's Kafka workload, unseen.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sim.history.finding import Finding, finding
from sim.history.losses import Losses, each, place_of

NAME: Final = "unseen"


def find(losses: Losses) -> Iterator[Finding]:
    """Find committed records that readers awaited in vain."""
    for loss in each(losses.waiting):
        text = f"{loss.value} was committed at {place_of(loss)}; nobody read it, and {loss.missed_by} never came to the end"
        yield finding(NAME, text, loss.invoked_at, loss.committed_at, loss.missed_at)
