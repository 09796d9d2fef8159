"""Bugs of reads that are served without a write."""

from __future__ import annotations

from raftmq.raft.core import RaftCore
from raftmq.raft.leadership import Leadership
from raftmq.types import ReplicaId


class ReadsWithoutRound(RaftCore):
    """Answers a read immediately, without asking a quorum whether it still leads (thesis 6.4, step 3)."""

    __slots__ = ()

    def _take_read(self, leadership: Leadership, asker: ReplicaId, request_id: int) -> bool:
        self._answer_read(self.log.commit, asker, request_id)
        return True


class ReadsBeforeOwnCommit(RaftCore):
    """Answers reads before an entry of its own term is committed (thesis 6.4, step 1). Aioraft-ng has no no-op."""

    __slots__ = ()

    def _take_read(self, leadership: Leadership, asker: ReplicaId, request_id: int) -> bool:
        if self._has_committed_in_term:
            return super()._take_read(leadership, asker, request_id)
        leadership.reads.add(self.log.commit, asker, request_id)
        self.heartbeat_due = True
        return True


class ReadsByEarlierRound(RaftCore):
    """Lets responses to heartbeats sent before the read confirm it (etcd issue 20418)."""

    __slots__ = ()

    def _take_read(self, leadership: Leadership, asker: ReplicaId, request_id: int) -> bool:
        if not self._has_committed_in_term or self._is_only_voter:
            return super()._take_read(leadership, asker, request_id)
        leadership.reads._confirming.append((leadership.reads.round, self.log.commit, asker, request_id))
        self.heartbeat_due = True
        return True
