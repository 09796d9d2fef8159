"""Finds the lagging voters of a group that is led here, by what they acknowledged, never by connections.

A connection only shows that a process runs. The replica at its other end may be stopped or quarantined, or its disk may take no
writes. Decides nothing: metrics, `topic describe` and repair ask it.
"""

from __future__ import annotations

from typing import Final

from raftmq.broker.replica.replica import Replica
from raftmq.fsm.state_machine import StateMachine
from raftmq.raft.ready import Role
from raftmq.types import METADATA_GROUP_ID, ReplicaId

LAGGING_TICKS: Final = 4
"""Heartbeats in a row that a voter leaves unanswered, or at which it lacks what the leader had one heartbeat earlier, before it
counts as lagging: 1.2 s for a partition. Fewer would count a pause of garbage collection or a slow commit."""
METADATA_LAGGING_TICKS: Final = 8
"""The same for the metadata group, whose heartbeats come twice as often."""


def lagging_voters(replica: Replica[StateMachine]) -> frozenset[ReplicaId]:
    """Return the voters that are behind or silent, or that have acknowledged nothing to this leader yet.

    The leader itself counts: its disk may hang. Empty if this replica does not lead, since only the leader knows.
    """
    if replica.is_closed or replica.role is not Role.LEADER:
        return frozenset()
    ticks = METADATA_LAGGING_TICKS if replica.group_id == METADATA_GROUP_ID else LAGGING_TICKS
    return frozenset(replica.core.lagging_voters(ticks))
