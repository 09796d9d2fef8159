"""`ElectionSafety`: at most one leader is elected in a term (thesis, figure 3.2 and section 3.4)."""

from __future__ import annotations

from sim.core.invariants.violation import demand


class ElectionSafety:
    """Remembers every term's leader."""

    def __init__(self) -> None:
        self.leaders: dict[int, int] = {}
        """Term -> the replica that led it."""

    def on_leader(self, replica_id: int, term: int) -> None:
        """A replica leads `term`."""
        first = self.leaders.setdefault(term, replica_id)
        demand(first == replica_id, "ElectionSafety", f"r{first} and r{replica_id} both lead term {term}")
