"""A message was leased while an earlier message of its key was unfinished.

Only earlier messages count that certainly were in line: enqueued without a delay, never moved, and without a time of expiry. Where messages may
die by themselves, because their attempts are limited, nothing can be said.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from sim.history.finding import Finding, finding
from sim.history.queues.book import Book, Lease, Place, Sent
from sim.history.queues.operations import Operation, Outcome, Verb

ANOMALY = "misordered"


def find(book: Book, ordered_partitions: Collection[int]) -> Iterator[Finding]:
    """Compare the leases of each key with its earlier messages."""
    lines: dict[tuple[int, str, str], list[tuple[Place, list[Operation]]]] = {}
    for place, sent in sorted(book.by_place.items()):
        if place[0] in ordered_partitions and sent.message.key and _is_in_line(book, place, sent):
            line = (place[0], sent.message.tenant, sent.message.key)
            lines.setdefault(line, []).append((place, _ends(book, place)))
    for place, lease in book.all_leases():
        found = book.sent.get(lease.message.value)
        if found is None or not found.message.key:
            continue
        for earlier, ends in lines.get((place[0], found.message.tenant, found.message.key), ()):
            if earlier >= place:
                break
            if not any(_may_precede(end, lease) for end in ends):
                yield finding(ANOMALY, f"{place} was leased to {lease.taken.process} before {earlier} was finished")
                break


def _is_in_line(book: Book, place: Place, sent: Sent) -> bool:
    message = sent.message
    is_plain = not (message.delay_ms or message.due_ms or message.may_expire or sent.is_repeat)
    is_there = sent.put.outcome is Outcome.OK
    return is_plain and is_there and not book.changes(place, Verb.MOVE)


def _ends(book: Book, place: Place) -> list[Operation]:
    """Return the operations after which the message did not block its key any more, or may not have."""
    found = book.endings(place)
    for one in book.settled.get(place, ()):
        if one.may_have_happened and one.message.verb is Verb.REJECT:
            found.append(one.settlement)
    return found


def _may_precede(end: Operation, lease: Lease) -> bool:
    return end.began < lease.taken.ended
