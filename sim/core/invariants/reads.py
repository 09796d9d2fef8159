"""`LinearizableRead`: a confirmed read index covers all entries that were committed when the read was requested (thesis 6.4)."""

from __future__ import annotations

from sim.core.invariants.violation import demand


class LinearizableReads:
    """Remembers for each read the committed index at its request."""

    def __init__(self) -> None:
        self._floors: dict[int, int] = {}
        self.confirmed_count = 0

    def on_asked(self, request_id: int, committed_index: int) -> None:
        """Record a read request. `committed_index` is the highest index that any replica may know to be committed."""
        self._floors[request_id] = committed_index

    def on_confirmed(self, replica_id: int, request_id: int, read_index: int) -> None:
        """Check a confirmed read, which may be served as soon as `read_index` is applied."""
        floor = self._floors[request_id]
        self.confirmed_count += 1
        demand(
            read_index >= floor,
            "LinearizableRead",
            f"r{replica_id} confirms read {request_id} at {read_index}, {floor} was committed when it was asked",
        )
