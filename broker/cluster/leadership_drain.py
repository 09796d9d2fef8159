"""Transfer leaderships in an orderly way: before a node stops, its peers take over its groups, so that no client waits for an
election timeout.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from types import MappingProxyType

from raftmq.broker.cluster.replication_health import lagging_voters
from raftmq.broker.replica.engine import Engine
from raftmq.broker.replica.replica import Replica
from raftmq.fsm.state_machine import StateMachine
from raftmq.raft.ready import Role
from raftmq.types import NO_NODE, GroupId, NodeId, ReplicaId, Term

_LOOK_SECONDS = 0.05
_RETURNED_MIN = 2
"""Leaderships that a node must return before it counts as stopping. A single one may return for another reason, such as a hanging disk."""


async def drain_leadership(
    engine: Engine,
    is_connected: Callable[[NodeId], bool],
    is_anyone_there: Callable[[], bool],
    seconds_max: float,
    is_emptied: Callable[[NodeId], bool] = lambda _: False,
) -> None:
    """Transfer every led group to its furthest connected voter, and wait until they lead, for at most `seconds_max`.

    A group without another voter keeps its leader, and so do all groups if no peer is reachable. A node that is being emptied gets only the
    groups that no other node can take, because their replicas lag or are silent. A node that returns leaderships stops, too. It is offered
    no further one, and a group that only such nodes could take stays. So nodes that stop together do not transfer their groups back and
    forth.
    """
    deadline = engine.loop.time() + seconds_max
    offered: dict[GroupId, tuple[Term, NodeId]] = {}
    returned: Counter[NodeId] = Counter()
    given: Counter[NodeId] = Counter()
    """Number of groups offered to each node: equals get equal shares."""

    def offer_again(replica: Replica[StateMachine]) -> None:
        late = _late_nodes(replica)

        def may_take(node_id: NodeId) -> bool:
            return returned[node_id] < _RETURNED_MIN and is_connected(node_id)

        def may_keep(node_id: NodeId) -> bool:
            return may_take(node_id) and not is_emptied(node_id) and node_id not in late

        target = offer(engine, replica, may_keep, given) or offer(engine, replica, may_take, given)
        if target is not None and offered.get(replica.group_id) != (replica.term, target):
            offered[replica.group_id] = replica.term, target
            given[target] += 1

    def may_go(others: set[NodeId]) -> bool:
        returning = {node_id for node_id in others if returned[node_id] >= _RETURNED_MIN}
        return any(map(is_connected, others - returning)) if returning else bool(others)

    while engine.loop.time() < deadline:
        led = [replica for replica in engine.replicas.values() if replica.core.role is Role.LEADER]
        for replica in led:
            term, node_id = offered.get(replica.group_id, (replica.term, NO_NODE))
            if term < replica.term:
                returned[node_id] += 1
                del offered[replica.group_id]
        led = [replica for replica in led if may_go(_other_nodes(replica))]
        if not led:
            return
        for replica in led:
            engine.guarded(replica, offer_again, replica)
        if not is_anyone_there():
            return
        await asyncio.sleep(_LOOK_SECONDS)


def _other_nodes(replica: Replica[StateMachine]) -> set[NodeId]:
    return {
        NodeId(replica.node_of_replica(voter) or NO_NODE)
        for voter in replica.core.membership.voters
        if voter != replica.replica_id
    }


def _late_nodes(replica: Replica[StateMachine]) -> set[NodeId]:
    """Return the nodes whose voters would take over late or not at all: they lag, and lack entries or are silent."""
    core = replica.core
    late = [
        voter
        for voter in lagging_voters(replica)
        if core.match_index(voter) < core.last_index or core.progress[voter].silent_ticks > 1
    ]
    return {NodeId(replica.node_of_replica(voter) or NO_NODE) for voter in late}


def offer(
    engine: Engine,
    replica: Replica[StateMachine],
    may_take: Callable[[NodeId], bool],
    loads: Mapping[NodeId, int] = MappingProxyType({}),
) -> NodeId | None:
    """Offer a led group to its furthest voter on a node that may take it, and return that node. Without such a voter the leader stays.

    Among equals the node with the lowest of the `loads` gets it.
    """

    def node_of(voter: ReplicaId) -> NodeId:
        return NodeId(replica.node_of_replica(voter) or NO_NODE)

    target = replica.core.furthest_voter(
        lambda voter: may_take(node_of(voter)), lambda voter: loads.get(node_of(voter), 0)
    )
    if target is None:
        return None
    replica.core.transfer_leader(target)
    engine.mark_dirty(replica)
    return node_of(target)
