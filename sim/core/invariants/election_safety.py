"""`ElectionSafety`: at most one leader is elected in a term (thesis, figure 3.2 and section 3.4). `LeaderVotes`: a leader is a voter of
the configuration that it has applied, or of its outgoing half (4.2.2: a removed leader steps down).
"""

from __future__ import annotations

from raftmq.raft.membership import Membership

from sim.core.invariants.violation import InvariantViolation, demand


def check_leader_votes(replica_id: int, term: int, membership: Membership) -> None:
    """Check that a leader of `term` votes in the membership that it has applied. Called after every event of a leader."""
    if replica_id not in membership.voters and replica_id not in membership.outgoing:
        raise InvariantViolation("LeaderVotes", f"r{replica_id} leads term {term} and has no vote in {membership}")


class ElectionSafety:
    """Remembers the leader of every term."""

    def __init__(self) -> None:
        self.leaders: dict[int, int] = {}
        """Term -> its leader."""

    def on_leader(self, replica_id: int, term: int) -> None:
        """Check that no other replica led `term`."""
        first = self.leaders.setdefault(term, replica_id)
        demand(first == replica_id, "ElectionSafety", f"r{first} and r{replica_id} both lead term {term}")
