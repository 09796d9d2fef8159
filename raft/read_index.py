"""Confirm that a commit index is current, without a write and without a clock (ReadIndex).

Must not serve a read: the shell does, once `applied_index` has reached the index. Invariant: a read is confirmed only by a
round of heartbeats that began after the read arrived, and only at an index at or above this term's first commit.
Source: Ongaro's thesis 6.4. Deviation: no leases, as a pause between checking a lease and answering makes them unsafe.
"""

from __future__ import annotations

from collections.abc import Callable

from raftmq.raft.leadership import Leadership
from raftmq.raft.messages import ReadIndexRequest, ReadIndexResponse
from raftmq.raft.progress import Progress
from raftmq.raft.quorum import joint_index
from raftmq.raft.ready import ConfirmedRead
from raftmq.raft.state import CoreState
from raftmq.types import NO_REPLICA, LogIndex, ReplicaId


class ReadIndexing(CoreState):
    """Confirm reads on the leader, and forward them on every other replica."""

    __slots__ = ()

    def _ask_read(self, request_id: int) -> None:
        """Ask for a read of this replica's own shell."""
        leadership = self.leadership
        if leadership is not None:
            if not self._take_read(leadership, self.replica_id, request_id):
                self._failed_reads.append(request_id)
        elif self.leader_id != NO_REPLICA:
            self._send(ReadIndexRequest(self.replica_id, self.leader_id, self.term, request_id))
        else:
            self._failed_reads.append(request_id)

    def _on_read_index_request(self, message: ReadIndexRequest) -> None:
        """Queue a read of a follower or learner. Beyond the limit it is dropped: the asker times out and asks with a new id."""
        leadership = self.leadership
        if leadership is not None and message.source in leadership.progress:
            self._take_read(leadership, message.source, message.request_id)

    def _on_read_index_response(self, message: ReadIndexResponse) -> None:
        self._confirmed_reads.append(ConfirmedRead(message.request_id, message.read_index))

    def _take_read(self, leadership: Leadership, asker: ReplicaId, request_id: int) -> bool:
        """Queue the read. Return False when the queue is full."""
        reads = leadership.reads
        if len(reads) >= self.settings.pending_reads_max:
            return False
        if not self._has_committed_in_term:
            # Until then the leader does not know which entries earlier leaders committed (thesis 6.4, step 1).
            reads.waiting.append((asker, request_id))
        elif self._is_only_voter:
            self._answer_read(self.log.commit, asker, request_id)
        else:
            reads.add(self.log.commit, asker, request_id)
            self.heartbeat_due = True
        return True

    def _release_waiting_reads(self, leadership: Leadership) -> None:
        """Queue the waiting reads again, now that the first entry of this term is committed."""
        for asker, request_id in leadership.reads.take_waiting():
            self._take_read(leadership, asker, request_id)

    def _answer_read(self, read_index: int, asker: ReplicaId, request_id: int) -> None:
        if asker == self.replica_id:
            self._confirmed_reads.append(ConfirmedRead(request_id, LogIndex(read_index)))
        else:
            self._send(ReadIndexResponse(self.replica_id, asker, self.term, request_id, LogIndex(read_index)))

    # ---------------------------------------------------------------------------------------------- confirmation

    @property
    def _is_only_voter(self) -> bool:
        """Return whether this replica alone is a quorum."""
        return self.membership.voter_ids == (self.replica_id,)

    def _quorum_of(self, leadership: Leadership, value: Callable[[Progress], int]) -> int:
        """Return the largest value that a quorum of members (of both halves, if joint) has reached."""
        progress = leadership.progress
        return joint_index(
            [value(progress[voter]) for voter in self.membership.voters],
            [value(progress[voter]) for voter in self.membership.outgoing],
        )

    def _confirm_rounds(self, leadership: Leadership) -> None:
        """Answer the reads that a quorum has confirmed. The leader itself always acknowledges its newest round."""
        reads = leadership.reads
        leadership.progress[self.replica_id].record_read_ack(reads.round)
        confirmed = self._quorum_of(leadership, _read_ack_of)
        if leadership.confirm_round and confirmed >= leadership.confirm_round:
            leadership.confirm_round = 0
        for read_index, asker, request_id in reads.release(confirmed):
            self._answer_read(read_index, asker, request_id)


def _read_ack_of(progress: Progress) -> int:
    return progress.read_ack
