"""Steps every group of this node: one loop over the dirty ones, one timer per class, no task per group.

Per pass: messages in → `step` → `ready` → send, hand writes to the writer threads, apply, wake waiters. The engine runs
the effects the cores ask for and decides nothing about the protocol. Clock, randomness, transport, store and writers are
handed in, so that it also runs on a virtual-time loop.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from typing import Protocol, TypeVar

import structlog
from raftmq.broker.group import Group
from raftmq.broker.leadership_table import LeadershipTable
from raftmq.broker.limits import Limits, Timing
from raftmq.broker.peer_codec import (
    Beats,
    FrameType,
    decode_beats,
    decode_leadership,
    decode_message,
    encode_leadership,
    encode_message,
)
from raftmq.broker.peer_transport import Channel, Transport
from raftmq.broker.recent_entries import RecentEntriesBudget
from raftmq.broker.request_error import RequestError
from raftmq.broker.snapshot_streams import SnapshotReceiver, SnapshotSender
from raftmq.fsm.state_machine import StateMachine
from raftmq.raft.core import RaftCore, RestoredState
from raftmq.raft.entry import Entry, EntryHeader, EntryKind, LogPosition
from raftmq.raft.hard_state import HardState
from raftmq.raft.log_view import LogView, Random
from raftmq.raft.messages import (
    AppendRequest,
    Heartbeat,
    HeartbeatResponse,
    InstallSnapshot,
    Message,
    SnapshotMeta,
)
from raftmq.raft.ready import AppendWork, Role, RoleChange
from raftmq.raft.settings import RaftSettings
from raftmq.storage.errors import (
    CommitFailedError,
    LogRangeError,
    ReplicaStorageError,
    StorageFullError,
    StorageUnavailableError,
)
from raftmq.storage.log_store import LogStore, ReplicaKey, Update
from raftmq.storage.writer_threads import Completion
from raftmq.types import METADATA_GROUP_ID, NO_NODE, GroupId, LogIndex, NodeId, ReplicaId, Term

log = structlog.get_logger(__name__)

T = TypeVar("T")

_DRAIN_SECONDS = 0.02
"""After a stall the timers wait this long, so that what piled up in the sockets is read first."""
_SPACE_RETRY_SECONDS = 1.0
"""A write that found no room is submitted again this often, until there is."""
_SNAPSHOT_PAUSE_SECONDS = 1.0
"""Between two snapshots of a group to one replica."""
_TRUNCATE_ROWS = 256
"""Rows deleted per transaction behind a truncation point: bounds the commit's latency."""


class Clock(Protocol):
    """Wall time, for record and entry times only; timers use the loop's own clock."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch."""
        ...


class Writers(Protocol):
    """The commit executor: threads in production, inline in the simulator."""

    def submit(self, key: ReplicaKey, update: Update, token: object) -> None:
        """Queue an update of a replica; its completion is reported with the token."""
        ...

    def run(self, key: ReplicaKey, function: Callable[[], T]) -> Future[T]:
        """Run something else on the replica's writer, in order with its updates."""
        ...

    def forget(self, key: ReplicaKey) -> None:
        """Nothing of this replica will be submitted again."""
        ...


class EngineOwner(Protocol):
    """What the engine tells its node."""

    def on_leadership(self, group: Group[StateMachine]) -> None:
        """The group's leader, as this replica sees it, changed."""
        ...

    def on_replica_broken(self, group: Group[StateMachine], error: Exception) -> None:
        """The replica broke an invariant or its data is damaged: it is silent from now on; quarantine it."""
        ...

    def on_fatal(self, error: BaseException) -> None:
        """A commit failed: the process must end."""
        ...

    def client_address_of(self, node_id: NodeId) -> str:
        """Where clients reach a node; empty when unknown."""
        ...


@dataclasses.dataclass(slots=True)
class _Write:
    """An append on its way to the disk."""

    group: Group[StateMachine]
    work: AppendWork | None
    """None: derived state or a truncation only."""
    update: Update
    inbound_bytes: int = 0
    """What of the inbound budget this write gives back."""


class Engine:
    """All groups of one node."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        owner: EngineOwner,
        store: LogStore,
        readers: Executor,
        clock: Clock,
        random: Random,
        uniform: Callable[[], float],
        limits: Limits,
        timing: Timing,
        raft_settings: RaftSettings | None = None,
    ) -> None:
        self.loop = loop
        self.limits = limits
        self.timing = timing
        self.node_id: NodeId = NO_NODE
        self.groups: dict[GroupId, Group[StateMachine]] = {}
        self.recent_budget = RecentEntriesBudget(limits.recent_entries_bytes_max)
        self.leadership = LeadershipTable(self._on_leadership_row)
        self.on_leadership_row: Callable[[GroupId], None] | None = None
        self.write_refusal: RequestError | None = None
        """Set by the disk watcher while free space is below the reserve."""
        self._owner = owner
        self._store = store
        self._readers = readers
        self._clock = clock
        self._random = random
        self._uniform = uniform
        self._settings = raft_settings or RaftSettings()
        self._transport: Transport
        self._writers: Writers
        self._dirty: list[Group[StateMachine]] = []
        self._pass_scheduled = False
        self._beats: dict[NodeId, Beats] = {}
        self._uncommitted_bytes = 0
        self._inbound_bytes: dict[GroupId, int] = {}
        self._inbound_total = 0
        self._campaigning: dict[GroupId, float] = {}
        """When each campaign that holds a place at the gate began."""
        self._timers: list[asyncio.TimerHandle] = []
        self._changed_leaders: dict[GroupId, tuple[Term, NodeId]] = {}
        self._sender: SnapshotSender
        self._receiver = SnapshotReceiver(limits.snapshot_bytes_max)
        self._is_closed = False
        self.commits_total = 0
        self.commit_seconds_total = 0.0
        self.elections_total = 0
        self.stalls_total = 0
        self.dropped_messages_total = 0

    def start(self, node_id: NodeId, transport: Transport, writers: Writers) -> None:
        """Begin to tick. Groups may be added before and after."""
        self.node_id = node_id
        self._transport = transport
        self._writers = writers
        self._sender = SnapshotSender(
            self.loop,
            transport,
            self._store,
            self._readers,
            self.limits,
            self._on_snapshot_streamed,
            self.break_group,
        )
        self._arm(self._tick_metadata, self.timing.metadata_tick_seconds)
        self._arm(self._tick_data, self.timing.data_tick_seconds)
        self._arm(self._publish_all, self.timing.leadership_publish_seconds)

    def close(self) -> None:
        """Stop ticking and answer every waiter. Writes already handed over still complete."""
        self._is_closed = True
        for timer in self._timers:
            timer.cancel()
        for group in list(self.groups.values()):
            self.remove_group(group.group_id)

    # ------------------------------------------------------------------------------------------------------ groups

    def add_group(
        self,
        key: ReplicaKey,
        restored: RestoredState,
        machine: StateMachine,
        node_of_replica: Callable[[ReplicaId], NodeId],
    ) -> Group[StateMachine]:
        """Host a replica whose file is open and whose machine is restored to `restored.state_index`."""
        settings = dataclasses.replace(
            self._settings,
            announce_commits=key.group_id == METADATA_GROUP_ID,
            election_ticks=self.timing.metadata_election_ticks
            if key.group_id == METADATA_GROUP_ID
            else self.timing.data_election_ticks,
        )
        view = _GroupView(self._store, key)
        core = RaftCore(key.replica_id, restored, view, self._random, settings)
        group = Group(
            key, core, machine, self._store, self, self.recent_budget, node_of_replica, self._random.randrange(1 << 62)
        )
        view.group = group
        group.durable_state_index = restored.state_index
        group.durable_membership = restored.membership
        group.durable_position = restored.position
        core.snapshot_meta = lambda: self._snapshot_meta(group)
        self.groups[key.group_id] = group
        self.mark_dirty(group)
        return group

    def remove_group(self, group_id: GroupId) -> Group[StateMachine] | None:
        """Stop hosting a replica: silent from now on."""
        group = self.groups.pop(group_id, None)
        if group is not None:
            group.close()
            self._campaigning.pop(group_id, None)
            self._inbound_total -= self._inbound_bytes.pop(group_id, 0)
        return group

    # ------------------------------------------------------------------------------------------------------ GroupHost

    def mark_dirty(self, group: Group[StateMachine]) -> None:
        """See `GroupHost`."""
        if not group.is_dirty:
            group.is_dirty = True
            self._dirty.append(group)
            if not self._pass_scheduled:
                self._pass_scheduled = True
                self.loop.call_soon(self._pass)

    def now_ms(self) -> int:
        """See `GroupHost`."""
        return self._clock.now_ms()

    def reserve_uncommitted(self, size: int) -> bool:
        """See `GroupHost`."""
        if self._uncommitted_bytes + size > self.limits.uncommitted_bytes_max:
            return False
        self._uncommitted_bytes += size
        return True

    def release_uncommitted(self, size: int) -> None:
        """See `GroupHost`."""
        self._uncommitted_bytes -= size

    def refusal_of_writes(self) -> RequestError | None:
        """See `GroupHost`."""
        return self.write_refusal

    async def in_thread(self, function: Callable[..., T], *arguments: object) -> T:
        """See `GroupHost`."""
        return await self.loop.run_in_executor(self._readers, function, *arguments)

    def leader_hint(self, group_id: GroupId) -> tuple[NodeId, str, Term]:
        """See `GroupHost`."""
        term, node_id = self.leadership.get(group_id)
        if node_id == NO_NODE:
            return NO_NODE, "", term
        return node_id, self._owner.client_address_of(node_id), term

    @property
    def uncommitted_bytes(self) -> int:
        """Proposed here and not yet applied."""
        return self._uncommitted_bytes

    @property
    def inbound_bytes(self) -> int:
        """Received from leaders and not yet durable."""
        return self._inbound_total

    # ------------------------------------------------------------------------------------------------------ the pass

    def _pass(self) -> None:
        self._pass_scheduled = False
        dirty, self._dirty = self._dirty, []
        for group in dirty:
            group.is_dirty = False
            self._guarded(group, self._process)
        self._flush_beats()
        self._publish_changes()
        self._transport.flush()

    def _guarded(self, group: Group[StateMachine], action: Callable[[Group[StateMachine]], None]) -> None:
        """One group's defect must not touch the others."""
        if group.is_closed:
            return
        try:
            action(group)
        except StorageUnavailableError as error:
            # nothing was changed: as if the message had been lost
            log.warning("replica_postponed", group_id=group.group_id, reason=str(error))
        except Exception as error:  # noqa: BLE001 -- any defect stops its own replica: going on would skip an entry
            self.break_group(group, error)

    def break_group(self, group: Group[StateMachine], error: Exception) -> None:
        """The replica is damaged or broke a rule: silent from now on."""
        if group.is_closed:
            return
        log.error(
            "replica_stopped",
            group_id=group.group_id,
            replica_id=group.replica_id,
            error_code=type(error).__name__,
            reason=str(error),
        )
        self.remove_group(group.group_id)
        self._owner.on_replica_broken(group, error)

    def _process(self, group: Group[StateMachine]) -> None:
        core = group.core
        while not group.is_installing:
            with_append = not group.append_in_flight
            if not core.has_ready(with_append):
                if with_append and group.group_id in self._inbound_bytes:
                    self._inbound_total -= self._inbound_bytes.pop(group.group_id)  # the core threw it away
                break
            ready = core.ready(with_append)
            # whatever arrived before this point is in this append or was dropped as stale
            inbound = self._inbound_bytes.pop(group.group_id, 0) if with_append else 0
            for message in ready.messages:
                self._send(group, message)
            if ready.append is not None:
                self._start_append(group, ready.append, inbound)
            else:
                self._inbound_total -= inbound
            if ready.apply:
                group.apply(ready.apply)
            if ready.role_change is not None:
                self._on_role_change(group, ready.role_change)
            for read in ready.reads:
                group.on_read_confirmed(read.request_id, read.read_index)
            for request_id in ready.failed_reads:
                group.on_read_failed(request_id)
        if core.beat_due:
            self._collect_beats(group)

    # ------------------------------------------------------------------------------------------------------ writes

    def _start_append(self, group: Group[StateMachine], work: AppendWork, inbound: int) -> None:
        if work.snapshot is not None:
            self._inbound_total -= inbound
            self._install(group, work)
            return
        if work.entries:
            group.recent.append(work.entries)
            group.forget_fetched()
        if not work.must_sync:
            # rides with the next write; every earlier one is durable, because only one is in flight
            self._inbound_total -= inbound
            self._finish_append(group, work)
            return
        update = self._update(group, work)
        group.append_in_flight = True
        group.append_started_at = self.loop.time()
        self._writers.submit(group.key, update, _Write(group, work, update, inbound))

    def _update(self, group: Group[StateMachine], work: AppendWork | None) -> Update:
        """The one transaction: the log, the hard state, and the derived state applied since the last one."""
        machine, core = group.machine, group.core
        entries = work.entries if work is not None else ()
        # what is committed may still wait for a later write: the disk must never name an entry that it does not hold
        end = entries[-1].index if entries else core.log.durable_index
        rows: tuple[tuple[bytes, bytes | None], ...] = ()
        state_index: LogIndex | None = None
        membership = None
        if machine.applied_index > group.durable_state_index:
            rows = machine.take_dirty_rows()
            state_index = machine.applied_index
            if core.membership != group.durable_membership:
                membership = core.membership
        return Update(
            hard_state=HardState(core.term, core.vote, LogIndex(min(core.commit_index, end))),
            entries=entries,
            truncation=group.pending_truncation,
            state_rows=rows,
            state_index=state_index,
            membership=membership,
        )

    def on_completions(self, completions: Sequence[Completion]) -> None:
        """Writes that are durable (called on the loop, once per drain of a writer)."""
        now = self.loop.time()
        for completion in completions:
            write = completion.token
            assert isinstance(write, _Write)
            group = write.group
            if completion.error is not None:
                # prevented by the reserve; if it happens all the same the write waits for space, in order
                log.warning("write_waits_for_space", group_id=group.group_id, reason=str(completion.error))
                self._writers_later(write)
                continue
            self._inbound_total -= write.inbound_bytes
            self.commits_total += 1
            self.commit_seconds_total += now - group.append_started_at
            if group.is_closed:
                continue
            self._guarded(group, lambda group, write=write: self._on_durable(group, write))  # type: ignore[misc]
        self._run_pass_now()

    def _writers_later(self, write: _Write) -> None:
        self.loop.call_later(_SPACE_RETRY_SECONDS, self._submit_again, write)

    def _submit_again(self, write: _Write) -> None:
        if write.group.is_closed:
            self._inbound_total -= write.inbound_bytes
        else:
            self._writers.submit(write.group.key, write.update, write)

    def _run_pass_now(self) -> None:
        if self._dirty:
            self._pass()

    def _on_durable(self, group: Group[StateMachine], write: _Write) -> None:
        group.append_in_flight = False
        update = write.update
        if update.state_index is not None:
            group.durable_state_index = update.state_index
        if update.membership is not None:
            group.durable_membership = update.membership
        if update.truncation is not None:
            self._on_truncated(group, update.truncation)
        if write.work is not None:
            self._finish_append(group, write.work)
        else:
            group.wake_progress()  # whoever waits for the state to be durable
            self.mark_dirty(group)

    def _finish_append(self, group: Group[StateMachine], work: AppendWork) -> None:
        for message in work.responses:
            self._send(group, message)
        group.core.append_done(work.token)
        self.mark_dirty(group)

    def on_writer_error(self, error: BaseException) -> None:
        """A commit failed: its outcome on disk is unknown and retrying would lie. The process ends."""
        self._owner.on_fatal(error)

    # ------------------------------------------------------------------------------------------------------ snapshots

    def _snapshot_meta(self, group: Group[StateMachine]) -> SnapshotMeta | None:
        """What a snapshot taken now would begin as; the stream replaces it by what its transaction really read."""
        if self._sender.is_full(group.group_id):
            return None
        if group.durable_membership != group.core.membership:
            # a snapshot must name its receiver as a member: make the change that added it durable first. Not now: the
            # core is being asked for its work, and a write begun in between would be a second one in flight
            self.loop.call_soon(self.flush_state, group)
            return None
        position: LogPosition | None = group.log_start
        state_index = group.durable_state_index
        if group.group_id == METADATA_GROUP_ID:
            try:
                position = group.position_of(state_index)
            except (LogRangeError, StorageUnavailableError):
                position = None
        if position is None:
            return None
        return SnapshotMeta(position, state_index, group.durable_membership)

    def _send_snapshot(self, group: Group[StateMachine], message: InstallSnapshot) -> None:
        node_id = self._node_of(group, message.target)
        if node_id == NO_NODE or not self._transport.is_connected(node_id):
            group.core.report_snapshot(message.target, is_sent=False)
            return
        group.snapshots_in_progress += 1
        now = self.loop.time()
        if now - group.snapshot_sent_at.get(message.target, -_SNAPSHOT_PAUSE_SECONDS) < _SNAPSHOT_PAUSE_SECONDS:
            # the last one did not take: a peer that refuses snapshots must not make us stream them without end
            self.loop.call_later(_SNAPSHOT_PAUSE_SECONDS, self._on_snapshot_streamed, group, message.target, False)
            return
        group.snapshot_sent_at[message.target] = now
        self._sender.start(group, node_id, message)

    def _on_snapshot_streamed(self, group: Group[StateMachine], target: ReplicaId, is_sent: bool) -> None:
        group.snapshots_in_progress -= 1
        if not group.is_closed:
            self._guarded(group, lambda group: group.core.report_snapshot(target, is_sent))
            self.mark_dirty(group)

    def _install(self, group: Group[StateMachine], work: AppendWork) -> None:
        """Replace the replica's file by a snapshot; nothing else of the group moves until that is durable."""
        message = work.snapshot
        assert message is not None
        rows = message.data
        assert isinstance(rows, list)
        core = group.core
        position = message.meta.position
        # appends may have come behind the snapshot and moved the commit index: their entries are not in this write
        hard_state = HardState(core.term, core.vote, LogIndex(min(core.commit_index, position.index)))
        group.is_installing = True
        group.append_in_flight = True
        group.append_started_at = self.loop.time()
        group.recent.clear()
        group.forget_fetched()
        log.info(
            "snapshot_install_started", group_id=group.group_id, replica_id=group.replica_id,
            index=position.index, rows=len(rows),
        )  # fmt: skip
        future = self._writers.run(group.key, lambda: self._store.install(group.key, hard_state, message.meta, rows))
        future.add_done_callback(
            lambda done: self.loop.call_soon_threadsafe(self._on_installed, group, work, message.meta, rows, done)
        )

    def _on_installed(
        self,
        group: Group[StateMachine],
        work: AppendWork,
        meta: SnapshotMeta,
        rows: list[tuple[bytes, bytes]],
        done: Future[None],
    ) -> None:
        error = done.exception()
        if group.is_closed and not isinstance(error, CommitFailedError):
            return
        if isinstance(error, StorageFullError):
            # the replica is as it was: like any write it waits for space
            log.warning("snapshot_waits_for_space", group_id=group.group_id, reason=str(error))
            self.loop.call_later(_SPACE_RETRY_SECONDS, self._install_again, group, work)
        elif isinstance(error, ReplicaStorageError) and not isinstance(error, CommitFailedError):
            self.break_group(group, error)
        elif error is not None:
            self.on_writer_error(error)
        else:
            self._guarded(group, lambda group: self._on_snapshot_durable(group, work, meta, rows))

    def _install_again(self, group: Group[StateMachine], work: AppendWork) -> None:
        if not group.is_closed:
            self._install(group, work)

    def _on_snapshot_durable(
        self, group: Group[StateMachine], work: AppendWork, meta: SnapshotMeta, rows: list[tuple[bytes, bytes]]
    ) -> None:
        group.machine.restore(rows, meta.state_index)
        group.durable_state_index = meta.state_index
        group.durable_membership = meta.membership
        group.durable_position = meta.position
        group.pending_truncation = None
        group.is_installing = False
        group.append_in_flight = False
        if group.on_restored is not None:
            group.on_restored()
        group.wake_progress()
        rest = dataclasses.replace(work, snapshot=None)
        if rest.entries:
            self._start_append(group, rest, 0)
        else:
            self._finish_append(group, rest)
        self.mark_dirty(group)

    # ------------------------------------------------------------------------------------------------------ truncation

    def truncate(self, group: Group[StateMachine], index: LogIndex) -> None:
        """Delete the log up to `index` (inclusive) as far as safety allows now: never past the durable state, nor past
        a snapshot being streamed.
        """
        index = LogIndex(min(index, group.durable_state_index, group.core.applied_index))
        if group.pending_truncation is not None or group.snapshots_in_progress or not self._may_write_derived(group):
            return
        position = group.position_of(index)
        if position is None or position.index <= group.log_start.index:
            return
        group.pending_truncation = position
        if not group.append_in_flight:
            self._write_derived(group)

    def flush_state(self, group: Group[StateMachine]) -> None:
        """Make the derived state durable on its own, when no append does it (before a trim on an idle group)."""
        if not group.append_in_flight and self._may_write_derived(group):
            self._write_derived(group)

    def _may_write_derived(self, group: Group[StateMachine]) -> bool:
        """False once the core stands on a snapshot that the machine and the disk do not have yet."""
        return not group.is_closed and not group.is_installing and group.core.log.snapshot is None

    def _write_derived(self, group: Group[StateMachine]) -> None:
        update = self._update(group, None)
        group.append_in_flight = True
        group.append_started_at = self.loop.time()
        self._writers.submit(group.key, update, _Write(group, None, update))

    def _on_truncated(self, group: Group[StateMachine], position: LogPosition) -> None:
        group.pending_truncation = None
        group.durable_position = position
        group.core.compacted(position)
        group.recent.evict_through(position.index)
        group.forget_fetched()
        self._delete_rows(group)

    def _delete_rows(self, group: Group[StateMachine]) -> None:
        if group.is_closed:
            return
        future = self._writers.run(group.key, lambda: self._store.delete_truncated(group.key, _TRUNCATE_ROWS))

        def again(done: Future[bool]) -> None:
            if not self._is_closed:
                self.loop.call_soon_threadsafe(self._on_rows_deleted, group, done)

        future.add_done_callback(again)

    def _on_rows_deleted(self, group: Group[StateMachine], done: Future[bool]) -> None:
        error = done.exception()
        if error is None:
            if done.result():
                self._delete_rows(group)
        elif isinstance(error, CommitFailedError) or not isinstance(error, ReplicaStorageError):
            self.on_writer_error(error)
        elif group.is_closed or isinstance(error, StorageFullError | StorageUnavailableError):
            # the rows are behind the truncation point, so harmless: the next truncation takes them along
            log.info("truncated_rows_left", group_id=group.group_id, reason=str(error))
        else:
            self.break_group(group, error)

    # ------------------------------------------------------------------------------------------------------ sending

    def _node_of(self, group: Group[StateMachine], replica_id: ReplicaId) -> NodeId:
        return group.node_of_replica(replica_id) or group.learned_nodes.get(replica_id, NO_NODE)

    def _send(self, group: Group[StateMachine], message: Message) -> None:
        if isinstance(message, InstallSnapshot):
            self._send_snapshot(group, message)
            return
        node_id = self._node_of(group, message.target)
        channel = Channel.APPEND if isinstance(message, AppendRequest) else Channel.CONTROL
        if node_id == NO_NODE or not self._transport.send(
            node_id, channel, FrameType.MESSAGE, encode_message(group.group_id, message)
        ):
            self.dropped_messages_total += 1
            if isinstance(message, AppendRequest):
                group.core.report_unreachable(message.target)

    def _collect_beats(self, group: Group[StateMachine]) -> None:
        core = group.core
        for target, commit_index, counter in core.take_beats():
            node_id = self._node_of(group, target)
            beats = self._beats.get(node_id)
            if beats is None:
                beats = self._beats[node_id] = Beats()
            beats.add(group.group_id, core.replica_id, target, core.term, commit_index, counter)

    def _flush_beats(self) -> None:
        if self._beats:
            for node_id, beats in self._beats.items():
                self._transport.send(node_id, Channel.CONTROL, FrameType.BEATS, beats.encode())
            self._beats = {}

    # ------------------------------------------------------------------------------------------------------ receiving

    def on_frame(self, node_id: NodeId, frame_type: FrameType, body: memoryview) -> None:
        """A checked frame from a peer. Raises `FrameError` for what cannot be understood."""
        match frame_type:
            case FrameType.MESSAGE:
                group_id, message = decode_message(body)
                self._on_message(node_id, group_id, message)
            case FrameType.BEATS:
                self._on_beats(node_id, decode_beats(body))
            case FrameType.BEAT_ECHOES:
                self._on_beat_echoes(node_id, decode_beats(body))
            case FrameType.LEADERSHIP:
                self._on_leadership_rows(node_id, decode_leadership(body))
            case FrameType.SNAPSHOT_BEGIN | FrameType.SNAPSHOT_ROWS | FrameType.SNAPSHOT_END:
                whole = self._receiver.on_frame(node_id, frame_type, body)
                if whole is not None:
                    self._on_message(node_id, whole.group_id, whole.message)
            case _:
                log.warning("peer_frame_unexpected", peer_id=node_id, frame_type=frame_type.name)

    def _on_message(self, node_id: NodeId, group_id: GroupId, message: Message) -> None:
        group = self.groups.get(group_id)
        if group is None or message.target != group.replica_id:
            return
        group.learned_nodes[message.source] = node_id
        if isinstance(message, AppendRequest) and message.entries and not self._admit_inbound(group, message):
            return
        self._guarded(group, lambda group: group.core.step(message))
        self.mark_dirty(group)

    def _admit_inbound(self, group: Group[StateMachine], message: AppendRequest) -> bool:
        size = sum(len(entry.payload) for entry in message.entries)
        is_refused = self.write_refusal is not None and any(entry.kind is EntryKind.DATA for entry in message.entries)
        if is_refused or self._inbound_total + size > self.limits.inbound_append_bytes_max:
            self.dropped_messages_total += 1
            return False
        self._inbound_bytes[group.group_id] = self._inbound_bytes.get(group.group_id, 0) + size
        self._inbound_total += size
        return True

    def _on_beats(self, node_id: NodeId, columns: Sequence[Sequence[int]]) -> None:
        echoes = Beats()
        groups = self.groups
        for group_id, source, target, term, commit_index, counter in zip(*columns, strict=True):
            group = groups.get(GroupId(group_id))
            if group is None or group.replica_id != target:
                continue
            core = group.core
            if core.on_quiet_beat(ReplicaId(source), Term(term), LogIndex(commit_index)):
                echoes.add(group_id, target, source, term, 0, counter)
            else:
                group.learned_nodes[ReplicaId(source)] = node_id
                beat = Heartbeat(ReplicaId(source), ReplicaId(target), Term(term), LogIndex(commit_index), counter)
                self._guarded(group, lambda group, beat=beat: group.core.step(beat))  # type: ignore[misc]
                self.mark_dirty(group)
        if len(echoes):
            self._transport.send(node_id, Channel.CONTROL, FrameType.BEAT_ECHOES, echoes.encode())
            self._transport.flush()

    def _on_beat_echoes(self, node_id: NodeId, columns: Sequence[Sequence[int]]) -> None:
        groups = self.groups
        for group_id, source, target, term, _, counter in zip(*columns, strict=True):
            group = groups.get(GroupId(group_id))
            if group is None or group.replica_id != target:
                continue
            if not group.core.on_quiet_beat_response(ReplicaId(source), Term(term), counter):
                echo = HeartbeatResponse(ReplicaId(source), ReplicaId(target), Term(term), counter)
                self._guarded(group, lambda group, echo=echo: group.core.step(echo))  # type: ignore[misc]
                self.mark_dirty(group)

    # ------------------------------------------------------------------------------------------------------ timers

    def _arm(self, tick: Callable[[], None], period: float) -> None:
        """Call `tick` every `period` seconds, once (not several times) after a stall, and then only after the sockets
        had their turn.
        """
        position = len(self._timers)
        next_at = self.loop.time() + period

        is_draining = False

        def fire() -> None:
            nonlocal next_at, is_draining
            if self._is_closed:
                return
            now = self.loop.time()
            lateness = now - next_at
            next_at = max(next_at + period, now)
            is_stalled = lateness > self.timing.stall_seconds
            # once only: a loop that is late every time must tick all the same
            is_draining = is_stalled and not is_draining
            if is_draining:
                next_at = now + _DRAIN_SECONDS
            # before the tick: whatever it raises, the timer goes on
            self._timers[position] = self.loop.call_at(next_at, fire)
            if is_stalled:
                self.stalls_total += 1
                self._on_stall(lateness)
            if not is_draining:
                tick()

        self._timers.append(self.loop.call_at(next_at, fire))

    def _on_stall(self, seconds: float) -> None:
        """The process stood still: a leader that may have been replaced meanwhile answers nobody before a quorum
        confirms it.
        """
        log.warning("loop_stalled", elapsed_seconds=round(seconds, 3))
        for group in self.groups.values():
            if group.core.role is Role.LEADER and seconds >= self._election_seconds(group.group_id):
                group.core.require_confirmation()
                self.mark_dirty(group)

    def _election_seconds(self, group_id: GroupId) -> float:
        timing = self.timing
        if group_id == METADATA_GROUP_ID:
            return timing.metadata_tick_seconds * timing.metadata_election_ticks
        return timing.data_tick_seconds * timing.data_election_ticks

    def _tick_metadata(self) -> None:
        group = self.groups.get(METADATA_GROUP_ID)
        if group is not None:
            self._guarded(group, self._tick)
            self._flush_beats()
            self._transport.flush()

    def _tick_data(self) -> None:
        for group in list(self.groups.values()):
            if group.group_id != METADATA_GROUP_ID:
                self._guarded(group, self._tick)
        self._flush_beats()
        self._transport.flush()

    def _tick(self, group: Group[StateMachine]) -> None:
        core = group.core
        core.tick()
        group.expire_reads(self.loop.time() - self.timing.read_index_seconds)
        if core.campaign_due:
            self._maybe_campaign(group)
        if group.append_in_flight:
            self._check_disk(group)
        if core.beat_due:
            self._collect_beats(group)
        if core.has_ready(not group.append_in_flight):
            self.mark_dirty(group)

    def _maybe_campaign(self, group: Group[StateMachine]) -> None:
        """The gate: a bounded number of campaigns at once, none while the disk hangs."""
        if self._disk_hangs(group):
            return
        if group.group_id != METADATA_GROUP_ID and not self._enter_gate(group.group_id):
            return
        group.core.campaign()
        self.mark_dirty(group)

    def _enter_gate(self, group_id: GroupId) -> bool:
        """Take a place, or keep the one held. A place is given for one election timeout: a group without a quorum is a
        candidate for ever, and must not keep the others from campaigning, nor itself from trying again.
        """
        campaigning = self._campaigning
        now = self.loop.time()
        if group_id not in campaigning and len(campaigning) >= self.limits.campaigns_max:
            began_after = now - self._election_seconds(group_id)
            while campaigning and next(iter(campaigning.values())) <= began_after:
                del campaigning[next(iter(campaigning))]
            if len(campaigning) >= self.limits.campaigns_max:
                return False
        campaigning.pop(group_id, None)  # the dict is in the order of the times
        campaigning[group_id] = now
        return True

    def _disk_hangs(self, group: Group[StateMachine]) -> bool:
        return group.append_in_flight and (
            self.loop.time() - group.append_started_at > self._election_seconds(group.group_id)
        )

    def _check_disk(self, group: Group[StateMachine]) -> None:
        """A leader whose disk hangs hands over to whoever is furthest, or steps down."""
        if group.core.role is not Role.LEADER or not self._disk_hangs(group):
            return
        log.warning("leader_disk_hangs", group_id=group.group_id, replica_id=group.replica_id)
        matches = group.core.match_indexes()
        matches.pop(group.replica_id, None)
        target = max(matches, key=lambda replica: matches[replica], default=None)
        if target is None or group.core.transfer_leader(target) is not None:
            group.core.step_down()
        self.mark_dirty(group)

    # ------------------------------------------------------------------------------------------------------ leadership

    def _on_role_change(self, group: Group[StateMachine], change: RoleChange) -> None:
        if change.role not in (Role.PRE_CANDIDATE, Role.CANDIDATE):
            self._campaigning.pop(group.group_id, None)
        if change.role is Role.CANDIDATE:
            self.elections_total += 1
        if change.role is not Role.LEADER:
            group.fail_waiters()
            if change.leader_id:
                group.forget_reads()
        group.wake_progress()
        if change.role is Role.LEADER:
            log.info("leader_elected", group_id=group.group_id, replica_id=group.replica_id, term=change.term)
            self._claim(group.group_id, change.term, self.node_id)
        elif change.leader_id:
            node_id = self._node_of(group, change.leader_id)
            if node_id != NO_NODE:
                self.leadership.claim(group.group_id, change.term, node_id)
        else:
            term, node_id = self.leadership.get(group.group_id)
            if node_id == self.node_id:
                self.leadership.withdraw(group.group_id, term, node_id)
                self._changed_leaders[group.group_id] = (term, NO_NODE)
        if group.on_leadership is not None:
            group.on_leadership()
        self._owner.on_leadership(group)

    def _claim(self, group_id: GroupId, term: Term, node_id: NodeId) -> None:
        self.leadership.claim(group_id, term, node_id)
        self._changed_leaders[group_id] = (term, node_id)

    def _on_leadership_row(self, group_id: GroupId) -> None:
        if self.on_leadership_row is not None:
            self.on_leadership_row(group_id)

    def _publish_changes(self) -> None:
        if self._changed_leaders:
            rows = [(group_id, term, node) for group_id, (term, node) in self._changed_leaders.items()]
            self._changed_leaders = {}
            self._broadcast(rows)

    def _publish_all(self) -> None:
        self._broadcast(self._led_rows())
        self._transport.flush()

    def _led_rows(self) -> list[tuple[int, int, int]]:
        return [
            (group.group_id, group.core.term, self.node_id)
            for group in self.groups.values()
            if group.core.role is Role.LEADER
        ]

    def _broadcast(self, rows: Sequence[tuple[int, int, int]]) -> None:
        if rows:
            for node_id in self.peers:
                self._transport.send(node_id, Channel.CONTROL, FrameType.LEADERSHIP, encode_leadership(rows))

    peers: Sequence[NodeId] = ()
    """Every other node of the cluster; kept by the node."""
    may_lead: Callable[[GroupId, NodeId], bool] = staticmethod(lambda group_id, node_id: True)
    """Whether a node has a replica of a group, as far as metadata says; kept by the node."""

    def _on_leadership_rows(self, node_id: NodeId, rows: Sequence[tuple[int, int, int]]) -> None:
        for group_number, term_number, leader_number in rows:
            group_id, term, leader = GroupId(group_number), Term(term_number), NodeId(leader_number)
            if not self.may_lead(group_id, node_id):
                continue
            if leader == NO_NODE:
                self.leadership.withdraw(group_id, term, node_id)
            elif leader == node_id:
                self.leadership.claim(group_id, term, node_id)

    def on_peer_up(self, node_id: NodeId) -> None:
        """Tell a peer at once what this node leads."""
        rows = self._led_rows()
        if rows:
            self._transport.send(node_id, Channel.CONTROL, FrameType.LEADERSHIP, encode_leadership(rows))
            self._transport.flush()

    def on_peer_down(self, node_id: NodeId) -> None:
        """The connection to a peer is gone: what it was sending is given up."""
        self._receiver.forget_peer(node_id)

    def on_peer_refused(self, node_id: NodeId) -> None:
        """The peer's process is gone: followers of its groups need not wait for their election timeout."""
        for group in list(self.groups.values()):
            core = group.core
            if core.role is Role.FOLLOWER and core.leader_id and self._node_of(group, core.leader_id) == node_id:
                core.forget_leader()
                self.mark_dirty(group)
                low, high = self.timing.refused_campaign_min_seconds, self.timing.refused_campaign_max_seconds
                self.loop.call_later(low + (high - low) * self._uniform(), self._campaign_if_leaderless, group)

    def _campaign_if_leaderless(self, group: Group[StateMachine]) -> None:
        core = group.core
        if not group.is_closed and not core.leader_id and core.role is Role.FOLLOWER:
            self._guarded(group, self._maybe_campaign)
            if len(self._campaigning) >= self.limits.campaigns_max and group.group_id not in self._campaigning:
                # the gate was full, which passes quickly: waiting for the election timeout would take ten times longer
                self.loop.call_later(self.timing.refused_campaign_min_seconds, self._campaign_if_leaderless, group)


class _GroupView(LogView):
    """Gives the core its group's entries. The core reads headers while it is made, before it has a group."""

    def __init__(self, store: LogStore, key: ReplicaKey) -> None:
        self._store = store
        self._key = key
        self.group: Group[StateMachine] | None = None

    def entries(self, first: LogIndex, last: LogIndex, bytes_max: int) -> tuple[Entry, ...] | None:
        """See `LogView`."""
        return None if self.group is None else self.group.entries(first, last, bytes_max)

    def header(self, index: LogIndex) -> EntryHeader:
        """See `LogView`."""
        return self._store.header(self._key, index) if self.group is None else self.group.header(index)
