"""Read rows of derived states in threads, for machines that keep most of their rows on disk.

A read shows the durable state as of its beginning. So a machine may forget the rows that a write-back made durable only after the reads
that began before have reached it (`after_current`): a read of the older state does not show them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from itertools import count

import structlog
from raftmq.broker.base.log_throttle import LogThrottle
from raftmq.broker.replica.engine_host import EngineHost
from raftmq.broker.replica.replica import Replica
from raftmq.fsm.row_reads import RowRange, RowsFound, RowsNeeded
from raftmq.fsm.state_machine import StateMachine
from raftmq.storage.errors import ReplicaClosedError, StorageUnavailableError
from raftmq.storage.log_store import ReplicaKey

log = structlog.get_logger(__name__)

RETRY_SECONDS = 0.1
"""The pause after a file that cannot be read now (no memory, no descriptors)."""

Read = Callable[[ReplicaKey, Sequence[RowRange]], RowsFound]
"""Reads ranges of a replica's durable rows, in one transaction. Blocks."""


class RowLoads:
    """The reads of rows of one engine's replicas."""

    def __init__(self, loop: asyncio.AbstractEventLoop, host: EngineHost, threads: Executor, read: Read) -> None:
        self._loop = loop
        self._host = host
        self._threads = threads
        self._read = read
        self._ids = count(1)
        self._under_way: dict[ReplicaKey, set[int]] = {}
        self._waiting: dict[ReplicaKey, list[tuple[set[int], Callable[[], None]]]] = {}
        """Actions of `after_current`, each with the reads for which it waits."""
        self._throttle = LogThrottle()

    def start(self, replica: Replica[StateMachine], needed: RowsNeeded, on_found: Callable[[RowsFound], None]) -> None:
        """Read rows, then call `on_found` on the loop, unless the replica is closed by then. A damaged row breaks the replica."""
        load_id = next(self._ids)
        self._under_way.setdefault(replica.key, set()).add(load_id)
        future = self._loop.run_in_executor(self._threads, self._read, replica.key, needed.ranges)
        future.add_done_callback(lambda done: self._on_read(replica, load_id, needed, on_found, done))

    def _on_read(
        self,
        replica: Replica[StateMachine],
        load_id: int,
        needed: RowsNeeded,
        on_found: Callable[[RowsFound], None],
        done: asyncio.Future[RowsFound],
    ) -> None:
        error = None if done.cancelled() else done.exception()
        if error is None and not done.cancelled():
            self._host.guarded(replica, on_found, done.result())
            self._host.mark_dirty(replica)
        elif isinstance(error, StorageUnavailableError):
            if self._throttle.is_due(replica.key):
                log.warning("rows_not_read", group_id=replica.group_id, reason=str(error))
            self._loop.call_later(RETRY_SECONDS, self._again, replica, needed, on_found)
        elif isinstance(error, Exception) and not isinstance(error, ReplicaClosedError):
            self._host.break_replica(replica, error)
        self._end(replica.key, load_id)

    def _again(self, replica: Replica[StateMachine], needed: RowsNeeded, on_found: Callable[[RowsFound], None]) -> None:
        if not replica.is_closed:
            self.start(replica, needed, on_found)

    def _end(self, key: ReplicaKey, load_id: int) -> None:
        under_way = self._under_way[key]
        under_way.remove(load_id)
        if not under_way:
            del self._under_way[key]
        due: list[Callable[[], None]] = []
        still: list[tuple[set[int], Callable[[], None]]] = []
        for load_ids, action in self._waiting.pop(key, ()):
            load_ids.discard(load_id)
            if load_ids:
                still.append((load_ids, action))
            else:
                due.append(action)
        if still:
            self._waiting[key] = still
        for action in due:
            action()

    def after_current(self, key: ReplicaKey, action: Callable[[], None]) -> None:
        """Call `action` when the reads of the replica that are under way now have ended: immediately if there are none."""
        under_way = self._under_way.get(key)
        if under_way:
            self._waiting.setdefault(key, []).append((set(under_way), action))
        else:
            action()
