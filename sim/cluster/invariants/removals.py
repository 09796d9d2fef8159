"""`OnlyRemovedLeave`: a broker takes itself for removed only if the metadata has removed or replaced it (promise: no healthy broker asks its
operator to give up its data directory).
"""

from __future__ import annotations

from raftmq.fsm.metadata import Metadata

from sim.cluster.cluster import SimNode
from sim.core.invariants.violation import demand


class Removals:
    """The identities that were removed or replaced, as soon as any replica of the metadata has applied that."""

    def __init__(self) -> None:
        self._retired: dict[str, None] = {}

    def on_applied(self, machine: Metadata) -> None:
        """Learn the identities, right after an entry was applied."""
        self._retired.update(dict.fromkeys(machine._tables._retired_uuids.by_key))

    def check(self, node: SimNode) -> None:
        """Check a running node."""
        removal = node._bootstrap.removal
        is_right = not removal or node.registry.uuid in self._retired
        demand(is_right, "OnlyRemovedLeave", f"broker {node.registry.node_id} takes itself for removed: {removal}")
