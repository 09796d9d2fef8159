"""A message was leased although it was finished: accepted, given up, cancelled, replaced or purged."""

from __future__ import annotations

from collections.abc import Iterator

from sim.history.finding import Finding, finding
from sim.history.queues.book import Book, Lease, Place
from sim.history.queues.operations import Answer, Outcome, Sweep, Verb

ANOMALY = "resurrected"


def find(book: Book) -> Iterator[Finding]:
    """Look for an end before each lease."""
    replaced_by = {
        (sent.put.partition, sequence): sent.put for sent in book.sent.values() for sequence in sent.put.replaced
    }
    for place, lease in book.all_leases():
        why = _settled_before(book, place, lease) or _ended_before(book, place, lease)
        put = replaced_by.get(place)
        if put is not None and put.ended < lease.taken.began:
            why = f"it was replaced by {put.process}"
        if why:
            yield finding(ANOMALY, f"{place} was leased to {lease.taken.process}, and before that {why}")


def _settled_before(book: Book, place: Place, lease: Lease) -> str:
    for one in book.settled.get(place, ()):
        if not one.is_done or one.message.lease_number >= lease.message.lease_number:
            continue
        if one.message.verb is Verb.ACCEPT:
            return f"{one.settlement.process} accepted it with lease {one.message.lease_number}"
        is_dead = one.message.verb is Verb.REJECT or one.message.answer is Answer.DIED
        if is_dead and not book.is_redriven(place, lease):
            return f"{one.settlement.process} gave it up with lease {one.message.lease_number}"
    return ""


def _ended_before(book: Book, place: Place, lease: Lease) -> str:
    for cancel in book.changes(place, Verb.CANCEL):
        if cancel.is_done and book.is_after(place, lease, cancel.alteration.ended):
            return f"{cancel.alteration.process} cancelled it"
    sent = book.sent.get(lease.message.value)
    for purge in book.sweeps(place, Sweep.PURGE_ALL):
        if purge.outcome is not Outcome.OK or sent is None or sent.put.outcome is not Outcome.OK:
            continue
        if sent.put.ended < purge.began and purge.ended < lease.taken.began:
            return f"{purge.process} purged everything"
    return ""
