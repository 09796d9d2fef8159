"""Count the snapshots of one replica that are being sent to its peers, and remember those that were interrupted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from raftmq.raft.messages import InstallSnapshot
from raftmq.types import ReplicaId

PAUSE_SECONDS = 1.0
"""The pause between two snapshots to the same peer, so that a leader does not send them without end to one that refuses them."""
POSTPONED_SECONDS = 5.0
"""A snapshot that could not begin counts as waiting for so long. The leader tries again with each heartbeat."""


class OutgoingSnapshots:
    """Counts the snapshots in progress, and remembers when each peer was last sent one."""

    def __init__(self) -> None:
        self._count = 0
        self._newest: dict[ReplicaId, InstallSnapshot] = {}
        """The snapshot for each peer that the core has asked for last. It takes the place of earlier ones, which a leader of an earlier term
        may have begun here."""
        self._sent_at: dict[ReplicaId, float] = {}
        self._streamed: dict[ReplicaId, int] = {}
        """Bytes of rows that were sent to a peer in the stream that runs, or in the last one."""
        self._streamed_rows: dict[ReplicaId, int] = {}
        """The same in rows, with those that the peer had from an earlier stream."""
        self._interrupted_at: dict[ReplicaId, float] = {}
        """Loop time of the first interruption since a peer was sent a whole snapshot."""
        self._paced = 0
        """Streams that wait for the pace of planned moves."""
        self._postponed_at = float("-inf")
        """Loop time at which a snapshot could not begin last, because too many others were being sent."""

    @property
    def are_in_progress(self) -> bool:
        """Return whether any is being sent."""
        return self._count > 0

    def hold_log(self, now: float, resume_seconds: float) -> bool:
        """Return whether the log must not be truncated, because it must continue rows that are being sent, or that are to be resumed."""
        return self._count > 0 or any(now - since < resume_seconds for since in self._interrupted_at.values())

    def is_waiting(self, now: float) -> bool:
        """Return whether a snapshot waits for the pace of planned moves, or for the end of others."""
        return self._paced > 0 or now - self._postponed_at < POSTPONED_SECONDS

    def postpone(self, now: float) -> None:
        """Record that a snapshot cannot begin now, because too many others are being sent."""
        self._postponed_at = now

    @contextmanager
    def paced(self) -> Iterator[None]:
        """Count a stream as waiting for the pace of planned moves."""
        self._paced += 1
        try:
            yield
        finally:
            self._paced -= 1

    def record_end(self, target: ReplicaId, now: float, *, is_resumable: bool) -> None:
        """Record how a stream ended. One that fails repeatedly does not hold the log for longer than the first time."""
        if is_resumable:
            self._interrupted_at.setdefault(target, now)
        else:
            self._interrupted_at.pop(target, None)

    def record_newest(self, message: InstallSnapshot) -> None:
        """Record that the core wants a peer to be sent this snapshot, and no earlier one."""
        self._newest[message.target] = message

    def is_newest(self, message: InstallSnapshot) -> bool:
        """Return whether the core has not asked for a later snapshot for the same peer."""
        return self._newest.get(message.target) is message

    def begin(self) -> None:
        """Count one more in progress."""
        self._count += 1

    def end(self) -> None:
        """Count one less, however it ended."""
        self._count -= 1

    def record_rows(self, target: ReplicaId, rows: int, streamed: int) -> None:
        """Record how many rows a peer has or will have, and the bytes of rows that the present stream has sent so far."""
        self._streamed_rows[target] = rows
        self._streamed[target] = streamed

    def streamed_rows(self, target: ReplicaId) -> int:
        """Return the number of rows that a peer has or will have from the last stream and those that it resumed."""
        return self._streamed_rows.get(target, 0)

    def streamed_bytes(self, target: ReplicaId) -> int:
        """Return the bytes of rows that the last stream to a peer has sent so far."""
        return self._streamed.get(target, 0)

    def take_turn(self, target: ReplicaId, now: float) -> bool:
        """Return whether a peer may be sent a snapshot now. If so, its pause begins."""
        if now - self.sent_at(target) < PAUSE_SECONDS:
            return False
        self._sent_at[target] = now
        return True

    def sent_at(self, target: ReplicaId) -> float:
        """Return the loop time at which a peer was last sent a snapshot, or minus infinity if it never was."""
        return self._sent_at.get(target, float("-inf"))
