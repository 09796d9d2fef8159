"""Do what a queue partition needs without being asked: carry the time, follow the topic's settings, and let the log be truncated.

The leader carries the time: when something is due and no other entry does, it proposes a `Tick`. Every replica evacuates bodies, so that
its own log can be truncated.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import structlog
from raftmq.broker.base.request_error import RequestError
from raftmq.broker.partitions.host import PartitionHost
from raftmq.broker.partitions.queue.bodies import encode_body, read_bodies
from raftmq.broker.replica.deadline_timer import DeadlineTimer
from raftmq.broker.replica.log_tail import LAGGING_ENTRIES_MAX, TAIL_ENTRIES
from raftmq.fsm.queue.commands import Configure, Tick
from raftmq.raft.ready import Role, RoleChange
from raftmq.storage.errors import StorageFullError
from raftmq.storage.log_store import ReplicaKey
from raftmq.storage.state_store import (
    EVACUATED_BODIES_MAX,
    EVACUATED_BYTES_MAX,
    LocatedBody,
    StateStore,
    location_key,
)
from raftmq.types import LogIndex, Offset

if TYPE_CHECKING:
    from raftmq.broker.partitions.queue.partition import PartitionQueue

log = structlog.get_logger(__name__)

TICK_MARGIN_SECONDS: Final = 0.0005
"""The timer fires so much after the due time, because queue time counts whole milliseconds."""
LOG_BYTES_KEPT: Final = 64 << 20
"""Payload bytes of a log that are kept before bodies are evacuated: members that were absent briefly need no snapshot."""


class QueueUpkeep:
    """The unasked work of one partition."""

    def __init__(self, partition: PartitionQueue, host: PartitionHost, store: StateStore) -> None:
        self._partition = partition
        self._host = host
        self._store = store
        self._timer = DeadlineTimer(host.loop, self._on_due)
        self._is_tick_proposed = False
        self._is_configuring = False
        replica = partition.replica
        replica.progress_listeners.append(self._on_progress)
        replica.role_listeners.append(self._on_role)

    # ------------------------------------------------------------------------------------------------ time

    def _on_progress(self) -> None:
        """Set the timer to the next due time, if this replica leads."""
        replica = self._partition.replica
        if not replica.is_leader:
            return
        self._configure()
        deadline = replica.state_machine.next_deadline()
        if deadline is not None:
            wait_ms = deadline - self._partition.clock.read_ms()
            self._timer.set(self._host.loop.time() + max(0, wait_ms) / 1000 + TICK_MARGIN_SECONDS)

    def _on_role(self, change: RoleChange) -> None:
        if change.role is not Role.LEADER:
            self._timer.cancel()

    def _on_due(self) -> None:
        replica = self._partition.replica
        if not replica.is_leader or replica.applier.is_suspended:
            return  # progress sets the timer again
        deadline = replica.state_machine.next_deadline()
        if deadline is not None and deadline <= self._partition.clock.read_ms():
            self.tick()
        else:
            self._on_progress()

    def tick(self) -> None:
        """Propose an entry that carries the time. One is under way."""
        if self._is_tick_proposed:
            return
        try:
            future = self._partition.commands.submit(Tick())
        except RequestError:
            return
        self._is_tick_proposed = True
        future.add_done_callback(lambda _: self._on_ticked())

    def _on_ticked(self) -> None:
        self._is_tick_proposed = False
        self._partition.leases.wake()

    # ------------------------------------------------------------------------------------------------ settings

    def _configure(self) -> None:
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
        """Follow the topic's settings, and evacuate the oldest bodies of a log that is too long."""
        self._on_progress()
        partition = self._partition
        if await partition.replica.in_thread(_log_bytes, self._store, partition.replica.key) <= LOG_BYTES_KEPT:
            return
        try:
            while await self._host.run_write_back(_evacuate, self._store, partition.replica.key):
                if partition.replica.is_closed:
                    return
        except StorageFullError as error:
            log.info("bodies_not_evacuated", group_id=partition.replica.group_id, reason=str(error))
