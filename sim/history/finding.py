"""What the checker finds: one anomaly, in words, and the events that prove it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """One broken promise."""

    anomaly: str
    """The name of the anomaly's module."""
    text: str
    evidence: tuple[int, ...] = ()
    """Which events prove it: positions in the history, from 0, ascending."""


def finding(anomaly: str, text: str, *evidence: int | None) -> Finding:
    """Make one; evidence that is not there is left out."""
    return Finding(anomaly, text, tuple(sorted({at for at in evidence if at is not None})))
