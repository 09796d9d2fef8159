"""What replicas of one group say to each other. Values only; the shell adds the group id and carries them.

Every message names its sender, its target replica (a mismatch is dropped: a wiped disk is a new replica) and a term. Two
traits of each class say what its term means to a replica of another term:

- `is_from_leader`: only the leader of `term` sends it.
- `is_term_proposed`: nobody has entered `term` yet (a pre-vote, or a grant of one), so that nobody follows into it.

Source: Ongaro's thesis 3.3-3.5, 4.2, 6.4, 9.6; the shapes follow etcd's raft with async storage writes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from raftmq.raft.entry import Entry, LogPosition
from raftmq.raft.membership import Membership
from raftmq.types import LogIndex, ReplicaId, Term

NO_INDEX = LogIndex(0)
NO_TERM = Term(0)


@dataclass(frozen=True, slots=True)
class VoteRequest:
    """A (pre-)vote request. For a pre-vote `term` is the term the sender would campaign in.

    A real one leaves only once the sender's disk holds the term, its own vote and the log end that it names.
    """

    is_from_leader: ClassVar[bool] = False

    source: ReplicaId
    target: ReplicaId
    term: Term
    round: int
    """The sender's round of requests. Each start of the sender begins at a random number, so that no earlier life of it used
    the same round."""
    last_index: LogIndex
    last_term: Term
    commit_index: LogIndex
    """What the sender knows committed, and its term: a voter that has the entry may commit it too,
    so a live majority of a new configuration can always elect (etcd issue 12359)."""
    commit_term: Term
    is_pre_vote: bool
    is_transfer: bool = False
    """Set when a leader asked the sender to take over: voters answer in spite of a live leader (thesis 3.10)."""

    @property
    def is_term_proposed(self) -> bool:
        """Return whether `term` is the term of a campaign that has not begun."""
        return self.is_pre_vote


@dataclass(frozen=True, slots=True)
class VoteResponse:
    """Answer to a `VoteRequest`. A granted pre-vote carries the requested term, a refusal the responder's own."""

    is_from_leader: ClassVar[bool] = False

    source: ReplicaId
    target: ReplicaId
    term: Term
    round: int
    """The request's round. An answer to an earlier round does not count, as its request may have named another log end."""
    is_pre_vote: bool
    is_granted: bool
    commit_index: LogIndex
    commit_term: Term

    @property
    def is_term_proposed(self) -> bool:
        """Return whether `term` is the term that was asked for, not the responder's own."""
        return self.is_pre_vote and self.is_granted


@dataclass(frozen=True, slots=True)
class AppendRequest:
    """Entries after (`prev_index`, `prev_term`), or none (a probe or a commit bump)."""

    is_from_leader: ClassVar[bool] = True
    is_term_proposed: ClassVar[bool] = False

    source: ReplicaId
    target: ReplicaId
    term: Term
    prev_index: LogIndex
    prev_term: Term
    entries: tuple[Entry, ...]
    commit_index: LogIndex


@dataclass(frozen=True, slots=True)
class AppendResponse:
    """`index`: the last index known to match (accepted), or the rejected `prev_index` with a hint."""

    is_from_leader: ClassVar[bool] = False
    is_term_proposed: ClassVar[bool] = False

    source: ReplicaId
    target: ReplicaId
    term: Term
    index: LogIndex
    is_rejected: bool = False
    hint_index: LogIndex = NO_INDEX
    hint_term: Term = NO_TERM


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Thesis 3.4, 6.4. `commit_index` is min(match, commit); `read_counter` confirms reads when echoed."""

    is_from_leader: ClassVar[bool] = True
    is_term_proposed: ClassVar[bool] = False

    source: ReplicaId
    target: ReplicaId
    term: Term
    commit_index: LogIndex
    read_counter: int


@dataclass(frozen=True, slots=True)
class HeartbeatResponse:
    """Echo of a `Heartbeat`."""

    is_from_leader: ClassVar[bool] = False
    is_term_proposed: ClassVar[bool] = False

    source: ReplicaId
    target: ReplicaId
    term: Term
    read_counter: int


@dataclass(frozen=True, slots=True)
class SnapshotMeta:
    """What a snapshot holds, apart from its state rows.

    Two positions: the log restarts after `position` (T); the state and `membership` are as of `state_index` (A >= T).
    Entries in (T, A] still arrive by appends and change neither state nor membership.
    """

    position: LogPosition
    state_index: LogIndex
    membership: Membership


@dataclass(frozen=True, slots=True)
class InstallSnapshot:
    """A whole snapshot. The shell streams `data` on its own channel and steps the message when all of it is there."""

    is_from_leader: ClassVar[bool] = True
    is_term_proposed: ClassVar[bool] = False

    source: ReplicaId
    target: ReplicaId
    term: Term
    meta: SnapshotMeta
    data: object = field(default=None, compare=False)
    """The state rows as the shell carries them; opaque to the core, which hands it back in `Ready.append`."""


@dataclass(frozen=True, slots=True)
class TimeoutNow:
    """The leader asks a caught-up voter to campaign at once (thesis 3.10)."""

    is_from_leader: ClassVar[bool] = False
    is_term_proposed: ClassVar[bool] = False

    source: ReplicaId
    target: ReplicaId
    term: Term


@dataclass(frozen=True, slots=True)
class ReadIndexRequest:
    """A follower or learner asks the leader for a confirmed commit index (thesis 6.4)."""

    is_from_leader: ClassVar[bool] = False
    is_term_proposed: ClassVar[bool] = False

    source: ReplicaId
    target: ReplicaId
    term: Term
    request_id: int
    """The asker's own counter; echoed only, never used to confirm anything (etcd issue 20418)."""


@dataclass(frozen=True, slots=True)
class ReadIndexResponse:
    """The leader's confirmed commit index for a `ReadIndexRequest`."""

    is_from_leader: ClassVar[bool] = False
    is_term_proposed: ClassVar[bool] = False

    source: ReplicaId
    target: ReplicaId
    term: Term
    request_id: int
    read_index: LogIndex


VoteMessage = VoteRequest | VoteResponse
"""The messages that name a committed entry of the sender."""

Message = (
    VoteRequest
    | VoteResponse
    | AppendRequest
    | AppendResponse
    | Heartbeat
    | HeartbeatResponse
    | InstallSnapshot
    | TimeoutNow
    | ReadIndexRequest
    | ReadIndexResponse
)
