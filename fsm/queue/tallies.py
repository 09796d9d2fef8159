"""Count the events of a partition's messages since the machine was created. The counts are in no row, and influence nothing."""

from __future__ import annotations

from dataclasses import dataclass


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
