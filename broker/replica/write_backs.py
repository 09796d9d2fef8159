"""Write derived states that are larger than memory back to their files, in a transaction of their own, now and then.

A message that is enqueued, leased and accepted between two write-backs is never a row. A restart replays the log from the last
write-back. So a write-back is due after a number of changed rows, after a number of bytes to replay, after a time, when the
membership changed, and before a truncation that needs it.

Invariants: one write-back of a replica is in flight; none begins while an entry is half applied or a snapshot is being installed; the
machine keeps the rows of a write-back until they are durable, also while the disk is full.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial

import structlog
from raftmq.broker.base.limits import Limits, Timing
from raftmq.broker.base.log_throttle import LogThrottle
from raftmq.broker.replica.disk import SPACE_RETRY_SECONDS, Installing
from raftmq.broker.replica.engine_host import EngineHost
from raftmq.broker.replica.replica import Replica
from raftmq.broker.replica.row_loads import RowLoads
from raftmq.fsm.state_machine import DiskBackedMachine, StateMachine
from raftmq.raft.entry import Entry
from raftmq.storage.errors import CommitFailedError, ReplicaClosedError, StorageFullError
from raftmq.storage.log_store import ReplicaKey
from raftmq.storage.state_store import StateStore, StateWrite

log = structlog.get_logger(__name__)


class WriteBack:
    """The write-back of one replica."""

    __slots__ = ("began_at", "bytes_to_replay", "idle_actions", "in_flight", "is_wanted", "machine", "replica")

    def __init__(self, replica: Replica[StateMachine], machine: DiskBackedMachine, now: float) -> None:
        self.replica = replica
        self.machine = machine
        self.began_at = now
        """Loop time at which the last write-back began."""
        self.bytes_to_replay = 0
        """Payload bytes of the entries applied since then."""
        self.in_flight: StateWrite | None = None
        self.is_wanted = False
        """Whether another write-back must begin as soon as one may."""
        self.idle_actions: list[Callable[[], None]] = []
        """Called when the write-back in flight has ended."""

    def on_applied(self, entry: Entry, _result: object) -> None:
        """Count an applied entry."""
        self.bytes_to_replay += len(entry.payload)


class WriteBacks:
    """The write-backs of one engine's replicas."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        host: EngineHost,
        store: StateStore,
        thread: Executor,
        loads: RowLoads,
        limits: Limits,
        timing: Timing,
    ) -> None:
        """Take `thread`, a single one that writes no logs: an acknowledgement must not wait for a write-back."""
        self._loop = loop
        self._host = host
        self._store = store
        self._thread = thread
        self._loads = loads
        self._limits = limits
        self._timing = timing
        self._of: dict[ReplicaKey, WriteBack] = {}
        self._space_throttle = LogThrottle()

    def add(self, replica: Replica[StateMachine]) -> None:
        """Write a replica's state back from now on, if its machine keeps rows on disk."""
        machine = replica.state_machine
        if isinstance(machine, DiskBackedMachine):
            write_back = self._of[replica.key] = WriteBack(replica, machine, self._loop.time())
            replica.applier.listeners.append(write_back.on_applied)
            replica.progress_listeners.append(partial(self._on_progress, write_back))

    def remove(self, replica: Replica[StateMachine]) -> None:
        """Forget a replica that is closed. A write-back in flight still ends."""
        self._of.pop(replica.key, None)

    def is_behind(self, replica: Replica[StateMachine]) -> bool:
        """Return whether so many rows wait that the replica must accept no appends until a write-back has ended."""
        write_back = self._of.get(replica.key)
        return write_back is not None and write_back.machine.dirty_count > self._limits.write_back_backlog_rows_max

    # ------------------------------------------------------------------------------------------------ beginning

    def tick(self) -> None:
        """Begin the write-backs that are due by time."""
        due_before = self._loop.time() - self._timing.write_back_seconds
        for write_back in list(self._of.values()):
            replica = write_back.replica
            is_due = (
                write_back.began_at <= due_before and write_back.machine.applied_index > replica.durable_state_index
            )
            if is_due or write_back.is_wanted or replica.core.membership != replica.durable_membership:
                self._host.guarded(replica, self.start, replica)

    def _on_progress(self, write_back: WriteBack) -> None:
        """Begin a write-back that is due by the amount of work."""
        limits = self._limits
        if (
            write_back.is_wanted
            or write_back.machine.dirty_count >= limits.write_back_rows_max
            or write_back.bytes_to_replay >= limits.write_back_bytes_max
        ):
            self.start(write_back.replica)

    def start(self, replica: Replica[StateMachine]) -> None:
        """Begin a write-back now. If none may begin, one begins as soon as it may."""
        write_back = self._of.get(replica.key)
        if write_back is None:
            return
        write_back.is_wanted = True
        if write_back.in_flight is not None or not _may_begin(replica):
            return
        machine = write_back.machine
        membership = replica.core.membership
        write_back.is_wanted = False
        write_back.began_at = self._loop.time()
        write_back.bytes_to_replay = 0
        if machine.applied_index <= replica.durable_state_index:
            return
        write_back.in_flight = StateWrite(
            machine.applied_index,
            machine.take_dirty_rows(),
            membership if membership != replica.durable_membership else None,
        )
        self._submit(write_back)

    def _submit(self, write_back: WriteBack) -> None:
        replica, write = write_back.replica, write_back.in_flight
        assert write is not None
        future = self._thread.submit(self._write, replica, write)
        future.add_done_callback(lambda done: self._loop.call_soon_threadsafe(self._on_done, write_back, done))

    def _write(self, replica: Replica[StateMachine], write: StateWrite) -> None:
        """Write in the thread, unless the replica was closed while the write waited for its turn: its file may be open again by then.

        The replica of the later life began from the earlier state. It would read rows of a state that is ahead of it.
        """
        if replica.is_closed:
            raise ReplicaClosedError(replica.key, "closed before its state was written back")
        self._store.write_state(replica.key, write)

    def _submit_again(self, write_back: WriteBack) -> None:
        if not write_back.replica.is_closed:
            self._submit(write_back)

    # ------------------------------------------------------------------------------------------------ the end

    def _on_done(self, write_back: WriteBack, done: Future[None]) -> None:
        replica, error = write_back.replica, done.exception()
        if isinstance(error, CommitFailedError) or (error is not None and not isinstance(error, Exception)):
            self._host.on_fatal(error)
        elif replica.is_closed:
            return
        elif isinstance(error, StorageFullError):
            if self._space_throttle.is_due(replica.group_id):
                log.warning("write_back_waits_for_space", group_id=replica.group_id, reason=str(error))
            self._loop.call_later(SPACE_RETRY_SECONDS, self._submit_again, write_back)
        elif error is not None:
            assert isinstance(error, Exception)
            self._host.break_replica(replica, error)
        else:
            self._loads.after_current(replica.key, lambda: self._host.guarded(replica, self._on_durable, write_back))

    def _on_durable(self, write_back: WriteBack) -> None:
        replica, write = write_back.replica, write_back.in_flight
        assert write is not None
        write_back.in_flight = None
        if not isinstance(replica.disk, Installing):  # otherwise the machine's state is about to be replaced
            write_back.machine.on_rows_written()
            replica.on_state_written(write)
        actions, write_back.idle_actions = write_back.idle_actions, []
        for action in actions:
            action()
        if write_back.is_wanted:
            self.start(replica)

    def when_idle(self, replica: Replica[StateMachine], action: Callable[[], None]) -> None:
        """Call `action` when no write-back of the replica is in flight: immediately if there is none."""
        write_back = self._of.get(replica.key)
        if write_back is None or write_back.in_flight is None:
            action()
        else:
            write_back.idle_actions.append(action)


def _may_begin(replica: Replica[StateMachine]) -> bool:
    """Return False while the machine's rows do not describe a whole entry, or the disk is about to have another state."""
    return (
        not replica.is_closed
        and not replica.applier.is_suspended
        and not isinstance(replica.disk, Installing)
        and replica.core.log.snapshot is None
    )
