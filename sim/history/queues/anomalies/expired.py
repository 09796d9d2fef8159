"""A message was leased although its time to live had passed, by the partition's queue clock.

Each entry of a partition ends the life of at most `HOUSEKEEPING_MAX` messages. So the history must not have more that expire together. A
message that died and was redriven has no time to live any more.
"""

from __future__ import annotations

from collections.abc import Iterator

from sim.history.finding import Finding, finding
from sim.history.queues.book import Book

ANOMALY = "expired"


def find(book: Book) -> Iterator[Finding]:
    """Compare the lowest possible beginning of each lease with the end of its message's life."""
    for place, lease in book.all_leases():
        sent = book.sent.get(lease.message.value)
        if sent is None or not sent.message.expires_ms or not sent.put.append_ms or book.is_redriven(place, lease):
            continue
        late_ms = lease.taken.before_ms - (sent.put.append_ms + sent.message.expires_ms)
        if late_ms > 0:
            yield finding(ANOMALY, f"{place} was leased at least {late_ms} ms after the end of its life")
