"""A message was acknowledged, nobody finished it, and it was not left at the end."""

from __future__ import annotations

from collections.abc import Iterator

from sim.history.finding import Finding, finding
from sim.history.queues.book import Book
from sim.history.queues.operations import Outcome

ANOMALY = "lost"


def find(book: Book) -> Iterator[Finding]:
    """Look for the end of each acknowledged message, in partitions that were emptied at the end."""
    for place, sent in book.by_place.items():
        if sent.put.outcome is not Outcome.OK or sent.is_repeat or sent.message.may_expire:
            continue
        drained = book.drained.get(place[0])
        if drained is not None and not drained.left and not book.endings(place):
            yield finding(ANOMALY, f"{sent.message.value[:40]!r} of {sent.put.process} at {place}")
