"""The options of the queue topics of one seed's run. They have a random stream of their own, so that runs without queues do not depend on it."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, fields

from raftmq.fsm.feature_levels import FEATURE_LEVEL
from raftmq.fsm.queue.limits import MemoryBounds
from raftmq.fsm.topic_kinds import QUEUE, TOPIC_KINDS

FIRST_DRAWN_SEED = 16
"""Lower seeds have no queues unless they are forced: the known bugs of logs are found by them."""
DRAWN_EVERY = 4
"""One of so many seeds has queue topics."""
QUEUE_LEVEL = TOPIC_KINDS[QUEUE]
"""Feature level from which on a cluster has queue topics."""
TINY_MEMORY = MemoryBounds(window_messages_max=2, clean_messages_max=0, read_rows=3, low_mark=1, points_max=2)
"""Bounds under which nearly every entry reads rows."""


@dataclass(frozen=True, slots=True)
class QueueOptions:
    """The options of queue topics in one run."""

    partitions: int
    """Partitions of each queue topic. There is one topic with the order of keys, and one without."""
    producers: int
    workers: int
    meddlers: int
    """Clients that change, purge, redrive, pause and schedule."""
    purges: int
    """Weight of purges among the work of meddlers. Without them more losses can be told."""
    pause_seconds: float
    """Time between two operations of a client, on average."""
    lost_share: float
    """Share of answers that clients never see."""
    lease_ms: int
    """The usual length of a lease."""
    is_memory_tiny: bool
    is_work_small: bool
    """Whether the bounds of an entry's work are small enough to be met."""
    write_back_seconds: float
    write_back_rows_max: int
    recent_entries_bytes_max: int
    """Recent entries of each queue."""
    tail_entries: int
    """Entries of a log that are kept before the durable state."""
    starts_at_level: int
    """Feature level of the new cluster. Queue topics need level 2. Clusters of the first level are raised to the highest one."""
    attempts_max: int
    """Of the topic without the order of keys."""
    message_ttl_ms: int
    """Of the topic without the order of keys. 0: none."""
    fairness: str
    dedupe_window_ms: int
    leased_per_tenant_max: int
    body_bytes_max: int
    all_down: int
    """Weight of the fault of this name, which only queues need."""
    torn_installs: int = 0
    """Number of installed snapshots at which a machine loses power between the two files."""
    config: dict[str, str] = field(default_factory=dict)
    """Settings of both topics in addition."""
    has_dead_letters: bool = False
    """Whether the dead of the topic without the order of keys are copied to a third topic."""
    chain_share: float = 0.0
    """Share of leases whose messages are accepted with others that are put in the same entry."""
    schedules: int = 0
    """Weight of schedules among the work of meddlers."""
    is_single_active: bool = False
    """Whether one consumer at a time leases the messages of a partition."""

    def __str__(self) -> str:
        return " ".join(f"{one.name}={getattr(self, one.name)}" for one in fields(self))


def has_queues(seed: int) -> bool:
    """Return whether a run has queue topics if nobody says otherwise."""
    return seed >= FIRST_DRAWN_SEED and seed % DRAWN_EVERY == 0


def draw_queue_options(rng: random.Random) -> QueueOptions:
    """Draw the options of the queue topics of one run."""
    choice = rng.choice
    return QueueOptions(
        partitions=choice((1, 1, 2)),
        producers=choice((2, 3, 4)),
        workers=choice((2, 3, 5)),
        meddlers=choice((0, 1, 1)),
        purges=choice((0, 0, 2)),
        pause_seconds=choice((0.05, 0.1)),
        lost_share=choice((0.0, 0.03, 0.1)),
        lease_ms=choice((400, 1_000, 3_000)),
        is_memory_tiny=choice((True, True, False)),
        is_work_small=choice((True, False)),
        write_back_seconds=choice((0.2, 0.6, 2.0)),
        write_back_rows_max=choice((20, 200, 20_000)),
        tail_entries=choice((3, 20)),
        starts_at_level=choice((1, QUEUE_LEVEL, FEATURE_LEVEL)),
        attempts_max=choice((0, 2, 4)),
        message_ttl_ms=choice((0, 0, 2_500)),
        fairness=choice(("none", "round_robin", "weighted", "quiet_first")),
        dedupe_window_ms=choice((0, 3_000)),
        leased_per_tenant_max=choice((0, 0, 3)),
        body_bytes_max=choice((20, 300)),
        all_down=choice((0, 0, 1)),
        config=choice(
            ({}, {"backoff.base.ms": "100", "backoff.jitter.percent": "50"}, {"partition.tenant.rate": "50"})
        ),
        torn_installs=choice((0, 0, 1, 3)),
        has_dead_letters=choice((True, True, False)),
        recent_entries_bytes_max=choice((1_000, 10_000, 16_000_000)),
        chain_share=choice((0.0, 0.2, 0.5)),
        schedules=choice((0, 4, 8)),
        is_single_active=choice((False, False, False, True)),
    )
