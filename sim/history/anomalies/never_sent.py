"""A record that was never sent: a value was read that nobody sent, or that was sent only later.

Source: Jepsen's queue checkers, "unexpected" elements.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sim.history.finding import Finding, finding
from sim.history.tables import History

NAME: Final = "never_sent"


def find(history: History) -> Iterator[Finding]:
    """Find values that were read without having been sent before."""
    for partition, table in history.partitions.items():
        sends = history.sends.get(partition.topic, {})
        for offset, value, at in table.reads:
            send = sends.get(value)
            if send is not None and send.invoked_at < at:
                continue
            place = f"{value!r} was read at {partition.topic}/{partition.partition} offset {offset}"
            if send is None:
                yield finding(NAME, f"{place}, and nobody sent it", at)
            else:
                yield finding(NAME, f"{place} before it was sent", at, send.invoked_at)
