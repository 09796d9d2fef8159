"""An acknowledged record that is never read: a complete reading of its partition, begun after the acknowledgement, ended before the record.

The end of the log is missing, or was not served: the reader was told that it had reached the end.

Source: Jepsen's Kafka workload, unseen after the final polls.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sim.history.finding import Finding, finding
from sim.history.losses import Losses, each, place_of

NAME: Final = "never_read"


def find(losses: Losses) -> Iterator[Finding]:
    """Find committed records beyond the end of a complete reading."""
    for loss in each(losses.beyond):
        text = f"{loss.value} was committed at {place_of(loss)}, and {loss.missed_by} read everything to the end without it"
        yield finding(NAME, text, loss.invoked_at, loss.committed_at, loss.missed_at)
