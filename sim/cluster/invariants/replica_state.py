"""`EqualState`: replicas of a group that applied up to the same index have byte-equal state (thesis 3.2; promise: equal logs give
byte-equal state).
"""

from __future__ import annotations

from hashlib import blake2b

from raftmq.broker.replica.replica import Replica
from raftmq.fsm.state_machine import StateMachine

from sim.core.invariants.violation import InvariantViolation


class ReplicaStates:
    """Digests by group and index."""

    def __init__(self) -> None:
        self._digests: dict[tuple[int, int], tuple[bytes, int]] = {}
        self.compared = 0

    def on_state(self, group: Replica[StateMachine]) -> None:
        """A replica stands at an index."""
        machine = group.state_machine
        index = machine.applied_index
        if group.is_closed or group.is_installing:
            return
        digest = blake2b(digest_size=16)
        for key, value in machine.rows():
            digest.update(key)
            digest.update(b"\0")
            digest.update(value)
        found = digest.digest()
        first, replica_id = self._digests.setdefault((group.group_id, index), (found, group.replica_id))
        if replica_id != group.replica_id:
            self.compared += 1
        if first != found:
            raise InvariantViolation(
                "EqualState",
                f"r{replica_id} and r{group.replica_id} of g{group.group_id} differ at index {index}",
            )
