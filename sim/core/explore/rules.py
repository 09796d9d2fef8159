"""The rules that hold across the replicas of a state, and the part of its past that they need. Written from the paper, not from the code."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from itertools import combinations
from typing import NamedTuple

from raftmq.raft.entry import GENESIS, Entry, EntryKind
from raftmq.raft.membership import Membership
from raftmq.raft.ready import Role

from sim.core.invariants.violation import InvariantViolation, demand
from sim.core.replica import SimReplica


class History(NamedTuple):
    """The part of the past that still binds a state."""

    committed: tuple[tuple[Entry, int], ...] = ()
    """Each committed entry, with the term in which it was committed."""
    membership: Membership = Membership(())
    """The configuration that committed the last one."""
    leaders: tuple[tuple[int, int], ...] = ()
    """(term, its leader)."""
    reads: tuple[tuple[int, int], ...] = ()
    """(request, committed index when it was asked)."""

    @property
    def commit_index(self) -> int:
        """The last index that is committed anywhere."""
        return GENESIS.index + len(self.committed)


class View:
    """The parts of a replica's state that the rules compare, taken once for each state."""

    def __init__(self, replica: SimReplica) -> None:
        core, disk = replica.core, replica.disk
        assert core is not None
        self.replica_id = int(replica.replica_id)
        self.role = core.role
        self.term = int(core.term)
        self.commit = int(core.commit_index)
        self.membership = core.membership
        self.hard_state = disk.hard_state
        durable = [disk.log.entry(index) for index in range(core.first_index, core.log.offset)]
        self.log = dict(enumerate([*durable, *core.log.unstable], core.first_index))
        self.position = int(core.log.position.index)
        self.disk_log = {int(entry.index): entry for entry in disk.log.entries}
        self.disk_position = int(disk.log.position.index)
        derived = replica._derived(core)
        self.states = [state for state in (disk.state, derived) if state is not None]

    def keeps(self, entry: Entry) -> bool:
        """Return whether the disk has the entry, or a log that begins after it."""
        return entry.index <= self.disk_position or self.disk_log.get(entry.index) == entry


def is_quorum(membership: Membership, having: AbstractSet[int]) -> bool:
    """Return whether the replicas are a majority, of both halves if the configuration is joint."""
    halves = [half for half in (membership.voters, membership.outgoing) if half]
    return all(2 * len(having & {*half}) > len(half) for half in halves)


def check_overlap(before: Membership, after: Membership) -> None:
    """Check that each quorum of a configuration meets each quorum of the next one."""
    everyone = {*before.voter_ids, *after.voter_ids}
    for size in range(1, len(everyone)):
        for chosen in combinations(everyone, size):
            is_split = is_quorum(before, set(chosen)) and is_quorum(after, everyone.difference(chosen))
            demand(not is_split, "QuorumOverlap", f"{before} and {after} decide without each other")


def check_pair(one: View, other: View) -> None:
    """Compare all logs of two replicas, in memory and on disk (`LogMatching`), and their states (`AppliedState`)."""
    for mine in (one.log, one.disk_log):
        for yours in (other.log, other.disk_log):
            is_due = False
            for index in sorted(mine.keys() & yours.keys(), reverse=True):
                left, right = mine[index], yours[index]
                is_due = is_due or (left is not None and right is not None and left.term == right.term)
                if is_due and left != right:
                    raise InvariantViolation("LogMatching", f"{left} and {right}")
    for state in one.states:
        for twin in other.states:
            if state.machine.index == twin.machine.index and state != twin:
                raise InvariantViolation("AppliedState", f"{state} and {twin}")


def on_leader(history: History, view: View, views: Sequence[View]) -> History:
    """Record a leader: the only one of its term, with votes that are on the disks of a majority."""
    leader = dict(history.leaders).get(view.term, view.replica_id)
    demand(leader == view.replica_id, "ElectionSafety", f"r{leader} and r{view.replica_id} both lead term {view.term}")
    if (view.term, leader) in history.leaders:
        return history
    states = [(each.replica_id, each.hard_state) for each in views]
    having = {
        voter for voter, state in states if (state.term, state.vote) == (view.term, leader) or state.term > view.term
    }
    demand(is_quorum(view.membership, having), "VoteQuorum", f"r{leader} leads term {view.term} by votes on {having}")
    return history._replace(leaders=(*history.leaders, (view.term, leader)))


def on_commit(
    history: History, view: View, views: Sequence[View], commit: int, is_leader: bool, by: Membership
) -> History:
    """Record the entries that a replica has just committed: a leader, in its term, with a majority that has them on disk."""
    added: list[tuple[Entry, int]] = []
    for index in range(history.commit_index + 1, commit + 1):
        entry = view.log.get(index)
        if entry is None or not is_leader:
            raise InvariantViolation("LogInv", f"r{view.replica_id} commits {index}, and is a leader: {is_leader}")
        having = {each.replica_id for each in views if each.keeps(entry)}
        demand(is_quorum(by, having), "QuorumLog", f"{entry} is committed in {by}, and is on the disks of {having}")
        added.append((entry, view.term))
    if not added:
        return history
    demand(added[-1][0].term == view.term, "CommitOwnTerm", f"r{view.replica_id} commits {added[-1]}")
    return history._replace(committed=(*history.committed, *added), membership=by)


def check_view(view: View, history: History) -> None:
    """Compare one replica with the committed log."""
    demand(view.commit <= history.commit_index, "LogInv", f"r{view.replica_id} commits {view.commit} before any leader")
    for entry, term in history.committed:
        mine = view.log.get(entry.index)
        if entry.index <= view.position or mine == entry:
            continue
        detail = f"r{view.replica_id} has {mine} in term {view.term}, and {entry} is committed"
        demand(entry.index > view.commit, "LogInv", detail)
        demand(view.role is not Role.LEADER or view.term <= term, "LeaderCompleteness", detail)
    kinds = [entry.kind for index, entry in view.log.items() if entry is not None and index > history.commit_index]
    is_single = kinds.count(EntryKind.MEMBERSHIP) <= 1
    demand(is_single, "OnePendingChange", f"r{view.replica_id} has several uncommitted changes of membership")


def check_kept(history: History, views: Sequence[View]) -> None:
    """Check that the last committed entry is still on the disks of a majority of those who committed it."""
    for entry, _ in history.committed[-1:]:
        having = {view.replica_id for view in views if view.keeps(entry)}
        demand(is_quorum(history.membership, having), "CommittedIsKept", f"{entry} is left on the disks of {having}")
