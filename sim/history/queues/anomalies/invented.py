"""A consumer got a message that nobody sent, whose batch was refused, or that is not where its acknowledgement says."""

from __future__ import annotations

from collections.abc import Iterator

from sim.history.finding import Finding, finding
from sim.history.queues.book import Book, Lease, Place
from sim.history.queues.operations import Outcome

ANOMALY = "invented"


def find(book: Book) -> Iterator[Finding]:
    """Compare each leased message with the sent ones."""
    for place, lease in book.all_leases():
        text = _why(book, place, lease)
        if text:
            yield finding(ANOMALY, f"{lease.message.value[:40]!r} at {place} {text}")


def _why(book: Book, place: Place, lease: Lease) -> str:
    schedules = book.scheduled.get(lease.message.value)
    if schedules is not None:
        is_known = any(one.may_have_happened and one.partition == place[0] for one in schedules)
        return "" if is_known else "is of a schedule that was refused"
    sent = book.sent.get(lease.message.value)
    if sent is None:
        return "was sent by nobody"
    if sent.put.partition != place[0]:
        return f"was sent to partition {sent.put.partition}"
    if sent.put.outcome is Outcome.FAILED:
        return "was refused"
    if sent.position in sent.put.repeated:
        return "was answered as a repeat of an earlier message"
    if sent.sequence not in (-1, place[1]):
        return f"was acknowledged at sequence {sent.sequence}"
    return ""
