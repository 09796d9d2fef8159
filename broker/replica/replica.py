"""One replica of one Raft group on this node: its core, its state machine, its log and its waiters.

A passive object: the engine steps it, services ask it. State changes happen in functions without `await`, so nothing
needs to be checked again after them. It does no I/O but reads through the store, cold ones on a thread.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, cast

from raftmq.broker.base.limits import Limits
from raftmq.broker.base.request_error import RequestError
from raftmq.broker.replica.replica_log import ReplicaLog
from raftmq.errors import InvariantError, violated
from raftmq.fsm.state_machine import StateMachine
from raftmq.proto import queue_pb2 as pb
from raftmq.raft.core import RaftCore
from raftmq.raft.entry import Entry, EntryKind, LogPosition, Proposal
from raftmq.raft.membership import Membership, MembershipChange
from raftmq.raft.ready import Appended, RefusalReason, Refused, Role
from raftmq.storage.errors import DamagedReplicaError, LogRangeError, ReplicaClosedError
from raftmq.storage.log_store import ReplicaKey
from raftmq.types import NO_NODE, GroupId, LogIndex, NodeId, ReplicaId, Term

MachineT = TypeVar("MachineT", bound=StateMachine, covariant=True)
T = TypeVar("T")

_REFUSAL_CODES = {
    RefusalReason.NOT_LEADER: pb.NOT_LEADER,
    RefusalReason.TRANSFERRING: pb.NOT_LEADER,
    RefusalReason.UNCOMMITTED_FULL: pb.THROTTLED,
    RefusalReason.MEMBERSHIP_PENDING: pb.CONFLICT,
    RefusalReason.MEMBERSHIP_STALE: pb.CONFLICT,
    RefusalReason.MEMBERSHIP_INVALID: pb.INVALID_ARGUMENT,
    RefusalReason.NOT_VOTER: pb.INVALID_ARGUMENT,
}

THROTTLE_RETRY_MS = 50
_LEADERLESS_RETRY_MS = 100
_BEHIND_RETRY_MS = 100
_UNCONFIRMED_RETRY_MS = 20


class ReplicaHost(Protocol):
    """What a group asks of the engine."""

    loop: asyncio.AbstractEventLoop
    limits: Limits

    def mark_dirty(self, replica: Replica[StateMachine]) -> None:
        """Step the group in the next pass."""
        ...

    def break_replica(self, replica: Replica[StateMachine], error: Exception) -> None:
        """The replica broke a rule or is damaged: close it and keep it silent."""
        ...

    def now_ms(self) -> int:
        """The time to stamp entries with, milliseconds since the epoch."""
        ...

    def reserve_uncommitted(self, size: int) -> bool:
        """Count proposed bytes against the process's budget; False: over it."""
        ...

    def feature_level(self) -> int:
        """The cluster's feature level, as this node's copy of metadata says: never above the true one, since it only rises."""
        ...

    def release_uncommitted(self, size: int) -> None:
        """Give proposed bytes back."""
        ...

    def refusal_of_writes(self) -> RequestError | None:
        """Why this node takes no appends now (disk reserve, a clock that was not compared), if it does not."""
        ...

    async def in_thread(self, function: Callable[..., object], *arguments: object) -> object:
        """Run a blocking read on the reader threads."""
        ...

    def leader_hint(self, group_id: GroupId) -> tuple[NodeId, str, Term]:
        """(node, client address, term) this node believes leads the group; node 0 when nobody."""
        ...


class _Waiter:
    """A proposal in flight: where its entries are, and who waits for their results."""

    __slots__ = ("first_index", "future", "last_index", "results", "size", "term")

    def __init__(self, entries: tuple[Entry, ...], size: int, future: asyncio.Future[list[object]]) -> None:
        self.first_index = entries[0].index
        self.last_index = entries[-1].index
        self.term = entries[-1].term
        self.size = size
        self.future = future
        self.results: list[object] = []


class _ConfirmedRead(NamedTuple):
    """A read that is served once its index is applied here."""

    read_index: LogIndex
    asked_at: float
    future: asyncio.Future[LogIndex]


class Replica(Generic[MachineT]):
    """See the module. `machine` is a `Metadata` for group 0, a `LogPartition` for a log partition."""

    def __init__(
        self,
        key: ReplicaKey,
        core: RaftCore,
        machine: MachineT,
        log: ReplicaLog,
        host: ReplicaHost,
        node_of_replica: Callable[[ReplicaId], NodeId],
        first_read_id: int = 1,
    ) -> None:
        """`first_read_id` should be random: a leader may answer, late, a read that was asked before a restart."""
        self.key = key
        self.group_id = key.group_id
        self.replica_id = key.replica_id
        self.core = core
        self.state_machine = machine
        self.log = log
        self.node_of_replica = node_of_replica
        self.learned_nodes: dict[ReplicaId, NodeId] = {}
        """Where messages of a replica came from, until metadata names its node. Written by `learn_node`."""
        self._host = host
        self.is_closed = False
        """Silent for ever: nothing of it is stepped, sent or answered any more."""
        self.is_dirty = False
        """Whether the engine's next pass steps it. Written by the engine."""
        self.append_in_flight = False
        """Whether a write (or an installation) is on its way to the disk. Written by `Commits` and `Snapshots`."""
        self.append_started_at = 0.0
        """Loop time at which that write was handed over."""
        self.leaderless_since: float | None = None
        """Loop time since when this replica has known no leader; None while it knows one. Written by the engine."""
        self.is_installing = False
        """Whether that write replaces the file by a snapshot; nothing else of the group moves. Written by `Snapshots`."""
        self.durable_state_index: LogIndex = core.applied_index
        """Index of the derived state on disk: a restart replays from it. Written by `Commits` and `Snapshots`.

        Invariant: never above the machine's applied index, nor below the log's start.
        """
        self.durable_membership: Membership = core.membership
        """The membership on disk, as of `durable_state_index`: what a snapshot taken now carries."""
        self.pending_truncation: LogPosition | None = None
        """Where the log will start once the write that says so is durable. Written by `Commits`."""
        self.snapshots_in_progress = 0
        """Snapshots of this group being sent: their rows must stay joined to the log. Written by `Snapshots`."""
        self.snapshot_sent_at: dict[ReplicaId, float] = {}
        """Loop time at which each replica was last sent a snapshot. Written by `Snapshots`."""
        self.on_applied: Callable[[Entry, object], None] | None = None
        """Called after each applied entry with its result (the append judge's overlay, metadata's changes)."""
        self.on_leadership: Callable[[], None] | None = None
        """Called when this replica gains or loses leadership, or the term changes."""
        self.on_restored: Callable[[], None] | None = None
        """Called when a snapshot replaced the machine's state."""
        self._waiters: deque[_Waiter] = deque()
        self._reads: dict[int, tuple[float, asyncio.Future[LogIndex]]] = {}
        """Reads that wait for a confirmation, by request id: when each was asked, and its future."""
        self._confirmed: deque[_ConfirmedRead] = deque()
        self._next_read_id = first_read_id
        self._shared_read: asyncio.Future[LogIndex] | None = None
        self._refresh: asyncio.Future[LogIndex] | None = None
        """The read under way that was begun by `refresh`."""
        self.confirmed_at: float | None = None
        """Loop time of a moment up to which this replica's state includes everything committed; None: of none since the start."""
        self._progress: asyncio.Future[None] | None = None
        log.on_fetched = self._on_entries_fetched

    def node_of(self, replica_id: ReplicaId) -> NodeId:
        """The node of a replica: as metadata says, else where its messages came from; 0 when nobody knows."""
        return self.node_of_replica(replica_id) or self.learned_nodes.get(replica_id, NO_NODE)

    def learn_node(self, replica_id: ReplicaId, node_id: NodeId) -> None:
        """Remember where a replica's message came from. `Limits.peers_learned_max` are remembered, members of the group first.

        Ids are the sender's to choose: without a bound a peer's defect would fill the memory of this node.
        """
        learned = self.learned_nodes
        if replica_id not in learned and len(learned) >= self._host.limits.peers_learned_max:
            members = self.core.membership.member_ids
            stranger = next((known for known in learned if known not in members), None)
            if replica_id not in members or stranger is None:
                return
            del learned[stranger]
        learned[replica_id] = node_id

    # ---------------------------------------------------------------------------------------------------- leadership

    @property
    def is_leader(self) -> bool:
        """Whether this replica leads and may judge proposals: its own no-op is applied and no stall is unconfirmed."""
        return self.core.is_confirmed_leader and not self.is_closed

    @property
    def term(self) -> Term:
        """The replica's current term: the partition's leader epoch when it leads."""
        return self.core.term

    def require_leader(self) -> None:
        """Raise RequestError unless this replica leads and may judge: NO_LEADER while it is being confirmed, else as
        `not_leader` says.
        """
        if self.is_leader:
            return
        if self.core.role is Role.LEADER and not self.is_closed:
            raise RequestError(
                pb.NO_LEADER,
                f"the leader of group {self.group_id} is being confirmed; try again",
                retry_after_ms=_UNCONFIRMED_RETRY_MS,
            )
        raise self.not_leader()

    def not_leader(self) -> RequestError:
        """The definite refusal of a replica that does not lead, with the best hint there is."""
        node_id, address, term = self._host.leader_hint(self.group_id)
        if node_id == 0:
            return RequestError(
                pb.NO_LEADER,
                f"group {self.group_id} has no leader at the moment; try again",
                retry_after_ms=_LEADERLESS_RETRY_MS,
            )
        return RequestError(
            pb.NOT_LEADER,
            f"this node does not lead group {self.group_id}; node {node_id} at {address} does",
            leader_node_id=node_id,
            leader_address=address,
            leader_epoch=term,
        )

    # ---------------------------------------------------------------------------------------------------- proposals

    def propose(self, proposals: Sequence[Proposal]) -> tuple[Appended, asyncio.Future[list[object]]]:
        """Append to the log now; the future gives one state-machine result per proposal once they are applied.

        Raises:
            RequestError: NOT_LEADER, NO_LEADER, THROTTLED, DISK_FULL, or UNSUPPORTED_VERSION for a command that not every broker of
                the cluster can read; nothing was appended.

        The future raises RequestError LEADERSHIP_LOST (outcome unknown) or NOT_LEADER (another term's entry took
        the place: definitely not applied). Cancelling it does not undo anything.
        """
        if not self.is_leader:
            raise self.not_leader()
        refusal = self._host.refusal_of_writes()
        # commands are small, and some of them (trims, deletions) are what makes room again
        if refusal is not None and any(proposal.kind is EntryKind.DATA for proposal in proposals):
            raise refusal
        self._require_readable(proposals)
        size = sum(len(proposal.payload) for proposal in proposals)
        if not self._host.reserve_uncommitted(size):
            raise RequestError(
                pb.THROTTLED,
                "the node's budget for uncommitted data is exhausted; slow down",
                retry_after_ms=THROTTLE_RETRY_MS,
            )
        try:
            answer = self.core.propose(proposals, self._host.now_ms())
        except InvariantError as error:
            self._host.release_uncommitted(size)
            self._host.break_replica(self, error)
            raise self._leadership_lost() from error
        return self._await_applied(answer, size)

    def _require_readable(self, proposals: Sequence[Proposal]) -> None:
        """Every command comes through here: one that a replica could not read would stop that replica when it is committed."""
        for proposal in proposals:
            if proposal.kind is not EntryKind.COMMAND:
                continue
            needed = self.state_machine.level_needed(proposal.payload)
            if needed is None:
                raise RequestError(
                    pb.INTERNAL, f"a command for group {self.group_id} cannot be read back: not proposed"
                )
            level = self._host.feature_level()
            if needed > level:
                raise RequestError(
                    pb.UNSUPPORTED_VERSION,
                    f"this change needs feature level {needed}, and the cluster is at {level}: upgrade every broker first",
                )

    def propose_membership(self, change: MembershipChange) -> asyncio.Future[list[object]]:
        """Propose a change of the group's own membership. Raises and answers as `propose` does."""
        if not self.is_leader:
            raise self.not_leader()
        try:
            answer = self.core.propose_membership(change, self._host.now_ms())
        except InvariantError as error:
            self._host.break_replica(self, error)
            raise self._leadership_lost() from error
        return self._await_applied(answer, 0)[1]

    def _await_applied(self, answer: Appended | Refused, size: int) -> tuple[Appended, asyncio.Future[list[object]]]:
        if isinstance(answer, Refused):
            self._host.release_uncommitted(size)
            code = _REFUSAL_CODES[answer.reason]
            if code == pb.NOT_LEADER:
                raise self.not_leader()
            raise RequestError(code, f"group {self.group_id}: {answer.reason.value}", retry_after_ms=THROTTLE_RETRY_MS)
        future: asyncio.Future[list[object]] = self._host.loop.create_future()
        self._waiters.append(_Waiter(answer.entries, size, future))
        self._host.mark_dirty(self)
        return answer, future

    # ---------------------------------------------------------------------------------------------------- reads

    async def read_index(self) -> LogIndex:
        """Wait until this replica's state includes everything committed before the call (thesis 6.4).

        Calls made in one pass of the loop share a confirmation round. Raises RequestError, retriable: NO_LEADER or
        NOT_LEADER when leadership changed meanwhile or no confirmation came in `Timing.read_index_seconds`; NOT_READY when
        it came and the entries did not.
        """
        return await asyncio.shield(self._join_read())

    def is_confirmed_within(self, seconds: float) -> bool:
        """Whether this replica's state includes everything that was committed `seconds` ago.

        As long as somebody asks and a majority answers it stays so: at half of that age it begins to refresh.
        """
        age = self._host.loop.time() - self.confirmed_at if self.confirmed_at is not None else seconds + 1
        if age > seconds / 2:
            self.refresh()
        return age <= seconds

    def refresh(self) -> asyncio.Future[LogIndex]:
        """A `read_index` under way that is shared by all who only want the state to be recent; do not cancel it."""
        if self._refresh is None or self._refresh.done():
            self._refresh = self._join_read()
        return self._refresh

    def _join_read(self) -> asyncio.Future[LogIndex]:
        shared = self._shared_read
        if shared is None or shared.done():
            shared = self._host.loop.create_future()
            shared.add_done_callback(_consume_exception)
            self._shared_read = shared
            self._host.loop.call_soon(self._start_read, shared)
        return shared

    def _start_read(self, future: asyncio.Future[LogIndex]) -> None:
        # from here on later callers get a round of their own: this one begins now and proves nothing about their time
        self._shared_read = None
        if self.is_closed:
            _fail(future, self.not_leader())
            return
        request_id = self._next_read_id
        self._next_read_id += 1
        self._reads[request_id] = (self._host.loop.time(), future)
        try:
            self.core.read_index(request_id)
        except InvariantError as error:
            self._host.break_replica(self, error)
        else:
            self._host.mark_dirty(self)

    def forget_reads(self) -> None:
        """Fail reads whose answer may have been lost (a follower's forwarded request); their callers ask again."""
        for _, future in self._reads.values():
            _fail(future, self.not_leader())
        self._reads.clear()

    @property
    def has_reads(self) -> bool:
        """Whether somebody waits for a read's confirmation, or for what it confirmed."""
        return bool(self._reads or self._confirmed)

    def expire_reads(self, asked_before: float) -> None:
        """Fail reads asked before that loop time: a lost message is never answered, and a replica that was cut off after
        a confirmation may never get the entries it waits for.
        """
        while self._reads:
            request_id, (asked_at, future) = next(iter(self._reads.items()))
            if asked_at >= asked_before:
                break
            del self._reads[request_id]
            _fail(future, self.not_leader())
        while self._confirmed and self._confirmed[0].asked_at < asked_before:
            _fail(self._confirmed.popleft().future, self._behind())

    def _behind(self) -> RequestError:
        return RequestError(
            pb.NOT_READY,
            f"this replica of group {self.group_id} has not received what was committed yet; try again",
            retry_after_ms=_BEHIND_RETRY_MS,
        )

    def on_read_confirmed(self, request_id: int, read_index: LogIndex) -> None:
        """A `ConfirmedRead` of a Ready: served once applied."""
        read = self._reads.pop(request_id, None)
        if read is not None:
            asked_at, future = read
            self._confirmed.append(_ConfirmedRead(read_index, asked_at, future))
            self.serve_confirmed()

    def on_read_failed(self, request_id: int) -> None:
        """A failed read of a Ready."""
        read = self._reads.pop(request_id, None)
        if read is not None:
            _fail(read[1], self.not_leader())

    def serve_confirmed(self) -> None:
        """Answer the confirmed reads that the machine's state includes by now."""
        applied = self.core.applied_index
        if self.state_machine.applied_index < self.core.state_floor:
            return
        while self._confirmed and self._confirmed[0].read_index <= applied:
            read = self._confirmed.popleft()
            self.confirmed_at = max(read.asked_at, self.confirmed_at or read.asked_at)
            if not read.future.done():
                read.future.set_result(applied)

    # ---------------------------------------------------------------------------------------------------- applying

    def apply(self, entries: Sequence[Entry]) -> None:
        """Apply committed entries to the machine and answer their waiters. Called by the engine, in order."""
        machine, waiters = self.state_machine, self._waiters
        for entry in entries:
            result = machine.apply(entry)
            if self.on_applied is not None:
                self.on_applied(entry, result)
            if waiters:
                self._answer_waiters(entry, result)
        self.core.apply_done(entries[-1].index)
        # What is written next is the machine's state with the core's membership, under one index.
        due = max(self.core.applied_index, self.core.state_floor)
        if machine.applied_index != due:
            violated("machine_at_applied_index", applied_index=machine.applied_index, due=due)
        self.serve_confirmed()
        self.wake_progress()

    def _answer_waiters(self, entry: Entry, result: object) -> None:
        waiter = self._waiters[0]
        if entry.index < waiter.first_index:
            return
        if entry.term != waiter.term:
            # another term's entry took the place: definitely gone, unless a part of it was applied before
            self._waiters.popleft()
            self._host.release_uncommitted(waiter.size)
            _fail(waiter.future, self._leadership_lost() if waiter.results else self.not_leader())
            return
        waiter.results.append(result)
        if entry.index == waiter.last_index:
            self._waiters.popleft()
            self._host.release_uncommitted(waiter.size)
            if not waiter.future.done():
                waiter.future.set_result(waiter.results)

    def _leadership_lost(self) -> RequestError:
        return RequestError(
            pb.LEADERSHIP_LOST,
            f"leadership of group {self.group_id} changed before this was committed; it may still be "
            "(a batch: retry with the same producer id and sequence)",
        )

    def fail_waiters(self) -> None:
        """Leadership ended: what is in flight may still commit, so its outcome is unknown, never «failed»."""
        while self._waiters:
            waiter = self._waiters.popleft()
            self._host.release_uncommitted(waiter.size)
            _fail(waiter.future, self._leadership_lost())

    # ---------------------------------------------------------------------------------------------------- progress

    def wait_progress(self) -> asyncio.Future[None]:
        """A future that is done at the next apply, role change or close; shared by all who wait: do not cancel it."""
        if self._progress is None:
            self._progress = self._host.loop.create_future()
        return self._progress

    def wake_progress(self) -> None:
        """Wake everyone in `wait_progress`."""
        if self._progress is not None:
            progress, self._progress = self._progress, None
            if not progress.done():
                progress.set_result(None)

    def close(self) -> None:
        """The replica goes away: everything that waits on it is answered."""
        self.is_closed = True
        self.fail_waiters()
        self.forget_reads()
        while self._confirmed:
            _fail(self._confirmed.popleft().future, self.not_leader())
        self.wake_progress()
        self.log.clear()

    # ---------------------------------------------------------------------------------------------------- log reads

    def _on_entries_fetched(self, damage: DamagedReplicaError | None) -> None:
        if damage is not None:
            self._host.break_replica(self, damage)
        if not self.is_closed:
            self.core.entries_fetched()
            self._host.mark_dirty(self)

    @property
    def log_start(self) -> LogPosition:
        """The point the log starts after."""
        return self.core.log.position

    def position_of(self, index: LogIndex) -> LogPosition | None:
        """The position right after a durable entry; None when the log does not hold it (any more)."""
        start = self.core.log.position
        if index == start.index:
            return start
        if not start.index < index <= self.core.log.durable_index:
            return None
        header = self.log.header(index)
        return LogPosition(index, header.term, header.next_offset, header.append_time_ms)

    async def find_position(self, index: LogIndex) -> LogPosition | None:
        """`position_of`, with what is not in memory read by a thread: of a committed entry, so it stays what it is."""
        start = self.core.log.position
        if index == start.index or self.log.recent.get(index) is not None:
            return self.position_of(index)
        if not start.index < index <= self.core.log.durable_index:
            return None
        try:
            header = await self.in_thread(self.log.read_header, index)
        except (LogRangeError, ReplicaClosedError):  # truncated, replaced or closed meanwhile
            return None
        return LogPosition(index, header.term, header.next_offset, header.append_time_ms)

    @property
    def role(self) -> Role:
        """The core's role."""
        return self.core.role

    def now_ms(self) -> int:
        """Wall clock, milliseconds since the epoch."""
        return self._host.now_ms()

    async def in_thread(self, function: Callable[..., T], *arguments: object) -> T:
        """Run a blocking read of the store on the reader threads."""
        return cast("T", await self._host.in_thread(function, *arguments))


def _fail(future: asyncio.Future[list[object]] | asyncio.Future[LogIndex], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
        future.add_done_callback(_consume_exception)


def _consume_exception(future: asyncio.Future[Any]) -> None:  # whatever it would have given
    """A waiter may be gone (its request was cancelled): its failure is then nobody's business."""
    if not future.cancelled():
        future.exception()
