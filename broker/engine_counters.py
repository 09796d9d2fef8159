"""What the engine and its parts count, for a scrape of the metrics to read."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class EngineCounters:
    """Since the start of the process; changed on the loop only."""

    commits_total: int = 0
    """Write transactions that became durable."""
    commit_seconds_total: float = 0.0
    """Time spent in them, queueing included."""
    elections_total: int = 0
    """Elections that a replica here stood in."""
    stalls_total: int = 0
    """Times the loop stood still."""
    dropped_messages_total: int = 0
    """Messages to and from peers dropped for want of room or of a connection."""
