"""Hold the counters of the engine and its parts, which the metrics read."""

from __future__ import annotations

from dataclasses import dataclass, field

from raftmq.broker.base.histogram import COUNTS, LATENCY_SECONDS, SHORT_SECONDS, SIZES_BYTES, Histogram


@dataclass(slots=True)
class EngineCounters:
    """Counts since the start of the process. They change only on the event loop."""

    commit_seconds: Histogram = field(default_factory=lambda: Histogram(LATENCY_SECONDS))
    """Time from submitting a write until the loop knows that it is durable."""
    commit_disk_seconds: Histogram = field(default_factory=lambda: Histogram(LATENCY_SECONDS))
    """Time of the transaction itself."""
    commit_entries: Histogram = field(default_factory=lambda: Histogram((0, *COUNTS)))
    commit_bytes: Histogram = field(default_factory=lambda: Histogram((0, *SIZES_BYTES)))
    """Payload of the entries."""
    pass_seconds: Histogram = field(default_factory=lambda: Histogram(SHORT_SECONDS))
    """Time of one pass over the dirty groups."""
    elections_total: int = 0
    """Elections in which a replica here was a candidate."""
    elections_won_total: int = 0
    """Leaderships gained."""
    leaderships_lost_total: int = 0
    """Leaderships lost or transferred."""
    space_returned_bytes_total: int = 0
    """Bytes returned to the volume by files of live replicas."""
    stalls_total: int = 0
    """Stalls of the event loop."""
    dropped_messages_total: int = 0
    """Messages to and from peers that were dropped because of a full budget or a missing connection."""
