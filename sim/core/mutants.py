"""Known bugs of Raft implementations, made by subclassing: each must be caught, or the simulator's net has a hole.

Nothing here is reachable from the product, which has no switch for any of it.
Source: the defects named in each class; etcd/raft's issues, aioraft-ng 0.2.0 and PySyncObj 0.3.14 among them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from raftmq.raft.core import RaftCore
from raftmq.raft.entry import Entry, Proposal
from raftmq.raft.leadership import Leadership
from raftmq.raft.log import RaftLog
from raftmq.raft.membership import Membership
from raftmq.raft.messages import (
    AppendRequest,
    AppendResponse,
    Heartbeat,
    HeartbeatResponse,
    InstallSnapshot,
    Message,
    VoteRequest,
    VoteResponse,
)
from raftmq.raft.progress import Progress
from raftmq.raft.quorum import VoteResult, joint_index, joint_vote
from raftmq.raft.ready import AppendToken, AppendWork, Refused, Role
from raftmq.types import LogIndex, ReplicaId, Term

from sim.core.cluster import Build
from sim.core.disk import CompactionJob, DerivedState, DiskJob, SimDisk
from sim.core.options import Profile
from sim.core.replica import SimReplica
from sim.core.state_machine import MachineState

# ------------------------------------------------------------------------------------------------ durability: the shell


class VoteBeforeDurable(SimReplica):
    """Sends a vote before term and vote are durable (thesis 3.8; PySyncObj never persists them)."""

    def _write(self, core: RaftCore, work: AppendWork) -> None:
        early = tuple(message for message in work.responses if isinstance(message, VoteResponse))
        for message in early:
            self.world.checker.on_response(self, message)
            self._send(message)
        rest = tuple(message for message in work.responses if message not in early)
        super()._write(core, replace(work, responses=rest))


class AckBeforeDurable(SimReplica):
    """Acknowledges entries before they are durable (thesis 3.8; PySyncObj never syncs its journal)."""

    def _write(self, core: RaftCore, work: AppendWork) -> None:
        early = tuple(message for message in work.responses if isinstance(message, AppendResponse))
        for message in early:
            self._send(message)  # not shown to the checker: only the consequences count
        rest = tuple(message for message in work.responses if message not in early)
        super()._write(core, replace(work, responses=rest))


class AsksAheadOfLog(SimReplica):
    """Writes term and vote past the entries under way, and asks for votes with a log end that the disk does not hold."""

    def _write(self, core: RaftCore, work: AppendWork) -> None:
        early = tuple(message for message in work.responses if isinstance(message, VoteRequest))
        if early and work.hard_state is not None:
            self.disk.hard_state = replace(work.hard_state, commit_index=self.disk.hard_state.commit_index)
        for message in early:
            self._send_early(message)
        super()._write(core, replace(work, responses=tuple(one for one in work.responses if one not in early)))


class UnseenVotes(SimReplica):
    """Shows the checker neither requests for votes nor the answers to them: only what comes of them counts."""

    def _send_early(self, message: Message) -> None:
        self._send(message)

    def _step(self, core: RaftCore, message: Message) -> None:
        core.step(message)


class IndexAheadOfState(SimReplica):
    """Persists an applied index ahead of the state it names: an entry is skipped after a crash (etcd 3.5.0)."""

    def _derived(self, core: RaftCore) -> DerivedState | None:
        state = super()._derived(core)
        if state is None:
            return None
        ahead = min(core.commit_index, self.disk.log.last_index)
        return replace(state, machine=replace(state.machine, index=max(ahead, state.machine.index)))


class StateNotRestored(SimReplica):
    """Restarts with a snapshot's position and not its state (aioraft-ng)."""

    def start(self) -> None:
        """Start, forgetting the state machine."""
        state = self.disk.state
        if self.life:
            self.disk.state = replace(state, machine=MachineState(state.machine.index, 0, 0))
        super().start()


class WrongTermAcknowledged(SimReplica):
    """Tells a client «committed» when another term's entry was applied at its index (raft.md 1.11)."""

    def _apply(self, life: int) -> None:
        for entries in self._applying:
            for entry in entries:
                waiting = self.waiters.pop(entry.index, None)
                if waiting is not None:
                    self.world.checker.acknowledged.on_acknowledged(waiting)
        super()._apply(life)


class TermNotKept(SimDisk):
    """Never writes term and vote (PySyncObj)."""

    def _perform(self, job: DiskJob) -> None:
        kept = self.hard_state
        super()._perform(job)
        self.hard_state = replace(kept, commit_index=self.hard_state.commit_index)


class VoteWrittenLater(SimDisk):
    """Writes term and vote separately: a crash between them forgets a vote already given (aioraft-ng)."""

    def _perform(self, job: DiskJob) -> None:
        before = self.hard_state
        super()._perform(job)
        if self.hard_state.term != before.term:
            self.hard_state = replace(self.hard_state, vote=ReplicaId(0))


class CompactedBeforeState(SimDisk):
    """Deletes the log before the state it led to is durable (raft.md 3.3; dragonboat's contract)."""

    def _perform(self, job: DiskJob) -> None:
        if isinstance(job, CompactionJob):
            job = replace(job, state=self.state)
        super()._perform(job)


# ------------------------------------------------------------------------------------------------------------ elections


class VotesTwice(RaftCore):
    """Votes for everybody who asks in a term (thesis 3.4)."""

    __slots__ = ()

    def _may_vote_for(self, message: VoteRequest) -> bool:
        return True


class ComparesIndexFirst(RaftCore):
    """Compares logs by index before term (thesis 3.6.1)."""

    __slots__ = ()

    def _is_log_up_to_date(self, last_index: int, last_term: int) -> bool:
        return (last_index, last_term) >= (self.log.last_index, self.log.last_term)


class CountsVotesByNumber(RaftCore):
    """Counts votes without asking whose they are: a repeated answer counts again (PySyncObj)."""

    __slots__ = ()

    def _count_vote(self, voter: ReplicaId, *, is_granted: bool) -> None:
        if is_granted and voter in self._votes:
            voter = next((other for other in self.membership.voters if other not in self._votes), voter)
        super()._count_vote(voter, is_granted=is_granted)


class OwnVoteBeforeDurable(RaftCore):
    """Counts its own vote before it is durable, which matters where it needs no other one (thesis 3.8)."""

    __slots__ = ()

    def _become_candidate(self, *, is_transfer: bool) -> None:
        super()._become_candidate(is_transfer=is_transfer)
        self._count_vote(self.replica_id, is_granted=True)


class AsksBeforeDurable(RaftCore):
    """Asks for votes before term, own vote and the named log end are durable (etcd's async storage writes)."""

    __slots__ = ()

    def _ask(self, request: VoteRequest) -> None:
        self._send(request)


class CountsLateAnswers(RaftCore):
    """Counts answers to an earlier asking for (pre-)votes, also of before a restart: rounds have no number (etcd)."""

    __slots__ = ()

    def _is_of_this_round(self, message: VoteResponse) -> bool:
        return super()._is_of_this_round(replace(message, round=self._round))


class AsksEarlyCountsLate(AsksBeforeDurable, CountsLateAnswers):
    """Asks for votes before anything of it is durable and counts late answers, unseen: a leader without a committed entry."""

    __slots__ = ()


class PreVoteRaisesTerm(RaftCore):
    """Enters a new term to ask a pre-vote: a replica that was cut off deposes the leader (thesis 9.6)."""

    __slots__ = ()

    def _become_pre_candidate(self) -> None:
        self._reset(self.role, Term(self.term + 1))
        super()._become_pre_candidate()


class TransfersPutCheckOff(RaftCore):
    """Begins the time of the quorum check again with each transfer: a leader cut off goes on while it is told to hand over."""

    __slots__ = ()

    def _begin_transfer(self, target: ReplicaId) -> Refused | None:
        leadership = self.leadership
        before = leadership.transferee if leadership else None
        refused = super()._begin_transfer(target)
        if leadership and leadership.transferee != before:
            leadership.quorum_check_elapsed = 0
        return refused


class AcceptsLowerTerm(RaftCore):
    """Obeys a leader of an earlier term (thesis, figure 3.1, rule 1)."""

    __slots__ = ()

    def _pass_term(self, message: Message) -> bool:
        is_leaders = isinstance(message, AppendRequest | Heartbeat)
        if is_leaders and message.term < self.term and self.role is Role.FOLLOWER:
            seen = self.leader_id, self.term
            self.leader_id, self.term = message.source, message.term
            self._dispatch(message)
            self.leader_id, self.term = seen
            return False
        return super()._pass_term(message)


# ---------------------------------------------------------------------------------------------- replication, commitment


class CommitsEarlierTerm(RaftCore):
    """Commits an earlier term's entry by counting (thesis 3.6.2, figure 3.7)."""

    __slots__ = ()

    def _may_commit(self, index: int) -> bool:
        return index > self.log.commit


class CountsOwnBeforeDurable(RaftCore):
    """A leader counts itself before its own write is durable (thesis 10.2.1)."""

    __slots__ = ()

    def _append_own(self, leadership: Leadership, proposals: Sequence[Proposal], now_ms: int) -> tuple[Entry, ...]:
        entries = super()._append_own(leadership, proposals, now_ms)
        leadership.progress[self.replica_id].on_matched(self.log.last_index)
        return entries


class CountsLearners(RaftCore):
    """Counts learners for commitment (thesis 4.2.1)."""

    __slots__ = ()

    def _counts(self, member: ReplicaId) -> bool:
        return True

    def _quorum_of(self, leadership: Leadership, value: Callable[[Progress], int]) -> int:
        return joint_index([value(progress) for progress in leadership.progress.values()], [])


class TruncatesAfterPrev(RaftCore):
    """Drops everything after `prev` on every append, also on a late one (PySyncObj; thesis 3.5)."""

    __slots__ = ()

    def _accept_entries(self, entries: Sequence[Entry]) -> None:
        if entries:
            self._truncate_for(entries[0].index)
            self.log.append(entries)


class CommitsOwnLast(RaftCore):
    """A follower commits up to min(leader's commit, own last) instead of what the message proved (figure 3.1).

    It also asks to be fed from its commit index when it refuses, which is merely slow: with exact hints the first
    message that matches nearly always reaches the conflict, and hides the defect.
    """

    __slots__ = ()

    def _reject(self, message: AppendRequest) -> None:
        commit = LogIndex(self.log.commit)
        self._respond(
            AppendResponse(
                self.replica_id,
                message.source,
                self.term,
                message.prev_index,
                True,
                commit,
                Term(self.log.term_at(commit)),
            )
        )

    def _on_append_request(self, message: AppendRequest) -> None:
        super()._on_append_request(message)
        if self.log.has(message.prev_index, message.prev_term):
            self.log.commit_to(min(message.commit_index, self.log.last_index))


class HeartbeatsPlainCommit(RaftCore):
    """Heartbeats carry the leader's commit index, whatever the follower has (etcd's `bcastHeartbeat`)."""

    __slots__ = ()

    def _beats(self) -> list[tuple[ReplicaId, LogIndex, int]]:
        return [(peer, LogIndex(self.log.commit), counter) for peer, _, counter in super()._beats()]

    def _on_heartbeat(self, message: Heartbeat) -> None:
        clamped = LogIndex(min(message.commit_index, self.log.last_index))
        super()._on_heartbeat(replace(message, commit_index=clamped))


class _StableByIndex(RaftLog):
    """Believes a completion by its index alone."""

    __slots__ = ()

    def mark_durable(self, index: int, term: int) -> bool:
        """Mark whatever the tail holds there now."""
        index = min(index, self.offset_in_progress - 1)
        return super().mark_durable(index, self.term_at(index))


class AppendRace(RaftCore):
    """A late completion marks entries durable that replaced the ones written (etcd's ABA race of async appends)."""

    __slots__ = ()

    log_class: ClassVar[type[RaftLog]] = _StableByIndex

    def _is_append_current(self, token: AppendToken) -> bool:
        return True


class _NoRewind(RaftLog):
    """Keeps its caches through a truncation."""

    __slots__ = ()

    def _rewind_caches(self, index: int) -> None:
        return


class OffsetsNotRewound(RaftCore):
    """Truncates entries and goes on from the offset they ended at (ours: dense offsets)."""

    __slots__ = ()

    log_class: ClassVar[type[RaftLog]] = _NoRewind


class AppliesBeforeDurable(RaftCore):
    """Applies what is committed and not yet on its own disk (thesis 3.8)."""

    __slots__ = ()

    def _last_to_apply(self) -> int:
        return self.log.commit


class LostWindowStalls(RaftCore):
    """Sends nothing while the window is full: a window lost whole is never repaired (etcd's `replicate_pause`)."""

    __slots__ = ()

    def _on_heartbeat_response(self, message: HeartbeatResponse) -> None:
        leadership = self.leadership
        progress = self.progress.get(message.source)
        if leadership and progress and progress.inflights.is_full:
            progress.record_heartbeat_response(min(message.read_counter, leadership.reads.round))
            self._confirm_rounds(leadership)
            return
        super()._on_heartbeat_response(message)


# ------------------------------------------------------------------------------------------------------------ snapshots


class SnapshotKeepsSuffix(RaftCore):
    """Keeps its log under a snapshot although it does not match there (aioraft-ng; thesis 5.1)."""

    __slots__ = ()

    def _on_install_snapshot(self, message: InstallSnapshot) -> None:
        position = message.meta.position
        if self.log.commit < position.index <= self.log.last_index:
            self._hear_leader(message.source)
            self.log.commit_to(position.index)
            self._acknowledge(message.source, self.log.commit)
            return
        super()._on_install_snapshot(message)


class SnapshotDropsAcknowledged(RaftCore):
    """Throws away a matching log for a late snapshot, entries it has acknowledged included (thesis 5.1)."""

    __slots__ = ()

    def _on_install_snapshot(self, message: InstallSnapshot) -> None:
        if message.meta.position.index > self.log.commit and self._may_restore(message.meta):
            self._hear_leader(message.source)
            self._restore(message)
            self._acknowledge(message.source, self.log.last_index)
            return
        super()._on_install_snapshot(message)


# ----------------------------------------------------------------------------------------------------------- membership


class IgnoresOutgoing(RaftCore):
    """Decides by the incoming half alone while joint (thesis 4.3)."""

    __slots__ = ()

    def _quorum_of(self, leadership: Leadership, value: Callable[[Progress], int]) -> int:
        return joint_index([value(leadership.progress[voter]) for voter in self.membership.voters], [])

    def _evaluate_votes(self) -> None:
        membership = self.membership
        if joint_vote(membership.voters, (), self._votes) is VoteResult.WON and membership.outgoing:
            self._votes.update(dict.fromkeys(membership.voter_ids, True))
        super()._evaluate_votes()


class SkipsJoint(RaftCore):
    """Switches to the new voters in one step, however many change (thesis 4.3)."""

    __slots__ = ()

    def _switch_membership(self, membership: Membership) -> None:
        if membership.auto_leave:
            learners = tuple(sorted({*membership.learners, *membership.learners_next}))
            membership = Membership(membership.voters, learners, revision=membership.revision)
        super()._switch_membership(membership)


class ManyPendingChanges(RaftCore):
    """Takes a change while another one is not applied, and before its term committed anything (thesis 4.1)."""

    __slots__ = ()

    def _may_change_membership(self) -> bool:
        return True


class RemovedLeaderStays(RaftCore):
    """A removed leader goes on leading the members it knew, itself included (thesis 4.2.2)."""

    __slots__ = ()

    def _switch_membership(self, membership: Membership) -> None:
        if self.role is Role.LEADER and self.replica_id not in membership.voter_ids:
            return
        super()._switch_membership(membership)


# ---------------------------------------------------------------------------------------------------------------- reads


class ReadsWithoutRound(RaftCore):
    """Answers a read at once, without asking a quorum whether it still leads (thesis 6.4, step 3)."""

    __slots__ = ()

    def _take_read(self, leadership: Leadership, asker: ReplicaId, request_id: int) -> bool:
        self._answer_read(self.log.commit, asker, request_id)
        return True


class ReadsBeforeOwnCommit(RaftCore):
    """Answers reads before an entry of its own term is committed (thesis 6.4, step 1; aioraft-ng has no no-op)."""

    __slots__ = ()

    def _take_read(self, leadership: Leadership, asker: ReplicaId, request_id: int) -> bool:
        if self._has_committed_in_term:
            return super()._take_read(leadership, asker, request_id)
        leadership.reads.add(self.log.commit, asker, request_id)
        self.heartbeat_due = True
        return True


class ReadsByEarlierRound(RaftCore):
    """Lets echoes of heartbeats sent before the read confirm it (etcd issue 20418)."""

    __slots__ = ()

    def _take_read(self, leadership: Leadership, asker: ReplicaId, request_id: int) -> bool:
        if not self._has_committed_in_term or self._is_only_voter:
            return super()._take_read(leadership, asker, request_id)
        leadership.reads._confirming.append((leadership.reads.round, self.log.commit, asker, request_id))
        self.heartbeat_due = True
        return True


@dataclass(frozen=True, slots=True)
class Mutant:
    """A bug, and how many seeds may pass before it is found."""

    build: Build
    seeds_max: int
    profile: Profile | None = None
    """What its seeds dwell on; None: as they are drawn."""


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
"""By name; the budgets are about three times what was needed when they were set, rounded up."""
