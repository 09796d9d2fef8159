"""Define the output of a core as one value. The shell must do all of it: nothing here is optional."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from raftmq.raft.entry import Entry
from raftmq.raft.hard_state import HardState
from raftmq.raft.messages import InstallSnapshot, Message
from raftmq.types import LogIndex, ReplicaId, Term


class Role(Enum):
    """Name the roles of thesis 3.3, with the pre-candidate of 9.6. A learner is a follower that is not among the voters."""

    FOLLOWER = "follower"
    PRE_CANDIDATE = "pre_candidate"
    CANDIDATE = "candidate"
    LEADER = "leader"


@dataclass(frozen=True, slots=True)
class RoleChange:
    """Report the leader as this replica sees it, whenever role, term or leader changed since the last Ready."""

    role: Role
    term: Term
    leader_id: ReplicaId
    """0 when unknown."""


@dataclass(frozen=True, slots=True)
class AppendToken:
    """Identify one append, for `RaftCore.append_done`.

    It carries term, last index and last term as they were when the append was handed out. A completion that arrives in
    another term must not mark entries as durable that replaced the written ones (the ABA race of async appends).
    """

    term: Term
    vote: ReplicaId
    """The vote when the append was handed out, or 0 for none."""
    last_index: LogIndex
    """Last index of the whole log when the append was handed out, not only of its entries.

    It is 0 when no entry waits to be durable."""
    last_term: Term
    sequence: int
    """Number of the append, counted by this core. Completions arrive in this order."""


@dataclass(frozen=True, slots=True)
class AppendWork:
    """Describe one write, to be made durable as a whole and in order.

    When it is durable, the shell sends `responses` and calls `append_done(token)`. An append whose `must_sync` is False needs
    no write of its own: it may wait for the next one. `entries` replace the suffix of the log from `entries[0].index` on, if
    there is one, in the same transaction.
    """

    hard_state: HardState | None
    entries: tuple[Entry, ...]
    snapshot: InstallSnapshot | None
    """A snapshot that replaces the whole log and state before `entries` are appended."""
    responses: tuple[Message, ...]
    """Votes, requests for votes, acknowledgements and refusals. They leave once this and every earlier append is durable."""
    token: AppendToken
    must_sync: bool


@dataclass(frozen=True, slots=True)
class ConfirmedRead:
    """Confirm a `read_index` call. The read may be served once `applied_index >= read_index`."""

    request_id: int
    read_index: LogIndex


@dataclass(frozen=True, slots=True)
class Ready:
    """Hold one round of output of `RaftCore.ready()`."""

    role_change: RoleChange | None
    messages: tuple[Message, ...]
    """Messages that may leave now, before anything local is durable."""
    append: AppendWork | None
    apply: tuple[Entry, ...]
    """Committed and locally durable entries to apply now, in order. Afterwards the shell calls `apply_done(last index)`."""
    reads: tuple[ConfirmedRead, ...]
    failed_reads: tuple[int, ...]
    """Request ids of reads that cannot be confirmed any more, as the leadership was lost. The shell must ask again."""


class RefusalReason(Enum):
    """Name the reason why the core refused a proposal. Nothing was appended."""

    NOT_LEADER = "not_leader"
    TRANSFERRING = "transferring"
    """A leadership transfer is in progress. Retriable."""
    UNCOMMITTED_FULL = "uncommitted_full"
    """The proposal would exceed `uncommitted_bytes_max`. Retriable."""
    MEMBERSHIP_PENDING = "membership_pending"
    """Another change is not applied yet, or no entry of this term is committed yet. Retriable."""
    MEMBERSHIP_STALE = "membership_stale"
    """The change serves an older metadata revision than the current configuration."""
    MEMBERSHIP_INVALID = "membership_invalid"
    """The change cannot be made from the current configuration (for example it removes every voter)."""
    NOT_VOTER = "not_voter"
    """The target of a transfer is not a voter of this group."""


@dataclass(frozen=True, slots=True)
class Refused:
    """Answer a proposal that was not appended."""

    reason: RefusalReason
    leader_id: ReplicaId


@dataclass(frozen=True, slots=True)
class Appended:
    """Answer a proposal that was appended to the leader's log. It is neither durable nor committed yet."""

    entries: tuple[Entry, ...]
    """The entries as appended: with index, term, base offset and time. Never empty."""
