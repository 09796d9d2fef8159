"""Hold the fields of a `RaftCore` and the parts that every layer needs: queues of output, roles, timers.

The core is one object in layers, one file each. A layer calls only itself and the layers below:
`state` < `read_index` < `replication` < `following` < `reconfiguration` < `election` < `core`.
Must not contain a rule of Raft beyond figure 3.1's state. Invariants: see `invariants.py`.
Source: Ongaro's thesis, figure 3.1.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from raftmq.errors import invariant, violated
from raftmq.raft.entry import EntryKind, LogPosition
from raftmq.raft.hard_state import HardState
from raftmq.raft.leadership import Leadership
from raftmq.raft.log import RaftLog
from raftmq.raft.log_view import CopyPace, LogView, Random, Unlimited
from raftmq.raft.membership import Membership, check_membership
from raftmq.raft.messages import AppendResponse, Message, SnapshotMeta, VoteRequest
from raftmq.raft.progress import Progress
from raftmq.raft.ready import ConfirmedRead, Role, RoleChange
from raftmq.raft.settings import RaftSettings
from raftmq.raft.ticks import Ticks
from raftmq.types import NO_REPLICA, LogIndex, Offset, ReplicaId, Term

FIRST_ROUND_MAX = 1 << 62
"""A replica's first round of vote requests is a random number below this bound.

64 bits leave room for any number of further rounds, and two lives of a replica do not meet in one round."""


@dataclass(frozen=True, slots=True)
class RestoredState:
    """Describe a group as storage holds it when its core starts."""

    hard_state: HardState
    position: LogPosition
    """The point the log starts after."""
    last_index: LogIndex
    last_next_offset: Offset
    """`next_offset` of the last entry (of `position` when the log is empty)."""
    last_append_time_ms: int
    term_starts: tuple[tuple[Term, LogIndex], ...]
    """(term, its first index) for each term in the log after `position`, ascending."""
    membership: Membership
    """The configuration as of `state_index`."""
    state_index: LogIndex
    """The index A: derived state and membership include every entry up to it.

    A may be beyond `last_index` after a snapshot whose records are still being streamed. The core starts with
    applied = min(A, last_index)."""


def _no_snapshot() -> SnapshotMeta | None:
    return None


def _no_time() -> int:
    return 0  # append times never decrease, so this is that of the entry before


class CoreState:
    """Hold the state of figure 3.1, volatile and persistent, and the output that gathers for the next `Ready`."""

    __slots__ = (
        "_apply_is_fetching",
        "_applying_bytes",
        "_applying_membership",
        "_applying_parts",
        "_campaign_until",
        "_commit_due",
        "_confirmed_reads",
        "_done_sequence",
        "_failed_pre_votes",
        "_failed_reads",
        "_handed",
        "_heard_at",
        "_messages",
        "_random",
        "_reported",
        "_responses",
        "_round",
        "_seen_commit",
        "_seen_term",
        "_seen_vote",
        "_sequence",
        "_timeout_ticks",
        "_votes",
        "campaign_due",
        "copy_pace",
        "heartbeat_due",
        "leader_id",
        "leadership",
        "log",
        "membership",
        "next_tick",
        "now_ms",
        "replica_id",
        "role",
        "settings",
        "snapshot_meta",
        "state_floor",
        "term",
        "ticks",
        "urgent_learners",
        "vote",
    )

    log_class: ClassVar[type[RaftLog]] = RaftLog
    """The class of the log. The simulator's mutants replace it."""

    def __init__(
        self,
        replica_id: ReplicaId,
        restored: RestoredState,
        log_view: LogView,
        random: Random,
        settings: RaftSettings,
        ticks: Ticks | None = None,
    ) -> None:
        self.replica_id = replica_id
        self.settings = settings
        self.ticks = ticks or Ticks()
        """The logical time. A shell of many cores gives all of them the same."""
        self._random = random
        self.snapshot_meta: Callable[[], SnapshotMeta | None] = _no_snapshot
        """Returns the snapshot that may be sent now, or None. Set by the shell."""
        self.copy_pace: CopyPace = Unlimited()
        """Bounds the entries that a leader sends to learners. Set by the shell. Voters and `urgent_learners` never wait for it."""
        self.urgent_learners: frozenset[ReplicaId] = frozenset()
        """Learners that are not held back by `copy_pace`, because their group has lost a replica or wants more. Set by the shell."""
        self.now_ms: Callable[[], int] = _no_time
        """Returns the time for the entries that the core proposes itself: the no-op, and the end of a joint configuration. Set by
        the shell where these must carry the time, too. By default they repeat the append time of the entry before them."""
        self.log = self._restore_log(restored, log_view)
        self._restore_hard_state(restored.hard_state)
        self.membership = restored.membership
        """The active configuration: as of the last applied change, or as of `state_floor` while applied is below it."""
        check_membership(self.membership)
        self.state_floor: LogIndex = restored.state_index
        """The index A of the snapshot or restart that this replica began with. `membership` includes every change up to it."""
        self._init_volatile()
        self._seen_term, self._seen_vote, self._seen_commit = self.term, self.vote, self.log.commit
        self._reported = RoleChange(self.role, self.term, self.leader_id)

    def _restore_log(self, restored: RestoredState, log_view: LogView) -> RaftLog:
        log = self.log_class(
            log_view,
            restored.position,
            restored.last_index,
            restored.last_next_offset,
            restored.last_append_time_ms,
            restored.term_starts,
        )
        log.applied = log.applying = max(restored.position.index, min(restored.state_index, restored.last_index))
        log.commit = max(restored.hard_state.commit_index, log.applied)
        invariant(
            log.commit <= log.last_index, "restored_commit", commit_index=log.commit, last_index=restored.last_index
        )
        # Changes that were appended and not applied before the restart must be known, as they forbid campaigns.
        log.membership_indexes = [
            index
            for index in range(log.applied + 1, log.last_index + 1)
            if log_view.header(LogIndex(index)).kind is EntryKind.MEMBERSHIP
        ]
        return log

    def _restore_hard_state(self, hard_state: HardState) -> None:
        self.term: Term = hard_state.term
        """Never decreases."""
        self.vote: ReplicaId = hard_state.vote
        """The candidate that this replica voted for in `term`, or 0 for none. Within a term it changes only from 0."""
        # A term is written before its first entry, or together with it. A term below the end of the log therefore means that a
        # hard state was lost, and perhaps a vote with it. To go on with a free vote could elect two leaders in one term.
        invariant(self.log.last_term <= self.term, "restored_term", term=self.term, last_term=self.log.last_term)
        self._handed = hard_state
        """The hard state that was handed to the writer last."""
        self._commit_due: int = 0
        """Index of the last applied change of membership. Until the disk has a commit index at or above it, a write is due."""

    def _init_volatile(self) -> None:
        self.role = Role.FOLLOWER
        self.leader_id: ReplicaId = NO_REPLICA
        """The leader of this term, or 0 when it is unknown."""
        self.campaign_due = False
        self.heartbeat_due = False
        # elections
        self.next_tick: int = 0
        """Until this tick, each tick would change nothing and owe only the heartbeats of the tick before. Written by `rest`, and set to 0
        by every input."""
        self._heard_at: int = self.ticks.now
        """The tick at which a leader was heard, a vote was granted or the role began. A leader does not use it."""
        self._failed_pre_votes: int = 0
        """Consecutive pre-votes without success. Each doubles the timeout, up to `pre_vote_backoff_max` times its length."""
        self._campaign_until: int = 0
        """Until this tick, a leader hands over to this replica, which campaigns again when it has applied a change of membership. 0: none does."""
        self._timeout_ticks: int = 0
        """The election timeout of this role and term, drawn at random."""
        self._roll_timeout()
        self._votes: dict[ReplicaId, bool] = {}
        """The answer of each voter to the current round, the own one included once it counts. Empty unless (pre-)candidate."""
        self._round: int = self._random.randrange(FIRST_ROUND_MAX)
        """The newest round of (pre-)vote requests. No earlier life of this replica used it."""
        self.leadership: Leadership | None = None
        """Everything that this replica has only as leader.

        Invariant: not None exactly while `role` is LEADER."""
        # output
        self._messages: list[Message] = []
        """Messages that may leave before anything local is durable."""
        self._responses: list[Message] = []
        """Votes, requests for votes, and acknowledgements. They leave only once the next append is durable."""
        self._confirmed_reads: list[ConfirmedRead] = []
        self._failed_reads: list[int] = []
        """Request ids of reads that cannot be confirmed any more."""
        self._sequence: int = 0
        """The number of the append that was handed out last."""
        self._done_sequence: int = 0
        """The number of the append that was completed last."""
        self._applying_parts: deque[tuple[int, int]] = deque()
        """(last index, payload bytes) of each part that was handed out for applying, oldest first."""
        self._applying_bytes: int = 0
        """Payload bytes of all parts in `_applying_parts`."""
        self._applying_membership: deque[tuple[int, bytes]] = deque()
        """(index, payload) of each change of membership that was handed out for applying. It takes effect in `apply_done`."""
        self._apply_is_fetching = False
        """Whether the next entries to apply are being read from disk. Cleared by `entries_fetched`."""

    # ---------------------------------------------------------------------------------------- read by the shell

    @property
    def commit_index(self) -> LogIndex:
        """Return the index of the last entry that is known to be committed."""
        return LogIndex(self.log.commit)

    @property
    def applied_index(self) -> LogIndex:
        """Return the index of the last entry that was applied."""
        return LogIndex(self.log.applied)

    @property
    def last_index(self) -> LogIndex:
        """Return the index of the last entry of the log, durable or not."""
        return LogIndex(self.log.last_index)

    @property
    def first_index(self) -> LogIndex:
        """Return the index of the first entry of the log, directly after its position."""
        return LogIndex(self.log.position.index + 1)

    @property
    def progress(self) -> Mapping[ReplicaId, Progress]:
        """Return every member as this leader sees it, itself included. Empty unless leader."""
        return {} if self.leadership is None else self.leadership.progress

    # --------------------------------------------------------------------------------------------------- output

    def _send(self, message: Message) -> None:
        """Queue a message that may leave before anything local is durable."""
        self._messages.append(message)

    def _respond(self, message: Message) -> None:
        """Queue a message that may leave only after everything up to now is durable.

        Two acknowledgements to the same leader merge, as the later one includes the earlier one.
        """
        if isinstance(message, AppendResponse) and not message.is_rejected and self._responses:
            last = self._responses[-1]
            if (
                isinstance(last, AppendResponse)
                and not last.is_rejected
                and last.target == message.target
                and last.term == message.term
                and last.index <= message.index
            ):
                self._responses[-1] = message
                return
        self._responses.append(message)

    # ------------------------------------------------------------------------------------------------ roles, timers

    def _roll_timeout(self) -> None:
        """Draw the election timeout, uniform in [E, 2E-1] and stretched by failed pre-votes."""
        ticks = self.settings.election_ticks
        stretch = min(1 << min(self._failed_pre_votes, 8), self.settings.pre_vote_backoff_max)
        self._timeout_ticks = (ticks + self._random.randrange(ticks)) * stretch

    def _reset(self, role: Role, term: Term) -> None:
        """Enter a role and a term, and end everything of the previous ones. A new term starts without a vote, in the same step."""
        if term != self.term:
            if term < self.term:
                violated("term_monotone", term=self.term, new_term=term)
            self.term = term
            self.vote = NO_REPLICA
        self.role = role
        self.leader_id = NO_REPLICA
        self.campaign_due = False
        self.heartbeat_due = False
        self._heard_at = self.ticks.now
        self._campaign_until = 0
        self.ticks.changes += 1
        self._votes.clear()
        self._roll_timeout()
        if self._responses:
            # The log may change now. A vote request that has not left would then name a log end that no disk ever held.
            self._responses = [one for one in self._responses if not isinstance(one, VoteRequest)]
        if self.leadership is not None:
            # This replica's own reads cannot be confirmed any more. The other askers time out and ask again.
            self._failed_reads.extend(self.leadership.reads.take_own(self.replica_id))
            self.leadership = None

    def _become_follower(self, term: Term, leader_id: ReplicaId) -> None:
        self._reset(Role.FOLLOWER, term)
        self.leader_id = leader_id

    def _hear_leader(self, leader_id: ReplicaId) -> None:
        """Follow the leader of this term, which sent a valid message, and restart the election timer."""
        if self.leader_id not in (NO_REPLICA, leader_id):
            violated("one_leader_per_term", term=self.term, leader_id=self.leader_id, other=leader_id)
        if self.role is not Role.FOLLOWER:
            self._become_follower(self.term, leader_id)
        if self.leader_id != leader_id:
            self.leader_id = leader_id
            self._campaign_until = 0
        self._heard_at = self.ticks.now
        self.campaign_due = False
        if self._failed_pre_votes:
            self._failed_pre_votes = 0
            self._roll_timeout()

    @property
    def _election_elapsed(self) -> int:
        """Return the ticks since a leader was heard, a vote was granted or the role began. A leader hears itself: 0."""
        return 0 if self.leadership is not None else self.ticks.now - self._heard_at

    def _can_campaign(self) -> bool:
        """Return whether this replica may ask for votes."""
        log = self.log
        return (
            (self.replica_id in self.membership.voters or self.replica_id in self.membership.outgoing)
            and log.snapshot is None
            and log.applied >= self.state_floor
            # With a committed change that is not active yet, this replica would count the votes of the wrong configuration.
            and not log.has_committed_membership
        )

    @property
    def _has_committed_in_term(self) -> bool:
        """Return whether an entry of the current term is committed. A new leader must wait for one."""
        return self.log.term_at(self.log.commit) == self.term
