"""Count the events of a partition's messages since the machine was created. The counts are in no row, and influence nothing."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(slots=True)
class Tallies:
    """The counts of one machine. Every replica counts, so a leader compares them with those from the beginning of its term."""

    enqueued: int = 0
    leased: int = 0
    redelivered: int = 0
    """Leases of messages that were leased before."""
    accepted: int = 0
    released: int = 0
    expired_leases: int = 0
    expired: int = 0
    """Messages that were removed because their time to live had passed. Those that are kept as dead do not count."""
    skipped_firings: int = 0
    """Firings of schedules that were missed, and skipped."""
    removed_dead: int = 0
    """Dead messages that retention removed."""

    def since(self, earlier: Tallies) -> Tallies:
        """Return the events after an earlier copy of these counts."""
        return Tallies(*(getattr(self, one.name) - getattr(earlier, one.name) for one in fields(self)))
