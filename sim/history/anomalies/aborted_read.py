"""An aborted read: a record was read whose send had definitely failed. A record that is reported as not written must never appear.

Source: Jepsen's Kafka workload, G1a, and Adya, Liskov, O'Neil 2000, phenomenon G1a.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sim.history.finding import Finding, finding
from sim.history.tables import History

NAME: Final = "aborted_read"


def find(history: History) -> Iterator[Finding]:
    """Find values that were read although their sends had failed."""
    for partition, table in history.partitions.items():
        sends = history.sends.get(partition.topic, {})
        for offset, value, at in table.reads:
            send = sends.get(value)
            if send is not None and send.status == "fail":
                text = (
                    f"{value} was read at {partition.topic}/{partition.partition} offset {offset}, and its send had failed: "
                    f"{send.process} was told that it is not written"
                )
                yield finding(NAME, text, send.invoked_at, send.ended_at, at)
