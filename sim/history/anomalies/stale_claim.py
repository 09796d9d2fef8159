"""A stale claim: the answer shows an older state of the name than an answer that had ended before the claim began.

The broker that answered had been replaced as the leader, an acknowledged replacement was lost, or an epoch fell. A refusal by a later epoch
is an answer too. A second claim that was seen shows that the first claim of its step had succeeded.

Source: Herlihy and Wing 1990. Thesis section 6.4 (reads that are confirmed by a majority).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from sim.history.claims import Register, Sight
from sim.history.finding import Finding, finding

NAME: Final = "stale_claim"


def find(registers: Iterable[Register]) -> Iterator[Finding]:
    """Compare each answer with the newest one that ended before it began."""
    for register in registers:
        ended = sorted(register.sights, key=lambda sight: sight.ended)
        at, newest = 0, None
        for sight in sorted(register.sights, key=lambda sight: sight.began):
            while at < len(ended) and ended[at].ended < sight.began:
                newest = ended[at] if newest is None else _newer(newest, ended[at])
                at += 1
            if sight.stamp is not None and newest is not None and sight.place < newest.place:
                text = f"{register.name}: {sight.process} was answered {sight} after {newest.process} had been shown {newest}"
                yield finding(NAME, text, newest.began, newest.ended, sight.began, sight.ended)


def _newer(one: Sight, other: Sight) -> Sight:
    return other if other.place > one.place else one
