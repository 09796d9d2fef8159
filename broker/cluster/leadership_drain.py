"""The orderly end of leadership: before a node stops, its peers take over what it leads, so that nobody waits for an
election timeout.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from raftmq.broker.replica.engine import Engine
from raftmq.broker.replica.replica import Replica
from raftmq.fsm.state_machine import StateMachine
from raftmq.raft.ready import Role
from raftmq.types import NodeId

_LOOK_SECONDS = 0.05


async def drain_leadership(
    engine: Engine, is_connected: Callable[[NodeId], bool], is_anyone_there: Callable[[], bool], seconds_max: float
) -> None:
    """Give every led group to its furthest connected voter, and wait until they have taken it; at most `seconds_max`.

    A group without another voter, and a node without any peer within reach, has nobody to give to.
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
    """Give a led group to the furthest voter of the nodes that may take it; without any, it stays."""
    target = replica.core.furthest_voter(lambda voter: may_take(replica.node_of_replica(voter)))
    if target is not None:
        replica.core.transfer_leader(target)
        engine.mark_dirty(replica)
