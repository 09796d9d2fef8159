"""The reads that wait for a leader's confirmation, keyed by the round of heartbeats that will confirm them.

Must not send anything. Invariant: rounds only grow, and a read waits for a round that began after it was asked.
Source: Ongaro's thesis 6.4. Deviation: the key is an internal counter, never a caller's value: a caller that repeats its
value after a pause could have a new read confirmed by old acknowledgements (etcd issue 20418).
"""

from __future__ import annotations

from collections import deque

from raftmq.types import ReplicaId


class ReadQueue:
    """One leadership's reads. A new leadership starts with a new queue, so that counters never carry over."""

    __slots__ = ("_confirming", "_is_round_sent", "round", "waiting")

    def __init__(self) -> None:
        self.round: int = 0
        """The latest round: every heartbeat carries it, every echo returns it."""
        self._is_round_sent = False
        self._confirming: deque[tuple[int, int, ReplicaId, int]] = deque()
        """(round, read index, asker, request id), oldest first."""
        self.waiting: list[tuple[ReplicaId, int]] = []
        """(asker, request id) that wait for the first commit of the leader's term."""

    def __len__(self) -> int:
        return len(self._confirming) + len(self.waiting)

    @property
    def is_confirming(self) -> bool:
        """Whether some read waits for heartbeats to be echoed."""
        return bool(self._confirming)

    def begin_round(self) -> int:
        """A round that no heartbeat carries yet: whoever acknowledges it does so after this call."""
        if self._is_round_sent or not self.round:
            self.round += 1
            self._is_round_sent = False
        return self.round

    def on_beats_taken(self) -> int:
        """Heartbeats leave now; the round they carry."""
        self._is_round_sent = True
        return self.round

    def add(self, read_index: int, asker: ReplicaId, request_id: int) -> None:
        """A read at `read_index`, confirmed once a quorum echoes a round that begins after now."""
        self._confirming.append((self.begin_round(), read_index, asker, request_id))

    def release(self, confirmed_round: int) -> list[tuple[int, ReplicaId, int]]:
        """(read index, asker, request id) of every read that `confirmed_round` confirms, oldest first."""
        released = []
        while self._confirming and self._confirming[0][0] <= confirmed_round:
            _, read_index, asker, request_id = self._confirming.popleft()
            released.append((read_index, asker, request_id))
        return released

    def take_waiting(self) -> list[tuple[ReplicaId, int]]:
        """The reads that waited for the first commit, oldest first."""
        waiting, self.waiting = self.waiting, []
        return waiting

    def take_own(self, replica_id: ReplicaId) -> list[int]:
        """Request ids of `replica_id`'s own reads, for failing them."""
        own = [request_id for _, _, asker, request_id in self._confirming if asker == replica_id]
        own.extend(request_id for asker, request_id in self.waiting if asker == replica_id)
        return own
