"""Define how a leader follows one member: how far its log matches, and how entries are sent to it.

Must not send anything. Invariants: `match_index < next_index`. `match_index` never decreases. In the snapshot state,
`next_index == pending_snapshot + 1` and nothing is in flight.
Source: Ongaro's thesis 3.5 (nextIndex, matchIndex), 10.2.2 (pipelining). The states are those of etcd's raft.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from raftmq.raft.inflights import Inflights
from raftmq.raft.settings import RaftSettings
from raftmq.raft.ticks import Ticks

UNKNOWN_TICKS: Final = 1_000
"""`behind_ticks` of a member that has acknowledged nothing yet, and `silent_ticks` of one whose connection was lost: longer than any
limit, so that the member counts as lagging until it answers."""


class ProgressState(Enum):
    """Say how entries are sent to a member."""

    PROBE = "probe"
    """One request at a time, to find where the logs meet."""
    REPLICATE = "replicate"
    """Pipelined: `next_index` runs ahead of acknowledgements, bounded by the window."""
    SNAPSHOT = "snapshot"
    """No append is sent until the snapshot arrived or failed."""


class Progress:
    """Follow one member of the group as its leader sees it, for one leadership.

    Its fields are for reading. They change only through its methods, each of which is named after the event that it records.
    """

    __slots__ = (
        "_behind_since",
        "_heard_at",
        "_ticks",
        "inflights",
        "is_fetching",
        "is_flow_paused",
        "is_recently_active",
        "match_index",
        "next_index",
        "pending_snapshot",
        "read_ack",
        "sent_commit",
        "state",
    )

    def __init__(self, next_index: int, settings: RaftSettings, ticks: Ticks) -> None:
        self._ticks = ticks
        self.match_index: int = 0
        """Last entry known to be durable there. Only acknowledgements of this term raise it."""
        self.next_index: int = next_index
        """Next entry to send. Invariant: match_index < next_index <= last_index + 1 (beyond it only for a snapshot)."""
        self.state = ProgressState.PROBE
        self.pending_snapshot: int = 0
        """Log position of the snapshot that is under way, or 0 when there is none."""
        self.is_recently_active = True
        """Whether the member answered since the last quorum check. New members start active, or adding one could depose the leader."""
        self._heard_at = ticks.now
        """The tick at which the member last answered."""
        self._behind_since: int | None = ticks.now - UNKNOWN_TICKS
        """The tick before the first one at which the member was behind. None: it was not behind at the last tick."""
        self.is_flow_paused = False
        """Whether nothing more may be sent before an answer: a probe was sent, or the window is full."""
        self.is_fetching = False
        """Whether the member's next entries are being fetched from disk. Cleared by `on_fetched`."""
        self.sent_commit: int = 0
        """The highest commit index sent, so that an advance is announced once."""
        self.read_ack: int = 0
        """The highest round of heartbeats that the member acknowledged. A late response never lowers it."""
        self.inflights = Inflights(settings.inflight_appends_max, settings.inflight_bytes_max)
        """The append requests in flight. Empty in every state but REPLICATE."""

    @property
    def is_paused(self) -> bool:
        """Return whether no append request may be sent now."""
        return self.is_flow_paused or self.is_fetching or self.state is ProgressState.SNAPSHOT

    @property
    def silent_ticks(self) -> int:
        """Return the ticks since the member last answered. No rule of consensus reads it. It serves reports of the group's health."""
        return self._ticks.now - self._heard_at

    @property
    def behind_ticks(self) -> int:
        """Return the ticks in a row at which the member lacked entries that the leader's log held one tick earlier. For reports, too."""
        return 0 if self._behind_since is None else self._ticks.now - self._behind_since

    # ------------------------------------------------------------------------------------------------------ activity

    def record_heard(self) -> None:
        """Record that the member answered in this term."""
        self.is_recently_active = True
        self._heard_at = self._ticks.now

    def record_heartbeat_response(self, read_round: int) -> None:
        """Record that the member answered a heartbeat of `read_round`, which must be a round that has begun."""
        self.is_recently_active = True
        self._heard_at = self._ticks.now
        if read_round > self.read_ack:
            self.read_ack = read_round

    def record_read_ack(self, read_round: int) -> None:
        """Record that the member acknowledges `read_round`. An earlier round changes nothing."""
        if read_round > self.read_ack:
            self.read_ack = read_round

    def record_lost(self) -> None:
        """Record that the member's connection was lost: earlier answers say nothing about the replica that comes back."""
        self._heard_at = self._ticks.now - UNKNOWN_TICKS

    def record_tick(self, index: int) -> None:
        """Record at a tick whether the member is behind. `index` is the end of the leader's log one tick earlier."""
        if self.match_index >= index:
            self._behind_since = None
        elif self._behind_since is None:
            self._behind_since = self._ticks.now - 1

    def on_quorum_checked(self) -> None:
        """Forget the answers that this quorum check counted: the next check needs new ones."""
        self.is_recently_active = False

    # -------------------------------------------------------------------------------------------------------- states

    def become_probe(self) -> None:
        """Search again for the index where the logs meet. After a snapshot, start directly after it."""
        next_index = self.match_index + 1
        if self.state is ProgressState.SNAPSHOT:
            next_index = max(next_index, self.pending_snapshot + 1)
        self._enter(ProgressState.PROBE, next_index)
        # A commit index that was sent and is presumed lost must be announced again.
        self.sent_commit = min(self.sent_commit, next_index - 1)

    def become_replicate(self) -> None:
        """Pipeline from `match_index`, where the logs meet."""
        self._enter(ProgressState.REPLICATE, self.match_index + 1)

    def become_snapshot(self, index: int) -> None:
        """Wait for a snapshot whose log restarts after `index`."""
        self._enter(ProgressState.SNAPSHOT, index + 1)
        self.pending_snapshot = index
        self.sent_commit = index

    def on_snapshot_ended(self, is_sent: bool) -> None:
        """Probe after the stream of the snapshot ended: after the snapshot if it was sent whole, else after the match."""
        if not is_sent:
            self.pending_snapshot = self.match_index
        self.become_probe()
        # The member gets the time of a heartbeat to install the snapshot before anything follows.
        self.is_flow_paused = True

    def _enter(self, state: ProgressState, next_index: int) -> None:
        self.state = state
        self.next_index = next_index
        self.pending_snapshot = 0
        self.is_flow_paused = False
        self.inflights.clear()

    # --------------------------------------------------------------------------------------------------- append flow

    def on_fetch_started(self) -> None:
        """Pause the member until its next entries are read from disk."""
        self.is_fetching = True

    def on_fetched(self) -> None:
        """Continue after a fetch: entries that were missing in memory may be there now."""
        self.is_fetching = False

    def resume_flow(self) -> None:
        """Allow one more request before an answer. A window that is full stays full."""
        self.is_flow_paused = False

    def on_sent(self, entry_count: int, payload_bytes: int, commit_index: int) -> None:
        """Record an append request that left, with the commit index that it carried."""
        self.sent_commit = max(self.sent_commit, commit_index)
        if self.state is ProgressState.REPLICATE:
            if entry_count:
                self.next_index += entry_count
                self.inflights.add(self.next_index - 1, payload_bytes)
            # A request that fills the window, or finds it full, is a probe: wait for an answer.
            self.is_flow_paused = self.inflights.is_full
        elif entry_count:
            self.is_flow_paused = True

    def can_bump_commit(self, commit_index: int) -> bool:
        """Return whether an empty request would tell the member of a commit that no request told it of."""
        return (
            self.state is ProgressState.REPLICATE
            and commit_index > self.sent_commit
            and self.sent_commit < self.next_index - 1
        )

    def on_matched(self, index: int) -> bool:
        """Record that the member holds every entry up to `index`, and free the window up to there.

        Return False, and change nothing, if that was known: the acknowledgement is an old or a repeated one.
        """
        if index <= self.match_index:
            return False
        self.match_index = index
        if self.next_index <= index:
            self.next_index = index + 1
        # The window is empty in every state but REPLICATE, so that the flow goes on there.
        self.inflights.free_to(index)
        self.is_flow_paused = self.inflights.is_full
        return True

    def on_rejected(self, rejected_index: int, hint_index: int) -> bool:
        """Record that the logs do not match at `rejected_index`, and try after `hint_index`. Return False if the answer is stale."""
        if self.state is ProgressState.REPLICATE:
            # Every pipelined request after a lost one is rejected. Only a rejection beyond the match says anything.
            if rejected_index <= self.match_index:
                return False
            self.become_probe()
            return True
        if self.state is ProgressState.SNAPSHOT or rejected_index != self.next_index - 1:
            return False
        self.next_index = max(min(rejected_index, hint_index + 1), self.match_index + 1)
        self.is_flow_paused = False
        return True
