"""What a leader knows about one member: how far its log matches and how it is being fed.

Must not send anything. Invariants: `match_index < next_index`; `match_index` never decreases; in the snapshot state
`next_index == pending_snapshot + 1` and nothing is in flight.
Source: Ongaro's thesis 3.5 (nextIndex, matchIndex), 10.2.2 (pipelining); the states are those of etcd's raft.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from raftmq.raft.inflights import Inflights
from raftmq.raft.settings import RaftSettings

UNKNOWN_TICKS: Final = 1_000
"""`behind_ticks` of a member that has acknowledged nothing yet, and `silent_ticks` of one whose connection was lost: longer than any
limit, so that the member counts as lagging until it answers."""


class ProgressState(Enum):
    """How a member is fed."""

    PROBE = "probe"
    """One request at a time, to find where the logs meet."""
    REPLICATE = "replicate"
    """Pipelined: `next_index` runs ahead of acknowledgements, bounded by the window."""
    SNAPSHOT = "snapshot"
    """Nothing is sent until the snapshot arrived or failed."""


class Progress:
    """One member as its leader sees it. Lives for one leadership."""

    __slots__ = (
        "behind_ticks",
        "inflights",
        "is_fetching",
        "is_flow_paused",
        "is_recently_active",
        "match_index",
        "next_index",
        "pending_snapshot",
        "read_ack",
        "sent_commit",
        "silent_ticks",
        "state",
    )

    def __init__(self, next_index: int, settings: RaftSettings) -> None:
        self.match_index: int = 0
        """Last entry known durable there. Written by acknowledgements of this term only."""
        self.next_index: int = next_index
        """Next entry to send. Invariant: match_index < next_index <= last_index + 1 (beyond it only for a snapshot)."""
        self.state = ProgressState.PROBE
        self.pending_snapshot: int = 0
        """Log position of the snapshot under way; 0 when there is none."""
        self.is_recently_active = True
        """Heard of since the last quorum check. New members start active, or adding one could depose the leader."""
        self.silent_ticks = 0
        """Ticks since the member last answered. No rule of consensus reads this: it is for reports of the group's health."""
        self.behind_ticks = UNKNOWN_TICKS
        """Ticks in a row at which the member lacked what the leader's log held one tick earlier. For reports, too."""
        self.is_flow_paused = False
        """Nothing more may be sent before an answer: a probe is out, or the window is full."""
        self.is_fetching = False
        """Its next entries are being fetched from disk; cleared by `entries_fetched`."""
        self.sent_commit: int = 0
        """The highest commit index sent, so that an advance is announced once."""
        self.read_ack: int = 0
        """The highest read counter it echoed. Max-merged: a late echo never lowers it."""
        self.inflights = Inflights(settings.inflight_appends_max, settings.inflight_bytes_max)

    @property
    def is_paused(self) -> bool:
        """Whether no append may be sent now."""
        return self.is_flow_paused or self.is_fetching or self.state is ProgressState.SNAPSHOT

    def record_heard(self) -> None:
        """Note that the member answered in this term."""
        self.is_recently_active = True
        self.silent_ticks = 0

    def record_lost(self) -> None:
        """Note that its connection was lost: what it answered before says nothing of what comes back."""
        self.silent_ticks = UNKNOWN_TICKS

    def record_tick(self, count: int, index: int) -> None:
        """Count ticks that passed. `index` is where the leader's log ended one tick earlier."""
        self.silent_ticks += count
        if self.match_index >= index:
            self.behind_ticks = 0
        else:
            self.behind_ticks += count

    def become_probe(self) -> None:
        """Find the meeting point anew; after a snapshot, right behind it."""
        next_index = self.match_index + 1
        if self.state is ProgressState.SNAPSHOT:
            next_index = max(next_index, self.pending_snapshot + 1)
        self._enter(ProgressState.PROBE, next_index)
        # What was sent and is presumed lost must be announced again.
        self.sent_commit = min(self.sent_commit, next_index - 1)

    def become_replicate(self) -> None:
        """The logs meet at `match_index`: pipeline from there."""
        self._enter(ProgressState.REPLICATE, self.match_index + 1)

    def become_snapshot(self, index: int) -> None:
        """A snapshot whose log restarts after `index` is on its way."""
        self._enter(ProgressState.SNAPSHOT, index + 1)
        self.pending_snapshot = index
        self.sent_commit = index

    def _enter(self, state: ProgressState, next_index: int) -> None:
        self.state = state
        self.next_index = next_index
        self.pending_snapshot = 0
        self.is_flow_paused = False
        self.inflights.clear()

    def on_sent(self, entry_count: int, payload_bytes: int, commit_index: int) -> None:
        """An append request left."""
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
        """Whether an empty request would tell the peer of a commit that it was not told of."""
        return (
            self.state is ProgressState.REPLICATE
            and commit_index > self.sent_commit
            and self.sent_commit < self.next_index - 1
        )

    def on_matched(self, index: int) -> bool:
        """The peer acknowledged `index`. True when that is news; an old or repeated acknowledgement changes nothing."""
        if index <= self.match_index:
            return False
        self.match_index = index
        self.next_index = max(self.next_index, index + 1)
        self.is_flow_paused = False
        return True

    def on_rejected(self, rejected_index: int, hint_index: int) -> bool:
        """The peer has no match at `rejected_index`; try after `hint_index`. False when the answer is stale."""
        if self.state is ProgressState.REPLICATE:
            # Pipelined requests behind a lost one are all rejected: only one beyond the match says anything.
            if rejected_index <= self.match_index:
                return False
            self.become_probe()
            return True
        if self.state is ProgressState.SNAPSHOT or rejected_index != self.next_index - 1:
            return False
        self.next_index = max(min(rejected_index, hint_index + 1), self.match_index + 1)
        self.is_flow_paused = False
        return True
