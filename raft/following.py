"""Handle the messages of a leader: appends, heartbeats, snapshots.

Must not lead. Invariants: nothing at or below the commit index is ever truncated. The commit index never passes the last
entry that a message proved to match. Acknowledgements and refusals leave only after everything before them is durable.
Source: Ongaro's thesis 3.5, figure 3.1 (AppendEntries), chapter 5 (snapshots).
"""

from __future__ import annotations

from collections.abc import Sequence

from raftmq.errors import violated
from raftmq.raft.entry import Entry
from raftmq.raft.membership import find_defect
from raftmq.raft.messages import (
    AppendRequest,
    AppendResponse,
    Heartbeat,
    HeartbeatResponse,
    InstallSnapshot,
    SnapshotMeta,
)
from raftmq.raft.ready import Role
from raftmq.raft.replication import Replication
from raftmq.types import LogIndex, ReplicaId, Term


def _is_well_formed(message: AppendRequest) -> bool:
    """Return whether indexes are contiguous and terms never decrease. A request that breaks this is not answered."""
    index, term = message.prev_index, message.prev_term
    for entry in message.entries:
        if entry.index != index + 1 or entry.term < term:
            return False
        index, term = entry.index, entry.term
    return term <= message.term


class Following(Replication):
    """Do the work of a follower, candidate or learner."""

    __slots__ = ()

    # -------------------------------------------------------------------------------------------------------- appends

    def _on_append_request(self, message: AppendRequest) -> None:
        self._hear_leader(message.source)
        log = self.log
        if message.prev_index < log.commit:
            # A late message about the committed prefix never truncates. The answer tells the leader the own commit index.
            self._acknowledge(message.source, log.commit)
        elif not _is_well_formed(message):
            return
        elif log.has(message.prev_index, message.prev_term):
            self._accept_entries(message.entries)
            # Commit only entries that this message proved to match: the own log may continue with a divergent tail.
            matched = message.prev_index + len(message.entries)
            log.commit_to(min(message.commit_index, matched))
            self._acknowledge(message.source, matched)
        else:
            self._reject(message)

    def _accept_entries(self, entries: Sequence[Entry]) -> None:
        """Append the entries that the log does not hold. Only a real conflict truncates (thesis 3.5, step 3)."""
        held = self.log.find_news(entries)
        if held == len(entries):
            return
        news = entries[held:] if held else entries
        self._truncate_for(news[0].index)
        self.log.append(news)

    def _truncate_for(self, index: int) -> None:
        """Remove the entries from `index` on, if there are any: they conflict with the new entry for `index`."""
        if index <= self.log.last_index:
            if self.role is Role.LEADER:
                violated("leader_appends_only", index=index, term=self.term)
            if index <= self.log.commit:
                violated("conflict_committed", index=index, commit_index=self.log.commit)
            self.log.truncate_after(index - 1)

    def _reject(self, message: AppendRequest) -> None:
        hint_index, hint_term = self.log.find_hint(message.prev_index, message.prev_term)
        self._respond(
            AppendResponse(
                self.replica_id,
                message.source,
                self.term,
                message.prev_index,
                is_rejected=True,
                hint_index=LogIndex(hint_index),
                hint_term=Term(hint_term),
            )
        )

    def _acknowledge(self, target: ReplicaId, index: int) -> None:
        self._respond(AppendResponse(self.replica_id, target, self.term, LogIndex(index)))

    # ----------------------------------------------------------------------------------------------------- heartbeats

    def _on_heartbeat(self, message: Heartbeat) -> None:
        self._hear_leader(message.source)
        # The leader sends at most the match of this replica, which is within the log unless the disk was replaced.
        self.log.commit_to(message.commit_index)
        self._send(HeartbeatResponse(self.replica_id, message.source, self.term, message.read_counter))

    def _on_quiet_heartbeat(self, source: ReplicaId, term: Term, commit_index: LogIndex) -> bool:
        if (
            self.leader_id != source
            or self.term != term
            or self.role is not Role.FOLLOWER
            or commit_index > self.log.commit
            or self._failed_pre_votes
        ):
            return False
        self._heard_at = self.ticks.now
        self.campaign_due = False
        return True

    # ------------------------------------------------------------------------------------------------------ snapshots

    def _on_install_snapshot(self, message: InstallSnapshot) -> None:
        self._hear_leader(message.source)
        meta = message.meta
        log = self.log
        position = meta.position
        if position.index <= log.commit or not self._may_restore(meta):
            self._acknowledge(message.source, log.commit)
        elif log.has(position.index, position.term):
            # The log matches there. It does not need the state, as it builds the same by applying its own entries. It must
            # keep the entries that follow: it may have acknowledged them, and the leader counts them (thesis 5.1).
            log.commit_to(position.index)
            self._acknowledge(message.source, log.commit)
        else:
            self._restore(message)
            self._acknowledge(message.source, log.last_index)

    def _may_restore(self, meta: SnapshotMeta) -> bool:
        """Return whether the snapshot may replace this replica's log: sound, and with this replica as a member."""
        return (
            self.role is Role.FOLLOWER
            and meta.state_index >= meta.position.index
            and meta.position.term <= self.term
            and self.replica_id in meta.membership.member_ids
            and find_defect(meta.membership) is None
        )

    def _restore(self, message: InstallSnapshot) -> None:
        """Take log, membership and floor from the snapshot. Only followers do so, as the sender leads this term."""
        self.log.restore(message)
        self.membership = message.meta.membership
        self.state_floor = message.meta.state_index
        self._applying_parts.clear()
        self._applying_bytes = 0
        self._applying_membership.clear()
        self._apply_is_fetching = False
