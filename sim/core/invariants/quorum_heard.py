"""`QuorumHeard`: a leader that has not heard a majority for two election timeouts has stepped down (thesis 6.2), whatever it was told to do.

The limit is two timeouts, not one: a message that arrives right after a check counts for the next check, and only the check after that
detects the silence.
"""

from __future__ import annotations

from raftmq.raft.core import RaftCore
from raftmq.raft.ready import Role

from sim.core.invariants.violation import demand


class QuorumHeard:
    """The messages that one replica hears between its start and its crash, by its own clock."""

    def __init__(self) -> None:
        self._ticks = 0
        self._term = 0
        """The term that the replica leads, or 0."""
        self._heard: dict[int, int] = {}
        """Voter -> the tick of its last message. When a leadership or a configuration begins, all voters count as just heard."""
        self._halves: tuple[tuple[int, ...], tuple[int, ...]] = (), ()

    def on_message(self, source: int) -> None:
        """Record that a message from a peer arrived."""
        if source in self._heard:
            self._heard[source] = self._ticks

    def on_tick(self, core: RaftCore) -> None:
        """Count a tick of the core, and check the silence of its voters if it leads."""
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
