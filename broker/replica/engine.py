"""Step every group of this node: one loop over the dirty ones, one timer per class, no task per group.

A pass does: messages in → `step` → `ready` → send, prepare writes, apply, wake waiters, pass the writes to the writer threads. The
engine runs the effects that the cores request and decides nothing about the protocol. It receives clock, randomness, transport, store
and writers as arguments, so that it also runs on a virtual-time loop.

Its parts are `commits` (writes), `snapshots`, `campaigns` (the gate for vote requests), `heartbeats`, `publisher` (leaderships) and
`stall_aware_timers`. Each keeps its own state and knows only the `EngineHost` of the rest.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol, TypeVar, TypeVarTuple

import structlog
from raftmq.broker.base.clock import Clock
from raftmq.broker.base.limits import Limits, Timing
from raftmq.broker.base.log_throttle import LogThrottle
from raftmq.broker.base.request_error import RequestError
from raftmq.broker.base.supervisor import Work
from raftmq.broker.peers.clocks import PeerClocks
from raftmq.broker.peers.codec import (
    FrameType,
    Parts,
    SnapshotBegin,
    decode_leadership,
    decode_message,
    encode_message,
)
from raftmq.broker.peers.protocol import Channel, Transport
from raftmq.broker.replica.campaigns import Campaigns
from raftmq.broker.replica.commits import Commits
from raftmq.broker.replica.copy_pace import CopyPace, GroupPace
from raftmq.broker.replica.disk import Idle, Installing
from raftmq.broker.replica.engine_counters import EngineCounters
from raftmq.broker.replica.heartbeats import Heartbeats
from raftmq.broker.replica.inbound_bytes import InboundBytes
from raftmq.broker.replica.leadership_publisher import LeadershipPublisher
from raftmq.broker.replica.leadership_table import LeadershipTable
from raftmq.broker.replica.parked_snapshots import ParkedSnapshots
from raftmq.broker.replica.recent_entries import RecentEntriesBudget
from raftmq.broker.replica.replica import THROTTLE_RETRY_MS, Replica
from raftmq.broker.replica.replica_log import ReplicaLog
from raftmq.broker.replica.row_loads import RowLoads
from raftmq.broker.replica.snapshot_receiver import SnapshotReceiver, memory_spools
from raftmq.broker.replica.snapshot_rows import StagedRows
from raftmq.broker.replica.snapshots import Snapshots
from raftmq.broker.replica.stall_aware_timers import StallAwareTimers
from raftmq.broker.replica.thread_pools import ThreadPools
from raftmq.broker.replica.write_backs import WriteBacks
from raftmq.broker.replica.writers import Writers
from raftmq.errors import InvariantError
from raftmq.fsm.feature_levels import FEATURE_LEVEL
from raftmq.fsm.row_reads import RowsFound, RowsNeeded
from raftmq.fsm.state_machine import StateMachine
from raftmq.proto import queue_pb2 as pb
from raftmq.raft.core import RaftCore, RestoredState
from raftmq.raft.entry import EntryKind
from raftmq.raft.log_view import Random
from raftmq.raft.messages import AppendRequest, AppendResponse, InstallSnapshot, Message
from raftmq.raft.ready import Ready, Role, RoleChange
from raftmq.raft.settings import RaftSettings
from raftmq.raft.ticks import Ticks
from raftmq.storage.errors import StorageUnavailableError
from raftmq.storage.log_store import ReplicaKey
from raftmq.storage.snapshot_spool import SnapshotSpools
from raftmq.storage.state_store import StateStore
from raftmq.storage.writer_threads import Completion
from raftmq.types import METADATA_GROUP_ID, NO_NODE, GroupId, NodeId, ReplicaId

log = structlog.get_logger(__name__)

HANGING_ELECTIONS_MAX = 2
"""A leader whose write takes this many election timeouts steps down: the first is for the write, the second for a transfer."""
_CLOCK_RETRY_MS = 50
"""A few round trips to another node."""

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")


class EngineOwner(Protocol):
    """Receives the engine's events: the node."""

    def on_leadership_row(self, group_id: GroupId) -> None:
        """Handle a change of this node's knowledge about a group's leader."""
        ...

    def on_replica_broken(self, replica: Replica[StateMachine], error: Exception) -> None:
        """Quarantine a replica that broke an invariant or whose data is damaged. It is silent from now on."""
        ...

    def on_fatal(self, error: BaseException) -> None:
        """End the process after a failed commit."""
        ...

    def record_failure(self, work: Work, error: BaseException) -> None:
        """Record a defect in work for all groups together. The work continues."""
        ...

    def client_address_of(self, node_id: NodeId) -> str:
        """Return the address at which clients reach a node, or an empty text if it is unknown."""
        ...


class Engine:
    """Runs all groups of one node. Implements `ReplicaHost` and `EngineHost`."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        owner: EngineOwner,
        store: StateStore,
        readers: ThreadPools,
        transport: Transport,
        writers: Writers,
        clock: Clock,
        random: Random,
        uniform: Callable[[], float],
        limits: Limits,
        timing: Timing,
        raft_settings: RaftSettings | None = None,
        spools: SnapshotSpools | None = None,
    ) -> None:
        """Take the engine's access to the world.

        `spools` keep received snapshots. With None they are kept in memory. `writers` must report to `on_completions` on the loop,
        and `transport` must pass received frames to `on_frame`.
        """
        self.loop = loop
        self.limits = limits
        self.timing = timing
        self.node_id: NodeId = NO_NODE
        self.replicas: dict[GroupId, Replica[StateMachine]] = {}
        self.recent_budget = RecentEntriesBudget(limits.recent_entries_bytes_max)
        self.counters = EngineCounters()
        self.copy_pace = CopyPace(loop, limits.copy_burst_seconds)
        """Bounds the bytes that this node sends to new replicas of planned moves. The reconciler sets its rate."""
        self.write_refusal: RequestError | None = None
        """The error for appends. Set by the disk watch while free space is below the reserve."""
        self.refuses_entries = False
        """Set by the disk watch while there is no space even for data that leaders accepted before their disk was short."""
        self.cluster_level: Callable[[], int] = lambda: FEATURE_LEVEL
        """Returns the cluster's feature level. Set by the node, which has the metadata."""
        self.map_used_fraction_max = 0.0
        """The used part (0..1) of the fullest replica file's map, from housekeeping's last check."""
        self._owner = owner
        self._store = store
        self._readers = readers
        self._transport = transport
        self._random = random
        self._settings = raft_settings or RaftSettings()
        self._data_ticks = Ticks()
        """The logical time of all groups but that of the metadata, whose ticks are shorter."""
        self._postponed_throttle = LogThrottle()
        self._unexpected_throttle = LogThrottle()
        self._led: set[GroupId] = set()
        """Groups led here, for counting lost leaderships."""
        self._dirty: list[Replica[StateMachine]] = []
        self._pass_scheduled = False
        self._uncommitted_bytes = 0
        self._inbound = InboundBytes()
        self._spools = spools = spools or memory_spools(limits)
        self.receiver = SnapshotReceiver(
            loop,
            readers.snapshots,
            limits,
            spools,
            self._on_snapshot,
            transport.hold_snapshots,
            self._stage,
            self._send_resume,
            ParkedSnapshots(loop, timing.snapshot_idle_seconds),
        )
        self.leadership = LeadershipTable(owner.on_leadership_row, owner.client_address_of)
        self.publisher = LeadershipPublisher(loop, self.leadership, self.replicas, transport, timing)
        self.clocks = PeerClocks(loop, clock, transport, timing, lambda: self.publisher.peers)
        self._row_loads = RowLoads(loop, self, readers.rows, store.read_rows)
        self.write_backs = WriteBacks(loop, self, store, readers.write_back, self._row_loads, limits, timing)
        self.commits = Commits(loop, self, store, writers, timing, self._inbound, self.counters, self.write_backs)
        self.campaigns = Campaigns(loop, self, self.commits, self.replicas, limits, timing, uniform)
        self.snapshots = Snapshots(
            loop,
            self,
            self.commits,
            store,
            readers,
            writers,
            transport,
            limits,
            timing,
            self.write_backs,
            spools,
            self.now_ms,
            self.copy_pace,
        )
        self._heartbeats = Heartbeats(self, self.replicas, transport, self._data_ticks)
        self._timers = StallAwareTimers(loop, timing.stall_seconds, self._on_stall)
        self._boot_ahead_seconds = self._boot_ahead()
        """Time since the machine's start minus loop time, at the last look for a suspension."""

    def start(self, node_id: NodeId) -> None:
        """Start the timers."""
        self.node_id = self.publisher.node_id = node_id
        self._timers.arm(self._tick_metadata, self.timing.metadata_tick_seconds)
        self._timers.arm(self._tick_data, self.timing.data_tick_seconds)
        self._timers.arm(self.publisher.publish_all, self.timing.leadership_publish_seconds)
        self._timers.arm(self.clocks.ask_all, self.timing.clock_check_seconds)
        self.loop.call_soon(self.clocks.ask_all)

    def close(self) -> None:
        """Stop the timers and answer every waiter. Submitted writes still complete."""
        self._timers.close()
        self.commits.close()
        self.snapshots.copies.close()
        self.receiver.drop_parked()
        for replica in list(self.replicas.values()):
            self.remove_group(replica.group_id)
        self.copy_pace.close()

    # ------------------------------------------------------------------------------------------------ groups

    def add_replica(
        self,
        key: ReplicaKey,
        restored: RestoredState,
        machine: StateMachine,
        node_of_replica: Callable[[ReplicaId], int | None],
    ) -> Replica[StateMachine]:
        """Host a replica whose file is open and whose machine is restored to `restored.state_index`."""
        settings = dataclasses.replace(
            self._settings,
            announce_commits=key.group_id == METADATA_GROUP_ID,
            election_ticks=self.timing.metadata_election_ticks
            if key.group_id == METADATA_GROUP_ID
            else self.timing.data_election_ticks,
        )
        group_log = ReplicaLog(key, self._store, self.loop, self._read_for_follower, self.recent_budget)
        ticks = None if key.group_id == METADATA_GROUP_ID else self._data_ticks
        core = RaftCore(key.replica_id, restored, group_log, self._random, settings, ticks)
        replica = Replica(
            key, core, restored, machine, group_log, self, node_of_replica, self._random.randrange(1 << 62)
        )
        replica.role_listeners.append(partial(self.publisher.on_role_change, replica))
        core.snapshot_meta = lambda: self.snapshots.meta(replica)
        if key.group_id != METADATA_GROUP_ID:
            core.copy_pace = GroupPace(self.copy_pace, key.group_id, partial(self._resume_copies, replica))
        self.replicas[key.group_id] = replica
        self._data_ticks.changes += 1  # heartbeats to it were dropped until now
        self.write_backs.add(replica)
        if key.group_id == METADATA_GROUP_ID:
            replica.progress_listeners.append(self._wake_all)
            replica.restored_listeners.append(self._wake_all)
        if replica.is_disk_backed:
            replica.progress_listeners.append(partial(self._shrink_recent_entries, replica))
        self.mark_dirty(replica)
        return replica

    def _resume_copies(self, replica: Replica[StateMachine]) -> None:
        """Let a leader send entries to its learners again, because it is its turn."""
        if not replica.is_closed:
            replica.core.resume_copies()
            self.mark_dirty(replica)

    def _shrink_recent_entries(self, replica: Replica[StateMachine]) -> None:
        """Keep few applied entries of a queue in memory: nobody reads them in order, as consumers of a log do."""
        recent_bytes_max = self.limits.queue_recent_entries_bytes_max
        replica.log.recent.shrink(recent_bytes_max, replica.state_machine.applied_index)

    def remove_group(self, group_id: GroupId) -> Replica[StateMachine] | None:
        """Stop hosting a replica. It is silent from now on."""
        replica = self.replicas.pop(group_id, None)
        if replica is not None:
            replica.close()
            self.write_backs.remove(replica)
            self.snapshots.copies.forget(replica.key)
            self.receiver.forget_group(group_id)
            self._led.discard(group_id)
            self.copy_pace.forget(group_id)
            self.campaigns.leave_gate(group_id)
            self._inbound.forget(group_id)
        return replica

    # ------------------------------------------------------------------------------------------------ ReplicaHost

    def mark_dirty(self, replica: Replica[StateMachine]) -> None:
        """Step the group in the next pass."""
        if not replica.is_dirty:
            replica.is_dirty = True
            self._dirty.append(replica)
            if not self._pass_scheduled:
                self._pass_scheduled = True
                self.loop.call_soon(self._pass)

    def now_ms(self) -> int:
        """Return the time to stamp entries with, in milliseconds since the epoch."""
        return self.clocks.now_ms()

    def boottime_ns(self) -> int:
        """Return a time that never jumps, and counts the time in which the machine was suspended."""
        return self.clocks.boottime_ns()

    def look_for_suspension(self) -> None:
        """Handle a suspension of the machine since the last look as a stall. Loop time pauses with the machine, so no timer is late after it."""
        before, self._boot_ahead_seconds = self._boot_ahead_seconds, self._boot_ahead()
        suspended_seconds = self._boot_ahead_seconds - before
        if suspended_seconds > self.timing.stall_seconds:
            self._on_stall(suspended_seconds)

    def _boot_ahead(self) -> float:
        return self.clocks.boottime_ns() / 1e9 - self.loop.time()

    def reserve_uncommitted(self, size: int) -> bool:
        """Count proposed bytes against the process's budget. Return False, and count nothing, if they exceed it."""
        if self._uncommitted_bytes and self._uncommitted_bytes + size > self.limits.uncommitted_bytes_max:
            return False  # with an unused budget one proposal always fits: otherwise it would be refused without end
        self._uncommitted_bytes += size
        return True

    def feature_level(self) -> int:
        """Return the cluster's feature level, as far as this node knows."""
        return self.cluster_level()

    def release_uncommitted(self, size: int) -> None:
        """Return proposed bytes to the process's budget."""
        self._uncommitted_bytes -= size

    def refusal_of_writes(self, replica: Replica[StateMachine]) -> RequestError | None:
        """Return why this node accepts no appends for the replica now, or None if it does."""
        if replica.is_disk_backed and self.write_backs.is_behind(replica):
            return RequestError(
                pb.THROTTLED,
                f"the disk is behind with the changes of group {replica.group_id}; slow down",
                retry_after_ms=THROTTLE_RETRY_MS,
            )
        return self.write_refusal or self.refusal_of_time()

    def refusal_of_time(self) -> RequestError | None:
        """Return why this node stamps nothing whose time counts now, or None if it does."""
        if self.clocks.is_comparable:
            return None
        return RequestError(
            pb.NOT_READY,
            "this broker has not compared its clock with another broker's yet, so it cannot stamp records; try again",
            retry_after_ms=_CLOCK_RETRY_MS,
        )

    async def in_thread(self, function: Callable[..., T], *arguments: object) -> T:
        """Run a blocking read on the reader threads."""
        return await self.loop.run_in_executor(self._readers.clients, function, *arguments)

    def read_rows(
        self, replica: Replica[StateMachine], needed: RowsNeeded, on_found: Callable[[RowsFound], None]
    ) -> None:
        """Read rows of the replica's durable state in a thread, then call `on_found` on the loop, unless the replica is closed."""
        self._row_loads.start(replica, needed, on_found)

    async def in_write_back(self, function: Callable[..., T], *arguments: object) -> T:
        """Run a change of a state file on the thread that writes states back."""
        return await self.loop.run_in_executor(self._readers.write_back, function, *arguments)

    def draw_seed(self) -> int:
        """Return a random number of 64 bits."""
        return self._random.randrange(1 << 64)

    async def _read_for_follower(self, function: Callable[..., T], *arguments: object) -> T:
        """Run a blocking read that a follower waits for, on threads of its own, so that clients' reads do not delay it."""
        return await self.loop.run_in_executor(self._readers.catch_up, function, *arguments)

    def shuffle(self, items: list[T]) -> None:
        """Put a list into random order."""
        for last in range(len(items) - 1, 0, -1):
            other = self._random.randrange(last + 1)
            items[last], items[other] = items[other], items[last]

    @property
    def uncommitted_bytes(self) -> int:
        """Return the bytes proposed here and not yet applied."""
        return self._uncommitted_bytes

    @property
    def inbound_bytes(self) -> int:
        """Return the bytes received from leaders and not yet durable."""
        return self._inbound.total

    # ------------------------------------------------------------------------------------------------ the pass

    def _pass(self) -> None:
        self._pass_scheduled = False
        if not self._dirty:
            return  # `on_completions` was faster
        began_at = time.perf_counter()
        dirty, self._dirty = self._dirty, []
        begun: list[tuple[Replica[StateMachine], Ready, bool]] = []
        for replica in dirty:
            replica.is_dirty = False
            self.guarded(replica, self._begin, replica, begun)
        if begun:  # followers write while this node prepares its own write, so that the times do not add up
            self._send(self._transport.flush)
        for replica, ready, with_append in begun:
            self.guarded(replica, self._run, replica, ready, with_append)
            self.guarded(replica, self._process, replica)
        self._send_out()
        self.counters.pass_seconds.observe(time.perf_counter() - began_at)

    def _send_out(self) -> None:
        """Send everything that has gathered for all groups. A defect in one of these steps must not affect the others."""
        for send in (
            self._heartbeats.flush,
            self.publisher.publish_changes,
            self._transport.flush,
            self.commits.submit_prepared,
        ):
            try:  # as `_send`, which would be another call for each
                send()
            except Exception as error:  # noqa: BLE001 -- as in `_send`
                self._owner.record_failure(Work.ENGINE, error)

    def _send(self, send: Callable[[], None]) -> None:
        try:
            send()
        except Exception as error:  # noqa: BLE001 -- treated as if the messages were lost
            self._owner.record_failure(Work.ENGINE, error)

    def guarded(
        self, replica: Replica[StateMachine], action: Callable[[*Arguments], object], *arguments: *Arguments
    ) -> None:
        """Run an action of one group. Its defect must not affect the others."""
        if replica.is_closed:
            return
        try:
            action(*arguments)
        except StorageUnavailableError as error:
            # nothing was changed, so this is treated as if the message was lost
            if self._postponed_throttle.is_due(replica.group_id):
                log.warning("replica_postponed", group_id=replica.group_id, reason=str(error))
        except Exception as error:  # noqa: BLE001 -- any defect stops its own replica: continuing would skip an entry
            self.break_replica(replica, error)

    def break_replica(self, replica: Replica[StateMachine], error: Exception) -> None:
        """Silence a replica that is damaged or broke a rule."""
        if replica.is_closed:
            return
        log.error(
            "replica_stopped",
            group_id=replica.group_id,
            replica_id=replica.replica_id,
            error_code=type(error).__name__,
            reason=str(error),
            exc_info=error if isinstance(error, InvariantError) else None,
        )
        try:
            self.remove_group(replica.group_id)
            self._owner.on_replica_broken(replica, error)
        except Exception as failure:  # noqa: BLE001 -- the rest of a pass has work that other cores will not hand out again
            self._owner.record_failure(Work.ENGINE, failure)

    def on_fatal(self, error: BaseException) -> None:
        """End the process after a failed commit: its outcome on disk is unknown, and a retry could claim a false success."""
        self._owner.on_fatal(error)

    def _begin(self, replica: Replica[StateMachine], begun: list[tuple[Replica[StateMachine], Ready, bool]]) -> None:
        """Take a core's work, and queue its messages. `_run` does the rest."""
        for proposer in replica.proposers:
            proposer()
        ready = self._take_ready(replica)
        if ready is not None:
            begun.append((replica, *ready))

    def _process(self, replica: Replica[StateMachine]) -> None:
        """Do a core's work until there is none left, or applied entries have silenced the node."""
        while not replica.is_closed and (taken := self._take_ready(replica)) is not None:
            self._run(replica, *taken)

    def _take_ready(self, replica: Replica[StateMachine]) -> tuple[Ready, bool] | None:
        """Take a core's work, and queue the messages that need not wait for the disk. Return None if there is no work now.

        The second item says whether the work includes a write, which is possible only while no other write is in flight.
        """
        core, inbound = replica.core, self._inbound
        if not isinstance(replica.disk, Installing):
            with_append = isinstance(replica.disk, Idle)
            if core.has_ready(with_append):
                ready = core.ready(with_append)
                for message in ready.messages:
                    self.send(replica, message)
                return ready, with_append
            if with_append and replica.group_id in inbound.waiting:
                inbound.forget(replica.group_id)  # the core dropped it
        if core.heartbeat_due:
            self._heartbeats.collect(replica)
        return None

    def _run(self, replica: Replica[StateMachine], ready: Ready, with_append: bool) -> None:
        """Do the rest of a core's work, in the order that it needs."""
        if ready.append is not None and ready.append.snapshot is None:
            self.commits.start(replica, ready.append)
        elif with_append:
            self._inbound.forget(replica.group_id)  # stale, or before the snapshot
            if ready.append is not None:
                self.snapshots.install(replica, ready.append)
        if ready.apply:
            replica.apply(ready.apply)
        if ready.role_change is not None:
            self._on_role_change(replica, ready.role_change)
        for read in ready.reads:
            replica.reads.on_confirmed(read.request_id, read.read_index)
        for request_id in ready.failed_reads:
            replica.reads.on_failed(request_id)

    def _on_role_change(self, replica: Replica[StateMachine], change: RoleChange) -> None:
        if change.role not in (Role.PRE_CANDIDATE, Role.CANDIDATE):
            self.campaigns.leave_gate(replica.group_id)
        if change.role is Role.CANDIDATE:
            self.counters.elections_total += 1
        if change.role is Role.LEADER:
            self._led.add(replica.group_id)
            self.counters.elections_won_total += 1
            log.info("leader_elected", group_id=replica.group_id, replica_id=replica.replica_id, term=change.term)
        elif replica.group_id in self._led:
            self._led.remove(replica.group_id)
            self.counters.leaderships_lost_total += 1
        replica.on_role_change(change)

    def on_completions(self, completions: Sequence[Completion]) -> None:
        """Handle completed writes and step their groups immediately. Called on the loop, once per drain of a writer."""
        is_scheduled, self._pass_scheduled = self._pass_scheduled, True  # the pass follows here
        try:
            self.commits.on_completions(completions)
        finally:
            self._pass_scheduled = is_scheduled
        self._send(self._transport.flush)  # acknowledgements of durable entries leave before anything is applied
        if self._dirty:
            self._pass()

    # ------------------------------------------------------------------------------------------------ messages

    def send(self, replica: Replica[StateMachine], message: Message) -> None:
        """Send a message to the replica that it names, or drop it and tell the core."""
        if isinstance(message, InstallSnapshot):
            self.snapshots.send(replica, message)
            return
        node_id = replica.node_of(message.target)
        channel = Channel.APPEND if isinstance(message, AppendRequest) else Channel.CONTROL
        if node_id == NO_NODE or not self._transport.send(
            node_id, channel, FrameType.MESSAGE, encode_message(replica.group_id, message)
        ):
            self.counters.dropped_messages_total += 1
            if isinstance(message, AppendRequest):
                replica.core.report_unreachable(message.target)

    def on_frame(self, node_id: NodeId, frame_type: FrameType, body: memoryview) -> None:
        """Process a checked frame from a peer. Raises `FrameError` if it cannot be decoded."""
        match frame_type:
            case FrameType.MESSAGE:
                group_id, message = decode_message(body)
                self.on_message(node_id, group_id, message)
            case FrameType.HEARTBEATS:
                self._heartbeats.on_heartbeats(node_id, body)
            case FrameType.HEARTBEAT_RESPONSES:
                self._heartbeats.on_heartbeat_responses(node_id, body)
            case FrameType.CLOCK_QUESTION:
                self.clocks.on_question(node_id, body)
            case FrameType.CLOCK:
                self.clocks.on_answer(node_id, body)
            case FrameType.LEADERSHIP:
                self.publisher.on_rows(node_id, decode_leadership(body))
            case FrameType.SNAPSHOT_BEGIN | FrameType.SNAPSHOT_ROWS | FrameType.SNAPSHOT_END:
                self.receiver.on_frame(node_id, frame_type, body)
            case FrameType.SNAPSHOT_RESUME:
                self.snapshots.on_resume(node_id, body)
            case _:
                if self._unexpected_throttle.is_due((node_id, frame_type)):
                    log.warning("peer_frame_unexpected", peer_id=node_id, frame_type=frame_type.name)

    def _stage(self, begin: SnapshotBegin) -> StagedRows | None:
        """Begin the file of a snapshot for a replica whose state has a file of its own. Rows for any other replica are spooled."""
        replica = self.replicas.get(begin.group_id)
        if replica is None or not replica.is_disk_backed or replica.replica_id != begin.message.target:
            return None
        stage = partial(self._store.stage, replica.key, begin.message.meta.position)
        return StagedRows(stage, self._spools, self._delete_soon)

    def _delete_soon(self, delete: Callable[[], None]) -> None:
        """Delete a file in a thread, at the request of the garbage collector, which may run while `submit` holds its lock."""
        self.loop.call_soon_threadsafe(self._readers.snapshots.submit, delete)

    def _send_resume(self, node_id: NodeId, body: Parts) -> None:
        self._transport.send(node_id, Channel.CONTROL, FrameType.SNAPSHOT_RESUME, body)
        self._transport.flush()

    def return_snapshot_space(self, *, is_short: bool) -> None:
        """Delete copies of states and parts of snapshots that have been idle for long, or all idle ones while the disk is short."""
        self.snapshots.copies.drop_idle(0.0 if is_short else self.timing.snapshot_idle_seconds)
        if is_short:
            self.receiver.drop_parked()

    def _on_snapshot(self, node_id: NodeId, whole: SnapshotBegin) -> None:
        self.on_message(node_id, whole.group_id, whole.message)

    def on_message(self, node_id: NodeId, group_id: GroupId, message: Message) -> None:
        """Pass a message to the core of the replica that it names. It is dropped if that replica is not hosted here."""
        replica = self.replicas.get(group_id)
        if replica is None or message.target != replica.replica_id:
            return
        replica.learn_node(message.source, node_id)
        if isinstance(message, AppendRequest) and message.entries and not self._admit_inbound(replica, message):
            return
        self.guarded(replica, replica.step, message)
        if not isinstance(message, AppendResponse) or self._has_work(
            replica
        ):  # a second acknowledgement changes nothing
            self.mark_dirty(replica)

    def _has_work(self, replica: Replica[StateMachine]) -> bool:
        """Return whether a pass would find something to do for the group."""
        core = replica.core
        return replica.is_dirty or core.heartbeat_due or core.has_ready(isinstance(replica.disk, Idle))

    def _admit_inbound(self, replica: Replica[StateMachine], message: AppendRequest) -> bool:
        inbound = self._inbound
        size = sum(len(entry.payload) for entry in message.entries)
        is_refused = self.refuses_entries and any(entry.kind is EntryKind.DATA for entry in message.entries)
        # with an unused budget one append always fits: otherwise its follower would never catch up
        is_over = inbound.total > 0 and inbound.total + size > self.limits.inbound_append_bytes_max
        if is_refused or is_over:
            self.counters.dropped_messages_total += 1
            return False
        inbound.waiting[replica.group_id] = inbound.waiting.get(replica.group_id, 0) + size
        inbound.total += size
        return True

    def on_peer_down(self, node_id: NodeId) -> None:
        """Give up everything that a peer was sending when its connection was lost."""
        self.publisher.on_peer_down(node_id)
        self.receiver.forget_peer(node_id)
        self._record_lost(node_id)

    def on_peer_up(self, node_id: NodeId) -> None:
        """Handle a new connection to a peer, perhaps to another process than before."""
        self.publisher.on_peer_up(node_id)
        self.clocks.ask(node_id)
        self.campaigns.on_peer_up(node_id)
        # an answer of the earlier process may have been read after its connection was seen to be lost
        self._record_lost(node_id)

    def _record_lost(self, node_id: NodeId) -> None:
        """Count the node's replicas as lagging until they answer: a restarted process may have quarantined or lost them."""
        for replica in self.replicas.values():
            if replica.role is Role.LEADER:
                for voter in replica.core.membership.voters:
                    if replica.node_of(voter) == node_id:
                        replica.core.record_lost(voter)

    def on_snapshots_lost(self, node_id: NodeId) -> None:
        """Drop a node's snapshots after their connection ended. This node may have no connection to that node."""
        self.receiver.forget_peer(node_id)

    # ------------------------------------------------------------------------------------------------ ticks

    def _tick_metadata(self) -> None:
        self.look_for_suspension()
        replica = self.replicas.get(METADATA_GROUP_ID)
        if replica is not None:
            replica.core.ticks.now += 1
            self.guarded(replica, self._tick, replica, self._reads_expire_before())
            self._send_out()

    def _tick_data(self) -> None:
        """Tick the replicas that do not rest. For leaders that rest, send the heartbeats of their last tick again."""
        expire_before = self._reads_expire_before()
        heartbeats = self._heartbeats
        now = self._data_ticks.now = self._data_ticks.now + 1
        for replica in list(self.replicas.values()):
            if replica.group_id == METADATA_GROUP_ID:
                continue
            core = replica.core
            if core.next_tick <= now:
                self.guarded(replica, self._tick, replica, expire_before)
            elif core.leadership is not None:
                heartbeats.repeat(replica)
        self.write_backs.tick()
        self._send_out()

    def _reads_expire_before(self) -> float:
        return self.loop.time() - self.timing.read_index_seconds

    def _tick(self, replica: Replica[StateMachine], expire_before: float) -> None:
        core = replica.core
        core.on_tick()
        if replica.is_doubted:
            replica.end_doubt()
        if replica.reads.are_waiting:
            replica.reads.expire(expire_before)
        if core.campaign_due:
            self.campaigns.ask(replica)
        is_disk_idle = isinstance(replica.disk, Idle)
        if not is_disk_idle:
            self._check_disk(replica)
        if core.heartbeat_due:
            self._heartbeats.collect(replica)
        if core.has_ready(is_disk_idle):
            self.mark_dirty(replica)
        elif is_disk_idle and not replica.is_doubted and not replica.reads.are_waiting:
            core.rest()

    def _wake_all(self) -> None:
        """End the rest of all replicas, because a resting leader's heartbeats go to the nodes that the earlier metadata named."""
        for replica in self.replicas.values():
            replica.core.wake()

    def _check_disk(self, replica: Replica[StateMachine]) -> None:
        """Transfer leadership to the furthest reachable voter if the leader's disk hangs, or step down.

        It also steps down if no voter has taken over after two election timeouts: the furthest may be frozen while others can lead.
        """
        if replica.core.role is not Role.LEADER or not self.commits.is_hanging(replica):
            return
        log.warning("leader_disk_hangs", group_id=replica.group_id, replica_id=replica.replica_id)
        target = replica.core.furthest_voter(lambda voter: self._transport.is_connected(replica.node_of(voter)))
        is_in_vain = self.commits.is_hanging(replica, HANGING_ELECTIONS_MAX)
        if target is None or is_in_vain or replica.core.transfer_leader(target) is not None:
            replica.core.step_down()
        self.mark_dirty(replica)

    def _on_stall(self, seconds: float) -> None:
        """Handle a stall of the process or machine: a leader that may have a successor answers nothing before a quorum confirms it."""
        self.counters.stalls_total += 1
        log.warning("loop_stalled", elapsed_seconds=round(seconds, 3))
        for replica in list(self.replicas.values()):
            if replica.core.role is Role.LEADER and seconds >= self.timing.election_seconds(replica.group_id):
                self.guarded(replica, replica.require_confirmation)
                self.mark_dirty(replica)
