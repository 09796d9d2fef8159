"""Hold the reads that wait for a leader's confirmation, keyed by the round of heartbeats that will confirm them.

Must not send anything. Invariant: rounds only grow, and a read waits for a round that began after it was asked.
Source: Ongaro's thesis 6.4. Deviation: the key is an internal counter, never a value of the caller. Otherwise a caller that
repeats its value after a pause could have a new read confirmed by old acknowledgements (etcd issue 20418).
"""

from __future__ import annotations

from collections import deque

from raftmq.types import ReplicaId


class ReadQueue:
    """Hold the reads of one leadership. A new leadership starts with a new queue, so that counters never carry over."""

    __slots__ = ("_confirming", "_is_round_sent", "round", "waiting")

    def __init__(self) -> None:
        self.round: int = 0
        """The newest round. Every heartbeat carries it, and every response returns it."""
        self._is_round_sent = False
        """Whether a heartbeat of `round` left."""
        self._confirming: deque[tuple[int, int, ReplicaId, int]] = deque()
        """(round, read index, asker, request id), oldest first."""
        self.waiting: list[tuple[ReplicaId, int]] = []
        """(asker, request id) of each read that waits for the first commit of the leader's term."""

    def __len__(self) -> int:
        return len(self._confirming) + len(self.waiting)

    @property
    def is_confirming(self) -> bool:
        """Return whether a read waits for responses to heartbeats."""
        return bool(self._confirming)

    def begin_round(self) -> int:
        """Return a round that no heartbeat carries yet, so that every acknowledgement of it comes after this call."""
        if self._is_round_sent or not self.round:
            self.round += 1
            self._is_round_sent = False
        return self.round

    def on_heartbeats_taken(self) -> int:
        """Record that heartbeats leave now, and return the round that they carry."""
        self._is_round_sent = True
        return self.round

    def add(self, read_index: int, asker: ReplicaId, request_id: int) -> None:
        """Add a read at `read_index`. It is confirmed once a quorum acknowledges a round that begins after this call."""
        self._confirming.append((self.begin_round(), read_index, asker, request_id))

    def release(self, confirmed_round: int) -> list[tuple[int, ReplicaId, int]]:
        """Remove every read that `confirmed_round` confirms, and return (read index, asker, request id) of each, oldest first."""
        released = []
        while self._confirming and self._confirming[0][0] <= confirmed_round:
            _, read_index, asker, request_id = self._confirming.popleft()
            released.append((read_index, asker, request_id))
        return released

    def take_waiting(self) -> list[tuple[ReplicaId, int]]:
        """Remove the reads that waited for the first commit, and return them, oldest first."""
        waiting, self.waiting = self.waiting, []
        return waiting

    def take_own(self, replica_id: ReplicaId) -> list[int]:
        """Return the request ids of the reads that `replica_id` itself asked, so that they can be failed."""
        own = [request_id for _, _, asker, request_id in self._confirming if asker == replica_id]
        own.extend(request_id for asker, request_id in self.waiting if asker == replica_id)
        return own
