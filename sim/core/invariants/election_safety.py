"""`ElectionSafety`: at most one leader is elected in a term (thesis, figure 3.2 and section 3.4). `LeaderVotes`: whoever leads is a voter of
the configuration it has applied, or of the half that goes (4.2.2: a leader that was removed steps down).
"""

from __future__ import annotations

from raftmq.raft.membership import Membership

from sim.core.invariants.violation import InvariantViolation, demand


def check_leader_votes(replica_id: int, term: int, membership: Membership) -> None:
    """A replica leads `term`, with this membership applied. Called after every event of a leader."""
    if replica_id not in membership.voters and replica_id not in membership.outgoing:
        raise InvariantViolation("LeaderVotes", f"r{replica_id} leads term {term} and has no vote in {membership}")


class ElectionSafety:
    """Remembers every term's leader."""

    def __init__(self) -> None:
        self.leaders: dict[int, int] = {}
        """Term -> the replica that led it."""

    def on_leader(self, replica_id: int, term: int) -> None:
        """A replica leads `term`."""
        first = self.leaders.setdefault(term, replica_id)
        demand(first == replica_id, "ElectionSafety", f"r{first} and r{replica_id} both lead term {term}")
