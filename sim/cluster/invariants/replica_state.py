"""`EqualState`: replicas of a group with the same applied index have byte-equal state (thesis 3.2, and the promise that equal logs give
byte-equal state).
"""

from __future__ import annotations

from hashlib import blake2b

from raftmq.broker.replica.disk import Installing
from raftmq.broker.replica.replica import Replica
from raftmq.fsm.log_partition import LogPartition
from raftmq.fsm.metadata import Metadata
from raftmq.fsm.state_machine import StateMachine

from sim.core.invariants.violation import InvariantViolation


class ReplicaStates:
    """The digests of states, by group and index."""

    def __init__(self) -> None:
        self._digests: dict[tuple[int, int], tuple[bytes, int]] = {}
        self.compared = 0

    def on_state(self, replica: Replica[StateMachine]) -> None:
        """Compare a replica's state with the other replicas' state at the same index."""
        machine = replica.state_machine
        index = machine.applied_index
        if (
            replica.is_closed
            or isinstance(replica.disk, Installing)
            or not isinstance(machine, Metadata | LogPartition)
        ):
            return
        digest = blake2b(digest_size=16)
        for key, value in machine.rows():
            digest.update(key)
            digest.update(b"\0")
            digest.update(value)
        found = digest.digest()
        first, replica_id = self._digests.setdefault((replica.group_id, index), (found, replica.replica_id))
        if replica_id != replica.replica_id:
            self.compared += 1
        if first != found:
            raise InvariantViolation(
                "EqualState",
                f"r{replica_id} and r{replica.replica_id} of g{replica.group_id} differ at index {index}",
            )
