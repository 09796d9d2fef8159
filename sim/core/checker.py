"""All cluster-wide invariants. Replicas report their actions to it. It checks during the run, and everything at the end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

from raftmq.raft.core import RaftCore
from raftmq.raft.entry import GENESIS, Entry
from raftmq.raft.messages import AppendResponse, Message, VoteRequest, VoteResponse
from raftmq.raft.ready import AppendWork, Ready, Role

from sim.core.disk import LogCopy, SimDisk
from sim.core.invariants.acknowledged import Acknowledged
from sim.core.invariants.applied_state import AppliedState
from sim.core.invariants.committed_log import CommittedLog
from sim.core.invariants.durability import check_ack_durable, check_applied_durable, check_no_hole, check_stable_durable
from sim.core.invariants.election_safety import ElectionSafety, check_leader_votes
from sim.core.invariants.leader_completeness import check_leader_completeness
from sim.core.invariants.leader_greatest_index import LeaderGreatestIndex
from sim.core.invariants.log_matching import LogMatching
from sim.core.invariants.monotone import check_monotone, check_pre_vote_keeps_term
from sim.core.invariants.more_up_to_date_correct import ComparedLog, check_more_up_to_date_correct
from sim.core.invariants.quorum_heard import QuorumHeard
from sim.core.invariants.reads import LinearizableReads
from sim.core.invariants.violation import InvariantViolation, demand
from sim.core.invariants.votes import Rounds, Votes, check_request_durable
from sim.core.state_machine import MachineState


class Observation:
    """The last observed values of one replica. It lives as long as the replica's core: a restart creates a new one."""

    __slots__ = (
        "applied",
        "applying",
        "commit",
        "completed_term",
        "handed",
        "leader_last",
        "leader_term",
        "quorum_heard",
        "rounds",
        "term",
        "verified",
    )

    def __init__(self, disk: SimDisk) -> None:
        self.handed = LogCopy(disk.log.position)
        """The log as submitted to the disk so far."""
        self.handed.entries.extend(disk.log.entries)
        self.term = int(disk.hard_state.term)
        self.commit = 0
        self.applied = 0
        self.applying = min(int(disk.state.machine.index), disk.log.last_index)
        """The last entry that was handed out for applying. A snapshot raises `applied` before it replaces `handed`, but not this index."""
        self.leader_term = 0
        """The last term in which the replica was seen leading."""
        self.leader_last = 0
        """The last index of its log in that term."""
        self.completed_term = 0
        """The last term that the replica led and whose first entry was submitted. Its log is complete from then on."""
        self.verified = int(disk.log.position.index)
        """Last index that was compared with the committed log."""
        self.rounds = Rounds()
        self.quorum_heard = QuorumHeard()


class Watched(Protocol):
    """The part of a replica that the checker sees."""

    @property
    def replica_id(self) -> int:
        """Return the replica's id."""
        ...

    @property
    def disk(self) -> SimDisk:
        """Return the replica's disk."""
        ...

    observation: Observation


class Checker:
    """The invariants of one run and the data that they remember."""

    def __init__(self, disks: Mapping[int, SimDisk]) -> None:
        self._disks = disks
        self._observed: dict[int, Observation] = {}
        self.elections = ElectionSafety()
        self.votes = Votes()
        self.leader_greatest_index = LeaderGreatestIndex()
        self.log_matching = LogMatching()
        self.committed = CommittedLog(GENESIS.index + 1)
        self.applied_state = AppliedState()
        self.reads = LinearizableReads()
        self.acknowledged = Acknowledged()

    def observe(self, replica_id: int, disk: SimDisk) -> Observation:
        """Begin to observe a replica whose core starts."""
        observation = self._observed[replica_id] = Observation(disk)
        return observation

    def forget(self, replica_id: int) -> None:
        """Stop observing a replica whose core has ended."""
        self._observed.pop(replica_id, None)

    def after_event(self, replica: Watched, core: RaftCore) -> None:
        """Compare a core's few integers with the last observed ones. Called after every input of the core."""
        seen = replica.observation
        if core.term != seen.term:
            check_monotone(replica.replica_id, "term", seen.term, core.term)
            check_pre_vote_keeps_term(replica.replica_id, core.role, core.term)
            seen.term = core.term
        if core.applied_index != seen.applied:
            # A snapshot may only advance it. Entries that the snapshot covers count as applied.
            check_monotone(replica.replica_id, "applied index", seen.applied, core.applied_index)
            seen.applied = core.applied_index
        if core.role is Role.LEADER:
            check_leader_votes(replica.replica_id, core.term, core.membership)
        if core.role is Role.LEADER and seen.leader_term != core.term:
            seen.leader_term = core.term
            seen.leader_last = 0
            self.elections.on_leader(replica.replica_id, core.term)
            self.votes.on_leader(replica.replica_id, core.term, core.membership, self._disks)
        if core.role is Role.LEADER and core.last_index != seen.leader_last:
            seen.leader_last = int(core.last_index)
            self.leader_greatest_index.on_leader(replica.replica_id, core.term, core.log.last_term, core.last_index)
        if core.commit_index != seen.commit:
            self._on_commit(replica, core, seen)

    def _on_commit(self, replica: Watched, core: RaftCore, seen: Observation) -> None:
        old, new = seen.commit, int(core.commit_index)
        check_monotone(replica.replica_id, "commit index", old, new)
        seen.commit = new
        if core.role is Role.LEADER:
            known = max(old, self.committed.first_index - 1)
            has_grown = self.committed.on_leader_commit(
                replica.replica_id, core.term, known, new, core.membership, self._disks
            )
            if has_grown:
                self._check_other_leaders(core.term, known + 1)
        self._check_committed(replica.replica_id, new)

    def _check_committed(self, replica_id: int, index: int) -> None:
        """Check that a replica's commit index was reached by counting, on any leader."""
        demand(
            index <= max(self.committed.last_index, GENESIS.index),
            "LogInv",
            f"r{replica_id} has commit {index}; no leader committed beyond {self.committed.last_index}",
        )

    def _check_other_leaders(self, term: int, first: int) -> None:
        """Check that leaders of later terms have the entries that were just found to be committed in `term`."""
        for replica_id, seen in self._observed.items():
            if seen.completed_term > term and seen.completed_term == seen.term == seen.leader_term:
                check_leader_completeness(replica_id, seen.term, seen.handed, self.committed, first)

    def _verify(self, replica_id: int, seen: Observation) -> None:
        """Compare the submitted log with the committed one. It equals the core's log only right after a submission, so it is not compared when the commit index rises."""
        last = min(seen.commit, seen.handed.last_index)
        if last > seen.verified:
            self.committed.check(replica_id, seen.handed, seen.verified + 1, last)
            seen.verified = last

    def _logs(self) -> Iterator[ComparedLog]:
        """Yield every replica's log: the submitted one while it runs, otherwise the one on its disk, even if the replica never comes back."""
        for replica_id, disk in self._disks.items():
            seen = self._observed.get(replica_id)
            if seen is not None:
                log, committed_index = seen.handed, max(seen.verified, seen.applying)
            else:
                log, committed_index = disk.log, max(disk.hard_state.commit_index, disk.state.machine.index)
            yield ComparedLog(replica_id, log, min(committed_index, log.last_index))

    def on_write(self, replica: Watched, work: AppendWork, is_leader: bool) -> None:
        """Check an append that a replica submits to its disk."""
        seen = replica.observation
        replica_id = replica.replica_id
        if work.snapshot is not None:
            demand(not is_leader, "LeaderAppendOnly", f"r{replica_id} leads term {seen.term} and installs a snapshot")
            seen.handed.reset(work.snapshot.meta.position)
            seen.verified = max(seen.verified, work.snapshot.meta.position.index)
        if work.entries:
            first = work.entries[0].index
            demand(first > seen.verified, "LogInv", f"r{replica_id} overwrites {first}, {seen.verified} is committed")
            if is_leader and seen.completed_term == seen.term:
                is_appended = first == seen.handed.last_index + 1
                demand(is_appended, "LeaderAppendOnly", f"r{replica_id} overwrites {first} of its own log")
            self.log_matching.on_written(replica_id, seen.handed, work.entries)
            self.leader_greatest_index.on_written(replica_id, work.entries)
            seen.handed.write(work.entries)
            self._verify(replica_id, seen)
            if is_leader and seen.completed_term != seen.term:
                seen.completed_term = seen.term
                check_leader_completeness(replica_id, seen.term, seen.handed, self.committed, 0)
                check_more_up_to_date_correct(self._logs(), self.committed)
        elif work.snapshot is None:
            for message in work.responses:
                if isinstance(message, VoteResponse):
                    self.votes.on_granted(message, seen.handed.last_term, seen.handed.last_index)

    def on_ready(self, replica: Watched, ready: Ready) -> None:
        """Check the output of a core."""
        if ready.apply and ready.append is not None and ready.append.snapshot is not None:
            detail = f"r{replica.replica_id} is to install a snapshot and to apply {len(ready.apply)} entries"
            raise InvariantViolation("SnapshotAlone", detail)

    def on_message(self, replica: Watched, message: Message) -> None:
        """Check a message that leaves without waiting for the disk."""
        if isinstance(message, VoteRequest):
            self._on_request(replica, message)

    def _on_request(self, replica: Watched, request: VoteRequest) -> None:
        disk = replica.disk
        check_request_durable(request, disk.hard_state, disk.log.term(request.last_index))
        replica.observation.rounds.on_request(request)
        self.votes.on_request(request)

    def on_step(self, replica: Watched, core: RaftCore, vote: VoteResponse) -> None:
        """Pass a vote to a core, and check that a late answer is not counted."""
        seen = replica.observation
        before = seen.rounds.state_of(core)
        core.step(vote)
        if seen.rounds.is_late(vote):
            seen.rounds.check_not_counted(vote, before, core)
        if before[0] is not Role.LEADER:
            self._on_told_commit(replica.replica_id, seen, min(vote.commit_index, core.commit_index))

    def _on_told_commit(self, replica_id: int, seen: Observation, index: int) -> None:
        """Record the commit index that a candidate was told with a vote.

        Scenario, if `_on_commit` took it for one that a leader counted:
        1. S1 commits a change from {S1, S2} to a joint configuration with {S2, S3}, and entry X before the change is active.
        2. S2 has applied the change, and asks S1 and S3 for votes. It does not know that X is committed. S3 does not have X.
        3. The vote of S1 tells S2 about X, and makes it the leader. No quorum of the joint configuration has X.
        """
        if index > seen.commit:
            self._check_committed(replica_id, index)
            seen.commit = index

    def on_durable(self, replica: Watched) -> None:
        """Check a replica's disk after a write."""
        check_no_hole(replica.replica_id, replica.disk)

    def on_append_done(self, replica: Watched, core: RaftCore) -> None:
        """Check a core after it was told that a write is done."""
        check_stable_durable(replica.replica_id, replica.disk, core)

    def on_response(self, replica: Watched, message: Message) -> None:
        """Check a message that leaves after waiting for the disk."""
        if isinstance(message, VoteResponse):
            self.votes.on_response(message, replica.disk.hard_state)
        elif isinstance(message, VoteRequest):
            self._on_request(replica, message)
        elif isinstance(message, AppendResponse):
            check_ack_durable(replica.disk, message)

    def on_apply(self, replica: Watched, entries: tuple[Entry, ...]) -> None:
        """Check entries that a core hands out for applying."""
        check_applied_durable(replica.replica_id, replica.disk, entries)
        for entry in entries:
            known = self.committed.at(entry.index)
            is_same = known is not None and (known.entry is entry or known.entry == entry)
            demand(is_same, "LogInv", f"r{replica.replica_id} applies {entry}, committed is {known}")
        replica.observation.applying = int(entries[-1].index)

    def on_applied(self, replica: Watched, state: MachineState, core: RaftCore) -> None:
        """Check a replica's state machine and membership after its core was told about `state`."""
        self.applied_state.on_state(replica.replica_id, state)
        self.applied_state.on_membership(replica.replica_id, state.index, core.membership)

    def at_end(self) -> None:
        """Check at the end of the run every log against the committed one, and everything that was acknowledged to clients."""
        for replica_id, seen in self._observed.items():
            log = self._disks[replica_id].log
            if (
                log.position.index >= seen.handed.position.index
            ):  # otherwise a snapshot is under way to a removed replica
                self.committed.check(replica_id, log, 0, seen.applying)
        check_more_up_to_date_correct(self._logs(), self.committed)
        self.acknowledged.check(self.committed)
