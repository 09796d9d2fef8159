"""A nonmonotonic send: a producer sent two records to a partition one after the other, and their acknowledgements name decreasing or equal
offsets.

Source: Jepsen's Kafka workload, nonmonotonic-send.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sim.history.events import Partition
from sim.history.finding import Finding, finding
from sim.history.tables import History, Send

NAME: Final = "nonmonotonic_send"


def find(history: History) -> Iterator[Finding]:
    """Find acknowledgements with an offset at or below that of an earlier send."""
    for topic, sends in history.sends.items():
        deleted_until = history.deleted_until(topic)
        last: dict[tuple[str, int], Send] = {}
        for send in sends.values():
            offset, partition = send.offset, send.partition
            if offset is None or partition is None or send.producer is None or send.invoked_at <= deleted_until:
                continue
            if history.may_be_lost(Partition(topic, partition), offset, send.invoked_at):
                continue
            key = (send.producer, partition)
            earlier = last.get(key)
            if earlier is not None and earlier.offset is not None and offset <= earlier.offset:
                text = (
                    f"{topic}/{partition}: {send.process} sent {earlier.value} before {send.value}, "
                    f"and was told offsets {earlier.offset} and {offset}"
                )
                yield finding(NAME, text, earlier.invoked_at, send.invoked_at, earlier.ended_at, send.ended_at)
            else:
                last[key] = send
