"""`VoteOnce`: a replica votes for one candidate in a term, even if it restarts in between (thesis 3.4, 3.8)."""

from __future__ import annotations

from raftmq.raft.messages import VoteResponse

from sim.core.invariants.violation import demand


class VoteOnce:
    """The votes of one group."""

    def __init__(self) -> None:
        self._granted: dict[tuple[int, int], int] = {}
        """(voter, term) -> candidate."""

    def on_vote(self, response: VoteResponse) -> None:
        """Check a leaving granted vote."""
        first = self._granted.setdefault((response.source, response.term), response.target)
        demand(
            first == response.target,
            "VoteOnce",
            f"r{response.source} votes for r{first} and r{response.target} in term {response.term}",
        )
