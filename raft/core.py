"""One group's consensus, pure: values in, one `Ready` out. No clock, socket, file, thread, logger or `async`.

CONTRACT FILE: signatures and docstrings are agreed with the shell and the simulator; bodies follow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from raftmq.raft.entry import LogPosition, Proposal
from raftmq.raft.hard_state import HardState
from raftmq.raft.log_view import LogView, Random
from raftmq.raft.membership import Membership, MembershipChange
from raftmq.raft.messages import Message, SnapshotMeta
from raftmq.raft.ready import Appended, AppendToken, Ready, Refused, Role
from raftmq.raft.settings import RaftSettings
from raftmq.types import LogIndex, Offset, ReplicaId, Term


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


class RaftCore:
    """See DESIGN section 4. Called from one thread; every method is quick and never blocks."""

    # read by the shell (properties or plain slots, read-only outside):
    replica_id: ReplicaId
    term: Term
    role: Role
    leader_id: ReplicaId
    commit_index: LogIndex
    applied_index: LogIndex
    state_floor: LogIndex
    """A of the snapshot or restart this replica stands on: state must not be used before applied_index reaches it."""
    last_index: LogIndex
    first_index: LogIndex
    membership: Membership
    """The active (applied) configuration."""
    campaign_due: bool
    """The election timeout passed and a campaign is allowed: the shell calls `campaign()` now or when its gate lets it."""
    beat_due: bool
    """A leader owes its peers a heartbeat (timer, or a read to confirm): the shell calls `take_beats()`."""

    def __init__(
        self,
        replica_id: ReplicaId,
        restored: RestoredState,
        log_view: LogView,
        random: Random,
        settings: RaftSettings,
    ) -> None: ...

    # -- time
    def tick(self, count: int = 1) -> None:
        """Logical time. Sets `campaign_due` / `beat_due`, runs check-quorum and transfer time-outs."""

    def campaign(self) -> None:
        """Start a pre-vote round (no effect where campaigning is not allowed: learner, removed, leader already,
        snapshot pending, unapplied membership entry committed, applied below `state_floor`)."""

    def forget_leader(self) -> None:
        """A follower has independent evidence that its leader's process is gone: pre-votes are granted at once."""

    def step_down(self) -> None:
        """A leader becomes follower of nobody in the same term (its disk hangs, it is quarantined, it shuts down)."""

    def require_confirmation(self) -> None:
        """After a stall: `is_confirmed_leader` is False until a beat round begun after this call is acked by a quorum;
        steps down when that does not happen within one minimum election timeout."""

    @property
    def is_confirmed_leader(self) -> bool:
        """Leader, its own no-op applied, and not under `require_confirmation`: it may judge and take proposals."""
        raise NotImplementedError

    # -- input
    def step(self, message: Message) -> None:
        """A message from a peer. Wrong target, unknown or stale ones are dropped or answered as the thesis says."""

    def propose(self, proposals: Sequence[Proposal], now_ms: int) -> Appended | Refused:
        """Append to the leader's log, all or none. `now_ms` is clamped so that append times never decrease."""
        raise NotImplementedError

    def propose_membership(self, change: MembershipChange, now_ms: int) -> Appended | Refused:
        """Append a change of membership (checked here as far as it can be; an invalid one at apply becomes empty)."""
        raise NotImplementedError

    def read_index(self, request_id: int) -> None:
        """Ask for a confirmed commit index; answered in `Ready.reads` or `Ready.failed_reads`. Forwarded by followers
        (lost messages are simply never answered: the shell times out and asks with a fresh id)."""

    def transfer_leader(self, target: ReplicaId) -> Refused | None:
        """Hand leadership to `target`; no proposals are taken until it happened or one election timeout passed."""

    # -- heartbeats (packed by the shell into one frame per node pair; `step` takes the message form too)
    def take_beats(self) -> list[tuple[ReplicaId, LogIndex, int]]:
        """(target, min(match, commit), read counter) for each peer, and clears `beat_due`. Empty unless leader."""
        raise NotImplementedError

    def on_quiet_beat(self, source: ReplicaId, term: Term, commit_index: LogIndex) -> bool:
        """The fast path of a heartbeat that changes nothing but the election timer. True: handled, echo it.
        False: nothing was done, use `step(Heartbeat(...))`."""
        raise NotImplementedError

    def on_quiet_beat_response(self, source: ReplicaId, term: Term, read_counter: int) -> bool:
        """The fast path of the echo (peer caught up, no read waits on it). False: use `step(HeartbeatResponse(...))`."""
        raise NotImplementedError

    # -- completions
    def append_done(self, token: AppendToken) -> None:
        """That append, and all before it, are durable."""

    def apply_done(self, index: LogIndex) -> None:
        """Entries up to `index` are applied; membership entries among them take effect now."""

    def entries_fetched(self) -> None:
        """A `LogView.entries` that answered None may answer now."""

    def report_unreachable(self, peer: ReplicaId) -> None:
        """Messages to the peer were dropped: probe instead of pipelining."""

    def report_snapshot(self, peer: ReplicaId, is_sent: bool) -> None:
        """The stream of an `InstallSnapshot` to the peer ended."""

    def compacted(self, position: LogPosition) -> None:
        """The shell deleted the durable log up to `position` (which is at most applied_index)."""

    # -- output
    def has_ready(self, with_append: bool = True) -> bool:
        """Whether `ready(with_append)` would hold anything."""
        raise NotImplementedError

    def ready(self, with_append: bool = True) -> Ready:
        """Take everything to be done. With `with_append=False` the pending write (and the messages behind it) stays for
        a later call, so that what arrives during a commit gathers into one next write. The shell need not wait for one
        append before taking the next; completions come back in order."""
        raise NotImplementedError

    # -- progress, for the shell's decisions
    def match_index(self, peer: ReplicaId) -> LogIndex:
        """Leader only: the last index known durable on the peer (0 when unknown)."""
        raise NotImplementedError

    def match_indexes(self) -> dict[ReplicaId, LogIndex]:
        """Leader only: match per member, itself included."""
        raise NotImplementedError


class SnapshotSource:
    """How the core learns what snapshot it may send: the shell sets `RaftCore.snapshot_meta` (a callable returning
    `SnapshotMeta | None`, None = not now) and puts the rows behind the resulting `InstallSnapshot` itself."""

    def __call__(self) -> SnapshotMeta | None:
        return None
