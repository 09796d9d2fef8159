"""A settlement succeeded with a token that is not valid: it was settled, or a newer lease existed."""

from __future__ import annotations

from collections.abc import Iterator

from sim.history.finding import Finding, finding
from sim.history.queues.book import ENDING_VERBS, Book, Place, Settled

ANOMALY = "settled_twice"


def find(book: Book) -> Iterator[Finding]:
    """Look at the successful settlements of each message."""
    for place, settled in book.settled.items():
        done = [one for one in settled if one.is_done]
        yield from _repeated(place, done)
        for one in done:
            yield from _outdated(book, place, one)


def _repeated(place: Place, done: list[Settled]) -> Iterator[Finding]:
    """Find tokens that ended twice, or were renewed after their end."""
    endings: dict[int, Settled] = {}
    for one in sorted(done, key=lambda one: one.settlement.began):
        number = one.message.lease_number
        earlier = endings.get(number)
        is_ending = one.message.verb in ENDING_VERBS
        if earlier is not None and (is_ending or earlier.settlement.ended < one.settlement.began):
            yield finding(
                ANOMALY,
                f"{place} lease {number}: {earlier.message.verb.value} by {earlier.settlement.process}, then"
                f" {one.message.verb.value} by {one.settlement.process}",
            )
        if is_ending:
            endings.setdefault(number, one)


def _outdated(book: Book, place: Place, one: Settled) -> Iterator[Finding]:
    for lease in book.leases.get(place, ()):
        if lease.message.lease_number > one.message.lease_number and lease.taken.ended < one.settlement.began:
            yield finding(
                ANOMALY,
                f"{place}: {one.message.verb.value} by {one.settlement.process} with lease {one.message.lease_number}, while"
                f" {lease.taken.process} has lease {lease.message.lease_number}",
            )
            return
