"""One replica of one Raft group on this node: its core, its state machine, its waiters and its recent entries.

A passive object: the engine steps it, services ask it. State changes happen in functions without `await`, so nothing
needs to be checked again after them. It does no I/O but reads through the store, cold ones on a thread.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, TypeVar, cast

from raftmq.broker.recent_entries import RecentEntries, RecentEntriesBudget
from raftmq.broker.request_error import RequestError
from raftmq.errors import InvariantError
from raftmq.fsm.state_machine import StateMachine
from raftmq.proto import queue_pb2 as pb
from raftmq.raft.core import RaftCore
from raftmq.raft.entry import Entry, EntryHeader, EntryKind, LogPosition, Proposal
from raftmq.raft.membership import Membership, MembershipChange
from raftmq.raft.ready import Appended, RefusalReason, Refused, Role
from raftmq.storage.errors import DamagedReplicaError, LogRangeError, ReplicaClosedError, StorageUnavailableError
from raftmq.storage.log_store import LogStore, ReplicaKey
from raftmq.types import GroupId, LogIndex, NodeId, ReplicaId, Term

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


class GroupHost(Protocol):
    """What a group asks of the engine."""

    loop: asyncio.AbstractEventLoop

    def mark_dirty(self, group: Group[StateMachine]) -> None:
        """Step the group in the next pass."""
        ...

    def break_group(self, group: Group[StateMachine], error: Exception) -> None:
        """The replica broke a rule or is damaged: close it and keep it silent."""
        ...

    def now_ms(self) -> int:
        """Wall clock, milliseconds since the epoch."""
        ...

    def reserve_uncommitted(self, size: int) -> bool:
        """Count proposed bytes against the process's budget; False: over it."""
        ...

    def release_uncommitted(self, size: int) -> None:
        """Give proposed bytes back."""
        ...

    def refusal_of_writes(self) -> RequestError | None:
        """Why this node takes no appends now (disk reserve), if it does not."""
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


class Group(Generic[MachineT]):
    """See the module. `machine` is a `Metadata` for group 0, a `LogPartition` for a log partition."""

    def __init__(
        self,
        key: ReplicaKey,
        core: RaftCore,
        machine: MachineT,
        store: LogStore,
        host: GroupHost,
        recent_budget: RecentEntriesBudget,
        node_of_replica: Callable[[ReplicaId], NodeId],
        first_read_id: int = 1,
    ) -> None:
        """`first_read_id` should be random: a leader may answer, late, a read that was asked before a restart."""
        self.key = key
        self.group_id = key.group_id
        self.replica_id = key.replica_id
        self.core = core
        self.machine = machine
        self.recent = RecentEntries(recent_budget)
        self.node_of_replica = node_of_replica
        self.learned_nodes: dict[ReplicaId, NodeId] = {}
        """Where messages of a replica came from; used until metadata names its node."""
        self._store = store
        self._host = host
        # the engine's own bookkeeping
        self.is_dirty = False
        self.is_closed = False
        self.append_in_flight = False
        self.append_started_at = 0.0
        self.is_installing = False
        self.durable_state_index: LogIndex = core.applied_index
        self.durable_membership: Membership = core.membership
        self.durable_position: LogPosition | None = None
        self.pending_truncation: LogPosition | None = None
        self.snapshots_in_progress = 0
        self.snapshot_sent_at: dict[ReplicaId, float] = {}
        self.on_applied: Callable[[Entry, object], None] | None = None
        """Called after each applied entry with its result (the append judge's overlay, metadata's changes)."""
        self.on_leadership: Callable[[], None] | None = None
        """Called when this replica gains or loses leadership, or the term changes."""
        self.on_restored: Callable[[], None] | None = None
        """Called when a snapshot replaced the machine's state."""
        self._waiters: deque[_Waiter] = deque()
        self._reads: dict[int, tuple[float, asyncio.Future[LogIndex]]] = {}
        self._confirmed: deque[tuple[LogIndex, asyncio.Future[LogIndex]]] = deque()
        self._next_read_id = first_read_id
        self._shared_read: asyncio.Future[LogIndex] | None = None
        self._progress: asyncio.Future[None] | None = None
        self._fetched: tuple[Entry, ...] = ()
        self._fetching = False
        self._fetch_generation = 0

    # ---------------------------------------------------------------------------------------------------- leadership

    @property
    def is_leader(self) -> bool:
        """Whether this replica leads and may judge proposals: its own no-op is applied and no stall is unconfirmed."""
        return self.core.is_confirmed_leader and not self.is_closed

    @property
    def term(self) -> Term:
        """The replica's current term: the partition's leader epoch when it leads."""
        return self.core.term

    def not_leader(self) -> RequestError:
        """The definite refusal of a replica that does not lead, with the best hint there is."""
        node_id, address, term = self._host.leader_hint(self.group_id)
        if node_id == 0:
            return RequestError(
                pb.NO_LEADER, f"group {self.group_id} has no leader at the moment; try again", retry_after_ms=100
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
            RequestError: NOT_LEADER, NO_LEADER, THROTTLED or DISK_FULL; nothing was appended.

        The future raises RequestError LEADERSHIP_LOST (outcome unknown) or NOT_LEADER (another term's entry took
        the place: definitely not applied). Cancelling it does not undo anything.
        """
        if not self.is_leader:
            raise self.not_leader()
        refusal = self._host.refusal_of_writes()
        # commands are small, and some of them (trims, deletions) are what makes room again
        if refusal is not None and any(proposal.kind is EntryKind.DATA for proposal in proposals):
            raise refusal
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
            self._host.break_group(self, error)
            raise self._leadership_lost() from error
        return self._await_applied(answer, size)

    def propose_membership(self, change: MembershipChange) -> asyncio.Future[list[object]]:
        """Propose a change of the group's own membership. Raises and answers as `propose` does."""
        if not self.is_leader:
            raise self.not_leader()
        try:
            answer = self.core.propose_membership(change, self._host.now_ms())
        except InvariantError as error:
            self._host.break_group(self, error)
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

        Calls made in one pass of the loop share a confirmation round. Raises RequestError NO_LEADER or NOT_LEADER
        (retriable) when leadership changed meanwhile or no confirmation came in `Timing.read_index_seconds`.
        """
        shared = self._shared_read
        if shared is None or shared.done():
            shared = self._host.loop.create_future()
            shared.add_done_callback(_consume_exception)
            self._shared_read = shared
            self._host.loop.call_soon(self._start_read, shared)
        return await asyncio.shield(shared)

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
            self._host.break_group(self, error)
        else:
            self._host.mark_dirty(self)

    def forget_reads(self) -> None:
        """Fail reads whose answer may have been lost (a follower's forwarded request); their callers ask again."""
        for _, future in self._reads.values():
            _fail(future, self.not_leader())
        self._reads.clear()

    def expire_reads(self, asked_before: float) -> None:
        """Fail reads asked before that loop time: a lost message is never answered."""
        while self._reads:
            request_id, (asked_at, future) = next(iter(self._reads.items()))
            if asked_at >= asked_before:
                return
            del self._reads[request_id]
            _fail(future, self.not_leader())

    def on_read_confirmed(self, request_id: int, read_index: LogIndex) -> None:
        """A `ConfirmedRead` of a Ready: served once applied."""
        read = self._reads.pop(request_id, None)
        if read is not None:
            self._confirmed.append((read_index, read[1]))
            self._serve_confirmed()

    def on_read_failed(self, request_id: int) -> None:
        """A failed read of a Ready."""
        read = self._reads.pop(request_id, None)
        if read is not None:
            _fail(read[1], self.not_leader())

    def _serve_confirmed(self) -> None:
        applied = self.core.applied_index
        if self.machine.applied_index < self.core.state_floor:
            return
        while self._confirmed and self._confirmed[0][0] <= applied:
            _, future = self._confirmed.popleft()
            if not future.done():
                future.set_result(applied)

    # ---------------------------------------------------------------------------------------------------- applying

    def apply(self, entries: Sequence[Entry]) -> None:
        """Apply committed entries to the machine and answer their waiters. Called by the engine, in order."""
        machine, waiters = self.machine, self._waiters
        for entry in entries:
            result = machine.apply(entry)
            if self.on_applied is not None:
                self.on_applied(entry, result)
            if waiters:
                self._answer_waiters(entry, result)
        self.core.apply_done(entries[-1].index)
        self._serve_confirmed()
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
            f"leadership of group {self.group_id} changed before the append was committed; "
            "retry with the same producer id and sequence",
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
            _fail(self._confirmed.popleft()[1], self.not_leader())
        self.wake_progress()
        self.recent.clear()

    # ---------------------------------------------------------------------------------------------------- log reads

    def entries(self, first: LogIndex, last: LogIndex, bytes_max: int) -> tuple[Entry, ...] | None:
        """`LogView.entries`: recent entries, or what a thread fetched; None starts a fetch."""
        found = self.recent.slice(first, last, bytes_max)
        if found is not None:
            return found
        fetched = self._fetched
        if fetched and fetched[0].index <= first <= fetched[-1].index:
            start = first - fetched[0].index
            out: list[Entry] = []
            size = 0
            for entry in fetched[start : last - fetched[0].index + 1]:
                size += len(entry.payload)
                if out and size > bytes_max:
                    break
                out.append(entry)
            return tuple(out)
        if not self._fetching:
            self._fetching = True
            task = self._host.loop.create_task(self._fetch(first, last))
            task.add_done_callback(_consume_exception)
        return None

    async def _fetch(self, first: LogIndex, last: LogIndex) -> None:
        generation = self._fetch_generation
        try:
            found = await self._host.in_thread(self._store.entries, self.key, first, last, CATCH_UP_BYTES)
            assert isinstance(found, tuple)
            if generation == self._fetch_generation:
                self._fetched = found
        except DamagedReplicaError as error:
            self._host.break_group(self, error)
        except (LogRangeError, ReplicaClosedError, StorageUnavailableError):
            pass  # truncated, closed or short of something meanwhile: the core asks again if it still wants them
        finally:
            self._fetching = False
            if not self.is_closed:
                self.core.entries_fetched()
                self._host.mark_dirty(self)

    def forget_fetched(self) -> None:
        """The log's suffix changed or its prefix went: what was fetched may no longer be in it."""
        self._fetched = ()
        self._fetch_generation += 1

    def header(self, index: LogIndex) -> EntryHeader:
        """`LogView.header`: from memory, else one row read on the loop (rare: after a truncation only)."""
        entry = self.recent.get(index)
        if entry is not None:
            return EntryHeader(
                entry.index,
                entry.term,
                entry.kind,
                entry.base_offset,
                entry.record_count,
                entry.append_time_ms,
                len(entry.payload),
            )
        return self._store.header(self.key, index)

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
        header = self.header(index)
        return LogPosition(index, header.term, header.next_offset, header.append_time_ms)

    @property
    def role(self) -> Role:
        """The core's role."""
        return self.core.role

    async def in_thread(self, function: Callable[..., T], *arguments: object) -> T:
        """Run a blocking read of the store on the reader threads."""
        return cast("T", await self._host.in_thread(function, *arguments))


CATCH_UP_BYTES = 4 * 1024 * 1024
"""Fetched at once for a peer that is behind the recent entries: eight appends' worth."""


def data_entries(entries: Sequence[Entry]) -> list[Entry]:
    """Those that hold records."""
    return [entry for entry in entries if entry.kind is EntryKind.DATA]


def _fail(future: asyncio.Future[list[object]] | asyncio.Future[LogIndex], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
        future.add_done_callback(_consume_exception)


def _consume_exception(future: asyncio.Future[Any]) -> None:  # whatever it would have given
    """A waiter may be gone (its request was cancelled): its failure is then nobody's business."""
    if not future.cancelled():
        future.exception()
