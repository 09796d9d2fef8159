"""`QuorumHeard`: a leader that has heard no majority for two election timeouts leads no more (thesis 6.2), whatever it was told to do.

Twice: what arrives right after a check counts for the next one, and only the one after that finds nothing.
"""

from __future__ import annotations

from raftmq.raft.core import RaftCore
from raftmq.raft.ready import Role

from sim.core.invariants.violation import demand


class QuorumHeard:
    """One life of one replica, by its own clock."""

    def __init__(self) -> None:
        self._ticks = 0
        self._term = 0
        """The term it leads; 0 while it does not."""
        self._heard: dict[int, int] = {}
        """Voter -> the tick at which anything of it arrived last. A leadership and a configuration begin as if it just had: other voters counted before."""
        self._halves: tuple[tuple[int, ...], tuple[int, ...]] = (), ()

    def on_message(self, source: int) -> None:
        """Something of a peer arrived."""
        if source in self._heard:
            self._heard[source] = self._ticks

    def on_tick(self, core: RaftCore) -> None:
        """The core was told that a tick has passed."""
        self._ticks += 1
        if core.role is not Role.LEADER:
            self._term = 0
            return
        membership = core.membership
        halves = (membership.voters, membership.outgoing)
        if (core.term, halves) != (self._term, self._halves):
            self._term, self._halves = core.term, halves
            self._heard = dict.fromkeys(membership.voter_ids, self._ticks)
        for half in halves:
            silences = [self._silence(voter) for voter in half if voter != core.replica_id]
            limit = 2 * core.settings.election_ticks
            count = sum(silence <= limit for silence in silences) + (core.replica_id in half)
            detail = f"r{core.replica_id} leads term {core.term}, and has not heard {half} for {silences} ticks"
            demand(not half or count * 2 > len(half), "QuorumHeard", detail)

    def _silence(self, voter: int) -> int:
        return self._ticks - self._heard[voter]
