"""`AppliedState`: replicas that applied the same index have the same state and membership
(thesis, figure 3.2, State Machine Safety, and 4.1 for the membership, which is active when it is applied).
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
        """Compare the state of a replica's state machine with the other replicas' state at this index."""
        known = self._states.setdefault(state.index, state)
        demand(known == state, "AppliedState", f"r{replica_id} is in {state}, another replica was in {known}")

    def on_membership(self, replica_id: int, index: int, membership: Membership) -> None:
        """Compare a replica's membership after applying `index` with the other replicas' membership at this index."""
        known = self._memberships.setdefault(index, membership)
        demand(known == membership, "AppliedState", f"r{replica_id} at {index} has {membership}, another had {known}")
