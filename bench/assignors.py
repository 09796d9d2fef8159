"""Measure the sticky assignor with 100,000 partitions of 100 topics and 1,000 members, at first and as the group changes.

Usage: python -m bench --only assignors, or python -m bench.assignors. Figures are milliseconds, the median of five runs.
Every assignment is checked for completeness and balance before its time counts.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable

from raftmq.assignors.assignor import Assignment, ConsumerGroup, Member, Topic
from raftmq.assignors.sticky import StickyAssignor

from bench.workloads import Figure

TOPICS = 100
PARTITIONS_PER_TOPIC = 1000
MEMBERS = 1000
ROUNDS = 5


def bench_assignors() -> dict[str, float]:
    """Measure a first assignment, one member fewer, one more, topics that only half of the members subscribe to, and racks."""
    everything = frozenset(range(TOPICS))
    members = [Member(f"member-{number:04d}", everything) for number in range(MEMBERS)]
    fresh = _group(members)
    settled = _checked(fresh, spread_max=1)
    some = [
        Member(member.member_id, everything if number % 2 else frozenset(range(TOPICS // 2)))
        for number, member in enumerate(members)
    ]
    racked = [Member(member.member_id, everything, f"rack-{number % 3}") for number, member in enumerate(members)]
    return {
        "first": _milliseconds(fresh, spread_max=1),
        "leave": _milliseconds(_group(members[1:], settled), spread_max=1),
        "join": _milliseconds(_group([*members, Member("new", everything)], settled), spread_max=1),
        "unequal": _milliseconds(_group(some, settled), spread_max=1),
        "racks": _milliseconds(_group(racked, settled), spread_max=1),
    }


def _group(members: Iterable[Member], owned: Assignment | None = None) -> ConsumerGroup:
    racks = tuple(frozenset({f"rack-{number % 3}"}) for number in range(PARTITIONS_PER_TOPIC))
    topics = tuple(Topic(topic_id, PARTITIONS_PER_TOPIC, racks) for topic_id in range(TOPICS))
    return ConsumerGroup(tuple(members), topics, owned or {})


def _checked(group: ConsumerGroup, spread_max: int) -> Assignment:
    assignment = StickyAssignor().assign(group)
    counts = [len(partitions) for partitions in assignment.values()]
    assert sum(counts) == len({p for partitions in assignment.values() for p in partitions}) == 100_000
    assert max(counts) - min(counts) <= spread_max
    return assignment


def _milliseconds(group: ConsumerGroup, spread_max: int) -> float:
    _checked(group, spread_max)
    times = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        StickyAssignor().assign(group)
        times.append((time.perf_counter() - started) * 1000)
    return statistics.median(times)


def figures() -> tuple[Figure, ...]:
    """Return the figures. The target of each is less than a second."""
    return tuple(Figure(name, "ms", False, 1000) for name in ("first", "leave", "join", "unequal", "racks"))


if __name__ == "__main__":
    for name, value in bench_assignors().items():
        print(f"{name:<12} {value:>10,.1f}")
