"""Unseen: an acknowledged record that nobody ever read, where a reading of the whole partition was tried and given up.

The record may be there: this is a reader that is stuck, or a partition that does not come back. A reading that was merely cut off, with its
client, does not count.

Source: Jepsen's Kafka workload, unseen.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sim.history.finding import Finding, finding
from sim.history.losses import Losses, each, place_of

NAME: Final = "unseen"


def find(losses: Losses) -> Iterator[Finding]:
    """Every record that was waited for in vain."""
    for loss in each(losses.waiting):
        text = f"{loss.value} was committed at {place_of(loss)}; nobody read it, and {loss.missed_by} never came to the end"
        yield finding(NAME, text, loss.invoked_at, loss.committed_at, loss.missed_at)
