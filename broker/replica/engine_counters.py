"""What the engine and its parts count, for a scrape of the metrics to read."""

from __future__ import annotations

from dataclasses import dataclass, field

from raftmq.broker.base.histogram import COUNTS, LATENCY_SECONDS, SHORT_SECONDS, SIZES_BYTES, Histogram


@dataclass(slots=True)
class EngineCounters:
    """Since the start of the process; changed on the loop only."""

    commit_seconds: Histogram = field(default_factory=lambda: Histogram(LATENCY_SECONDS))
    """From handing a write over until the loop knows that it is durable."""
    commit_disk_seconds: Histogram = field(default_factory=lambda: Histogram(LATENCY_SECONDS))
    """Of the transaction itself."""
    commit_entries: Histogram = field(default_factory=lambda: Histogram((0, *COUNTS)))
    commit_bytes: Histogram = field(default_factory=lambda: Histogram((0, *SIZES_BYTES)))
    """Payload of the entries."""
    pass_seconds: Histogram = field(default_factory=lambda: Histogram(SHORT_SECONDS))
    """Of one pass over the dirty groups."""
    elections_total: int = 0
    """Elections that a replica here stood in."""
    elections_won_total: int = 0
    """Leaderships gained."""
    leaderships_lost_total: int = 0
    """Leaderships lost or handed over."""
    space_returned_bytes_total: int = 0
    """Given back to the volume by files of replicas that live on."""
    stalls_total: int = 0
    """Times the loop stood still."""
    dropped_messages_total: int = 0
    """Messages to and from peers dropped for want of room or of a connection."""
