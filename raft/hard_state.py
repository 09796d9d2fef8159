"""Define the state that a replica must never forget: term, vote, and (lazily) the commit index."""

from __future__ import annotations

from dataclasses import dataclass

from raftmq.types import LogIndex, ReplicaId, Term


@dataclass(frozen=True, slots=True)
class HardState:
    """Hold the persistent state of figure 3.1 (thesis 3.4). `vote` is 0 when none was cast in `term`."""

    term: Term
    vote: ReplicaId
    commit_index: LogIndex
    """Written together with the next append, and alone only after a change of membership.

    After a restart with a lower value, the leader tells the current one."""
