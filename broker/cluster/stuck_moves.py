"""Notice that the new replica of a move, or of a raised replication factor, makes no progress, on the leader of its partition.

Progress is an acknowledged entry, or a row of a snapshot beyond all that were sent before. A replica that waits for the rate of moves or for the
end of other snapshots, or that is reachable and has everything, is not stuck. Nothing is stored: the next leader measures again.
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
    streamed_rows: int
    at: float


class StuckMoves:
    """The new replicas of the partitions that one node leads."""

    def __init__(
        self,
        now: Callable[[], float],
        stuck_seconds: float,
        is_waiting: Callable[[Replica[StateMachine]], bool],
        is_connected: Callable[[NodeId], bool],
    ) -> None:
        """Take the parts.

        Args:
            now: Returns loop time.
            stuck_seconds: The time without progress after which a replica is stuck.
            is_waiting: Returns whether a copy of a group waits for its turn.
            is_connected: Returns whether a node is reachable.
        """
        self._now = now
        self._stuck_seconds = stuck_seconds
        self._is_waiting = is_waiting
        self._is_connected = is_connected
        self._seen: dict[ReplicaKey, _Seen] = {}

    def observe(self, replica: Replica[StateMachine], new: frozenset[ReplicaId]) -> list[ReplicaKey]:
        """Look at the learners of a led group. Return those that are `new` and stuck. The others repair a loss."""
        learners = (ReplicaKey(replica.group_id, learner) for learner in replica.core.membership.learners)
        return [key for key in learners if self._observe(replica, key) and key.replica_id in new]

    def is_stuck(self, key: ReplicaKey) -> bool:
        """Return whether a learner was stuck when it was last observed."""
        seen = self._seen.get(key)
        return seen is not None and self._now() - seen.at >= self._stuck_seconds

    def retain(self, groups: frozenset[int]) -> None:
        """Forget the replicas of all other groups."""
        self._seen = {key: seen for key, seen in self._seen.items() if key.group_id in groups}

    def _observe(self, replica: Replica[StateMachine], key: ReplicaKey) -> bool:
        """Look at a learner. Return whether it is stuck."""
        now, match_index = self._now(), replica.core.match_index(key.replica_id)
        streamed_rows = replica.outgoing_snapshots.streamed_rows(key.replica_id)
        seen = self._seen.get(key)
        if seen is None:
            self._seen[key] = _Seen(match_index, streamed_rows, now)
            return False
        is_progress = match_index > seen.match_index or streamed_rows > seen.streamed_rows
        is_whole = match_index >= replica.core.commit_index and self._is_connected(replica.node_of(key.replica_id))
        if is_progress or is_whole or self._is_waiting(replica):
            seen.match_index, seen.at = match_index, now
            seen.streamed_rows = max(seen.streamed_rows, streamed_rows)
        return self.is_stuck(key)


def reason_of(node_id: NodeId, stuck_seconds: float, *, is_connected: bool) -> str:
    """Return why a replica does not stay on a broker, in words."""
    if not is_connected:
        return f"broker {node_id} is unreachable, and has received nothing for {stuck_seconds:g} s"
    return f"the new replica on broker {node_id} has made no progress for {stuck_seconds:g} s"
