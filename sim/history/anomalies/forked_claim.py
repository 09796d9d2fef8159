"""A forked claim: two claims replaced the same stamp, or began the same epoch, so that one of them was lost.

A replacement counts if any answer shows its stamp, or a stamp that was written later by replacing it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from sim.history.claims import Register
from sim.history.finding import Finding, finding

NAME: Final = "forked_claim"


def find(registers: Iterable[Register]) -> Iterator[Finding]:
    """Find places with more than one stamp."""
    for register in registers:
        for place, stamps in register.stood.items():
            if len(stamps) > 1:
                said = " and ".join(repr(stamp) for stamp in stamps)
                text = f"{register.name}: {said} were all stamp number {place.number + 1} of epoch {place.epoch}"
                yield finding(NAME, text, *(at for sight in stamps.values() for at in (sight.began, sight.ended)))
