"""Every mutant of the core by name, with the number of seeds within which it must be caught."""

from __future__ import annotations

from dataclasses import dataclass

from raftmq.raft.core import RaftCore

from sim.core.cluster import Build
from sim.core.disk import SimDisk
from sim.core.mutants.durability import (
    AckBeforeDurable,
    AsksAheadOfLog,
    CompactedBeforeState,
    IndexAheadOfState,
    StateNotRestored,
    TermNotKept,
    UnseenVotes,
    VoteBeforeDurable,
    VoteWrittenLater,
    WrongTermAcknowledged,
)
from sim.core.mutants.elections import (
    AcceptsLowerTerm,
    AsksBeforeDurable,
    AsksEarlyCountsLate,
    ComparesIndexFirst,
    CountsLateAnswers,
    CountsVotesByNumber,
    OwnVoteBeforeDurable,
    PreVoteRaisesTerm,
    TransfersPutCheckOff,
    VotesTwice,
)
from sim.core.mutants.membership import IgnoresOutgoing, ManyPendingChanges, RemovedLeaderStays, SkipsJoint
from sim.core.mutants.reads import ReadsBeforeOwnCommit, ReadsByEarlierRound, ReadsWithoutRound
from sim.core.mutants.replication import (
    AppendRace,
    AppliesBeforeDurable,
    CommitsEarlierTerm,
    CommitsOwnLast,
    CountsLearners,
    CountsOwnBeforeDurable,
    HeartbeatsPlainCommit,
    LateCommitBeyondPrev,
    LateCommitUnchecked,
    LostWindowStalls,
    OffsetsNotRewound,
    TruncatesAfterPrev,
)
from sim.core.mutants.snapshots import SnapshotDropsAcknowledged, SnapshotKeepsSuffix
from sim.core.options import Profile
from sim.core.replica import SimReplica


@dataclass(frozen=True, slots=True)
class Mutant:
    """A bug, and the number of seeds within which it must be found."""

    build: Build
    seeds_max: int
    profile: Profile | None = None
    """The profile of its seeds. None: each seed draws its own."""


def _core(core: type[RaftCore], seeds_max: int, profile: Profile | None = None) -> Mutant:
    return Mutant(Build(core=core), seeds_max, profile)


def _replica(replica: type[SimReplica], seeds_max: int, profile: Profile | None = None) -> Mutant:
    return Mutant(Build(replica=replica), seeds_max, profile)


def _disk(disk: type[SimDisk], seeds_max: int, profile: Profile | None = None) -> Mutant:
    return Mutant(Build(disk=disk), seeds_max, profile)


MUTANTS: dict[str, Mutant] = {
    "vote-before-durable": _replica(VoteBeforeDurable, 20),
    "ack-before-durable": _replica(AckBeforeDurable, 20),
    "index-ahead-of-state": _replica(IndexAheadOfState, 100),
    "state-not-restored": _replica(StateNotRestored, 20),
    "wrong-term-acknowledged": _replica(WrongTermAcknowledged, 40, Profile.CHURN),
    "term-not-kept": _disk(TermNotKept, 20),
    "vote-written-later": _disk(VoteWrittenLater, 20),
    "compacted-before-state": _disk(CompactedBeforeState, 40, Profile.SNAPSHOTS),
    "votes-twice": _core(VotesTwice, 40),
    "compares-index-first": _core(ComparesIndexFirst, 100, Profile.CHURN),
    "counts-votes-by-number": _core(CountsVotesByNumber, 40),
    "own-vote-before-durable": _core(OwnVoteBeforeDurable, 60, Profile.MEMBERSHIP),
    "asks-before-durable": _core(AsksBeforeDurable, 20),
    "asks-ahead-of-log": _replica(AsksAheadOfLog, 20),
    "counts-late-answers": _core(CountsLateAnswers, 20),
    "asks-early-counts-late": Mutant(Build(core=AsksEarlyCountsLate, replica=UnseenVotes), 300, Profile.CAMPAIGNS),
    "pre-vote-raises-term": _core(PreVoteRaisesTerm, 20),
    "transfers-put-check-off": _core(TransfersPutCheckOff, 300),
    "accepts-lower-term": _core(AcceptsLowerTerm, 200, Profile.CHURN),
    "commits-earlier-term": _core(CommitsEarlierTerm, 20),
    "counts-own-before-durable": _core(CountsOwnBeforeDurable, 60),
    "counts-learners": _core(CountsLearners, 60, Profile.MEMBERSHIP),
    "truncates-after-prev": _core(TruncatesAfterPrev, 60),
    "commits-own-last": _core(CommitsOwnLast, 300, Profile.CHURN),
    "heartbeats-plain-commit": _core(HeartbeatsPlainCommit, 60, Profile.CHURN),
    "late-commit-unchecked": _core(LateCommitUnchecked, 60, Profile.MEMBERSHIP),
    "late-commit-beyond-prev": _core(LateCommitBeyondPrev, 60, Profile.MEMBERSHIP),
    "append-race": _core(AppendRace, 60, Profile.CHURN),
    "offsets-not-rewound": _core(OffsetsNotRewound, 40),
    "applies-before-durable": _core(AppliesBeforeDurable, 20),
    "lost-window-stalls": _core(LostWindowStalls, 60),
    "snapshot-keeps-suffix": _core(SnapshotKeepsSuffix, 100, Profile.SNAPSHOTS),
    "snapshot-drops-acknowledged": _core(SnapshotDropsAcknowledged, 360, Profile.SNAPSHOTS),
    "ignores-outgoing": _core(IgnoresOutgoing, 60, Profile.MEMBERSHIP),
    "skips-joint": _core(SkipsJoint, 100, Profile.MEMBERSHIP),
    "many-pending-changes": _core(ManyPendingChanges, 150, Profile.MEMBERSHIP),
    "removed-leader-stays": _core(RemovedLeaderStays, 40, Profile.MEMBERSHIP),
    "reads-without-round": _core(ReadsWithoutRound, 60, Profile.READS),
    "reads-before-own-commit": _core(ReadsBeforeOwnCommit, 60, Profile.READS),
    "reads-by-earlier-round": _core(ReadsByEarlierRound, 240, Profile.READS),
}
"""Mutants by name. A budget is about three times the number of seeds that were needed when it was set, rounded up."""
