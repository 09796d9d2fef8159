"""What a replica must never forget: term, vote, and (lazily) how far it knows the log committed."""

from __future__ import annotations

from dataclasses import dataclass

from raftmq.types import LogIndex, ReplicaId, Term


@dataclass(frozen=True, slots=True)
class HardState:
    """Thesis 3.4, figure 3.1 «persistent state». `vote` is 0 when none was cast in `term`."""

    term: Term
    vote: ReplicaId
    commit_index: LogIndex
    """Persisted with the next append only: a lower value after a restart is re-learned from the leader."""
