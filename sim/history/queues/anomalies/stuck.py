"""A partition still has messages at the end that nobody can lease."""

from __future__ import annotations

from collections.abc import Iterator

from sim.history.finding import Finding, finding
from sim.history.queues.book import Book

ANOMALY = "stuck"


def find(book: Book) -> Iterator[Finding]:
    """Look at the rest of each partition."""
    for partition, drained in book.drained.items():
        if drained.left:
            left = ", ".join(f"{count} {state}" for state, count in drained.left)
            yield finding(ANOMALY, f"partition {partition} still has {left}")
