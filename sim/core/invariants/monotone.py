"""`Monotone`: a replica's term, commit index and applied index never go back while it runs, its term not even through
a crash (thesis 3.3, 3.5, 3.8).
"""

from __future__ import annotations

from sim.core.invariants.violation import demand


def check_monotone(replica_id: int, name: str, old: int, new: int) -> None:
    """A counter moved from `old` to `new`."""
    demand(new >= old, "Monotone", f"{name} of r{replica_id} falls from {old} to {new}")
