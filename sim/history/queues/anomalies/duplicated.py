"""A message that was sent once is in the partition twice."""

from __future__ import annotations

from collections.abc import Iterator

from sim.history.finding import Finding, finding
from sim.history.queues.book import Book

ANOMALY = "duplicated"


def find(book: Book) -> Iterator[Finding]:
    """Compare the sequences under which each message was leased."""
    places: dict[bytes, set[tuple[int, int]]] = {}
    for place, lease in book.all_leases():
        if lease.message.value in book.scheduled:
            continue  # each firing is a message
        places.setdefault(lease.message.value, set()).add(place)
    for value, found in places.items():
        if len(found) > 1:
            yield finding(ANOMALY, f"{value[:40]!r} was leased at {sorted(found)}")
