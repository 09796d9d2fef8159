"""Transfer leaderships in an orderly way: before a node stops, its peers take over its groups, so that no client waits for an
election timeout.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from raftmq.broker.replica.engine import Engine
from raftmq.broker.replica.replica import Replica
from raftmq.fsm.state_machine import StateMachine
from raftmq.raft.ready import Role
from raftmq.types import NO_NODE, NodeId

_LOOK_SECONDS = 0.05


async def drain_leadership(
    engine: Engine, is_connected: Callable[[NodeId], bool], is_anyone_there: Callable[[], bool], seconds_max: float
) -> None:
    """Transfer every led group to its furthest connected voter, and wait until they lead, for at most `seconds_max`.

    A group without another voter keeps its leader, and so do all groups if no peer is reachable.
    """
    deadline = engine.loop.time() + seconds_max
    while engine.loop.time() < deadline:
        led = [
            replica
            for replica in engine.replicas.values()
            if replica.core.role is Role.LEADER and len(replica.core.membership.voters) > 1
        ]
        if not led:
            return
        for replica in led:
            engine.guarded(replica, offer, engine, replica, is_connected)
        if not is_anyone_there():
            return
        await asyncio.sleep(_LOOK_SECONDS)


def offer(engine: Engine, replica: Replica[StateMachine], may_take: Callable[[NodeId], bool]) -> None:
    """Offer a led group to its furthest voter on a node that may take it. Without such a voter the leader stays."""
    target = replica.core.furthest_voter(lambda voter: may_take(NodeId(replica.node_of_replica(voter) or NO_NODE)))
    if target is not None:
        replica.core.transfer_leader(target)
        engine.mark_dirty(replica)
