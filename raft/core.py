"""Run the consensus of one group, purely: values in, one `Ready` out. No clock, socket, file, thread, logger or `async`.

`RaftCore` is the outermost layer: it takes every input, judges its term, and hands out the work. The shell may run the
append and the apply of different `Ready`s at the same time, but completes appends in order and applies in order.
Invariants: `invariants.check_core` after every input.
Source: Ongaro's thesis 3, 4.1-4.3, 6.4, 9.6, 10.2. The shape is that of etcd's raft with async storage writes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from raftmq.errors import violated
from raftmq.raft.election import Election
from raftmq.raft.entry import Entry, EntryKind, LogPosition, Proposal
from raftmq.raft.hard_state import HardState
from raftmq.raft.invariants import check_core, check_progress
from raftmq.raft.membership import MembershipChange
from raftmq.raft.messages import (
    AppendRequest,
    AppendResponse,
    Heartbeat,
    HeartbeatResponse,
    InstallSnapshot,
    Message,
    ReadIndexRequest,
    ReadIndexResponse,
    TimeoutNow,
    VoteMessage,
    VoteRequest,
    VoteResponse,
)
from raftmq.raft.progress import ProgressState
from raftmq.raft.ready import Appended, AppendToken, AppendWork, Ready, Refused, Role, RoleChange
from raftmq.raft.state import RestoredState
from raftmq.types import NO_REPLICA, LogIndex, ReplicaId, Term

__all__ = ["RaftCore", "RestoredState"]


class RaftCore(Election):
    """Run one replica of one group. The shell calls it from one thread. Every method is quick and never blocks.

    The shell reads, and never writes: `replica_id`, `term`, `vote`, `role`, `leader_id`, `commit_index`,
    `applied_index`, `last_index`, `first_index`, `membership` (the active, that is applied, configuration), and

    - `state_floor`: the index A of the snapshot or restart that this replica began with. The shell must not use the state
      before `applied_index` reaches it.
    - `campaign_due`: the election timeout passed and a campaign is allowed. The shell calls `campaign()` now, or once it has
      room for another campaign.
    - `heartbeat_due`: a leader owes its peers a heartbeat (timer, or a read to confirm). The shell calls `take_heartbeats()`.

    The shell sets `snapshot_meta`, `now_ms`, `copy_pace` and `urgent_learners`, and adds the state rows to an `InstallSnapshot` itself.
    """

    __slots__ = ()

    # ----------------------------------------------------------------------------------------------------------- time

    def tick(self, count: int = 1) -> None:
        """Advance logical time by `count` ticks. Set `campaign_due` or `heartbeat_due`, and run the quorum check and time-outs."""
        self.ticks.now += count
        self.on_tick()

    def on_tick(self) -> None:
        """Do what `tick` does, after the shell has advanced `ticks` for all cores that share it."""
        leadership = self.leadership
        if leadership is not None:
            self._tick_leader(leadership)
            self._maybe_leave_joint()
            check_core(self)
            return
        if self.role is Role.CANDIDATE and self.replica_id not in self._votes:
            self._heard_at = self.ticks.now  # the requests wait for the disk, so that nobody can have answered yet
            return
        if self._election_elapsed >= self._timeout_ticks and not self.campaign_due and self._can_campaign():
            self.campaign_due = True

    def rest(self) -> None:
        """Set `next_tick`, after a tick whose work is done. The shell may leave out `on_tick` until that tick, or until an input.

        For a resting leader it sends the heartbeats of this tick again at each tick. `take_heartbeats` would return the same.
        A resting replica is a follower whose election timeout has not passed, or a leader whose members all hold the whole log.
        """
        leadership = self.leadership
        if leadership is not None:
            self.next_tick = self._next_tick_of_leader(leadership)
        elif self.role is Role.FOLLOWER:
            # A heartbeat may move the timeout further ahead. Then the core does nothing at this tick, and rests again.
            self.next_tick = self._heard_at + self._timeout_ticks

    def wake(self) -> None:
        """End the rest, as there is an input, or something else needs the ticks of this core."""
        self.next_tick = 0
        self.ticks.changes += 1

    def campaign(self) -> None:
        """Start a pre-vote round.

        It has no effect where a campaign is not allowed: on a learner, a removed replica or a leader, while a snapshot is
        pending, while a committed change of membership is not applied, and while applied is below `state_floor`.
        """
        self.wake()
        self._campaign()
        check_core(self)

    def forget_leader(self) -> None:
        """Forget the leader, as its process is known to have ended. A follower then grants pre-votes immediately."""
        self.wake()
        if self.role is Role.FOLLOWER:
            self.leader_id = NO_REPLICA

    def peer_returned(self) -> None:
        """End the stretch of the election timeout, as a peer can be reached again that could not answer pre-votes.

        Otherwise a group that lost its majority for a while would wait up to `pre_vote_backoff_max` times as long.
        """
        self.wake()
        if self._failed_pre_votes and self.role is not Role.LEADER:
            self._failed_pre_votes = 0
            self._roll_timeout()

    def step_down(self) -> None:
        """Become a follower without a leader in the same term: the disk hangs, or the replica is quarantined or shuts down."""
        self.wake()
        if self.role is Role.LEADER:
            self._become_follower(self.term, NO_REPLICA)

    def require_confirmation(self) -> None:
        """Doubt the own leadership, after a stall.

        `is_confirmed_leader` is False until a quorum acknowledges a round of heartbeats that began after this call. The leader
        steps down when that does not happen within one minimum election timeout.
        """
        self.wake()
        if self.leadership is not None:
            self._begin_confirmation(self.leadership)

    @property
    def is_confirmed_leader(self) -> bool:
        """Return whether this replica may judge and take proposals: it leads, its no-op is applied, and no confirmation is due."""
        leadership = self.leadership
        return leadership is not None and not leadership.confirm_round and self.log.applied >= leadership.noop_index

    # ---------------------------------------------------------------------------------------------------------- input

    def step(self, message: Message) -> None:
        """Take a message from a peer. A message for another replica is dropped, and a stale one is dropped or answered."""
        self.wake()
        if message.target != self.replica_id:
            return
        if isinstance(message, VoteMessage):
            # A committed entry stays committed, so that the term of the message does not matter.
            self._learn_commit(message.commit_index, message.commit_term)
        elif isinstance(message, AppendRequest) and message.term < self.term:
            self._learn_late_commit(message)
        if message.term == self.term or self._pass_term(message):
            self._dispatch(message)
        check_core(self)

    def _pass_term(self, message: Message) -> bool:
        """Judge a message of another term, and enter its term where Raft says so. Return whether to handle the message."""
        if message.term < self.term:
            self._answer_stale(message)
            return False
        if isinstance(message, VoteRequest) and self._is_sticky(message):
            return False
        if not message.is_term_proposed:
            self._become_follower(message.term, message.source if message.is_from_leader else NO_REPLICA)
        return True

    def _answer_stale(self, message: Message) -> None:
        """Tell the sender of an earlier term the own term, where silence would exclude a replica.

        Scenario: S3 was cut off, raised its term and came back. The messages of the leader are of a lower term. If S3 ignored
        them, it would stay outside without end, as with pre-votes it never raises the terms of the others.
        """
        if message.is_from_leader:
            self._respond(AppendResponse(self.replica_id, message.source, self.term, LogIndex(0), is_rejected=True))
        elif isinstance(message, VoteRequest) and message.is_pre_vote:
            self._respond_vote(message, self.term, is_granted=False)

    def _dispatch(self, message: Message) -> None:
        """Hand a message of the current term to its handler. The frequent messages come first."""
        match message:
            case AppendRequest():
                self._on_append_request(message)
            case AppendResponse():
                self._on_append_response(message)
            case Heartbeat():
                self._on_heartbeat(message)
            case HeartbeatResponse():
                self._on_heartbeat_response(message)
            case VoteRequest():
                self._on_vote_request(message)
            case VoteResponse():
                self._on_vote_response(message)
            case ReadIndexRequest():
                self._on_read_index_request(message)
            case ReadIndexResponse():
                self._on_read_index_response(message)
            case InstallSnapshot():
                self._on_install_snapshot(message)
            case TimeoutNow():
                self._on_timeout_now(message)

    def propose(self, proposals: Sequence[Proposal], now_ms: int) -> Appended | Refused:
        """Append the proposals to the leader's log, all or none. `now_ms` is raised so that append times never decrease."""
        self.wake()
        outcome = self._propose(proposals, now_ms)
        check_core(self)
        return outcome

    def propose_membership(self, change: MembershipChange, now_ms: int) -> Appended | Refused:
        """Append a change of membership. It is checked here as far as possible. A change that is invalid when applied does nothing."""
        self.wake()
        outcome = self._propose_membership(change, now_ms)
        check_core(self)
        return outcome

    def read_index(self, request_id: int) -> None:
        """Ask for a confirmed commit index. The answer comes in `Ready.reads` or `Ready.failed_reads`.

        A follower forwards the question. If a message is lost, no answer comes: the shell times out and asks with a new id.
        """
        self.wake()
        self._ask_read(request_id)

    def transfer_leader(self, target: ReplicaId) -> Refused | None:
        """Transfer leadership to `target`. Proposals are refused until it has happened or one election timeout has passed."""
        self.wake()
        outcome = self._begin_transfer(target)
        check_core(self)
        return outcome

    # ----------------------------------------------------------------------------------------------------- heartbeats

    def take_heartbeats(self) -> list[tuple[ReplicaId, LogIndex, int]]:
        """Return (target, min(match, commit), read counter) for each peer, and clear `heartbeat_due`. Empty unless leader.

        The shell packs the heartbeats for one node into one frame. `step` takes them as messages, too.
        """
        return self._heartbeats()

    def on_quiet_heartbeat(self, source: ReplicaId, term: Term, commit_index: LogIndex) -> bool:
        """Take a heartbeat that changes nothing but the election timer, on a fast path.

        Return True when it was handled: the shell answers it. Return False when nothing was done: the shell calls
        `step(Heartbeat(...))`.
        """
        return self._on_quiet_heartbeat(source, term, commit_index)

    def repeat_quiet_heartbeat(self) -> None:
        """Take a quiet heartbeat once more: it is equal to an earlier one, and `Ticks.changes` has not changed since."""
        self._heard_at = self.ticks.now
        self.campaign_due = False

    def on_quiet_heartbeat_response(self, source: ReplicaId, term: Term, read_counter: int) -> bool:
        """Take the response of a peer that is caught up, when no read waits for it, on a fast path.

        Return False when nothing was done: the shell calls `step(HeartbeatResponse(...))`.

        Args:
            source: the peer that answered.
            term: the term of the heartbeat.
            read_counter: the counter of the heartbeat. A stale one is harmless.
        """
        leadership = self.leadership
        if leadership is None:
            return False
        progress = leadership.progress.get(source)
        if (
            progress is None
            or term != self.term
            or progress.match_index != self.log.last_index
            or progress.state is not ProgressState.REPLICATE
            or leadership.confirm_round
            or leadership.reads.is_confirming
        ):
            return False
        progress.record_heartbeat_response(min(read_counter, leadership.reads.round))
        return True

    # ---------------------------------------------------------------------------------------------------- completions

    def append_done(self, token: AppendToken) -> None:
        """Record that the append of `token`, and all before it, are durable."""
        self.wake()
        if token.sequence <= self._done_sequence:
            violated("appends_in_order", sequence=token.sequence, done=self._done_sequence)
        self._done_sequence = token.sequence
        self._on_append_done(token)
        check_core(self)

    def _on_append_done(self, token: AppendToken) -> None:
        log, leadership = self.log, self.leadership
        if log.snapshot is not None and log.snapshot_sequence and token.sequence >= log.snapshot_sequence:
            log.snapshot = None  # valid in any term: an installed snapshot stays installed
        if (
            token.last_index
            and log.snapshot is None
            and self._is_append_current(token)
            and log.mark_durable(token.last_index, token.last_term)
            and leadership is not None
        ):
            self._count_own_log(leadership)
            self._maybe_commit(leadership)
        self._on_own_vote_durable(token.term, token.vote)

    def _is_append_current(self, token: AppendToken) -> bool:
        """Return whether the completion describes the present log. This is the guard against the ABA race of async appends.

        Scenario, if a completion counted in every term:
        1. An append of (5, term 1) is in flight.
        2. The leader of term 2 replaces entry 5, and the leader of term 3 puts the first one back.
        3. The first completion arrives. The entry equals (5, term 1), yet the write of term 2 reaches the disk after it.
        So a completion counts only in the term in which its append was handed out. Every append carries the last position of
        the whole tail, so that the next completion makes up for an ignored one.
        """
        return token.term == self.term

    def apply_done(self, index: LogIndex) -> None:
        """Record that entries up to `index` are applied. Changes of membership among them become active now."""
        self.wake()
        if index <= self.log.applied:
            return  # these entries were applied before a snapshot replaced the log
        self.log.applied_to(index)
        while self._applying_parts and self._applying_parts[0][0] <= index:
            self._applying_bytes -= self._applying_parts.popleft()[1]
        self._apply_memberships(index)
        self._maybe_leave_joint()
        self._maybe_campaign_after_change()
        check_core(self)

    def entries_fetched(self) -> None:
        """Try again to read entries for which `LogView.entries` returned None."""
        self.wake()
        self._apply_is_fetching = False
        leadership = self.leadership
        if leadership is not None:
            for progress in leadership.progress.values():
                progress.on_fetched()
            leadership.flush_due = True

    def resume_copies(self) -> None:
        """Try again to send entries to learners that `copy_pace` held back."""
        self.wake()
        if self.leadership is not None:
            self.leadership.flush_due = True

    def report_unreachable(self, peer: ReplicaId) -> None:
        """Probe the peer instead of pipelining, as messages to it were dropped."""
        self.wake()
        progress = self.progress.get(peer)
        if progress is not None and peer != self.replica_id and progress.state is ProgressState.REPLICATE:
            progress.become_probe()
            check_progress(progress, self.log.last_index)

    def report_snapshot(self, peer: ReplicaId, is_sent: bool) -> None:
        """Probe the peer, as the stream of an `InstallSnapshot` to it ended. `is_sent`: the stream was sent whole."""
        self.wake()
        progress = self.progress.get(peer)
        if progress is None or progress.state is not ProgressState.SNAPSHOT:
            return
        progress.on_snapshot_ended(is_sent)
        check_progress(progress, self.log.last_index)

    def compacted(self, position: LogPosition) -> None:
        """Record that the shell deleted the durable log up to `position`, which is at most `applied_index`."""
        self.wake()
        self.log.compacted(position)
        check_core(self)

    # --------------------------------------------------------------------------------------------------------- output

    def has_ready(self, with_append: bool = True) -> bool:
        """Return whether `ready(with_append)` would hold anything."""
        leadership = self.leadership
        if leadership is not None and leadership.flush_due:
            self._flush(leadership)
        return bool(
            self._messages
            or (with_append and self._has_append())
            or self._has_apply()
            or self._confirmed_reads
            or self._failed_reads
            or self._has_role_change()
        )

    def ready(self, with_append: bool = True) -> Ready:
        """Take all the work that is to be done.

        With `with_append=False`, the pending write and the messages that wait for it stay for a later call. So the entries
        that arrive during a commit gather into one next write. The shell need not wait for one append before it takes the
        next, but it completes appends in order.
        """
        leadership = self.leadership
        if leadership is not None and leadership.flush_due:
            self._flush(leadership)
        role_change = None
        if self._has_role_change():
            role_change = self._reported = RoleChange(self.role, self.term, self.leader_id)
        messages, reads, failed_reads = tuple(self._messages), tuple(self._confirmed_reads), tuple(self._failed_reads)
        self._messages.clear()
        self._confirmed_reads.clear()
        self._failed_reads.clear()
        apply = self._take_apply() if self._has_apply() else ()
        append = self._take_append() if with_append and self._has_append() else None
        if apply and append is not None and append.snapshot is not None:
            violated("snapshot_alone", applied_index=apply[-1].index)
        return Ready(role_change, messages, append, apply, reads, failed_reads)

    def _has_role_change(self) -> bool:
        reported = self._reported
        return reported.leader_id != self.leader_id or reported.term != self.term or reported.role is not self.role

    def _has_append(self) -> bool:
        handed = self._handed
        return bool(
            self._responses
            or handed.term != self.term
            or handed.vote != self.vote
            or self.log.has_pending_write
            or handed.commit_index < self._commit_due
        )

    def _take_append(self) -> AppendWork:
        """Return one write with everything that is pending.

        A commit index alone is not worth a write, unless membership changed. It goes with the next one.
        """
        self._sequence += 1
        log = self.log
        entries, snapshot = log.take_pending(self._sequence)
        has_vote_change = self._handed.term != self.term or self._handed.vote != self.vote
        is_commit_due = self._handed.commit_index < self._commit_due
        must_sync = bool(entries) or snapshot is not None or has_vote_change or is_commit_due
        hard_state = None
        if must_sync and (has_vote_change or self._handed.commit_index != log.commit):
            hard_state = self._handed = HardState(self.term, self.vote, LogIndex(log.commit))
        has_tail = bool(log.unstable)
        token = AppendToken(
            term=self.term,
            vote=self.vote,
            last_index=LogIndex(log.last_index if has_tail else 0),
            last_term=Term(log.last_term if has_tail else 0),
            sequence=self._sequence,
        )
        responses = tuple(self._responses)
        self._responses.clear()
        return AppendWork(hard_state, entries, snapshot, responses, token, must_sync)

    def _last_to_apply(self) -> int:
        """Return the last entry that may be applied: it is committed *and* durable on this replica."""
        return min(self.log.commit, self.log.durable_index)

    def _has_apply(self) -> bool:
        log = self.log
        return (
            log.applying < log.commit
            and log.applying < self._last_to_apply()
            and log.snapshot is None
            and not self._apply_is_fetching
            and self._applying_bytes < self.settings.apply_bytes_max
        )

    def _take_apply(self) -> tuple[Entry, ...]:
        log = self.log
        entries = log.durable_entries(
            log.applying + 1, self._last_to_apply(), self.settings.apply_bytes_max - self._applying_bytes
        )
        if not entries:
            self._apply_is_fetching = True
            return ()
        payload_bytes = 0
        for entry in entries:
            payload_bytes += len(entry.payload)
            if entry.kind is EntryKind.MEMBERSHIP:
                self._applying_membership.append((entry.index, entry.payload))
        log.applying = entries[-1].index
        self._applying_parts.append((log.applying, payload_bytes))
        self._applying_bytes += payload_bytes
        return entries

    # ------------------------------------------------------------------------------------------------------- progress

    def match_index(self, peer: ReplicaId) -> LogIndex:
        """Leader only: return the last index that is known to be durable on the peer, or 0 when it is unknown."""
        progress = self.progress.get(peer)
        return LogIndex(progress.match_index if progress else 0)

    def record_lost(self, peer: ReplicaId) -> None:
        """Count the peer as silent until it answers: its connection was lost or replaced. No rule of consensus reads this."""
        progress = self.progress.get(peer)
        if progress is not None and peer != self.replica_id:
            progress.record_lost()

    def lagging_voters(self, ticks: int) -> list[ReplicaId]:
        """Leader only: return the voters, itself included, that were silent or behind for at least `ticks`.

        A member is behind while it lacks entries that this leader's log held one tick earlier, and until its first acknowledgement.
        """
        progress = self.progress  # empty unless leader
        return [
            voter
            for voter in self.membership.voters
            if voter in progress
            and (
                progress[voter].behind_ticks >= ticks
                or (progress[voter].silent_ticks >= ticks and voter != self.replica_id)
            )
        ]

    def furthest_voter(
        self, is_reachable: Callable[[ReplicaId], bool], load_of: Callable[[ReplicaId], int] = lambda _: 0
    ) -> ReplicaId | None:
        """Leader only: return the other reachable voter whose log goes furthest, to lead next, or None if no voter is reachable.

        A learner may be further ahead and cannot lead. Among equals the target of a transfer that runs is preferred, then the one with the
        lowest load.
        """
        voters = [voter for voter in self.membership.voters if voter != self.replica_id and is_reachable(voter)]
        transferee = NO_REPLICA if self.leadership is None else self.leadership.transferee
        return max(
            voters,
            key=lambda voter: (self.match_index(voter), voter == transferee, -load_of(voter)),
            default=None,
        )

    def match_indexes(self) -> dict[ReplicaId, LogIndex]:
        """Leader only: return the match of each member, itself included."""
        return {member: LogIndex(progress.match_index) for member, progress in self.progress.items()}
