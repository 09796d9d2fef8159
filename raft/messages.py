"""Define the messages between replicas of one group. They are values. The shell adds the group id and carries them.

Every message names its sender, its target replica and a term. A message for another replica is dropped: a wiped disk is a
new replica. Two traits of each class tell a replica of another term how to treat the message's term:

- `is_from_leader`: only the leader of `term` sends the message, so that the receiver follows its sender.
- `is_term_proposed`: no replica has entered `term` yet (a pre-vote, or a grant of one), so that the receiver does not either.

Source: Ongaro's thesis 3.3-3.5, 4.2, 6.4, 9.6. The shapes follow etcd's raft with async storage writes.
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
    """Ask for a (pre-)vote. In a pre-vote, `term` is the term in which the sender would campaign.

    A request for a real vote leaves only once the sender's disk holds the term, its own vote and the named log end.
    """

    is_from_leader: ClassVar[bool] = False

    source: ReplicaId
    target: ReplicaId
    term: Term
    round: int
    """The sender's round of requests. Each start of the sender begins at a random number, so that none of its earlier lives
    used the same round."""
    last_index: LogIndex
    last_term: Term
    commit_index: LogIndex
    """The last entry that the sender knows to be committed. A voter that has the entry may commit it too, so that a live
    majority of a new configuration can always elect (etcd issue 12359)."""
    commit_term: Term
    """The term of the entry at `commit_index`."""
    is_pre_vote: bool
    is_transfer: bool = False
    """Whether a leader asked the sender to take over. Voters then answer although a leader is alive (thesis 3.10)."""

    @property
    def is_term_proposed(self) -> bool:
        """Return whether `term` is the term of a campaign that has not begun."""
        return self.is_pre_vote


@dataclass(frozen=True, slots=True)
class VoteResponse:
    """Answer a `VoteRequest`. A granted pre-vote carries the requested term, and a refusal carries the responder's own."""

    is_from_leader: ClassVar[bool] = False

    source: ReplicaId
    target: ReplicaId
    term: Term
    round: int
    """The round of the request. An answer to an earlier round does not count: its request may have named another log end."""
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
    """Carry entries after (`prev_index`, `prev_term`), or none: a probe, or a commit index alone."""

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
    """Answer an `AppendRequest`: accepted with the last matching `index`, or rejected with `prev_index` and a hint."""

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
    """Assert leadership (thesis 3.4, 6.4). `commit_index` is min(match, commit). A response with `read_counter` confirms reads."""

    is_from_leader: ClassVar[bool] = True
    is_term_proposed: ClassVar[bool] = False

    source: ReplicaId
    target: ReplicaId
    term: Term
    commit_index: LogIndex
    read_counter: int


@dataclass(frozen=True, slots=True)
class HeartbeatResponse:
    """Answer a `Heartbeat` with its `read_counter`."""

    is_from_leader: ClassVar[bool] = False
    is_term_proposed: ClassVar[bool] = False

    source: ReplicaId
    target: ReplicaId
    term: Term
    read_counter: int


@dataclass(frozen=True, slots=True)
class SnapshotMeta:
    """Describe a snapshot, apart from its state rows.

    It has two positions. The log restarts after `position` (T). State and `membership` are as of `state_index` (A >= T).
    Entries in (T, A] still arrive by appends, and change neither state nor membership.
    """

    position: LogPosition
    state_index: LogIndex
    membership: Membership


@dataclass(frozen=True, slots=True)
class InstallSnapshot:
    """Install a whole snapshot. The shell streams `data` on a channel of its own, and steps the message when it is complete."""

    is_from_leader: ClassVar[bool] = True
    is_term_proposed: ClassVar[bool] = False

    source: ReplicaId
    target: ReplicaId
    term: Term
    meta: SnapshotMeta
    data: object = field(default=None, compare=False)
    """The state rows as the shell carries them. The core does not read them, and hands them back in `Ready.append`."""


@dataclass(frozen=True, slots=True)
class TimeoutNow:
    """Tell a caught-up voter to campaign immediately. The leader sends it (thesis 3.10)."""

    is_from_leader: ClassVar[bool] = False
    is_term_proposed: ClassVar[bool] = False

    source: ReplicaId
    target: ReplicaId
    term: Term


@dataclass(frozen=True, slots=True)
class ReadIndexRequest:
    """Ask the leader for a confirmed commit index. A follower or learner sends it (thesis 6.4)."""

    is_from_leader: ClassVar[bool] = False
    is_term_proposed: ClassVar[bool] = False

    source: ReplicaId
    target: ReplicaId
    term: Term
    request_id: int
    """The asker's own counter. It is only returned, and never used to confirm anything (etcd issue 20418)."""


@dataclass(frozen=True, slots=True)
class ReadIndexResponse:
    """Answer a `ReadIndexRequest` with the leader's confirmed commit index."""

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
