"""The findings of the checker: one anomaly each, in words, with the events that prove it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """One broken promise."""

    anomaly: str
    """The name of the anomaly's module."""
    text: str
    evidence: tuple[int, ...] = ()
    """The events that prove it, as ascending positions in the history, starting at 0."""


def finding(anomaly: str, text: str, *evidence: int | None) -> Finding:
    """Create a finding. Missing evidence (None) is left out."""
    return Finding(anomaly, text, tuple(sorted({at for at in evidence if at is not None})))
