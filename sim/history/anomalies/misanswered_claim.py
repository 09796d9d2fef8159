"""A misanswered claim: the answer contradicts the claim itself, whatever other claims did.

It names another epoch, or says that the stamp is still the one that the claim replaces. A stamp never comes back, so a repeated claim
cannot meet it again either.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from sim.history.claims import Register
from sim.history.finding import Finding, finding

NAME: Final = "misanswered_claim"


def find(registers: Iterable[Register]) -> Iterator[Finding]:
    """Compare each answer with its claim."""
    for register in registers:
        for claim in register.claims:
            if claim.answer is None:
                continue
            epoch, stamp = claim.answer
            if epoch != claim.epoch:
                text = f"{register.name}: a claim of epoch {claim.epoch} was answered with epoch {epoch}"
            elif claim.replaces is not None and stamp == claim.replaces:
                text = f"{register.name}: {claim.stamp!r} replaces {stamp!r}, and the answer is that stamp"
            else:
                continue
            yield finding(NAME, text, claim.invoked_at, int(claim.ended_at))
