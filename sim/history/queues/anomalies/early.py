"""A lease began before the message was due, by the partition's queue clock.

Where a time is not known exactly, its lower bound counts: a batch's queue time is at least the clock before it, a release's likewise.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from sim.history.finding import Finding, finding
from sim.history.queues.book import ENDING_VERBS, Book, Lease, Place, Sent
from sim.history.queues.operations import Answer, Verb

ANOMALY = "early"


def find(book: Book, backoffs_ms: Mapping[int, int]) -> Iterator[Finding]:
    """Compare the beginning of each lease with the due time that its message had at least."""
    for place, lease in book.all_leases():
        due, why = _due(book, place, lease, backoffs_ms.get(place[0], 0))
        if lease.taken.leased_ms < due:
            early_ms = due - lease.taken.leased_ms
            yield finding(
                ANOMALY, f"{place} was leased at {lease.taken.leased_ms}, {early_ms} ms before it was due by its {why}"
            )


def _due(book: Book, place: Place, lease: Lease, backoff_ms: int) -> tuple[int, str]:
    """Return the lowest possible due time, and its origin."""
    if book.is_redriven(place, lease):
        return 0, ""
    moves = book.changes(place, Verb.MOVE)
    bounds = [(0, "")]
    sent = book.sent.get(lease.message.value)
    if sent is not None and not moves:
        bounds.append((_sent_due(sent), "batch"))
    if len(moves) == 1 and moves[0].is_done and book.is_after(place, lease, moves[0].alteration.ended):
        (move,) = moves
        before = move.alteration.before_ms
        relative = before + move.message.delay_ms if before and move.message.delay_ms else 0
        bounds.append((move.message.due_ms or relative, "move"))
    if not moves:
        bounds += [
            (one.settlement.before_ms + one.message.delay_ms, "release")
            for one in book.settlements(place, lease.message.lease_number - 1, Verb.RELEASE)
            if one.message.answer is Answer.DONE and one.message.delay_ms and one.settlement.before_ms
        ]
        if backoff_ms:
            failures = _failures_ms(book, place, lease.message.lease_number - 1)
            bounds += [(failed_ms + backoff_ms, "back-off") for failed_ms in failures]
    return max(bounds)


def _failures_ms(book: Book, place: Place, lease_number: int) -> Iterator[int]:
    """Yield the time, or an earlier one, at which an attempt failed: it was released without a delay, or its lease ended by time."""
    for one in book.settlements(place, lease_number, Verb.RELEASE):
        if one.message.answer is Answer.DONE and one.message.is_backed_off and one.settlement.before_ms:
            yield one.settlement.before_ms
    if not book.settlements(place, lease_number, *ENDING_VERBS, Verb.RENEW):  # a renewal may shorten a lease, too
        for lease in book.leases.get(place, ()):
            if lease.message.lease_number == lease_number:
                yield lease.taken.deadline_ms


def _sent_due(sent: Sent) -> int:
    """Return the due time that a message had at least when it was enqueued."""
    at = sent.put.append_ms or sent.put.before_ms
    return sent.message.due_ms or (at + sent.message.delay_ms if at else 0)
