"""`BudgetsHold`: what clients and leaders can make a node hold stays within its limits, and is given back (promise: everything
that can grow has a named bound).
"""

from __future__ import annotations

from sim.core.invariants.violation import InvariantViolation
from sim.node.cluster import SimNode

ONE_PIECE_BYTES_MAX = 600_000
"""Whatever the limit, one append or proposal fits: the product's appends carry 512 KiB, and records here are small."""


def check_budgets(node: SimNode) -> None:
    """Look at a node's accounts."""
    engine, limits = node.engine, node.limits
    used = {
        "uncommitted": (engine.uncommitted_bytes, limits.uncommitted_bytes_max),
        "inbound": (engine.inbound_bytes, limits.inbound_append_bytes_max),
    }
    for name, (size, size_max) in used.items():
        if not (0 <= size <= max(size_max, ONE_PIECE_BYTES_MAX)):
            raise InvariantViolation(
                "BudgetsHold",
                f"node {node.node_id}: {name} is {size} of {size_max}",
            )
    if engine.recent_budget.bytes_used < 0:
        raise InvariantViolation(
            "BudgetsHold",
            f"node {node.node_id}: recent entries are negative",
        )
    waiting = sum(engine._inbound.waiting.values())
    if engine.inbound_bytes < waiting:
        raise InvariantViolation(
            "BudgetsHold",
            f"node {node.node_id}: {waiting} bytes wait, more than held",
        )


def check_budgets_given_back(node: SimNode) -> None:
    """Nothing is under way any more."""
    engine = node.engine
    is_idle = engine.write_refusal is None and not any(group.append_in_flight for group in engine.groups.values())
    if is_idle and (engine.uncommitted_bytes or engine.inbound_bytes):
        raise InvariantViolation(
            "BudgetsHold",
            f"node {node.node_id} is idle and holds {engine.uncommitted_bytes} uncommitted, {engine.inbound_bytes} inbound",
        )
