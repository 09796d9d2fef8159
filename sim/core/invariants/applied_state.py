"""`AppliedState`: replicas that applied the same index have the same state and membership
(thesis, figure 3.2, State Machine Safety; 4.1 for the membership, active when applied).
"""

from __future__ import annotations

from raftmq.raft.membership import Membership

from sim.core.invariants.violation import demand
from sim.core.state_machine import MachineState


class AppliedState:
    """Remembers the state at every index."""

    def __init__(self) -> None:
        self._states: dict[int, MachineState] = {}
        self._memberships: dict[int, Membership] = {}

    def on_state(self, replica_id: int, state: MachineState) -> None:
        """A replica's machine is in this state."""
        known = self._states.setdefault(state.index, state)
        demand(known == state, "AppliedState", f"r{replica_id} is in {state}, another replica was in {known}")

    def on_membership(self, replica_id: int, index: int, membership: Membership) -> None:
        """A replica has this membership after applying up to `index`."""
        known = self._memberships.setdefault(index, membership)
        demand(known == membership, "AppliedState", f"r{replica_id} at {index} has {membership}, another had {known}")
