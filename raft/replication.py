"""Run the leader's side of replication: proposals, appends to members, commitment, heartbeats, quorum check, transfer.

Must not handle the messages of a leader. Invariants: a leader only appends to its own log. By counting it commits only
entries of its own term. It counts itself only for durable entries, and not at all when it is no voter.
Source: Ongaro's thesis 3.5, 3.6.2, 3.10, 6.2 (stepping down without a quorum), 10.2.
"""

from __future__ import annotations

from collections.abc import Sequence

from raftmq.errors import invariant, violated
from raftmq.raft.entry import Entry, EntryKind, Proposal
from raftmq.raft.invariants import check_progress
from raftmq.raft.leadership import Leadership
from raftmq.raft.membership import Membership
from raftmq.raft.messages import AppendRequest, AppendResponse, HeartbeatResponse, InstallSnapshot, TimeoutNow
from raftmq.raft.progress import Progress, ProgressState
from raftmq.raft.quorum import VoteResult, joint_vote
from raftmq.raft.read_index import ReadIndexing
from raftmq.raft.ready import Appended, RefusalReason, Refused
from raftmq.types import NO_REPLICA, LogIndex, Offset, ReplicaId, Term


def _match_of(progress: Progress) -> int:
    return progress.match_index


class Replication(ReadIndexing):
    """Do the work of a leader."""

    __slots__ = ()

    # ---------------------------------------------------------------------------------------------------- leadership

    def _start_leadership(self) -> None:
        """Begin to lead: follow every member, append the no-op, owe everyone a heartbeat."""
        log = self.log
        self._seen_commit = log.commit
        leadership = self.leadership = Leadership(self.membership, log.last_index, self.settings, self.ticks)
        leadership.progress[self.replica_id].become_replicate()
        self._count_own_log(leadership)
        # The no-op commits the entries of earlier leaders, as only entries of the own term may be counted (thesis 3.6.2, 6.4).
        self._append_own(leadership, (Proposal(EntryKind.EMPTY, b""),), self.now_ms())
        self.heartbeat_due = True

    def _sync_progress(self, leadership: Leadership, membership: Membership) -> None:
        """Follow members that were added, and drop members that were removed. A transfer to a replica that votes no more ends."""
        members, progress = membership.member_ids, leadership.progress
        for removed in [member for member in progress if member not in members]:
            del progress[removed]
        for member in members:
            if member not in progress:
                progress[member] = Progress(self.log.last_index + 1, self.settings, self.ticks)
        if leadership.transferee and leadership.transferee not in membership.voters:
            leadership.transferee = NO_REPLICA

    # ----------------------------------------------------------------------------------------------------- proposals

    def _refusal(self, leadership: Leadership, payload_bytes: int) -> Refused | None:
        """Return the reason why a proposal is refused now, or None."""
        if leadership.transferee:
            return Refused(RefusalReason.TRANSFERRING, self.leader_id)
        # An oversized batch passes when nothing else is uncommitted, or it never could. An empty payload is never refused.
        used = leadership.uncommitted_bytes
        if used and payload_bytes and used + payload_bytes > self.settings.uncommitted_bytes_max:
            return Refused(RefusalReason.UNCOMMITTED_FULL, self.leader_id)
        return None

    def _propose(self, proposals: Sequence[Proposal], now_ms: int) -> Appended | Refused:
        payload_bytes = 0
        for proposal in proposals:
            payload_bytes += len(proposal.payload)
            is_data = proposal.kind is EntryKind.DATA
            if is_data != (proposal.record_count > 0) or proposal.kind is EntryKind.MEMBERSHIP:
                violated("proposal", kind=proposal.kind, record_count=proposal.record_count)
        invariant(proposals, "proposal", count=len(proposals))
        leadership = self.leadership
        if leadership is None:
            return Refused(RefusalReason.NOT_LEADER, self.leader_id)
        refused = self._refusal(leadership, payload_bytes)
        return refused or Appended(self._append_own(leadership, proposals, now_ms))

    def _append_own(self, leadership: Leadership, proposals: Sequence[Proposal], now_ms: int) -> tuple[Entry, ...]:
        """Append the proposals to the own log. Offsets are dense: each entry starts where the one before it ended."""
        log, term = self.log, self.term
        index, offset = log.last_index, log.next_offset
        time_ms = max(now_ms, log.append_time_ms)
        entries: list[Entry] = []
        payload_bytes = 0
        for proposal in proposals:
            index += 1
            count = proposal.record_count
            payload = proposal.payload
            entries.append(Entry(LogIndex(index), term, proposal.kind, Offset(offset), count, time_ms, payload))
            offset += count
            payload_bytes += len(payload)
        log.append(entries)
        self.ticks.changes += 1
        if payload_bytes:
            leadership.uncommitted.append((index, payload_bytes))
            leadership.uncommitted_bytes += payload_bytes
        leadership.flush_due = True
        return tuple(entries)

    # ---------------------------------------------------------------------------------------------------- commitment

    def _count_own_log(self, leadership: Leadership) -> None:
        """Raise the leader's own match to the end of its durable log, never further (thesis 10.2.1)."""
        leadership.progress[self.replica_id].on_matched(self.log.durable_index)

    def _may_commit(self, index: int) -> bool:
        """Return whether counting may commit `index`: its entry is of the own term. Earlier entries commit with it (thesis 3.6.2).

        Scenario (figure 3.7), if entries of an earlier term could be counted:
        1. S1 leads term 2 and replicates entry 2 to S2 only. S5 is elected for term 3 and appends another entry 2 of its own.
        2. S1 leads term 4 and replicates its old entry 2 to S3. A majority holds it, and S1 would commit it.
        3. S1 fails. S5, whose last term is 3, is elected by S2, S3 and S4, and replaces the committed entry.
        """
        return index > self.log.commit and self.log.term_at(index) == self.term

    def _maybe_commit(self, leadership: Leadership) -> bool:
        """Advance the commit index to the last entry that a quorum holds. Return whether it advanced."""
        index = self._quorum_of(leadership, _match_of)
        if not self._may_commit(index):
            return False
        self.log.commit_to(index)
        leadership.is_announcing = self.settings.announce_commits or self.log.has_committed_membership
        uncommitted = leadership.uncommitted
        while uncommitted and uncommitted[0][0] <= index:
            leadership.uncommitted_bytes -= uncommitted.popleft()[1]
        leadership.flush_due = True
        if leadership.reads.waiting:
            self._release_waiting_reads(leadership)
        return True

    # ------------------------------------------------------------------------------------------------------- sending

    def _flush(self, leadership: Leadership) -> None:
        """Send every member the entries that it may get now. A commit index goes alone only if no other message carried it."""
        leadership.flush_due = False
        self.ticks.changes += 1  # a member may wait for a snapshot now
        log = self.log
        for peer, progress in leadership.progress.items():
            if peer == self.replica_id:
                continue
            while progress.next_index <= log.last_index and self._send_append(peer, progress, may_be_empty=False):
                pass
            if leadership.is_announcing and progress.can_bump_commit(log.commit):
                self._send_append(peer, progress, may_be_empty=True)

    def _send_append(self, peer: ReplicaId, progress: Progress, *, may_be_empty: bool) -> bool:
        """Send one append request, or a snapshot where the log no longer reaches back. Return whether a message was sent."""
        if progress.is_paused:
            return False
        log = self.log
        prev_index = progress.next_index - 1
        if prev_index < log.position.index:
            return self._send_snapshot(peer, progress)
        entries: tuple[Entry, ...] = ()
        # A full window still lets an empty request pass. Scenario: every request of the window is lost. No answer would ever
        # free the window, but the member rejects the empty request, which restarts the stream from its match.
        is_paced = self.is_paced(peer)
        # A learner that must wait for the pace still gets empty requests, so that it is found where its log meets.
        if not progress.inflights.is_full and not (is_paced and not self.copy_pace.may_send()):
            found = log.entries_from(progress.next_index, self.settings.append_bytes_max)
            if found is None:
                progress.on_fetch_started()
                return False
            entries = found
        if not entries and not may_be_empty:
            return False
        self._send(
            AppendRequest(
                self.replica_id,
                peer,
                self.term,
                LogIndex(prev_index),
                Term(log.term_at(prev_index)),
                entries,
                LogIndex(log.commit),
            )
        )
        payload_bytes = sum([len(entry.payload) for entry in entries])
        if is_paced and entries:
            self.copy_pace.spend(payload_bytes)
        progress.on_sent(len(entries), payload_bytes, log.commit)
        return True

    def is_paced(self, peer: ReplicaId) -> bool:
        """Return whether the entries for this member wait for `copy_pace`: it is a learner whose copy is not urgent."""
        return peer in self.membership.learners and peer not in self.urgent_learners

    def _send_snapshot(self, peer: ReplicaId, progress: Progress) -> bool:
        """Send a snapshot if the peer is active and the shell has one that reconnects with the log. Return whether it was sent."""
        if not progress.is_recently_active:
            return False
        meta = self.snapshot_meta()
        if meta is None or not self.log.position.index <= meta.position.index <= self.log.commit:
            return False
        progress.become_snapshot(meta.position.index)
        self._send(InstallSnapshot(self.replica_id, peer, self.term, meta))
        check_progress(progress, self.log.last_index)
        return True

    # ----------------------------------------------------------------------------------------------------- responses

    def _on_append_response(self, message: AppendResponse) -> None:
        leadership = self.leadership
        if leadership is None:
            return
        progress = leadership.progress.get(message.source)
        if progress is None:
            return
        progress.record_heard()
        if message.is_rejected:
            self._on_rejected(message, progress)
        else:
            self._on_accepted(message, leadership, progress)
        check_progress(progress, self.log.last_index)

    def _on_rejected(self, message: AppendResponse, progress: Progress) -> None:
        hint_index: int = message.hint_index
        if message.hint_term:
            # The entry of the peer there is of `hint_term`. No own entry of a higher term can match at or before it.
            hint_index, _ = self.log.find_hint(hint_index, message.hint_term)
        if progress.on_rejected(message.index, hint_index):
            self._send_append(message.source, progress, may_be_empty=True)

    def _on_accepted(self, message: AppendResponse, leadership: Leadership, progress: Progress) -> None:
        index = message.index
        if index > self.log.last_index:
            violated("ack_within_log", index=index, last_index=self.log.last_index)
        is_news = progress.on_matched(index)
        state = progress.state
        if state is ProgressState.REPLICATE:
            if not is_news:
                return
        elif state is ProgressState.PROBE:
            if not is_news and index != progress.match_index:
                return
            progress.become_replicate()
        elif progress.match_index + 1 >= self.first_index:
            # This snapshot, another one or old appends brought the member here: the log reaches it again.
            progress.become_replicate()
        elif progress.match_index >= progress.pending_snapshot:
            # The snapshot arrived, or appends overtook it. In the meantime the log was compacted beyond it: send another one.
            progress.become_probe()
        if is_news and self._counts(message.source):
            self._maybe_commit(leadership)
        if progress.next_index <= self.log.last_index or (
            leadership.is_announcing and progress.can_bump_commit(self.log.commit)
        ):
            leadership.flush_due = True
        if leadership.transferee == message.source and progress.match_index == self.log.last_index:
            self._send_timeout_now(message.source)

    def _counts(self, member: ReplicaId) -> bool:
        """Return whether the member's match can move the commit index. A learner's cannot, so that nothing is counted for it."""
        return member in self.membership.voters or member in self.membership.outgoing

    def _on_heartbeat_response(self, message: HeartbeatResponse) -> None:
        leadership = self.leadership
        if leadership is None:
            return
        progress = leadership.progress.get(message.source)
        if progress is None:
            return
        reads = leadership.reads
        progress.record_heartbeat_response(min(message.read_counter, reads.round))
        progress.resume_flow()
        if progress.match_index < self.log.last_index or progress.state is ProgressState.PROBE:
            self._send_append(message.source, progress, may_be_empty=True)
        if reads.is_confirming or leadership.confirm_round:
            self._confirm_rounds(leadership)

    # -------------------------------------------------------------------------------------------------- ticks, heartbeats

    def _tick_leader(self, leadership: Leadership) -> None:
        now, election_ticks = self.ticks.now, self.settings.election_ticks
        for progress in leadership.progress.values():
            progress.record_tick(leadership.last_index_at_tick)
        leadership.last_index_at_tick = self.log.last_index
        if now - leadership.heartbeat_at >= self.settings.heartbeat_ticks:
            leadership.heartbeat_at = now
            self.heartbeat_due = True
        if leadership.confirm_round and now - leadership.confirm_began_at >= election_ticks:
            self._become_follower(self.term, NO_REPLICA)
            return
        if leadership.transferee and now - leadership.transfer_began_at >= election_ticks:
            # The transfer has failed: take proposals again (thesis 3.10).
            leadership.transferee = NO_REPLICA
        if now - leadership.quorum_checked_at >= election_ticks:
            leadership.quorum_checked_at = now
            self._check_quorum(leadership)

    def _next_tick_of_leader(self, leadership: Leadership) -> int:
        """Return the next tick at which something but a heartbeat is due: that of the quorum check. 0: perhaps the very next one.

        Every member is at the end of the log, so that none can be behind before an input adds to it.
        """
        last_index = leadership.last_index_at_tick
        if (
            leadership.confirm_round
            or leadership.transferee
            or self.heartbeat_due
            or self.membership.outgoing
            or self.settings.heartbeat_ticks != 1
            or self.log.last_index != last_index
            or any(progress.match_index != last_index for progress in leadership.progress.values())
        ):
            return 0
        return leadership.quorum_checked_at + self.settings.election_ticks

    def _check_quorum(self, leadership: Leadership) -> None:
        """Step down if no quorum answered within an election timeout (thesis 6.2)."""
        heard = {
            member: progress.is_recently_active or member == self.replica_id
            for member, progress in leadership.progress.items()
        }
        if joint_vote(self.membership.voters, self.membership.outgoing, heard) is not VoteResult.WON:
            self._become_follower(self.term, NO_REPLICA)
            return
        for progress in leadership.progress.values():
            progress.on_quorum_checked()

    def _heartbeats(self) -> list[tuple[ReplicaId, LogIndex, int]]:
        self.heartbeat_due = False
        leadership = self.leadership
        if leadership is None:
            return []
        counter = leadership.reads.on_heartbeats_taken()
        commit = self.log.commit
        # A heartbeat never carries the plain commit index: beyond its match the follower may hold a divergent tail.
        return [
            (peer, LogIndex(min(progress.match_index, commit)), counter)
            for peer, progress in leadership.progress.items()
            if peer != self.replica_id
        ]

    def _begin_confirmation(self, leadership: Leadership) -> None:
        leadership.confirm_round = leadership.reads.begin_round()
        leadership.confirm_began_at = self.ticks.now
        self.heartbeat_due = True
        if self._is_only_voter:
            self._confirm_rounds(leadership)

    # ------------------------------------------------------------------------------------------------------ transfer

    def _begin_transfer(self, target: ReplicaId) -> Refused | None:
        leadership = self.leadership
        if leadership is None:
            return Refused(RefusalReason.NOT_LEADER, self.leader_id)
        if target not in self.membership.voters:
            return Refused(RefusalReason.NOT_VOTER, self.leader_id)
        if target in (self.replica_id, leadership.transferee):
            return None
        if not leadership.transferee:
            leadership.transfer_began_at = self.ticks.now  # a transfer that replaces another one keeps the deadline
        leadership.transferee = target
        progress = leadership.progress[target]
        if progress.match_index == self.log.last_index:
            self._send_timeout_now(target)
        else:
            # A lagging target gets the missing entries first. Its last acknowledgement makes the leader send `TimeoutNow`.
            progress.resume_flow()
            self._send_append(target, progress, may_be_empty=True)
            leadership.flush_due = True
        return None

    def _send_timeout_now(self, target: ReplicaId) -> None:
        self._send(TimeoutNow(self.replica_id, target, self.term))
