"""Measure plans for 100 brokers and 10,000 partitions with three replicas each: nothing to do, a new broker, a drain, and uneven bytes.

Usage: python -m bench --only plans, or python -m bench.plans. Figures are milliseconds, the median of five runs.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace

import msgspec
from raftmq.broker.cluster.balance_plan import BalancePlan, PlacedPartition, Reason, plan_balance
from raftmq.fsm.metadata_views import NodeView

from bench.workloads import Figure

BROKERS = 100
PARTITIONS = 10_000
RACKS = 4
"""Racks of equal size, so that an even layout exists."""
ROUNDS = 5
LARGE_BROKERS = 20
"""The brokers whose partitions are large when bytes are uneven."""
GIB = 1 << 30


def bench_plans() -> dict[str, float]:
    """Measure plans from a settled layout. Each is checked for the wish that it serves before its time counts."""
    nodes = [_node(node_id) for node_id in range(1, BROKERS + 1)]
    settled = _after(_layout(), _plan(nodes, _layout()))
    sizes = random.Random(7)
    sized = [
        replace(one, size_bytes=int(sizes.uniform(0, 80 if one.node_ids[0] <= LARGE_BROKERS else 10)) * GIB)
        for one in settled
    ]
    draining = [msgspec.structs.replace(nodes[0], state="draining"), *nodes[1:]]
    return {
        "nothing": _milliseconds(nodes, settled, None),
        "join": _milliseconds([*nodes, _node(BROKERS + 1)], settled, Reason.REPLICAS),
        "drain": _milliseconds(draining, settled, Reason.DRAIN),
        "bytes": _milliseconds(nodes, sized, Reason.BYTES),
    }


def _node(node_id: int) -> NodeView:
    addresses = (f"h{node_id}:1", f"h{node_id}:2", f"h{node_id}:3")
    rack = f"rack-{node_id % RACKS}"
    return NodeView(node_id, f"uuid-{node_id}", *addresses, f"host-{node_id}", rack, "1", 1, node_id, "active")


def _layout() -> list[PlacedPartition]:
    """Return partitions whose three replicas are in different racks, dealt to the brokers in turns."""
    return [
        PlacedPartition(group, tuple(1 + (group + group // BROKERS * 4 + step) % BROKERS for step in range(3)), 3)
        for group in range(PARTITIONS)
    ]


def _plan(nodes: Sequence[NodeView], partitions: Sequence[PlacedPartition]) -> BalancePlan:
    return plan_balance(nodes, partitions, {}, {node.node_id: True for node in nodes})


def _after(partitions: Sequence[PlacedPartition], plan: BalancePlan) -> list[PlacedPartition]:
    changed = {change.group_id: change.node_ids for change in plan.changes}
    return [replace(one, node_ids=changed.get(one.group_id, one.node_ids)) for one in partitions]


def _milliseconds(nodes: Sequence[NodeView], partitions: Sequence[PlacedPartition], reason: Reason | None) -> float:
    reasons = {change.reason for change in _plan(nodes, partitions).changes}
    assert (not reasons) if reason is None else reason in reasons, reasons
    times = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        _plan(nodes, partitions)
        times.append((time.perf_counter() - started) * 1000)
    return statistics.median(times)


def figures() -> tuple[Figure, ...]:
    """Return the figures. The target of each is less than two seconds."""
    return tuple(Figure(name, "ms", False, 2000) for name in ("nothing", "join", "drain", "bytes"))


if __name__ == "__main__":
    for name, value in bench_plans().items():
        print(f"{name:<12} {value:>10,.1f}")
