"""A message was leased to a consumer while another one, the only one that may be active, had a lease in the partition.

Each request for messages counts as a consumer: it ends when it is answered.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from sim.history.finding import Finding, finding
from sim.history.queues.anomalies.leased_twice import end_of
from sim.history.queues.book import ENDING_VERBS, Book, Lease, Place
from sim.history.queues.operations import Operation, Sweep

ANOMALY = "shared"


def find(book: Book, single_partitions: Collection[int]) -> Iterator[Finding]:
    """Compare each lease with those of the same partition that began before it."""
    by_partition: dict[int, list[tuple[Place, Lease]]] = {}
    for place, lease in book.all_leases():
        if place[0] in single_partitions:
            by_partition.setdefault(place[0], []).append((place, lease))
    for leases in by_partition.values():
        leases.sort(key=lambda one: (one[1].taken.leased_ms, one[1].taken.began))
        yield from _find(book, leases)


def _find(book: Book, leases: list[tuple[Place, Lease]]) -> Iterator[Finding]:
    held: list[tuple[Place, Lease, int]] = []
    """The leases that may not have ended, each with the earliest time at which it did unless it was settled."""
    for place, lease in leases:
        taken = lease.taken
        held = [one for one in held if one[2] > taken.leased_ms and not _may_have_ended(book, one[0], one[1], lease)]
        for other, earlier, end in held:
            if earlier.taken is not taken:
                yield finding(
                    ANOMALY,
                    f"{place} was leased to {taken.process} at {taken.leased_ms} while {earlier.taken.process} held {other} until {end}",
                )
                return
        held.append((place, lease, end_of(book, place, lease)))


def _may_have_ended(book: Book, place: Place, lease: Lease, before: Lease) -> bool:
    """Return whether a lease may have been ended by somebody before another lease began."""
    ends: list[Operation] = [
        one.settlement for one in book.settlements(place, lease.message.lease_number, *ENDING_VERBS)
    ]
    ends += book.sweeps(place, Sweep.PURGE, Sweep.PURGE_ALL)
    return any(one.began < before.taken.ended for one in ends)
