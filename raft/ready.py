"""Everything a core wants done, as one value. The shell runs it; nothing here is optional."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from raftmq.raft.entry import Entry
from raftmq.raft.hard_state import HardState
from raftmq.raft.messages import InstallSnapshot, Message
from raftmq.types import LogIndex, ReplicaId, Term


class Role(Enum):
    """Thesis 3.3, with the pre-candidate of 9.6. A learner is a follower that is not in the voters."""

    FOLLOWER = "follower"
    PRE_CANDIDATE = "pre_candidate"
    CANDIDATE = "candidate"
    LEADER = "leader"


@dataclass(frozen=True, slots=True)
class RoleChange:
    """Who leads, as this replica sees it; reported when any of it changed since the last Ready."""

    role: Role
    term: Term
    leader_id: ReplicaId
    """0 when unknown."""


@dataclass(frozen=True, slots=True)
class AppendToken:
    """Identifies one append, for `RaftCore.append_done`.

    Carries term, last index and last term as they were when the append was handed out: a completion that arrives in
    another term must not mark entries durable that replaced it (the ABA race of async appends).
    """

    term: Term
    vote: ReplicaId
    last_index: LogIndex
    """Last index of the log when the append was handed out (not only of this append's entries); 0: nothing to mark."""
    last_term: Term
    sequence: int
    """Counts appends of this core; completions arrive in this order."""


@dataclass(frozen=True, slots=True)
class AppendWork:
    """One write, to be made durable as a whole and in order; then send `responses` and call `append_done(token)`.

    An append whose `must_sync` is False needs no write of its own: its effect may ride with the next.
    The log's suffix from `entries[0].index` on, if there is one, is replaced in the same transaction.
    """

    hard_state: HardState | None
    entries: tuple[Entry, ...]
    snapshot: InstallSnapshot | None
    """Replaces the whole log and state before `entries` are appended."""
    responses: tuple[Message, ...]
    """Votes, requests for them, and acknowledgements, refusals too: they leave only after this and every earlier append is durable."""
    token: AppendToken
    must_sync: bool


@dataclass(frozen=True, slots=True)
class ConfirmedRead:
    """A `read_index` call that may be served once `applied_index >= read_index`."""

    request_id: int
    read_index: LogIndex


@dataclass(frozen=True, slots=True)
class Ready:
    """One round of output of `RaftCore.ready()`."""

    role_change: RoleChange | None
    messages: tuple[Message, ...]
    """May leave now, before anything local is durable."""
    append: AppendWork | None
    apply: tuple[Entry, ...]
    """Committed and locally durable entries, in order, to apply now; then `apply_done(last index)`."""
    reads: tuple[ConfirmedRead, ...]
    failed_reads: tuple[int, ...]
    """Request ids that can no longer be confirmed (leadership lost); ask again."""


class RefusalReason(Enum):
    """Why the core did not take a proposal. Nothing was appended."""

    NOT_LEADER = "not_leader"
    TRANSFERRING = "transferring"
    """A leadership transfer is in progress; retriable."""
    UNCOMMITTED_FULL = "uncommitted_full"
    """`uncommitted_bytes_max` would be exceeded; retriable."""
    MEMBERSHIP_PENDING = "membership_pending"
    """Another change is not yet applied, or nothing of this term is committed yet; retriable."""
    MEMBERSHIP_STALE = "membership_stale"
    """The change serves an older metadata revision than the current configuration."""
    MEMBERSHIP_INVALID = "membership_invalid"
    """The change cannot be made from the current configuration (for example it removes every voter)."""
    NOT_VOTER = "not_voter"
    """The target of a transfer is not a voter here."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A proposal that was not appended."""

    reason: RefusalReason
    leader_id: ReplicaId


@dataclass(frozen=True, slots=True)
class Appended:
    """A proposal that was appended to the leader's log (not yet durable, not yet committed)."""

    entries: tuple[Entry, ...]
    """As appended: with index, term, base offset and time. Never empty."""
