"""`Monotone`: a replica's term, commit index and applied index never go back while it runs, and its term not even through
a crash (thesis 3.3, 3.5, 3.8). `PreVoteKeepsTerm`: asking for a pre-vote does not raise the term (9.6).
"""

from __future__ import annotations

from raftmq.raft.ready import Role

from sim.core.invariants.violation import demand


def check_monotone(replica_id: int, name: str, old: int, new: int) -> None:
    """Check a counter that moved from `old` to `new`."""
    demand(new >= old, "Monotone", f"{name} of r{replica_id} falls from {old} to {new}")


def check_pre_vote_keeps_term(replica_id: int, role: Role, term: int) -> None:
    """Check the role of a replica whose term just rose. Only a candidate raises it itself, and a message with a new term makes a follower."""
    demand(role is not Role.PRE_CANDIDATE, "PreVoteKeepsTerm", f"r{replica_id} enters term {term} for a pre-vote")
