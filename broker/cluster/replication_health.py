"""Tell which replicas keep up, and which groups one more failure would hurt.

The answer relies on the acknowledgements of a led group's voters, never on connections alone. A connection only shows that a process runs.
The replica at its other end may be stopped or quarantined, or its disk may accept no writes. This module decides nothing: metrics,
`topic describe` and repair use it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol

from raftmq.broker.cluster.damage_reports import ReportedDamage
from raftmq.broker.cluster.replacement_plan import wanted_partition
from raftmq.broker.replica.replica import Replica
from raftmq.fsm.metadata import Metadata
from raftmq.fsm.metadata_views import PartitionView
from raftmq.fsm.state_machine import StateMachine
from raftmq.raft.ready import Role
from raftmq.storage.log_store import ReplicaKey
from raftmq.types import METADATA_GROUP_ID, GroupId, NodeId, ReplicaId

LAGGING_TICKS: Final = 4
"""A voter lags if it leaves this many heartbeats in a row unanswered, or lacks at each of them the leader's entries of one heartbeat earlier:
1.2 s for a partition. A smaller number would count a pause of garbage collection or a slow commit.
"""
METADATA_LAGGING_TICKS: Final = 8
"""The same number for the metadata group, whose heartbeats are twice as frequent."""


def lagging_voters(replica: Replica[StateMachine]) -> frozenset[ReplicaId]:
    """Return the voters that are behind or silent, or that have acknowledged nothing to this leader yet.

    The leader itself counts: its disk may hang. Empty if this replica does not lead, since only the leader knows.
    """
    if replica.is_closed or replica.role is not Role.LEADER:
        return frozenset()
    ticks = METADATA_LAGGING_TICKS if replica.group_id == METADATA_GROUP_ID else LAGGING_TICKS
    return frozenset(replica.core.lagging_voters(ticks))


class ReplicationHost(Protocol):
    """The node as replication health sees it."""

    @property
    def metadata(self) -> Replica[Metadata]:
        """Return this node's metadata replica. Raises RequestError NOT_FORMED or NOT_READY."""
        ...

    def partition_replicas(self) -> list[Replica[StateMachine]]:
        """Return every serving partition replica here."""
        ...

    def is_connected(self, node_id: NodeId) -> bool:
        """Return whether this node's control channel to that node is up (True for itself)."""
        ...


class ReplicationHealth:
    """Reports the health of the groups that one node leads, as far as it can tell."""

    def __init__(self, host: ReplicationHost, damage: ReportedDamage) -> None:
        self._host = host
        self._damage = damage
        self.without_progress: Mapping[ReplicaKey, str] = {}
        """New replicas of groups led here that have made no progress for long, with the reason. The reconciler replaces it in each round."""

    def in_sync(self, replica: Replica[StateMachine]) -> frozenset[ReplicaId]:
        """Return the voters of a group led here that are connected, not reported as damaged, and not lagging."""
        lagging = lagging_voters(replica)
        return frozenset(
            voter
            for voter in replica.core.membership.voters
            if voter not in lagging
            and self._host.is_connected(replica.node_of(voter))
            and ReplicaKey(replica.group_id, voter) not in self._damage
        )

    def under_replicated(self) -> list[GroupId]:
        """Return the partitions led here that have fewer replicas than their topic wants, or one that does not vote or keep up."""
        metadata = self._host.metadata.state_machine
        found: list[GroupId] = []
        for replica in self._host.partition_replicas():
            # a leader that does not answer yet (its own entry is not applied) counts, too: otherwise a failover would look healthy
            partition = metadata.partition(replica.group_id) if replica.core.role is Role.LEADER else None
            if partition is not None:
                in_sync = self.in_sync(replica)
                if wanted_partition(metadata, partition).missing_count or not all(
                    member.replica_id in in_sync for member in partition.replicas
                ):
                    found.append(replica.group_id)
        return found

    def metadata_voters_behind(self) -> list[NodeId]:
        """Return the nodes whose desired or present vote on metadata does not keep up. Empty unless this node leads the metadata group."""
        replica = self._host.metadata
        if replica.core.role is not Role.LEADER:
            return []
        wanted = {*replica.core.membership.voters, *map(ReplicaId, replica.state_machine.metadata_voters)}
        return sorted(replica.node_of(voter) for voter in wanted - self.in_sync(replica))


def copied_bytes(replica: Replica[StateMachine], wanted: PartitionView, size_bytes: int) -> int:
    """Return how many bytes of a led group its new replicas have, on average of them, as its leader knows. 0 if there are none.

    Entries count by their number, as if all had the same size. A state that is being streamed counts by the bytes that were sent. So the answer is
    an estimate, which survives a change of leaders.
    """
    leaving_seats = {gone.seat for gone in wanted.retiring}
    new = [
        ReplicaId(one.replica_id) for one in wanted.replicas if one.is_newcomer or one.seat in leaving_seats
    ]  # fmt: skip
    return sum(_copied(replica, one, size_bytes) for one in new) // len(new) if new else 0


def _copied(replica: Replica[StateMachine], target: ReplicaId, size_bytes: int) -> int:
    core = replica.core
    if target in core.membership.voters:
        return size_bytes
    if target not in core.membership.learners:
        return 0
    first, last = core.first_index, core.last_index
    entries = max(0, core.match_index(target) + 1 - first)
    in_log = size_bytes * entries // (last + 1 - first) if last >= first else 0
    return min(size_bytes, max(in_log, replica.outgoing_snapshots.streamed_bytes(target)))
