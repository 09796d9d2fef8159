"""Place the replicas of new partitions. The functions are pure: the same input gives the same answer.

Each replica goes to the candidate with, in this order, the fewest replicas of this partition on its host, the fewest in
its rack, the fewest replicas in all, and the smallest id. So replicas of a partition share a host only when there are
not enough hosts, and a rack only when there are not enough racks. Where racks constrain the choice, choosing one by one
can leave two nodes uneven. Afterwards, single replicas are therefore swapped while a swap makes the counts more even
and spreads no partition less. Finally, the replica whose node leads least becomes the preferred leader, and leaderships
are shifted along chains of partitions while that makes them more even.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping

from raftmq.fsm import codes
from raftmq.fsm.metadata_commands import PartitionPlan
from raftmq.fsm.metadata_views import NodeView


class PlacementError(ValueError):
    """Raised when there is no placement: too few nodes, or too little room on them. `code` is an `ErrorCode` number."""

    def __init__(self, message: str, code: int = codes.INVALID_REPLICATION_FACTOR) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def place(
    nodes: Iterable[NodeView],
    partition_count: int,
    replication_factor: int,
    existing_counts: Mapping[int, int],
    existing_leader_counts: Mapping[int, int] | None = None,
    replicas_max: Mapping[int, int] | None = None,
) -> tuple[PartitionPlan, ...]:
    """Plan `partition_count` new partitions on the active ones of `nodes`.

    `existing_counts` and `existing_leader_counts` give the present number of replicas and preferred leaderships by node
    id. `replicas_max` gives the number of replicas that a node accepts. A node without an entry accepts any number.
    Raises `PlacementError` if there are fewer active nodes than `replication_factor`, or if not enough of them have
    room. When almost all nodes are full, it may miss an arrangement that would just fit.
    """
    candidates = sorted((node for node in nodes if node.state == "active"), key=lambda node: node.node_id)
    if not 1 <= replication_factor <= len(candidates):
        raise PlacementError(
            f"replication factor {replication_factor} needs as many active brokers, but there are {len(candidates)}: ask for fewer "
            "replicas, or start more brokers"
        )
    leader_counts = existing_leader_counts or {}
    replicas = {node.node_id: existing_counts.get(node.node_id, 0) for node in candidates}
    leaders = {node.node_id: leader_counts.get(node.node_id, 0) for node in candidates}
    limits = replicas_max or {}
    room = {
        node.node_id: limits[node.node_id] - replicas[node.node_id] for node in candidates if node.node_id in limits
    }
    plans = [_choose(candidates, replication_factor, replicas, room) for _ in range(partition_count)]
    _even_replicas(plans, candidates, replicas, room)
    for plan in plans:
        plan.sort(key=lambda node_id: (leaders[node_id], node_id))
        leaders[plan[0]] += 1
    _even_leaders(plans, leaders)
    return tuple(PartitionPlan(tuple(plan)) for plan in plans)


def place_another(
    candidates: Iterable[NodeView],
    holders: Iterable[NodeView],
    existing_counts: Mapping[int, int],
    replicas_max: Mapping[int, int],
) -> NodeView | None:
    """Return the candidate for one more replica of a partition whose replicas are on `holders`, or None when no
    candidate has room.

    The order of preference is the one for new partitions. The numbers are as in `place`.
    """
    hosts, racks = Counter[str](), Counter[str]()
    for holder in holders:
        hosts[holder.host] += 1
        racks[holder.rack] += 1

    def count(node: NodeView) -> int:
        return existing_counts.get(node.node_id, 0)

    able = [node for node in candidates if count(node) < replicas_max.get(node.node_id, count(node) + 1)]
    return min(able, key=lambda node: (hosts[node.host], racks[node.rack], count(node), node.node_id), default=None)


def host_count(nodes: Iterable[NodeView]) -> int:
    """Return the number of different hosts of active nodes, which a default replication factor is checked against."""
    return len({node.host for node in nodes if node.state == "active"})


def _choose(
    candidates: list[NodeView], replication_factor: int, replicas: dict[int, int], room: dict[int, int]
) -> list[int]:
    """Choose the nodes of one partition. Count them in `replicas`, and subtract them from the `room` of nodes with a
    limit.
    """
    remaining = [node for node in candidates if room.get(node.node_id, 1) > 0]
    if len(remaining) < replication_factor:
        raise PlacementError(
            f"{replication_factor} brokers with room for another partition replica are needed, but only {len(remaining)} have room",
            codes.TOO_MANY_PARTITIONS,
        )
    on_host: dict[str, int] = {}
    in_rack: dict[str, int] = {}
    chosen: list[int] = []
    for _ in range(replication_factor):
        best = min(
            remaining,
            key=lambda node: (
                on_host.get(node.host, 0),
                in_rack.get(node.rack, 0),
                replicas[node.node_id],
                node.node_id,
            ),
        )
        remaining.remove(best)
        on_host[best.host] = on_host.get(best.host, 0) + 1
        in_rack[best.rack] = in_rack.get(best.rack, 0) + 1
        _move(best.node_id, 1, replicas, room)
        chosen.append(best.node_id)
    return chosen


def _move(node_id: int, count: int, replicas: dict[int, int], room: dict[int, int]) -> None:
    replicas[node_id] += count
    if node_id in room:
        room[node_id] -= count


def _even_replicas(
    plans: list[list[int]], candidates: list[NodeView], replicas: dict[int, int], room: dict[int, int]
) -> None:
    """Move single replicas from a node to one that holds at least two fewer, unless a partition becomes less spread."""
    nodes = {node.node_id: node for node in candidates}
    held_by: dict[int, list[list[int]]] = {}
    for plan in plans:
        for node_id in plan:
            held_by.setdefault(node_id, []).append(plan)
    while max(replicas.values()) - min(replicas.values()) > 1:
        swap = _evening_swap(held_by, nodes, replicas, room)
        if swap is None:
            return
        plan, giver, taker = swap
        plan[plan.index(giver)] = taker
        held_by[giver].remove(plan)
        held_by.setdefault(taker, []).append(plan)
        _move(giver, -1, replicas, room)
        _move(taker, 1, replicas, room)


def _evening_swap(
    held_by: Mapping[int, list[list[int]]],
    nodes: Mapping[int, NodeView],
    replicas: Mapping[int, int],
    room: Mapping[int, int],
) -> tuple[list[int], int, int] | None:
    by_count = sorted(replicas, key=lambda node_id: (replicas[node_id], node_id))
    for giver in reversed(by_count):
        for taker in by_count:
            if replicas[giver] - replicas[taker] < 2:
                break
            if room.get(taker, 1) <= 0:
                continue
            for plan in held_by.get(giver, ()):
                if taker not in plan:
                    swapped = [taker if node_id == giver else node_id for node_id in plan]
                    if _crowding(swapped, nodes) <= _crowding(plan, nodes):
                        return plan, giver, taker
    return None


def _crowding(plan: list[int], nodes: Mapping[int, NodeView]) -> tuple[int, int]:
    """Return how much a partition's replicas share hosts, then racks. Smaller is better."""
    hosts = Counter(nodes[node_id].host for node_id in plan)
    racks = Counter(nodes[node_id].rack for node_id in plan)
    return sum(count * count for count in hosts.values()), sum(count * count for count in racks.values())


def _even_leaders(plans: list[list[int]], leaders: dict[int, int]) -> None:
    """Shift preferred leaderships until no chain of shifts makes them more even (a minimum-cost flow with convex
    costs).

    Example: {1,2} led by 1, {3,4} by 3, {1,2} by 2, {1,3} by 1. Node 4 leads nothing, and node 1 leads two. Node 1
    hands {1,3} to 3, and 3 hands {3,4} to 4.
    """
    while max(leaders.values()) - min(leaders.values()) > 1:
        chain = _evening_chain(plans, leaders)
        if not chain:
            return
        for position, leader in chain:
            plan = plans[position]
            leaders[plan[0]] -= 1
            leaders[leader] += 1
            plan.remove(leader)
            plan.insert(0, leader)


def _evening_chain(plans: list[list[int]], leaders: Mapping[int, int]) -> list[tuple[int, int]]:
    """Return plans and their new leaders such that one node leads one less, and a node that leads at least two less
    leads one more.
    """
    led_by: dict[int, list[int]] = {}
    for position, plan in enumerate(plans):
        led_by.setdefault(plan[0], []).append(position)
    for source in sorted(led_by, key=lambda node_id: (-leaders[node_id], node_id)):
        arrived_by: dict[int, tuple[int, int]] = {}
        frontier = deque([source])
        while frontier:
            giver = frontier.popleft()
            if leaders[giver] <= leaders[source] - 2:
                return _trace(arrived_by, source, giver)
            for position in led_by.get(giver, ()):
                for taker in plans[position][1:]:
                    if taker != source and taker not in arrived_by:
                        arrived_by[taker] = (position, giver)
                        frontier.append(taker)
    return []


def _trace(arrived_by: Mapping[int, tuple[int, int]], source: int, target: int) -> list[tuple[int, int]]:
    chain: list[tuple[int, int]] = []
    while target != source:
        position, giver = arrived_by[target]
        chain.append((position, target))
        target = giver
    return chain
