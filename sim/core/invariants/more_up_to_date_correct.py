"""`MoreUpToDateCorrect`: a log at least as up to date as replica j's holds what j has committed, as far as it was committed in a term that
the log has reached (TLA+ `MoreUpToDateCorrectInv`; thesis 3.6.1, 3.6.3: why the comparison in an election is enough). `UpToDate` in
`votes.py` compares two positions when a vote is given; this compares what all logs hold, whoever votes.

Deviation: TLA+ demands everything that j has committed. An append cut off before the entry that committed it breaks that. Scenario, from figure
3.7: S1 writes 2 in term 2; S5, leader of term 3, writes another 2; S1, leader of term 4, writes 3, and S2 and S3 take both: 2 is committed, in
term 4. S4 takes 2 alone and learns that it is committed. S5, at 3/2, is more up to date than S4, at 2/2, and has another entry at 2. Nothing
is lost: S1 to S3, a majority, are at term 4, and none of them votes for S5.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from sim.core.disk import LogCopy
from sim.core.invariants.committed_log import CommittedLog
from sim.core.invariants.violation import demand


class ComparedLog(NamedTuple):
    """A replica's log, at any moment: the rule holds between any two that ever were."""

    replica_id: int
    log: LogCopy
    committed_index: int
    """Entries of `log` up to here (inclusive) are known committed."""


def check_more_up_to_date_correct(logs: Iterable[ComparedLog], committed: CommittedLog) -> None:
    """One pass from the least up to date on: each log holds what any before it has committed, and any equal to it."""
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
        # By `LogMatching`, a log that has the term at this index has everything before it too.
        demand(
            log.term(index) == known.entry.term,
            "MoreUpToDateCorrect",
            f"r{replica_id} ends at {log.last_term}/{log.last_index} and has {log.entry(index)}; a log that is no more up to date has {known}",
        )
