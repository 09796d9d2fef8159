"""Notice that the new replica of a move, or of a raised replication factor, makes no progress, on the leader of its partition.

Progress is an acknowledged entry, or a byte of a snapshot beyond all that were sent before. A replica that waits for the rate of moves, or that has
everything, is not stuck. Nothing is stored: the next leader measures again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from raftmq.broker.replica.replica import Replica
from raftmq.fsm.state_machine import StateMachine
from raftmq.storage.log_store import ReplicaKey
from raftmq.types import LogIndex, NodeId, ReplicaId


@dataclass(slots=True)
class _Seen:
    match_index: LogIndex
    streamed_bytes: int
    at: float


class StuckMoves:
    """The new replicas of the partitions that one node leads, except those that repair a loss."""

    def __init__(
        self, now: Callable[[], float], stuck_seconds: float, is_waiting: Callable[[Replica[StateMachine]], bool]
    ) -> None:
        """Take the parts.

        Args:
            now: Returns loop time.
            stuck_seconds: The time without progress after which a replica is stuck.
            is_waiting: Returns whether a group waits for the rate of moves.
        """
        self._now = now
        self._stuck_seconds = stuck_seconds
        self._is_waiting = is_waiting
        self._seen: dict[ReplicaKey, _Seen] = {}

    def observe(self, replica: Replica[StateMachine], new: frozenset[ReplicaId]) -> list[ReplicaKey]:
        """Look at the learners of a led group. Return the new ones that are stuck."""
        core = replica.core
        return [
            key
            for learner in core.membership.learners
            if learner in new and self._is_stuck(replica, key := ReplicaKey(replica.group_id, learner))
        ]

    def retain(self, groups: frozenset[int]) -> None:
        """Forget the replicas of all other groups."""
        self._seen = {key: seen for key, seen in self._seen.items() if key.group_id in groups}

    def _is_stuck(self, replica: Replica[StateMachine], key: ReplicaKey) -> bool:
        now, match_index = self._now(), replica.core.match_index(key.replica_id)
        streamed_bytes = replica.outgoing_snapshots.streamed_bytes(key.replica_id)
        seen = self._seen.get(key)
        if seen is None:
            self._seen[key] = _Seen(match_index, streamed_bytes, now)
            return False
        is_progress = match_index > seen.match_index or streamed_bytes > seen.streamed_bytes
        if is_progress or match_index >= replica.core.commit_index or self._is_waiting(replica):
            seen.match_index, seen.at = match_index, now
            seen.streamed_bytes = max(seen.streamed_bytes, streamed_bytes)
        return now - seen.at >= self._stuck_seconds


def reason_of(node_id: NodeId, stuck_seconds: float, *, is_connected: bool) -> str:
    """Return why a replica does not stay on a broker, in words."""
    if not is_connected:
        return f"broker {node_id} is unreachable, and has received nothing for {stuck_seconds:g} s"
    return f"the new replica on broker {node_id} has made no progress for {stuck_seconds:g} s"
