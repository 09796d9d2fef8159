"""`OnlyCopiesRefused`: a broker gives up no data directory but a copy, because nothing makes a refused directory usable again."""

from __future__ import annotations

from sim.cluster.cluster import Machine
from sim.core.invariants.violation import demand


def check_only_copies_refused(machine: Machine, reason: str) -> None:
    """Check a directory that is about to be refused permanently."""
    demand(machine.disk.is_copy, "OnlyCopiesRefused", f"the directory of {machine.name} is no copy: {reason}")
