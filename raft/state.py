"""The fields of a `RaftCore`, and what every part of it needs: queues of output, roles, timers.

The core is one object in layers, one file each; a layer calls only itself and the layers below:
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
from raftmq.raft.log_view import LogView, Random
from raftmq.raft.membership import Membership, check_membership
from raftmq.raft.messages import AppendResponse, Message, SnapshotMeta, VoteRequest
from raftmq.raft.progress import Progress
from raftmq.raft.ready import ConfirmedRead, Role, RoleChange
from raftmq.raft.settings import RaftSettings
from raftmq.types import NO_REPLICA, LogIndex, Offset, ReplicaId, Term

FIRST_ROUND_MAX = 1 << 62
"""A replica's first round of vote requests is a random number below this: 64 bits leave room for any number of further rounds, and
two lives do not meet in one."""


@dataclass(frozen=True, slots=True)
class RestoredState:
    """What storage holds of a group when its core starts."""

    hard_state: HardState
    position: LogPosition
    """The point the log starts after."""
    last_index: LogIndex
    last_next_offset: Offset
    """`next_offset` of the last entry (of `position` when the log is empty)."""
    last_append_time_ms: int
    term_starts: tuple[tuple[Term, LogIndex], ...]
    """(term, first index of it) for each term present in the log after `position`, ascending."""
    membership: Membership
    """As of `state_index`."""
    state_index: LogIndex
    """A: derived state and membership include every entry up to here; may be beyond `last_index` after a snapshot
    whose records are still being streamed. The core starts with applied = min(A, last_index)."""


def _no_snapshot() -> SnapshotMeta | None:
    return None


class CoreState:
    """Figure 3.1's state, volatile and persistent, with the output that gathers for the next `Ready`."""

    __slots__ = (
        "_apply_is_fetching",
        "_applying_bytes",
        "_applying_membership",
        "_applying_parts",
        "_commit_due",
        "_confirmed_reads",
        "_done_sequence",
        "_election_elapsed",
        "_failed_pre_votes",
        "_failed_reads",
        "_handed",
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
        "heartbeat_due",
        "leader_id",
        "leadership",
        "log",
        "membership",
        "replica_id",
        "role",
        "settings",
        "snapshot_meta",
        "state_floor",
        "term",
        "vote",
    )

    log_class: ClassVar[type[RaftLog]] = RaftLog
    """The log to build: the simulator's mutants replace it."""

    def __init__(
        self,
        replica_id: ReplicaId,
        restored: RestoredState,
        log_view: LogView,
        random: Random,
        settings: RaftSettings,
    ) -> None:
        self.replica_id = replica_id
        self.settings = settings
        self._random = random
        self.snapshot_meta: Callable[[], SnapshotMeta | None] = _no_snapshot
        """What snapshot may be sent now; None: not now. Set by the shell."""
        self.log = self._restore_log(restored, log_view)
        self._restore_hard_state(restored.hard_state)
        self.membership = restored.membership
        """The active configuration: as of the last applied change, or of `state_floor` while below it."""
        check_membership(self.membership)
        self.state_floor: LogIndex = restored.state_index
        """A of the snapshot or restart this replica stands on. Membership entries up to it are included already."""
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
        # Changes that were appended and not applied before the restart must be known: they forbid campaigns.
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
        """Whom this replica voted for in `term`; 0: nobody. Changes only from 0 within a term."""
        # The term is written before, or with, the first entry of it. A term below the log's end is a hard state that was lost,
        # and with it perhaps a vote: to go on with a free one could elect two leaders in a term.
        invariant(self.log.last_term <= self.term, "restored_term", term=self.term, last_term=self.log.last_term)
        self._handed = hard_state
        """The hard state last handed to the writer."""
        self._commit_due: int = 0
        """The commit index must get to disk up to here without waiting for entries: the last change of membership applied."""

    def _init_volatile(self) -> None:
        self.role = Role.FOLLOWER
        self.leader_id: ReplicaId = NO_REPLICA
        """0 when unknown."""
        self.campaign_due = False
        self.heartbeat_due = False
        # elections
        self._election_elapsed: int = 0
        """Ticks since a leader was heard, a vote was granted or the role began. A leader does not count them."""
        self._failed_pre_votes: int = 0
        """Consecutive pre-votes without success: each doubles the timeout, up to `pre_vote_backoff_max`."""
        self._timeout_ticks: int = 0
        self._roll_timeout()
        self._votes: dict[ReplicaId, bool] = {}
        self._round: int = self._random.randrange(FIRST_ROUND_MAX)
        """The latest round of (pre-)vote requests. No earlier life of this replica used it."""
        self.leadership: Leadership | None = None
        """Everything that this replica has only as leader. Invariant: not None exactly while `role` is LEADER."""
        # output
        self._messages: list[Message] = []
        self._responses: list[Message] = []
        """Votes, requests for them, and acknowledgements: released only once the next append is durable."""
        self._confirmed_reads: list[ConfirmedRead] = []
        self._failed_reads: list[int] = []
        self._sequence: int = 0
        self._done_sequence: int = 0
        self._applying_parts: deque[tuple[int, int]] = deque()
        """(last index, payload bytes) of each part handed out for applying."""
        self._applying_bytes: int = 0
        self._applying_membership: deque[tuple[int, bytes]] = deque()
        """(index, payload) of changes handed out for applying; they take effect in `apply_done`."""
        self._apply_is_fetching = False

    # ---------------------------------------------------------------------------------------- read by the shell

    @property
    def commit_index(self) -> LogIndex:
        """The last entry known committed."""
        return LogIndex(self.log.commit)

    @property
    def applied_index(self) -> LogIndex:
        """The last entry applied."""
        return LogIndex(self.log.applied)

    @property
    def last_index(self) -> LogIndex:
        """The last entry of the log, durable or not."""
        return LogIndex(self.log.last_index)

    @property
    def first_index(self) -> LogIndex:
        """The first entry of the log, after its position."""
        return LogIndex(self.log.position.index + 1)

    @property
    def progress(self) -> Mapping[ReplicaId, Progress]:
        """Every member as this leader sees it, itself included; empty unless leader."""
        return {} if self.leadership is None else self.leadership.progress

    # --------------------------------------------------------------------------------------------------- output

    def _send(self, message: Message) -> None:
        """Queue what may leave before anything local is durable."""
        self._messages.append(message)

    def _respond(self, message: Message) -> None:
        """Queue what may leave only after everything up to now is durable.

        Acknowledgements merge: the later one says everything the earlier did.
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
        """Uniform in [E, 2E-1], stretched by failed pre-votes."""
        ticks = self.settings.election_ticks
        stretch = min(1 << min(self._failed_pre_votes, 8), self.settings.pre_vote_backoff_max)
        self._timeout_ticks = (ticks + self._random.randrange(ticks)) * stretch

    def _reset(self, role: Role, term: Term) -> None:
        """Enter a role and a term, and end everything of the last ones. A new term starts without a vote, in the same step."""
        if term != self.term:
            if term < self.term:
                violated("term_monotone", term=self.term, new_term=term)
            self.term = term
            self.vote = NO_REPLICA
        self.role = role
        self.leader_id = NO_REPLICA
        self.campaign_due = False
        self.heartbeat_due = False
        self._election_elapsed = 0
        self._votes.clear()
        self._roll_timeout()
        if self._responses:
            # The log may change now: a request that did not leave would name an end that no disk ever held.
            self._responses = [one for one in self._responses if not isinstance(one, VoteRequest)]
        if self.leadership is not None:
            # This replica's own reads cannot be confirmed any more. The other askers time out and ask again.
            self._failed_reads.extend(self.leadership.reads.take_own(self.replica_id))
            self.leadership = None

    def _become_follower(self, term: Term, leader_id: ReplicaId) -> None:
        self._reset(Role.FOLLOWER, term)
        self.leader_id = leader_id

    def _hear_leader(self, leader_id: ReplicaId) -> None:
        """A valid message of this term's leader: the election timer starts anew."""
        if self.leader_id not in (NO_REPLICA, leader_id):
            violated("one_leader_per_term", term=self.term, leader_id=self.leader_id, other=leader_id)
        if self.role is not Role.FOLLOWER:
            self._become_follower(self.term, leader_id)
        self.leader_id = leader_id
        self._election_elapsed = 0
        self.campaign_due = False
        if self._failed_pre_votes:
            self._failed_pre_votes = 0
            self._roll_timeout()

    def _can_campaign(self) -> bool:
        """Whether this replica may ask for votes."""
        log = self.log
        return (
            (self.replica_id in self.membership.voters or self.replica_id in self.membership.outgoing)
            and log.snapshot is None
            and log.applied >= self.state_floor
            # A committed change that is not yet active: this replica would count votes of the wrong configuration.
            and not log.has_committed_membership
        )

    @property
    def _has_committed_in_term(self) -> bool:
        """Whether an entry of the current term is committed: what a new leader must wait for."""
        return self.log.term_at(self.log.commit) == self.term
