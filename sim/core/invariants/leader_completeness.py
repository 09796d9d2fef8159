"""`LeaderCompleteness`: an entry committed in a term is in the log of every leader of a later term
(thesis, figure 3.2 and section 3.6.3).
"""

from __future__ import annotations

from sim.core.disk import LogCopy
from sim.core.invariants.committed_log import CommittedLog
from sim.core.invariants.violation import demand


def check_leader_completeness(replica_id: int, term: int, log: LogCopy, committed: CommittedLog, first: int) -> None:
    """Check that the log of the leader of `term`, which includes its first entry, holds all entries committed in earlier terms."""
    for index in range(max(first, log.position.index + 1, committed.first_index), committed.last_index + 1):
        known = committed.at(index)
        if known is None or known.commit_term >= term:
            continue
        mine = log.entry(index)
        demand(
            mine is known.entry or mine == known.entry,
            "LeaderCompleteness",
            f"r{replica_id}, leader of term {term}, holds {mine}; committed in term {known.commit_term}: {known.entry}",
        )
