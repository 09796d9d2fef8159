"""Judge the history of queue partitions. Knows nothing about brokers, and trusts no answer."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType

from sim.history.finding import Finding
from sim.history.queues.anomalies import (
    duplicated,
    early,
    expired,
    invented,
    leased_twice,
    lost,
    lost_update,
    misordered,
    resurrected,
    settled_twice,
    shared,
    stuck,
)
from sim.history.queues.book import Book
from sim.history.queues.operations import Operation


def judge_queues(
    operations: Iterable[Operation],
    ordered_partitions: Collection[int] = (),
    backoffs_ms: Mapping[int, int] = MappingProxyType({}),
    single_partitions: Collection[int] = (),
) -> list[Finding]:
    """Return all broken promises.

    Args:
        operations: All operations of all clients, in any order.
        ordered_partitions: Partitions that keep the order of keys, and in which no message dies by itself.
        backoffs_ms: The least delay after a failed attempt, by partition. None is known for the others.
        single_partitions: Partitions with a single active consumer.
    """
    book = Book(operations)
    found: list[Finding] = []
    for anomaly in (invented, duplicated, leased_twice, settled_twice, resurrected, expired, lost_update):
        found += anomaly.find(book)
    found += early.find(book, backoffs_ms)
    found += misordered.find(book, ordered_partitions)
    found += shared.find(book, single_partitions)
    for last in (stuck, lost):
        found += last.find(book)
    return found
