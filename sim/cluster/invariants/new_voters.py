"""`NewVotersAnswer`: a replica gets a vote only while its leader reaches its node.

Scenario: the only replica of a partition moves to another node, which has caught up and dies. The group would then need both halves of a joint
configuration, and would stop although its data is on a healthy node. Most runs start the node again, so that liveness would not tell.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from raftmq.broker.replica.replica import Replica
from raftmq.raft.membership import MembershipChange, MembershipOp
from raftmq.types import NodeId

from sim.core.invariants.violation import demand


def check_new_voters(replica: Replica[Any], change: MembershipChange, is_connected: Callable[[NodeId], bool]) -> None:
    """Check a change that a leader is about to propose."""
    for step, replica_id in change.steps:
        if step is MembershipOp.ADD_VOTER and replica_id not in replica.core.membership.voters:
            node_id = replica.node_of(replica_id)
            demand(
                is_connected(node_id),
                "NewVotersAnswer",
                f"r{replica.replica_id} of g{replica.group_id} gives a vote to r{replica_id}, whose node {node_id} it does not reach",
            )
