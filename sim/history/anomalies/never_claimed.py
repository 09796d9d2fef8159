"""A stamp that was never claimed: an answer shows a stamp or an epoch that nobody had asked for before the answer.

This includes a stamp that was claimed in another epoch, and one that another claim is said to have replaced.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from sim.history.claims import Register
from sim.history.finding import Finding, finding

NAME: Final = "never_claimed"


def find(registers: Iterable[Register]) -> Iterator[Finding]:
    """Find stamps without a claim, and refusals without a claim of a later epoch."""
    for register in registers:
        for stamp, sight in register.unclaimed:
            text = f"{register.name}: {stamp!r} was the stamp of epoch {sight.place.epoch}, and nobody had claimed it there"
            yield finding(NAME, text, sight.began, sight.ended)
        for sight in register.sights:
            if sight.stamp is None and not _may_have_epoch(register, sight.place.epoch, sight.ended):
                text = f"{register.name}: {sight.process} was refused, and nobody had claimed {sight}"
                yield finding(NAME, text, sight.began, sight.ended)


def _may_have_epoch(register: Register, epoch_min: int, at: int) -> bool:
    return any(claim.epoch >= epoch_min and claim.invoked_at < at for claim in register.claims)
