"""`MoreUpToDateCorrect`: a log that is at least as up to date as replica j's holds all entries that j has committed, as far as they were
committed in a term that the log has reached. TLA+ calls it `MoreUpToDateCorrectInv`. It is why the comparison of logs in an election is
sufficient (thesis 3.6.1, 3.6.3). `UpToDate` in `votes.py` compares two positions when a vote is given. This invariant compares the
content of all logs, independently of votes.

Deviation: TLA+ demands all entries that j has committed. That does not hold if an append is cut off before the entry that committed
them. Scenario, from figure 3.7:

1. S1 writes entry 2 in term 2. S5, leader of term 3, writes another entry 2.
2. S1, leader of term 4, writes entry 3. S2 and S3 store both entries, so entry 2 is committed in term 4.
3. S4 stores only entry 2 and learns that it is committed.
4. S5, at 3/2, is more up to date than S4, at 2/2, and has another entry 2. Nothing is lost: S1, S2 and S3 are a majority at term 4, and
   none of them votes for S5.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from sim.core.disk import LogCopy
from sim.core.invariants.committed_log import CommittedLog
from sim.core.invariants.violation import demand


class ComparedLog(NamedTuple):
    """A replica's log at some time: the invariant holds between the logs of any two times."""

    replica_id: int
    log: LogCopy
    committed_index: int
    """Last index of `log` that is known to be committed."""


def check_more_up_to_date_correct(logs: Iterable[ComparedLog], committed: CommittedLog) -> None:
    """Check in one pass, from the least up-to-date log on, that each log holds the committed entries of the logs before it and equal to it."""
    due = 0
    ranked = sorted(logs, key=lambda each: (each.log.last_term, each.log.last_index, -each.committed_index))
    for replica_id, log, committed_index in ranked:
        due = max(due, committed_index)
        index = due
        known = committed.at(index)
        while known is not None and known.commit_term > log.last_term:
            index -= 1
            known = committed.at(index)
        if known is None or index <= log.position.index:
            continue
        # By `LogMatching`, a log with this term at this index has all entries before it too.
        demand(
            log.term(index) == known.entry.term,
            "MoreUpToDateCorrect",
            f"r{replica_id} ends at {log.last_term}/{log.last_index} and has {log.entry(index)}; a log that is no more up to date has {known}",
        )
