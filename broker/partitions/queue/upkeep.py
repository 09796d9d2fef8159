"""Do the unasked work of a queue partition: carry the time, follow the topic's settings, and let the log be truncated.

The leader carries the time: when something is due and no other entry does, it proposes a `Tick`. Every replica evacuates bodies, so that
its own log can be truncated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Protocol

import structlog
from raftmq.broker.base.request_error import RequestError
from raftmq.broker.partitions.host import PartitionHost
from raftmq.broker.partitions.queue.bodies import bodies_to_evacuate
from raftmq.broker.partitions.queue.clock import QueueClock
from raftmq.broker.partitions.queue.commands import QueueCommands
from raftmq.broker.partitions.queue.config import QueueConfig
from raftmq.broker.partitions.queue.due_pace import DuePace
from raftmq.broker.partitions.queue.jobs import QueueJobs
from raftmq.broker.partitions.queue.leases import QueueLeases
from raftmq.broker.partitions.queue.schedules import QueueSchedules
from raftmq.broker.partitions.queue.statistics import QueueStatistics
from raftmq.broker.partitions.queue.views import QueueViews, Wanted
from raftmq.broker.replica.deadline_timer import DeadlineTimer
from raftmq.broker.replica.log_tail import index_before_tail
from raftmq.broker.replica.replica import Replica
from raftmq.fsm.queue.commands import Configure, Tick
from raftmq.fsm.queue.message import DEAD
from raftmq.fsm.queue.partition import QueuePartition
from raftmq.fsm.queue.rows import GENERATION_TAGS, SCALARS, table_prefix
from raftmq.fsm.queue.state import decode_scalars
from raftmq.fsm.tables import number_key
from raftmq.raft.ready import Role, RoleChange
from raftmq.storage.errors import StorageFullError
from raftmq.storage.log_store import ReplicaKey
from raftmq.storage.state_store import (
    EVACUATED_BODIES_MAX,
    EVACUATED_BYTES_MAX,
    LocatedBody,
    StateStore,
    location_key,
    sequence_of,
)
from raftmq.types import LogIndex, Offset

log = structlog.get_logger(__name__)

_SCALARS_KEY: Final = number_key(SCALARS, 0)
TICK_MARGIN_SECONDS: Final = 0.0005
"""The timer fires so much after the due time, because queue time counts whole milliseconds."""
TICKS_IN_FLIGHT_MAX: Final = 2
"""Entries that carry the time and are not applied yet. With one of them a message that comes due in that time would wait for two commits."""
LOCATIONS_READ: Final = 256
"""Messages that an evacuation looks for in one read, because few large bodies may be all that it copies."""
PURGED_ROWS_MAX: Final = 256
"""Rows of purged messages that are deleted in one transaction."""


class UpheldQueue(Protocol):
    """A queue partition as its upkeep sees it."""

    replica: Replica[QueuePartition]
    clock: QueueClock
    commands: QueueCommands
    due_pace: DuePace
    leases: QueueLeases
    jobs: QueueJobs
    schedules: QueueSchedules
    upkeep_views: QueueViews
    """Not those of requests, so that no number of them keeps the broker from its own work."""
    statistics: QueueStatistics

    def config(self) -> QueueConfig:
        """Return the topic's settings in force."""
        ...


class QueueUpkeep:
    """The unasked work of one partition."""

    def __init__(self, partition: UpheldQueue, host: PartitionHost, store: StateStore) -> None:
        self._partition = partition
        self._host = host
        self._store = store
        self._timer = DeadlineTimer(host.loop, self._on_due)
        self._ticks_in_flight = 0
        self._ticked_ms = 0
        """The time before which the last tick was proposed: it promotes everything that was due then, up to `_ticked_max` messages."""
        self._ticked_max = 0
        self._is_configuring = False
        replica = partition.replica
        replica.progress_listeners.append(self._on_progress)
        replica.role_listeners.append(self._on_role)

    # ------------------------------------------------------------------------------------------------ time

    def _on_progress(self) -> None:
        """Set the timer to the next due time, if this replica leads."""
        replica = self._partition.replica
        if not replica.is_leader or replica.applier.is_suspended:
            return
        self.configure()
        deadline, clock = self._next_deadline(), self._partition.clock
        if deadline is not None:
            wait_ms = deadline - clock.read_ms()
            if not clock.is_running:
                wait_ms = clock.unknown_pause_ms
            self._timer.set(self._host.loop.time() + max(0, wait_ms) / 1000 + TICK_MARGIN_SECONDS)

    def _on_role(self, change: RoleChange) -> None:
        if change.role is not Role.LEADER:
            self._timer.cancel()

    def _next_deadline(self) -> int | None:
        """Return the queue time at which the next tick is due. While one is under way, only delayed messages that it does not promote count."""
        machine, clock = self._partition.replica.state_machine, self._partition.clock
        if not self._ticks_in_flight:
            return machine.next_deadline(clock.leases_end_from_ms, clock.spared_through_ms)
        return (
            machine.next_due_after(self._ticked_ms, self._ticked_max)
            if self._ticks_in_flight < TICKS_IN_FLIGHT_MAX
            else None
        )

    def _on_due(self) -> None:
        replica = self._partition.replica
        if not replica.is_leader or replica.applier.is_suspended:
            return  # progress sets the timer again
        deadline, clock = self._next_deadline(), self._partition.clock
        if deadline is None or deadline > clock.read_ms() or not clock.is_running or self._propose_tick():
            self._on_progress()

    def tick(self) -> None:
        """Propose an entry that carries the time, unless one is under way."""
        if not self._ticks_in_flight:
            self._propose_tick()

    def _propose_tick(self) -> bool:
        """Propose an entry that carries the time. Return False if it was refused. The leases of messages that it promotes travel in it."""
        ticked_ms, due_max = self._partition.clock.read_ms(), self._partition.due_pace.due_max()
        try:
            future = self._partition.commands.submit(Tick())
        except RequestError:
            return False
        self._ticks_in_flight += 1
        self._ticked_ms, self._ticked_max = ticked_ms, due_max
        future.add_done_callback(lambda _: self._on_ticked())
        return True

    def _on_ticked(self) -> None:
        self._ticks_in_flight -= 1
        self._on_progress()  # a timer that ended between the application of the tick and now proposed nothing
        self._partition.leases.wake()

    # ------------------------------------------------------------------------------------------------ settings

    def configure(self) -> None:
        """Bring the topic's settings into the partition's log when they differ from those that it applies."""
        settings = self._partition.config().machine
        if self._is_configuring or settings == self._partition.replica.state_machine.state.settings:
            return
        try:
            future = self._partition.commands.submit(Configure(settings))
        except RequestError:
            return
        self._is_configuring = True
        future.add_done_callback(lambda _: self._on_configured())

    def _on_configured(self) -> None:
        self._is_configuring = False

    # ------------------------------------------------------------------------------------------------ the log

    async def maintain(self) -> None:
        """Do the periodic work: retain the dead, delete the rows of purged messages, and evacuate bodies that keep a long
        log from being truncated.

        Work of which much is left goes on in the next round: the retention and the maps of all partitions here wait for the end of this one.
        """
        # timers run in the time of the loop, which stands still while the machine is suspended, and the queue clock does not
        self._on_progress()
        self._partition.schedules.wake()
        self._partition.jobs.wake()
        with suppress(RequestError, TimeoutError):  # another replica leads, or the next round succeeds
            async with asyncio.timeout(self._host.timing.retention_check_seconds):
                await self._look_around()
        replica, store = self._partition.replica, self._store
        try:
            await self._repeat(delete_purged, store, replica.key)
            tail = self._tail_index()
            if tail is not None:
                await self._repeat(evacuate, store, replica.key, tail)
        except StorageFullError as error:
            log.info("bodies_not_evacuated", group_id=replica.group_id, reason=str(error))

    async def _repeat(self, step: Callable[..., bool], *arguments: object) -> None:
        """Do a step on the thread that writes states until nothing is left, or for the interval of the rounds."""
        loop = self._host.loop
        end_at = loop.time() + self._host.timing.retention_check_seconds
        while not self._partition.replica.is_closed and loop.time() < end_at:
            if not await self._host.in_write_back(step, *arguments):
                break

    async def _look_around(self) -> None:
        """Measure the age of ready messages, and let dead ones that are too many or too old be removed, if this replica leads."""
        partition = self._partition
        machine = partition.replica.state_machine
        if not partition.replica.is_leader:
            return
        await partition.statistics.measure(partition.upkeep_views)
        if machine.state.scalars.dead_count:
            found = await partition.upkeep_views.page(Wanted((DEAD,)), b"", 1)
            oldest = found.messages[0] if found.messages else None
            await partition.jobs.retain_dead(partition.config(), machine.state.scalars.now, oldest)

    def _tail_index(self) -> LogIndex | None:
        """Return the last index that only bodies may keep, or None while the log is short."""
        return index_before_tail(self._partition.replica)

    async def truncation_index(self) -> LogIndex | None:
        """Return the last log index that no body and no absent member needs, or None if too few rows could be deleted."""
        replica, tail = self._partition.replica, self._tail_index()
        if tail is None:
            return None
        needed = await replica.in_thread(first_needed, self._store, replica.key)
        index = tail if needed is None else min(tail, LogIndex(needed - 1))
        return LogIndex(index) if index > replica.log_start.index else None


def first_needed(store: StateStore, key: ReplicaKey) -> LogIndex | None:
    """Return the index of the first entry whose bodies are needed and not evacuated, as of the durable state, or None.

    After the installation of a snapshot the log may still lack that entry. Then all entries are needed.
    """
    sequence = store.first_location(key, store.evacuated_through(key))
    return None if sequence is None else store.find_offset(key, Offset(sequence)) or LogIndex(1)


def durable_generation(store: StateStore, key: ReplicaKey) -> int | None:
    """Return the generation of the durable state, whose earlier rows are invisible, or None before the first write-back."""
    (found,) = store.read_rows(key, [(_SCALARS_KEY, _SCALARS_KEY + b"\0", 1)])
    return decode_scalars(found[0][1]).generation if found else None


def delete_purged(store: StateStore, key: ReplicaKey) -> bool:
    """Delete a slice of the rows of purged messages. Return whether there may be more. Blocks."""
    generation = durable_generation(store, key)
    if generation is None:
        return False
    return any(
        store.delete_rows(key, (table_prefix(tag, 0), table_prefix(tag, generation)), PURGED_ROWS_MAX)
        for tag in GENERATION_TAGS
    )


def evacuate(store: StateStore, key: ReplicaKey, through_index: LogIndex) -> bool:
    """Copy the next bodies of entries up to an index into the state file. Return whether there may be more. Blocks."""
    generation = durable_generation(store, key)
    if generation is None:
        return False
    through = store.evacuated_through(key)
    first = through + 1
    bodies: list[LocatedBody] = []
    size = 0
    while len(bodies) < EVACUATED_BODIES_MAX:
        (locations,) = store.read_rows(
            key, [(location_key(generation, first), location_key(generation + 1, 0), LOCATIONS_READ)]
        )
        sequences = [sequence_of(row_key) for row_key, _ in locations]
        before = len(bodies)
        for sequence, body in bodies_to_evacuate(store, key, sequences, through_index):
            size += len(body)
            if bodies and size > EVACUATED_BYTES_MAX:
                break
            bodies.append((location_key(generation, sequence), body))
        if len(bodies) - before < LOCATIONS_READ:
            break
        first = sequences[-1] + 1
    return bool(bodies) and store.evacuate(key, bodies, through)
