"""The most even loads that are possible when subscriptions differ.

Topics with the same subscribers form one pool. Members with the same subscription form one class. The most even loads
(the largest is as small as possible, then the next, and so on) split the group into parts that never share a partition.
In a part every member has `base` partitions or one more, and all members with an equal subscription are in the same
part.

Source: Frank and Murota, Decreasing minimization on M-convex sets (the canonical partition); found here by minimum
cuts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from raftmq.assignors.flow import UNLIMITED, FlowNetwork

_SOURCE, _SINK, _FIRST = 0, 1, 2


class Part(NamedTuple):
    """Pools and classes that are divided among themselves."""

    pools: tuple[int, ...]
    classes: tuple[int, ...]
    base: int
    extra: int
    """Number of members that get one more than `base`."""


def balanced_parts(
    pool_sizes: Sequence[int], class_sizes: Sequence[int], subscribers: Sequence[Sequence[int]]
) -> list[Part]:
    """Split a group into parts. The `subscribers` of each pool are one or more classes. Classes without partitions are
    in no part.
    """
    pools = [pool for pool, size in enumerate(pool_sizes) if size]
    parts: list[Part] = []
    while pools:
        classes = sorted({number for pool in pools for number in subscribers[pool]})
        fullest = _fullest_part(pool_sizes, class_sizes, subscribers, pools, classes)
        parts.append(fullest)
        taken_pools, taken_classes = set(fullest.pools), set(fullest.classes)
        pools = [pool for pool in pools if pool not in taken_pools]
        # partitions that the fullest members could also have had go to the others, which have less
        subscribers = [[number for number in row if number not in taken_classes] for row in subscribers]
    return parts


def _fullest_part(
    pool_sizes: Sequence[int],
    class_sizes: Sequence[int],
    subscribers: Sequence[Sequence[int]],
    pools: list[int],
    classes: list[int],
) -> Part:
    """Return the part whose members have the highest load.

    The smallest sufficient load is searched from below. A cut that shows that a load is too small is a set of pools too
    big for its subscribers, and gives the load that they need (Dinkelbach). At one below the smallest sufficient load,
    the cut is the part itself.
    """
    load = -(-sum(pool_sizes[pool] for pool in pools) // sum(class_sizes[number] for number in classes))
    while True:
        full_pools, full_classes, _ = _overfull(pool_sizes, class_sizes, subscribers, pools, classes, load)
        if not full_pools:
            break
        needed = sum(pool_sizes[pool] for pool in full_pools)
        load = -(-needed // sum(class_sizes[number] for number in full_classes))
    part_pools, part_classes, left_over = _overfull(pool_sizes, class_sizes, subscribers, pools, classes, load - 1)
    return Part(part_pools, part_classes, load - 1, left_over)


def _overfull(
    pool_sizes: Sequence[int],
    class_sizes: Sequence[int],
    subscribers: Sequence[Sequence[int]],
    pools: list[int],
    classes: list[int],
    load: int,
) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    """Return the pools that do not fit into their subscribers at `load` each, those subscribers, and the number left
    over.
    """
    node_of_pool = {pool: _FIRST + position for position, pool in enumerate(pools)}
    node_of_class = {number: _FIRST + len(pools) + position for position, number in enumerate(classes)}
    network = FlowNetwork(_FIRST + len(pools) + len(classes))
    for pool, node in node_of_pool.items():
        network.add_edge(_SOURCE, node, pool_sizes[pool])
        for number in subscribers[pool]:
            network.add_edge(node, node_of_class[number], UNLIMITED)
    for number, node in node_of_class.items():
        network.add_edge(node, _SINK, load * class_sizes[number])
    left_over = sum(pool_sizes[pool] for pool in pools) - network.solve(_SOURCE, _SINK)
    if not left_over:
        return (), (), 0
    full = network.reachable(_SOURCE)
    return (
        tuple(pool for pool, node in node_of_pool.items() if node in full),
        tuple(number for number, node in node_of_class.items() if node in full),
        left_over,
    )
