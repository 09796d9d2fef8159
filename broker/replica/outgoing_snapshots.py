"""Count the snapshots of one replica that are being sent to its peers."""

from __future__ import annotations

from raftmq.types import ReplicaId

PAUSE_SECONDS = 1.0
"""The pause between two snapshots to the same peer, so that a leader does not send them without end to one that refuses them."""


class OutgoingSnapshots:
    """Counts the snapshots in progress, and remembers when each peer was last sent one."""

    def __init__(self) -> None:
        self._count = 0
        self._sent_at: dict[ReplicaId, float] = {}

    @property
    def are_in_progress(self) -> bool:
        """Return whether any is being sent. The log must not be truncated then, because the log must continue the sent rows."""
        return self._count > 0

    def begin(self) -> None:
        """Count one more in progress."""
        self._count += 1

    def end(self) -> None:
        """Count one less, however it ended."""
        self._count -= 1

    def take_turn(self, target: ReplicaId, now: float) -> bool:
        """Return whether a peer may be sent a snapshot now. If so, its pause begins."""
        if now - self.sent_at(target) < PAUSE_SECONDS:
            return False
        self._sent_at[target] = now
        return True

    def sent_at(self, target: ReplicaId) -> float:
        """Return the loop time at which a peer was last sent a snapshot, or minus infinity if it never was."""
        return self._sent_at.get(target, float("-inf"))
