"""`OnlyRemovedLeave`: a broker takes itself for removed only if the metadata has removed or replaced it (promise: no healthy broker asks its
operator to give up its data directory).

`RemovedHaveNoVote`: a broker is not removed as an empty one while the metadata's group counts its vote, which would be missing from then on.
"""

from __future__ import annotations

from raftmq.fsm.metadata import Metadata
from raftmq.fsm.metadata_views import NodeView
from raftmq.raft.membership import Membership

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


def check_removable(membership: Membership, node: NodeView) -> None:
    """Check a broker that the metadata leader is about to remove as an empty one."""
    has_vote = node.metadata_replica_id in membership.voter_ids
    demand(not has_vote, "RemovedHaveNoVote", f"broker {node.node_id} is removed, whose vote {membership} counts")
