"""One replica in the simulator: the thinnest shell that runs a `RaftCore`, with its disk, state machine and clock.

It makes no decision of consensus. It handles a `Ready` as the product's engine does, but in virtual time.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

from raftmq.errors import violated
from raftmq.raft.core import RaftCore, RestoredState
from raftmq.raft.entry import Entry, EntryHeader, EntryKind, LogPosition
from raftmq.raft.log_view import LogView, Random
from raftmq.raft.messages import (
    Heartbeat,
    HeartbeatResponse,
    InstallSnapshot,
    Message,
    SnapshotMeta,
    VoteResponse,
)
from raftmq.raft.ready import AppendWork, Ready, Role
from raftmq.raft.settings import RaftSettings
from raftmq.types import LogIndex, ReplicaId

from sim.core.checker import Checker
from sim.core.describe import describe_entries, describe_membership, describe_message, describe_meta
from sim.core.disk import AppendJob, CompactionJob, DerivedState, DiskJob, SimDisk
from sim.core.events import EventHeap
from sim.core.network import SimNetwork
from sim.core.options import TICK, SwarmOptions
from sim.core.state_machine import MachineState, applied

ROUNDS_MAX = 10_000
"""Maximum number of outputs of a core for one input. More mean an endless loop."""

CoreFactory = Callable[[ReplicaId, RestoredState, LogView, Random, RaftSettings], RaftCore]


@dataclass(slots=True)
class World:
    """The objects that all replicas of one run share."""

    events: EventHeap
    random: random.Random
    options: SwarmOptions
    network: SimNetwork
    checker: Checker
    core_factory: CoreFactory
    on_leader: Callable[[SimReplica], None]
    """Called with each replica that becomes leader, since clients may wait for one."""
    trace: Callable[[str], None] | None
    """None if nobody reads the trace, so that nothing is formatted."""


class SimReplica:
    """A replica that may crash, restart, pause, and lose its disk."""

    def __init__(self, world: World, replica_id: ReplicaId, disk: SimDisk) -> None:
        self.world = world
        self.replica_id = replica_id
        self.disk = disk
        self.core: RaftCore | None = None
        """None while the replica is crashed."""
        self.is_destroyed = False
        """Whether the replica's disk is lost, or the replica was removed and deleted. It never comes back."""
        self.life = 0
        """Counts starts and crashes. Events of an earlier life are ignored."""
        self.paused_until = 0
        low, high = world.options.clock_rates
        self.tick_length = max(1, int(TICK * world.random.uniform(low, high)))
        # Disks differ in speed: the tail of a slow replica among fast ones is replaced while it is still being written.
        self._append_delay_max = int(world.options.append_delay_max * world.random.choice((0.02, 0.1, 1.0)))
        self.start()

    # ------------------------------------------------------------------------------------------------ life and death

    def start(self) -> None:
        """Start a core from the durable state."""
        self.life += 1
        self.machine = self.disk.state.machine
        self.waiters: dict[int, Entry] = {}
        """Index -> the entry for which a client waits."""
        self._applying: deque[tuple[Entry, ...]] = deque()
        self._snapshots_in_flight = 0
        self._snapshots: dict[int, MachineState] = {}
        """Index -> the state of a snapshot that this replica offered."""
        self._last_write = 0
        self._untold: deque[AppendWork] = deque()
        """Durable writes whose responses were sent, but of which the core does not know yet."""
        self._last_told = 0
        self._is_warm = False
        self._is_fetching = False
        self.observation = self.world.checker.observe(self.replica_id, self.disk)
        self.core = self.world.core_factory(
            self.replica_id, self.disk.restored(), _DiskView(self), self.world.random, self.world.options.settings
        )
        self.core.snapshot_meta = self._offer_snapshot
        if self.world.trace:
            self._trace(
                f"starts: {self.disk.hard_state} log {self.disk.log.position.index}..{self.disk.log.last_index}"
            )
        self.world.events.after(int(self.world.random.random() * self.tick_length) + 1, self._on_tick, self.life)
        self.pump()

    def crash(self) -> None:
        """Crash: lose everything that is not durable."""
        in_flight = len(self.disk.pending)
        self.disk.crash(self.world.random.randrange(in_flight + 1))
        self.core = None
        self.life += 1
        self.world.checker.forget(self.replica_id)
        if self.world.trace:
            self._trace("crashes")

    def destroy(self) -> None:
        """Crash, and never come back."""
        if self.core is not None:
            self.crash()
        self.is_destroyed = True

    # ---------------------------------------------------------------------------------------------------------- input

    def _on_tick(self, life: int) -> None:
        core = self.core
        if life != self.life or core is None:
            return
        events = self.world.events
        if self.paused_until > events.now:
            events.after(self.paused_until - events.now, self._on_tick, life)
            return
        core.tick()
        self.observation.quorum_heard.on_tick(core)
        if core.campaign_due:
            core.campaign()
        self.pump()
        events.after(self.tick_length, self._on_tick, life)

    def receive(self, message: Message) -> None:
        """Handle an arriving message."""
        core = self.core
        if core is None:
            return
        pause = self.paused_until - self.world.events.now
        if pause > 0:
            # After a pause all messages are there simultaneously, and sockets are read in any order.
            jitter = 0 if self.world.options.is_ordered else int(self.world.random.random() * TICK)
            self.world.events.after(pause + jitter, self.receive, message)
            return
        if self.world.trace:
            self._trace("receives " + describe_message(message))
        self.observation.quorum_heard.on_message(message.source)
        if not (self.world.options.uses_quiet_heartbeats and self._receive_quietly(core, message)):
            self._step(core, message)
        self.pump()

    def _step(self, core: RaftCore, message: Message) -> None:
        if isinstance(message, VoteResponse):
            self.world.checker.on_step(self, core, message)
        else:
            core.step(message)

    def _receive_quietly(self, core: RaftCore, message: Message) -> bool:
        """Try the product's fast path for packed heartbeats. Return whether it handled the message."""
        if isinstance(message, Heartbeat):
            if message.target != self.replica_id or not core.on_quiet_heartbeat(
                message.source, message.term, message.commit_index
            ):
                return False
            response = HeartbeatResponse(message.target, message.source, message.term, message.read_counter)
            self.world.network.send(response)
            return True
        if isinstance(message, HeartbeatResponse):
            return message.target == self.replica_id and core.on_quiet_heartbeat_response(
                message.source, message.term, message.read_counter
            )
        return False

    def report(self, message: Message, is_delivered: bool) -> None:
        """Report the fate of a message that this replica sent, as the transport does."""
        core = self.core
        if core is None:
            return
        if isinstance(message, InstallSnapshot):
            core.report_snapshot(message.target, is_delivered)
        else:
            core.report_unreachable(message.target)
        self.pump()

    def compact(self, keep: int) -> None:
        """Delete the log except the last `keep` applied entries and the entries after them."""
        index = min(self.machine.index, self.disk.log.last_index) - keep
        core = self.core
        if core is None or index <= self.disk.log.position.index or index > core.applied_index:
            return
        state = self._derived(core)
        if state is not None:
            self._submit(CompactionJob(self.disk.log.position_at(index), state))

    # --------------------------------------------------------------------------------------------------------- output

    def pump(self) -> None:
        """Handle the core's output until there is no more."""
        core = self.core
        options = self.world.options
        for _ in range(ROUNDS_MAX):
            if core is None:
                return
            if core.heartbeat_due:
                self._send_heartbeats(core)
            with_append = len(self.disk.pending) + len(self._untold) < options.appends_in_flight_max
            if not core.has_ready(with_append):
                self.world.checker.after_event(self, core)
                return
            ready = core.ready(with_append)
            self.world.checker.after_event(self, core)
            self.world.checker.on_ready(self, ready)
            self._run(core, ready)
            core = self.core
        violated("ready_ends", replica_id=self.replica_id)

    def _send_heartbeats(self, core: RaftCore) -> None:
        send = self.world.network.send
        for target, commit_index, read_counter in core.take_heartbeats():
            send(Heartbeat(self.replica_id, target, core.term, commit_index, read_counter))

    def _run(self, core: RaftCore, ready: Ready) -> None:
        world = self.world
        change = ready.role_change
        if change is not None:
            if world.trace:
                self._trace(f"is {change.role.value} in term {change.term}, leader {change.leader_id}")
            if change.role is Role.LEADER:
                world.on_leader(self)
        for message in ready.messages:
            self._send_early(message)
        if ready.append is not None:
            self._write(core, ready.append)
        if ready.apply:
            self._apply_later(ready.apply)
        for read in ready.reads:
            world.checker.reads.on_confirmed(self.replica_id, read.request_id, read.read_index)

    def _send_early(self, message: Message) -> None:
        """Send a message that does not wait for a write."""
        self.world.checker.on_message(self, message)
        self._send(message)

    def _send(self, message: Message) -> None:
        if isinstance(message, InstallSnapshot):
            message = replace(message, data=self._snapshots[message.meta.state_index])
        if self.world.trace:
            self._trace("sends " + describe_message(message))
        self.world.network.send(message)

    # ----------------------------------------------------------------------------------------------------------- disk

    def _derived(self, core: RaftCore) -> DerivedState | None:
        """Return the state and the membership of the same index, for a write, or None while there is no such pair.

        Scenario: the core accepts a snapshot as of 31 while 28 is being applied and the disk is busy. Until the snapshot is
        handed out and durable, the core's membership is that of 31 and the state machine is older: never write both.
        """
        if self._snapshots_in_flight or self.machine.index != max(core.applied_index, core.state_floor):
            return None
        return DerivedState(self.machine, core.membership)

    def _write(self, core: RaftCore, work: AppendWork) -> None:
        self.world.checker.on_write(self, work, is_leader=core.role is Role.LEADER)
        if work.snapshot is not None:
            # The snapshot covers the entries being applied. The state machine is replaced when the snapshot is durable.
            self._snapshots_in_flight += 1
            self._applying.clear()
        if self.world.trace:
            self._trace_write(work)
        self._submit(AppendJob(work, self._derived(core)))

    def _submit(self, job: DiskJob) -> None:
        events = self.world.events
        self.disk.submit(job)
        delay_max = min(self._append_delay_max, TICK // 5) if self.world.network.is_healed else self._append_delay_max
        delay = int(self.world.random.random() * delay_max)
        # No write completes before an earlier one. `_last_write` also reflects a stall of the whole disk.
        time = max(events.now + delay, self._last_write)
        self._last_write = time
        events.after(time - events.now, self._on_written, self.life)

    def stall_disk(self, duration: int) -> None:
        """Let writes submitted from now on complete after `duration` at the earliest."""
        self._last_write = max(self._last_write, self.world.events.now + duration)

    def _on_written(self, life: int) -> None:
        core = self.core
        if life != self.life or core is None:
            return
        if self.paused_until > self.world.events.now:
            self.world.events.after(self.paused_until - self.world.events.now, self._on_written, life)
            return
        job = self.disk.complete()
        self.world.checker.on_durable(self)
        if isinstance(job, CompactionJob):
            self._compacted(core, job.position)
        else:
            self._release(core, job.work)
            delay = int(self.world.random.random() * self.world.options.told_delay_max)
            if delay or self._untold:
                self._untold.append(job.work)
                self._last_told = max(self.world.events.now + delay, self._last_told)
                self.world.events.after(self._last_told - self.world.events.now, self._on_told, self.life)
            else:
                self._tell(core, job.work)
        self.pump()

    def _compacted(self, core: RaftCore, position: LogPosition) -> None:
        """Inform the core that the durable log was compacted."""
        if self.disk.log.position == position:
            core.compacted(position)
            handed = self.observation.handed
            if position.index > handed.position.index:
                handed.compact(position)
            if self.world.trace:
                self._trace(f"compacted up to {position.index}")

    def _release(self, core: RaftCore, work: AppendWork) -> None:
        """Send the responses that waited for a write, which is durable now."""
        if work.snapshot is not None:
            self._snapshots_in_flight -= 1
            self.machine = self.disk.state.machine
            self.waiters.clear()
        for message in work.responses:
            self.world.checker.on_response(self, message)
            if message.target == self.replica_id:
                core.step(message)
            else:
                self._send(message)

    def _on_told(self, life: int) -> None:
        core = self.core
        if life == self.life and core is not None:
            self._tell(core, self._untold.popleft())
            self.pump()

    def _tell(self, core: RaftCore, work: AppendWork) -> None:
        core.append_done(work.token)
        self.world.checker.on_append_done(self, core)

    def read_log(self, first: int, last: int, bytes_max: int) -> tuple[Entry, ...] | None:
        """Return durable entries to the core, or None if they must be fetched first, which is random."""
        world = self.world
        is_cold = world.options.cold_reads and not self._is_warm and not world.network.is_healed
        if is_cold and world.random.random() < world.options.cold_reads:
            if not self._is_fetching:
                self._is_fetching = True
                world.events.after(int(world.random.random() * 2 * TICK) + 1, self._on_fetched, self.life)
            return None
        return self.disk.read(first, last, bytes_max)

    def _on_fetched(self, life: int) -> None:
        core = self.core
        if life != self.life or core is None:
            return
        self._is_fetching = False
        self._is_warm = True
        core.entries_fetched()
        self.pump()
        self._is_warm = False

    # -------------------------------------------------------------------------------------------------------- machine

    def _apply_later(self, entries: tuple[Entry, ...]) -> None:
        self.world.checker.on_apply(self, entries)
        self._applying.append(entries)
        delay_max = self.world.options.apply_delay_max
        if delay_max == 0:
            self._apply(self.life)
        else:
            self.world.events.after(delay_max, self._on_applied, self.life)

    def _on_applied(self, life: int) -> None:
        if life == self.life and self.core is not None:
            self._apply(life)
            self.pump()

    def _apply(self, life: int) -> None:
        core = self.core
        if life != self.life or core is None or not self._applying:
            return
        entries = self._applying.popleft()
        state = self.machine
        acknowledged = self.world.checker.acknowledged
        for entry in entries:
            if entry.index > state.index:  # the state of a snapshot contains the others already
                state = applied(state, entry)
                self.world.checker.applied_state.on_state(self.replica_id, state)
            waiting = self.waiters.pop(entry.index, None)
            if waiting is not None and waiting.term == entry.term:
                acknowledged.on_acknowledged(waiting)
        self.machine = state
        core.apply_done(entries[-1].index)
        if any(entry.kind is EntryKind.MEMBERSHIP for entry in entries) and self.world.trace:
            self._trace(f"membership at {entries[-1].index}: {describe_membership(core.membership)}")
        if self._derived(core) is not None:
            self.world.checker.on_applied(self, state, core)

    def _offer_snapshot(self) -> SnapshotMeta | None:
        core = self.core
        if core is None or self._derived(core) is None or core.applied_index < self.machine.index:
            return None
        self._snapshots[self.machine.index] = self.machine
        return SnapshotMeta(self.disk.log.position, LogIndex(self.machine.index), core.membership)

    # ---------------------------------------------------------------------------------------------------------- trace

    def _trace(self, text: str) -> None:
        trace = self.world.trace
        if trace:
            trace(f"{self.world.events.now:>7} r{self.replica_id} {text}")

    def _trace_write(self, work: AppendWork) -> None:
        parts = [f"writes {describe_entries(work.entries)}"]
        if work.hard_state is not None:
            state = work.hard_state
            parts.append(f"term={state.term} vote={state.vote} commit={state.commit_index}")
        if work.snapshot is not None:
            parts.append("snapshot " + describe_meta(work.snapshot.meta))
        self._trace(" ".join(parts) + f" #{work.token.sequence}")


class _DiskView:
    """The `LogView` of a core over its replica's disk."""

    __slots__ = ("_replica",)

    def __init__(self, replica: SimReplica) -> None:
        self._replica = replica

    def entries(self, first: LogIndex, last: LogIndex, bytes_max: int) -> tuple[Entry, ...] | None:
        """See `LogView`."""
        return self._replica.read_log(first, last, bytes_max)

    def header(self, index: LogIndex) -> EntryHeader:
        """See `LogView`."""
        return self._replica.disk.header(index)
