"""`LogInv`, `QuorumLog`, `CommitOwnTerm`: the single committed log of the cluster.

`LogInv`: committed prefixes of any two replicas agree (thesis, figure 3.2, State Machine Safety). `QuorumLog`: each
committed entry is durable on a majority, or on a majority of both halves while joint (3.5, 4.3, 10.2.1). `CommitOwnTerm`: a leader
commits by counting only in its own term (3.6.2, figure 3.7).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from raftmq.raft.entry import Entry
from raftmq.raft.membership import Membership

from sim.core.disk import LogCopy, SimDisk
from sim.core.invariants.violation import InvariantViolation, demand


@dataclass(frozen=True, slots=True)
class CommittedEntry:
    """An entry, and the term of the leader that was first known to have committed it."""

    entry: Entry
    commit_term: int


class CommittedLog:
    """The committed log. It grows when a leader commits, and all replicas' logs are compared with it."""

    def __init__(self, first_index: int) -> None:
        self.first_index = first_index
        self._entries: list[CommittedEntry] = []

    @property
    def last_index(self) -> int:
        """The highest index that was ever known to be committed on any replica."""
        return self.first_index + len(self._entries) - 1

    def at(self, index: int) -> CommittedEntry | None:
        """Return the committed entry at `index`, or None."""
        slot = index - self.first_index
        return self._entries[slot] if 0 <= slot < len(self._entries) else None

    def on_leader_commit(
        self,
        leader_id: int,
        term: int,
        old_commit: int,
        new_commit: int,
        membership: Membership,
        disks: Mapping[int, SimDisk],
    ) -> bool:
        """Check the rise of a leader's commit index. Return whether the committed log has grown."""
        for index in range(old_commit + 1, new_commit + 1):
            known = self.at(index)
            if known is not None and _is_held(index, known.entry.term, membership, disks):
                continue
            entry = _quorum_entry(index, membership, disks)
            demand(known is None or entry is None, "LogInv", f"r{leader_id} commits {entry} over {known}")
            if entry is None:
                detail = f"r{leader_id} (term {term}) commits {index}, no quorum of {membership} has it"
                raise InvariantViolation("QuorumLog", detail)
            self._entries.append(CommittedEntry(entry, term))
            is_own = index < new_commit or entry.term == term
            demand(is_own, "CommitOwnTerm", f"r{leader_id} commits {entry.term}/{index} in term {term}")
        return new_commit == self.last_index

    def check(self, replica_id: int, log: LogCopy, first: int, last: int) -> None:
        """Check that the entries `first`..`last` that a replica holds as committed equal the committed log."""
        for index in range(max(first, log.position.index + 1), last + 1):
            mine, known = log.entry(index), self.at(index)
            if known is None or not (mine is known.entry or mine == known.entry):
                raise InvariantViolation("LogInv", f"r{replica_id} holds {mine} as committed, the cluster {known}")


def _quorum_entry(index: int, membership: Membership, disks: Mapping[int, SimDisk]) -> Entry | None:
    """Return the entry that a majority of each half has durable at `index`, or None if there is no such entry."""
    for voter in membership.voters:
        entry = disks[voter].log.entry(index)
        if entry is not None and _is_held(index, entry.term, membership, disks):
            return entry
    return None


def _is_held(index: int, term: int, membership: Membership, disks: Mapping[int, SimDisk]) -> bool:
    """Return whether a majority of each half has the entry (index, term) durable, or a log that starts after it.

    Uncommitted entries are never deleted, so a log that starts after `index` once held the committed entry there.
    """
    for half in (membership.voters, membership.outgoing):
        count = 0
        for voter in half:
            log = disks[voter].log
            if log.position.index >= index or log.term(index) == term:
                count += 1
        if half and count * 2 <= len(half):
            return False
    return True
