"""Bugs of replication: appending, counting, committing and durability."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import ClassVar

from raftmq.raft.core import RaftCore
from raftmq.raft.entry import Entry, Proposal
from raftmq.raft.leadership import Leadership
from raftmq.raft.log import RaftLog
from raftmq.raft.messages import (
    AppendRequest,
    AppendResponse,
    Heartbeat,
    HeartbeatResponse,
)
from raftmq.raft.progress import Progress
from raftmq.raft.quorum import joint_index
from raftmq.raft.ready import AppendToken
from raftmq.types import LogIndex, ReplicaId, Term


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
    """Drops all entries after `prev` on every append, even on a late one (PySyncObj, thesis 3.5)."""

    __slots__ = ()

    def _accept_entries(self, entries: Sequence[Entry]) -> None:
        if entries:
            self._truncate_for(entries[0].index)
            self.log.append(entries)


class CommitsOwnLast(RaftCore):
    """A follower commits up to min(leader's commit, own last index), not only the entries that the message proved (figure 3.1).

    When it rejects an append, it also asks for entries from its commit index on, which is merely slow. With exact hints the
    first matching message nearly always reaches the conflict and hides the defect.
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
    """Heartbeats carry the leader's commit index, even if the follower lacks the entries (etcd's `bcastHeartbeat`)."""

    __slots__ = ()

    def _heartbeats(self) -> list[tuple[ReplicaId, LogIndex, int]]:
        return [(peer, LogIndex(self.log.commit), counter) for peer, _, counter in super()._heartbeats()]

    def _on_heartbeat(self, message: Heartbeat) -> None:
        clamped = LogIndex(min(message.commit_index, self.log.last_index))
        super()._on_heartbeat(replace(message, commit_index=clamped))


class LateCommitUnchecked(RaftCore):
    """A late append of an earlier term commits entries, although the log may differ from its leader's."""

    __slots__ = ()

    def _learn_late_commit(self, message: AppendRequest) -> None:
        committed = LogIndex(min(message.commit_index, self.log.last_index))
        if committed > self.log.commit:
            self._learn_commit(committed, self.log.term_at(committed))


class LateCommitBeyondPrev(LateCommitUnchecked):
    """A late append of an earlier term commits entries beyond its `prev`, which the log may have from another leader."""

    __slots__ = ()

    def _learn_late_commit(self, message: AppendRequest) -> None:
        if self.log.has(message.prev_index, message.prev_term):
            super()._learn_late_commit(message)


class _StableByIndex(RaftLog):
    """Accepts a completion by its index alone."""

    __slots__ = ()

    def mark_durable(self, index: int, term: int) -> bool:
        """Mark the entries that the tail now holds up to the index."""
        index = min(index, self.offset_in_progress - 1)
        return super().mark_durable(index, self.term_at(index))


class AppendRace(RaftCore):
    """A late completion marks entries durable that replaced the written ones (etcd's ABA race of async appends)."""

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
    """Truncates entries and continues at the offset at which they ended (ours: dense offsets)."""

    __slots__ = ()

    log_class: ClassVar[type[RaftLog]] = _NoRewind


class AppliesBeforeDurable(RaftCore):
    """Applies committed entries that are not yet on its own disk (thesis 3.8)."""

    __slots__ = ()

    def _last_to_apply(self) -> int:
        return self.log.commit


class LostWindowStalls(RaftCore):
    """Sends nothing while the window is full: a window whose messages were all lost is never repaired (etcd's `replicate_pause`)."""

    __slots__ = ()

    def _on_heartbeat_response(self, message: HeartbeatResponse) -> None:
        leadership = self.leadership
        progress = self.progress.get(message.source)
        if leadership and progress and progress.inflights.is_full:
            progress.record_heartbeat_response(min(message.read_counter, leadership.reads.round))
            self._confirm_rounds(leadership)
            return
        super()._on_heartbeat_response(message)
