"""Hold one replica of one Raft group on this node: its core, its state machine, its log, and the calls that wait for it.

A replica is passive: the engine steps it, and services call it. State changes happen in functions without `await`, so nothing needs to
be checked again after them. Its only I/O is reading through the store, on a thread if the data is not in memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Generic, Protocol, TypeVar, cast

from raftmq.broker.base.limits import ENTRY_BYTES_MAX, Limits
from raftmq.broker.base.request_error import RequestError
from raftmq.broker.peers.codec import HeartbeatRow
from raftmq.broker.replica.disk import IDLE, DiskState, Installing, Writing
from raftmq.broker.replica.entry_applier import EntryApplier
from raftmq.broker.replica.entry_clock import EngineClock, EntryClock
from raftmq.broker.replica.leadership_table import LeadershipTable
from raftmq.broker.replica.outgoing_snapshots import OutgoingSnapshots
from raftmq.broker.replica.pending_proposals import PendingProposals
from raftmq.broker.replica.reads import ReplicaReads
from raftmq.broker.replica.replica_log import ReplicaLog
from raftmq.errors import InvariantError, violated
from raftmq.fsm.row_reads import RowsFound, RowsNeeded
from raftmq.fsm.state_machine import DiskBackedMachine, StateMachine
from raftmq.proto import queue_pb2 as pb
from raftmq.raft.core import RaftCore, RestoredState
from raftmq.raft.entry import Entry, EntryKind, LogPosition, Proposal
from raftmq.raft.membership import Membership, MembershipChange
from raftmq.raft.messages import AppendRequest, InstallSnapshot, Message, SnapshotMeta
from raftmq.raft.ready import Appended, RefusalReason, Refused, Role, RoleChange
from raftmq.storage.errors import DamagedReplicaError, LogRangeError, ReplicaClosedError
from raftmq.storage.log_store import ReplicaKey, Update
from raftmq.storage.state_store import StateWrite
from raftmq.types import NO_NODE, LogIndex, NodeId, ReplicaId, Term

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
_UNCONFIRMED_RETRY_MS = 20


class ReplicaHost(Protocol):
    """The functions of the engine that a replica calls."""

    loop: asyncio.AbstractEventLoop
    limits: Limits
    leadership: LeadershipTable

    def mark_dirty(self, replica: Replica[StateMachine]) -> None:
        """Step the replica in the next pass."""
        ...

    def break_replica(self, replica: Replica[StateMachine], error: Exception) -> None:
        """Close a replica that broke an invariant or is damaged, and keep it silent."""
        ...

    def now_ms(self) -> int:
        """Return the time to stamp entries with, in milliseconds since the epoch."""
        ...

    def boottime_ns(self) -> int:
        """Return a time that never jumps, and counts the time in which the machine was suspended."""
        ...

    def look_for_suspension(self) -> None:
        """Doubt the leaderships of this node if the machine was suspended since the last look."""
        ...

    def reserve_uncommitted(self, size: int) -> bool:
        """Count proposed bytes against the process's budget. Return False, and count nothing, if they exceed it."""
        ...

    def feature_level(self) -> int:
        """Return the cluster's feature level according to this node's metadata. It is never above the true level, which only rises."""
        ...

    def release_uncommitted(self, size: int) -> None:
        """Return proposed bytes to the process's budget."""
        ...

    def refusal_of_writes(self, replica: Replica[StateMachine]) -> RequestError | None:
        """Return why this node accepts no appends for the replica now (disk reserve, a clock that was not compared, a write-back that
        is behind), or None if it does.
        """
        ...

    def refusal_of_time(self) -> RequestError | None:
        """Return why this node stamps nothing whose time counts now (a clock that was not compared), or None if it does."""
        ...

    async def in_thread(self, function: Callable[..., object], *arguments: object) -> object:
        """Run a blocking read on the reader threads."""
        ...

    def read_rows(
        self, replica: Replica[StateMachine], needed: RowsNeeded, on_found: Callable[[RowsFound], None]
    ) -> None:
        """Read rows of the replica's durable state in a thread, then call `on_found` on the loop, unless the replica is closed."""
        ...


class Replica(Generic[MachineT]):
    """One replica. Its state machine is a `Metadata` in group 0, and that of its topic's kind in every other group."""

    def __init__(
        self,
        key: ReplicaKey,
        core: RaftCore,
        restored: RestoredState,
        machine: MachineT,
        log: ReplicaLog,
        host: ReplicaHost,
        node_of_replica: Callable[[ReplicaId], int | None],
        first_read_id: int = 1,
    ) -> None:
        """Take the parts of the replica.

        `restored` is the durable state from which the core and the machine were created. `first_read_id` should be random, because a
        leader's answer to a read from before a restart may arrive late.
        """
        self.key = key
        self.group_id = key.group_id
        self.replica_id = key.replica_id
        self.core = core
        self.state_machine = machine
        self.is_disk_backed = isinstance(machine, DiskBackedMachine)
        """Whether the derived state has a file of its own, to which it is written back (`write_backs`)."""
        self.log = log
        self.clock: EntryClock = EngineClock(host.now_ms)
        """Stamps the entries that are proposed here. Written by `use_clock`."""
        self.node_of_replica = node_of_replica
        self.learned_nodes: dict[ReplicaId, NodeId] = {}
        """The nodes from which messages of replicas came, until metadata names their nodes. Written by `learn_node`."""
        self._host = host
        self.is_closed = False
        """Whether the replica is permanently silent: it is not stepped any more, and it neither sends nor answers."""
        self.is_doubted = False
        """Whether a quorum must confirm the leadership after a stall, and the end of that was not seen yet."""
        self.is_dirty = False
        """Whether the replica is in the engine's list for its next pass. Written by the engine, with that list."""
        self.heartbeats: list[tuple[NodeId, HeartbeatRow]] = []
        """The heartbeats that it sent at its last tick as a leader, each with the node that it went to. Written by `Heartbeats`."""
        self.disk: DiskState = IDLE
        """The state of the disk for this replica. Written by `begin_write`, `begin_install`, `on_written` and `on_installed`."""
        self.leaderless_since: float | None = host.loop.time()
        """Loop time since which this replica has known no leader. None while it knows one. Written by `on_role_change`."""
        self.durable_state_index: LogIndex = restored.state_index
        """Index of the derived state on disk. A restart replays from it.

        Invariant: never above the machine's applied index, nor below the log's start.
        """
        self.durable_membership: Membership = restored.membership
        """The membership on disk as of `durable_state_index`. A snapshot that is taken now carries it."""
        self.pending_truncation: LogPosition | None = None
        """The log's next start, while its write is not durable yet. Written by `plan_truncation` and `on_written`."""
        self.outgoing_snapshots = OutgoingSnapshots()
        self.role_listeners: list[Callable[[RoleChange], None]] = []
        """Called in order when this replica gains or loses leadership, learns of a leader, or its term changes."""
        self.proposers: list[Callable[[], None]] = []
        """Called in order before the engine takes the core's work, so that their proposals are committed with it."""
        self.progress_listeners: list[Callable[[], None]] = []
        """Called in order after a number of entries were applied together, when the machine's state describes whole entries."""
        self.restored_listeners: list[Callable[[], None]] = []
        """Called in order after a snapshot replaced the machine's state."""
        self.proposals = PendingProposals(key.group_id, host, self.not_leader)
        self.reads = ReplicaReads(
            key.group_id,
            host.loop,
            core,
            machine,
            lambda: self.applier.is_suspended,
            self._ask_to_confirm,
            self.not_leader,
            first_read_id,
            host.boottime_ns,
        )
        self.applier = EntryApplier(machine, core, self.proposals, partial(host.read_rows, self), self._on_progress)
        self._progress: asyncio.Future[None] | None = None
        log.on_fetched = self._on_entries_fetched

    def use_clock(self, clock: EntryClock) -> None:
        """Stamp every entry of this replica with another clock than the engine's, also those that the core proposes itself.

        The core does not ask the engine's clock: a node may win an election before it has compared its clock with others, and an
        append time that is far ahead would stay, because append times never decrease.
        """
        self.clock = clock
        self.core.now_ms = clock.now_ms

    def node_of(self, replica_id: ReplicaId) -> NodeId:
        """Return the node of a replica according to metadata, else the source of its messages, or 0 if neither is known."""
        return NodeId(self.node_of_replica(replica_id) or self.learned_nodes.get(replica_id, NO_NODE))

    def learn_node(self, replica_id: ReplicaId, node_id: NodeId) -> None:
        """Remember the source of a replica's message. `Limits.peers_learned_max` are remembered, members of the group first.

        The sender chooses the ids, so without a bound a defect of a peer would fill this node's memory.
        """
        learned = self.learned_nodes
        if replica_id not in learned and len(learned) >= self._host.limits.peers_learned_max:
            members = self.core.membership.member_ids
            stranger = next((known for known in learned if known not in members), None)
            if replica_id not in members or stranger is None:
                return
            del learned[stranger]
        if learned.get(replica_id) != node_id:
            self.core.wake()  # the heartbeats to it may go elsewhere now
        learned[replica_id] = node_id

    # ---------------------------------------------------------------------------------------------------- leadership

    @property
    def is_leader(self) -> bool:
        """Return whether this replica leads and may accept proposals: its own no-op is applied, and no stall is unconfirmed.

        It looks for a suspension first, because requests that waited in the sockets are read before any timer ends.
        """
        if not self.core.is_confirmed_leader or self.is_closed:
            return False
        self._host.look_for_suspension()
        return self.core.is_confirmed_leader

    @property
    def term(self) -> Term:
        """Return the replica's current term, which is the partition's leader epoch when it leads."""
        return self.core.term

    def require_leader(self) -> None:
        """Raise RequestError unless this replica leads and may accept proposals.

        The error is NO_LEADER while its leadership is being confirmed, else that of `not_leader`.
        """
        if self.is_leader:
            return
        if self.core.role is Role.LEADER and not self.is_closed:
            raise RequestError(
                pb.NO_LEADER,
                f"the leader of group {self.group_id} is being confirmed",
                retry_after_ms=_UNCONFIRMED_RETRY_MS,
            )
        raise self.not_leader()

    def require_confirmation(self) -> None:
        """Doubt the own leadership after a stall of the process, until a quorum has confirmed it."""
        self.clock.on_doubted()
        self.core.require_confirmation()
        self.is_doubted = True

    def end_doubt(self) -> None:
        """Let the leader go on as after progress, if its leadership was doubted and is confirmed.

        During the doubt timers and waiting requests proposed nothing. Without new entries nothing would wake them.
        """
        if self.is_doubted and self.is_leader and not self.applier.is_suspended:
            self.is_doubted = False
            self._on_progress()

    def step(self, message: Message) -> None:
        """Pass a message from a peer to the core."""
        self.core.step(message)
        if isinstance(message, InstallSnapshot) and self.core.log.snapshot is not None:
            self.applier.give_up()  # the core is ahead of the machine from here on, also while a write delays the installation
        if isinstance(message, AppendRequest) and message.entries and self.core.role is not Role.LEADER:
            self.clock.on_received(self.core.log.append_time_ms)

    def not_leader(self) -> RequestError:
        """Return the definite refusal of a replica that does not lead, with the best hint at the leader."""
        node_id, address, term = self._host.leadership.leader_hint(self.group_id)
        if node_id == 0:
            return RequestError(
                pb.NO_LEADER,
                f"group {self.group_id} has no leader at the moment",
                retry_after_ms=_LEADERLESS_RETRY_MS,
            )
        return RequestError(
            pb.NOT_LEADER,
            f"this broker does not lead group {self.group_id}; broker {node_id} at {address} does",
            leader_broker_id=node_id,
            leader_address=address,
            leader_epoch=term,
        )

    # ---------------------------------------------------------------------------------------------------- proposals

    def propose(self, proposals: Sequence[Proposal]) -> tuple[Appended, asyncio.Future[list[object]]]:
        """Append to the log now. The future returns one state-machine result per proposal when they are applied.

        Raises:
            RequestError: NOT_LEADER, NO_LEADER, THROTTLED, DISK_FULL, INVALID_ARGUMENT for an entry above `ENTRY_BYTES_MAX`, or
                UNSUPPORTED_VERSION for a command that not every broker of the cluster can read. Nothing was appended.

        The future raises RequestError LEADERSHIP_LOST (outcome unknown) or NOT_LEADER (another term's entry replaced it:
        definitely not applied). Cancelling it does not undo anything.
        """
        if not self.is_leader:
            raise self.not_leader()
        refusal = self.refusal_of_writes()
        # commands are small, and some of them (trims, deletions) free space again
        if refusal is not None and any(proposal.kind is EntryKind.DATA for proposal in proposals):
            raise refusal
        self._require_readable(proposals)
        _require_sendable(proposals)
        size = sum(len(proposal.payload) for proposal in proposals)
        if not self._host.reserve_uncommitted(size):
            raise RequestError(
                pb.THROTTLED,
                "the broker's budget for uncommitted data is exhausted; slow down",
                retry_after_ms=THROTTLE_RETRY_MS,
            )
        try:
            answer = self.core.propose(proposals, self.clock.now_ms())
        except InvariantError as error:
            self._host.release_uncommitted(size)
            self._host.break_replica(self, error)
            raise self.proposals.leadership_lost() from error
        return self._await_applied(answer, size)

    def cluster_level(self) -> int:
        """Return the feature level up to which `propose` accepts commands."""
        return self._host.feature_level()

    def refusal_of_writes(self) -> RequestError | None:
        """Return why this replica accepts no DATA entries now, or None if it does. For commands that must wait like them."""
        return self._host.refusal_of_writes(self)

    def refusal_of_time(self) -> RequestError | None:
        """Return why no command may be proposed whose time counts, such as the last use of an offset, or None if it may."""
        return self._host.refusal_of_time()

    def _require_readable(self, proposals: Sequence[Proposal]) -> None:
        """Refuse a command that a replica of the cluster could not read: once committed it would stop that replica."""
        for proposal in proposals:
            if proposal.kind is not EntryKind.COMMAND:
                continue
            needed = self.state_machine.level_needed(proposal.payload)
            if needed is None:
                raise RequestError(
                    pb.INTERNAL, f"a command for group {self.group_id} cannot be decoded again, so it was not proposed"
                )
            level = self.cluster_level()
            if needed > level:
                raise RequestError(
                    pb.UNSUPPORTED_VERSION,
                    f"this change needs feature level {needed}, but the cluster is at {level}: upgrade every broker, then raise the "
                    "level (raftmq cluster raise-level)",
                )

    def wake_proposers(self) -> None:
        """Have `proposers` called in the engine's next pass."""
        self._host.mark_dirty(self)

    def propose_membership(self, change: MembershipChange) -> asyncio.Future[list[object]]:
        """Propose a change of the group's own membership. It raises and answers as `propose` does."""
        if not self.is_leader:
            raise self.not_leader()
        try:
            answer = self.core.propose_membership(change, self.clock.now_ms())
        except InvariantError as error:
            self._host.break_replica(self, error)
            raise self.proposals.leadership_lost() from error
        return self._await_applied(answer, 0)[1]

    def _await_applied(self, answer: Appended | Refused, size: int) -> tuple[Appended, asyncio.Future[list[object]]]:
        if isinstance(answer, Refused):
            self._host.release_uncommitted(size)
            code = _REFUSAL_CODES[answer.reason]
            if code == pb.NOT_LEADER:
                raise self.not_leader()
            raise RequestError(code, f"group {self.group_id}: {answer.reason.value}", retry_after_ms=THROTTLE_RETRY_MS)
        future = self.proposals.add(answer.entries, size)
        self._host.mark_dirty(self)
        return answer, future

    # ---------------------------------------------------------------------------------------------------- reads

    async def read_index(self) -> LogIndex:
        """Wait until this replica's state includes everything committed before the call (thesis 6.4).

        Calls made in one pass of the loop share a confirmation round. Cancelling one does not end the others.

        Raises:
            RequestError: A retriable error. NO_LEADER or NOT_LEADER if leadership changed in the meantime or no confirmation
                arrived within `Timing.read_index_seconds`; NOT_READY if it arrived but the entries did not.
        """
        return await asyncio.shield(self.reads.join())

    def _ask_to_confirm(self, request_id: int) -> None:
        try:
            self.core.read_index(request_id)
        except InvariantError as error:
            self._host.break_replica(self, error)
        else:
            self._host.mark_dirty(self)

    # ---------------------------------------------------------------------------------------------------- applying

    def apply(self, entries: Sequence[Entry]) -> None:
        """Apply committed entries to the machine and answer their proposals. Called by the engine, in order."""
        self.applier.apply(entries)

    def _on_progress(self) -> None:
        self.reads.serve()
        self._wake_progress()
        for listener in self.progress_listeners:
            listener()

    def on_role_change(self, change: RoleChange) -> None:
        """Answer the calls that the change decides, and tell the listeners."""
        if change.leader_id:
            self.leaderless_since = None
        elif self.leaderless_since is None:
            self.leaderless_since = self._host.loop.time()
        if change.role is not Role.LEADER:
            self.is_doubted = False
            self.clock.on_doubted()
            self.proposals.fail_all()
            if change.leader_id:
                self.reads.forget_unconfirmed()
        self._wake_progress()
        for listener in self.role_listeners:
            listener(change)

    # ---------------------------------------------------------------------------------------------------- the disk

    def begin_write(self) -> None:
        """Record that a write begins, which the engine's pass hands to the writer thread."""
        self._require_no_write()
        self.core.wake()
        self.disk = Writing(self._host.loop.time())

    def on_written(self, update: Update) -> None:
        """Record that a write is durable: the disk is idle, and a restart would begin from the write's state."""
        self.disk = IDLE
        if update.state_index is not None:
            self.durable_state_index = update.state_index
        if update.membership is not None:
            self.durable_membership = update.membership
        if update.truncation is not None:
            self.pending_truncation = None
            self.core.compacted(update.truncation)
            self.log.forget_through(update.truncation.index)

    def on_state_written(self, write: StateWrite) -> None:
        """Record that a write-back of the derived state is durable."""
        self.durable_state_index = write.state_index
        if write.membership is not None:
            self.durable_membership = write.membership

    def plan_truncation(self, position: LogPosition) -> None:
        """Have the next write record that the log starts after `position`."""
        self.pending_truncation = position

    def begin_install(self) -> None:
        """Record that a snapshot is replacing the replica's file. The log in memory is not part of the new one."""
        self._require_no_write()
        self.core.wake()
        self.disk = Installing(self._host.loop.time())
        self.applier.drop()
        self.log.clear()

    def _require_no_write(self) -> None:
        """Check that no write is in flight: an acknowledgement that needs no write of its own relies on it."""
        if isinstance(self.disk, Writing):
            violated("one_write_in_flight", group_id=self.group_id, started_at=self.disk.started_at)

    def on_installed(self, meta: SnapshotMeta, machine: StateMachine) -> None:
        """Record that a snapshot is durable, and adopt its state from `machine`, which must not be used afterwards."""
        self.state_machine.adopt(machine)
        self.durable_state_index = meta.state_index
        self.durable_membership = meta.membership
        self.pending_truncation = None
        self.disk = IDLE
        self.clock.on_received(self.core.log.append_time_ms)
        for listener in self.restored_listeners:
            listener()
        self._on_progress()  # reads that were confirmed during the installation waited for this state

    # ---------------------------------------------------------------------------------------------------- progress

    def wait_progress(self) -> asyncio.Future[None]:
        """Return a future that is done at the next apply, role change or close. All waiters share it: do not cancel it."""
        if self._progress is None:
            self._progress = self._host.loop.create_future()
        return self._progress

    def _wake_progress(self) -> None:
        if self._progress is not None:
            progress, self._progress = self._progress, None
            if not progress.done():
                progress.set_result(None)

    def close(self) -> None:
        """Make the replica permanently silent, and answer every call that waits for it."""
        self.is_closed = True
        self.core.wake()
        self.applier.drop()
        self.proposals.fail_all()
        for proposer in self.proposers:
            proposer()  # which answers those who wait
        self.reads.close()
        self._wake_progress()
        self.log.clear()

    # ---------------------------------------------------------------------------------------------------- row reads

    def read_rows(self, needed: RowsNeeded, on_found: Callable[[RowsFound], None]) -> None:
        """Read rows of the durable state in a thread, then call `on_found` on the loop, unless the replica is closed by then.

        During the call, and not afterwards, the machine still knows everything that was written since the read began.
        """
        self._host.read_rows(self, needed, on_found)

    # ---------------------------------------------------------------------------------------------------- log reads

    def _on_entries_fetched(self, damage: DamagedReplicaError | None) -> None:
        if damage is not None:
            self._host.break_replica(self, damage)
        if not self.is_closed:
            self.core.entries_fetched()
            self._host.mark_dirty(self)

    @property
    def log_start(self) -> LogPosition:
        """Return the position after which the log starts."""
        return self.core.log.position

    def position_of(self, index: LogIndex) -> LogPosition | None:
        """Return the position directly after a durable entry, or None if the log does not hold it."""
        start = self.core.log.position
        if index == start.index:
            return start
        if not start.index < index <= self.core.log.durable_index:
            return None
        header = self.log.header(index)
        return LogPosition(index, header.term, header.next_offset, header.append_time_ms)

    async def find_position(self, index: LogIndex) -> LogPosition | None:
        """Return `position_of` a committed entry, which never changes. A thread reads it if it is not in memory."""
        start = self.core.log.position
        if index == start.index or self.log.recent.get(index) is not None:
            return self.position_of(index)
        if not start.index < index <= self.core.log.durable_index:
            return None
        try:
            header = await self.in_thread(self.log.read_header, index)
        except (LogRangeError, ReplicaClosedError):  # truncated, replaced or closed in the meantime
            return None
        return LogPosition(index, header.term, header.next_offset, header.append_time_ms)

    @property
    def role(self) -> Role:
        """Return the core's role."""
        return self.core.role

    def now_ms(self) -> int:
        """Return the engine's time, in milliseconds since the epoch. Entries are stamped by `clock`."""
        return self._host.now_ms()

    async def in_thread(self, function: Callable[..., T], *arguments: object) -> T:
        """Run a blocking read of the store on the reader threads."""
        return cast("T", await self._host.in_thread(function, *arguments))


def _require_sendable(proposals: Sequence[Proposal]) -> None:
    """Refuse an entry that no peer frame can hold."""
    largest = max((len(proposal.payload) for proposal in proposals), default=0)
    if largest > ENTRY_BYTES_MAX:
        raise RequestError(
            pb.INVALID_ARGUMENT,
            f"the change takes {largest} bytes in the log, but at most {ENTRY_BYTES_MAX} are allowed: use several requests",
        )
