"""`QuarantinedSilent`: a damaged replica does not vote, acknowledge, lead or serve (FAST '18, protocol-aware recovery). The promise is
that a replica that finds damage in its data stays silent.
"""

from __future__ import annotations

from raftmq.broker.replica.replica import Replica
from raftmq.fsm.state_machine import StateMachine
from raftmq.raft.messages import Message
from raftmq.storage.registry_codec import ReplicaState

from sim.cluster.cluster import Process, SimNode
from sim.core.invariants.violation import InvariantViolation


def check_quarantined_silent(process: Process, replica: Replica[StateMachine], message: Message) -> None:
    """Check the sender of a leaving message."""
    node = process.node
    assert node is not None
    row = node.registry.replica(replica.key)
    is_silent = replica.is_closed or (row is not None and row.state is not ReplicaState.CREATED)
    if is_silent:
        raise InvariantViolation(
            "QuarantinedSilent",
            f"{process.machine.name} r{replica.replica_id} of g{replica.group_id} is {row} (closed: {replica.is_closed}) and sends {type(message).__name__}",
        )


def check_serves_none_quarantined(node: SimNode) -> None:
    """Check that a node serves no quarantined replica."""
    for key in node.registry.quarantined():
        partition = node.partitions.get(key.group_id)
        replica = node.engine.replicas.get(key.group_id)
        if not ((partition is None or partition.replica.key != key) and (replica is None or replica.key != key)):
            raise InvariantViolation(
                "QuarantinedSilent",
                f"node {node.view.node_id} serves r{key.replica_id} of g{key.group_id}, which is quarantined",
            )
