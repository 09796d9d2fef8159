"""A lease began while another lease of the same message was valid."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from sim.history.finding import Finding, finding
from sim.history.queues.book import ENDING_VERBS, Book, Lease, Place
from sim.history.queues.operations import Verb

ANOMALY = "leased_twice"


def find(book: Book) -> Iterator[Finding]:
    """Compare neighbouring leases of each message."""
    for place, leases in book.leases.items():
        for first, second in pairwise(leases):
            text = _why(book, place, first, second)
            if text:
                yield finding(ANOMALY, f"{place} was leased to {second.taken.process} {text}")


def _why(book: Book, place: Place, first: Lease, second: Lease) -> str:
    number, other = first.message.lease_number, second.message.lease_number
    if number == other:
        return f"and to {first.taken.process}, both under number {number}"
    if second.taken.leased_ms < first.taken.leased_ms:
        return f"under number {other} before it was leased under number {number}"
    if any(
        one.settlement.began < second.taken.ended for one in book.settlements(place, number, *ENDING_VERBS)
    ) or second.taken.leased_ms >= end_of(book, place, first):
        return ""
    return f"at {second.taken.leased_ms} while {first.taken.process} held it until {end_of(book, place, first)}"


def end_of(book: Book, place: Place, lease: Lease) -> int:
    """Return the earliest possible end of a lease that was not settled."""
    renewals = book.settlements(place, lease.message.lease_number, Verb.RENEW)
    if not renewals:
        return lease.taken.deadline_ms
    if len(renewals) == 1 and renewals[0].is_done and renewals[0].settlement.before_ms:
        # it took effect, so it came before the other lease, and the rest of the lease does not count any more
        return renewals[0].settlement.before_ms + renewals[0].message.lease_ms
    return lease.taken.leased_ms
