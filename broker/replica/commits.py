"""Turn the work that cores want durable into writes, one in flight per replica, and tell the cores when it is durable.

One transaction holds the log, the hard state and the derived state applied since the last one. While a write is under way, proposals
and appends gather for the next one: this is the group commit. A failed commit must not be retried: it ends the process.

Invariants: at most one write of a replica is in flight; no write names an entry as committed that the disk does not hold with it;
a truncation never goes beyond the durable state.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Sequence

import structlog
from raftmq.broker.base.limits import Timing
from raftmq.broker.base.log_throttle import LogThrottle
from raftmq.broker.replica.disk import SPACE_RETRY_SECONDS, Idle, Installing, Writing
from raftmq.broker.replica.engine_counters import EngineCounters
from raftmq.broker.replica.engine_host import EngineHost
from raftmq.broker.replica.inbound_bytes import InboundBytes
from raftmq.broker.replica.log_trimmer import LogTrimmer
from raftmq.broker.replica.replica import Replica
from raftmq.broker.replica.write_backs import WriteBacks
from raftmq.broker.replica.writers import Writers
from raftmq.fsm.state_machine import StateMachine
from raftmq.raft.entry import Entry
from raftmq.raft.hard_state import HardState
from raftmq.raft.log import RaftLog
from raftmq.raft.ready import AppendWork
from raftmq.storage.errors import StorageFullError
from raftmq.storage.log_store import LogStore, Update
from raftmq.storage.writer_threads import Completion
from raftmq.types import LogIndex

log = structlog.get_logger(__name__)


@dataclasses.dataclass(slots=True)
class _Write:
    """An append that is being written."""

    replica: Replica[StateMachine]
    work: AppendWork | None
    """The core's work. None if the write holds only derived state or a truncation."""
    update: Update
    inbound_bytes: int = 0
    """The part of the inbound budget that is released when this write is done."""
    began_at: float = dataclasses.field(default_factory=time.perf_counter)
    """Only for measuring its time: a loop's clock may not move within one turn."""


class Commits:
    """Writes the state of one node's replicas."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        host: EngineHost,
        store: LogStore,
        writers: Writers,
        timing: Timing,
        inbound: InboundBytes,
        counters: EngineCounters,
        write_backs: WriteBacks,
    ) -> None:
        self._loop = loop
        self._host = host
        self._writers = writers
        self._timing = timing
        self._inbound = inbound
        self._counters = counters
        self._write_backs = write_backs
        self._prepared: list[_Write] = []
        """Writes that this pass has begun. Invariant: empty between passes."""
        self._space_throttle = LogThrottle()
        self._log_trimmer = LogTrimmer(loop, host, store, writers)

    def close(self) -> None:
        """Start no further work. Submitted writes still complete."""
        self._log_trimmer.close()

    # ------------------------------------------------------------------------------------------------ appends

    def start(self, replica: Replica[StateMachine], work: AppendWork, *, with_inbound: bool = True) -> None:
        """Write the work that a Ready wants durable.

        `with_inbound` says that it holds the entries that the core received, so that their budget is released with it.
        """
        if work.entries:
            replica.log.append(work.entries)
        if not work.must_sync:
            # it is stored with the next write; every earlier write is durable, because only one is in flight
            if with_inbound:
                self._inbound.forget(replica.group_id)
            self.finish(replica, work)
            return
        update = self._update(replica, work)
        replica.begin_write()
        # from here on the write releases it; after a defect before this line the group's removal does
        inbound_bytes = self._inbound.waiting.pop(replica.group_id, 0) if with_inbound else 0
        self._prepared.append(_Write(replica, work, update, inbound_bytes))

    def submit_prepared(self) -> None:
        """Hand the writes of this pass to the writer threads: after its messages left, as a writer that wakes takes the GIL."""
        prepared, self._prepared = self._prepared, []
        for write in prepared:
            if write.replica.is_closed:  # broken later in the pass
                self._inbound.total -= write.inbound_bytes
            else:
                self._host.guarded(write.replica, self._writers.submit, write.replica.key, write.update, write)

    def finish(self, replica: Replica[StateMachine], work: AppendWork) -> None:
        """Send the messages that waited until the work is durable, and tell the core."""
        for message in work.responses:
            self._host.send(replica, message)
        replica.core.append_done(work.token)
        self._host.mark_dirty(replica)

    def _update(self, replica: Replica[StateMachine], work: AppendWork | None) -> Update:
        """Return one transaction: the log, the hard state, and the derived state applied since the last one."""
        machine, core = replica.state_machine, replica.core
        entries = work.entries if work is not None else ()
        end = _last_held(core.log, entries)
        rows: tuple[tuple[bytes, bytes | None], ...] = ()
        state_index: LogIndex | None = None
        membership = None
        if machine.applied_index > replica.durable_state_index and not replica.is_disk_backed:
            rows = machine.take_dirty_rows()
            state_index = machine.applied_index
            if core.membership != replica.durable_membership:
                membership = core.membership
        return Update(
            hard_state=HardState(core.term, core.vote, LogIndex(min(core.commit_index, end))),
            entries=entries,
            truncation=replica.pending_truncation,
            state_rows=rows,
            state_index=state_index,
            membership=membership,
        )

    def on_completions(self, completions: Sequence[Completion]) -> None:
        """Handle writes that are durable, found no disk space, or met damage or a defect."""
        now = time.perf_counter()
        counters = self._counters
        for completion in completions:
            write = completion.token
            assert isinstance(write, _Write)
            replica = write.replica
            if completion.error is not None and not isinstance(completion.error, StorageFullError):
                self._inbound.total -= write.inbound_bytes
                self._host.break_replica(replica, completion.error)
                continue
            if completion.error is not None:
                # the reserve prevents this; if it happens nevertheless, the write waits for space, in order
                if self._space_throttle.is_due(replica.group_id):
                    log.warning("write_waits_for_space", group_id=replica.group_id, reason=str(completion.error))
                self._loop.call_later(SPACE_RETRY_SECONDS, self._submit_again, write)
                continue
            self._inbound.total -= write.inbound_bytes
            counters.commit_seconds.observe(now - write.began_at)
            counters.commit_disk_seconds.observe(completion.seconds)
            entries = write.update.entries
            counters.commit_entries.observe(len(entries))
            counters.commit_bytes.observe(sum(len(entry.payload) for entry in entries))
            self._host.guarded(replica, self._on_durable, replica, write)

    def _submit_again(self, write: _Write) -> None:
        if write.replica.is_closed:
            self._inbound.total -= write.inbound_bytes
        else:
            self._writers.submit(write.replica.key, write.update, write)

    def _on_durable(self, replica: Replica[StateMachine], write: _Write) -> None:
        replica.on_written(write.update)
        if write.update.entries:
            replica.proposals.on_durable(write.update.entries[-1].index)
        if write.update.truncation is not None:
            self._log_trimmer.delete(replica)
        if write.work is not None:
            self.finish(replica, write.work)
        else:
            self._host.mark_dirty(replica)

    def is_hanging(self, replica: Replica[StateMachine], elections: int = 1) -> bool:
        """Return whether the write in flight has taken longer than this many election timeouts."""
        match replica.disk:
            case Idle():
                return False
            case Writing(started_at) | Installing(started_at):
                return self._loop.time() - started_at > elections * self._timing.election_seconds(replica.group_id)

    # ------------------------------------------------------------------------------------------------ derived state

    def flush_state(self, replica: Replica[StateMachine]) -> None:
        """Make the derived state durable on its own, for groups without appends (before a trim)."""
        if replica.is_disk_backed:
            self._write_backs.start(replica)
        elif isinstance(replica.disk, Idle) and self._may_write_derived(replica):
            self._write_derived(replica)

    async def truncate(self, replica: Replica[StateMachine], index: LogIndex) -> None:
        """Delete the log up to `index` (inclusive) as far as it is safe now.

        The truncation never goes beyond the durable state, and waits while a snapshot is streamed.
        """
        index = LogIndex(min(index, replica.durable_state_index, replica.core.applied_index))
        if index <= replica.log_start.index or not self._may_truncate(replica):
            return
        position = await replica.find_position(index)
        # while a thread read, the log may have been truncated, replaced by a snapshot's, or closed
        if (
            position is None
            or not self._may_truncate(replica)
            or not replica.core.log.has(position.index, position.term)
        ):
            return
        if not replica.log_start.index < position.index <= min(replica.durable_state_index, replica.core.applied_index):
            return
        replica.plan_truncation(position)
        if isinstance(replica.disk, Idle):
            self._write_derived(replica)

    def _may_truncate(self, replica: Replica[StateMachine]) -> bool:
        is_free = replica.pending_truncation is None and not replica.outgoing_snapshots.hold_log(
            self._loop.time(), self._timing.snapshot_resume_seconds
        )
        return is_free and self._may_write_derived(replica)

    def delete_truncated_rows(self, replica: Replica[StateMachine]) -> None:
        """Delete rows below the truncation point that an earlier attempt, or an earlier process, left."""
        self._log_trimmer.delete(replica)

    @staticmethod
    def _may_write_derived(replica: Replica[StateMachine]) -> bool:
        """Return False if the core has adopted a snapshot that the machine and the disk do not have yet."""
        return not replica.is_closed and not isinstance(replica.disk, Installing) and replica.core.log.snapshot is None

    def _write_derived(self, replica: Replica[StateMachine]) -> None:
        # rows that were taken from the machine and never written would be missing on disk: an error must stop the replica
        self._host.guarded(replica, self._submit_derived, replica)

    def _submit_derived(self, replica: Replica[StateMachine]) -> None:
        update = self._update(replica, None)
        replica.begin_write()
        self._writers.submit(replica.key, update, _Write(replica, None, update))


def _last_held(log: RaftLog, entries: Sequence[Entry]) -> int:
    """Return the last index up to which the disk holds the core's log after a write of these entries.

    Beyond it nothing may be named as committed on disk. A committed entry may still wait for a later write. And entries that follow a snapshot
    are written after its installation, when another leader may have replaced them: the commit index is then that of other entries.
    Without entries, the disk holds all that were handed out, also those whose write the core did not count because it ended in a later term.
    """
    if not entries:
        return log.offset_in_progress - 1
    return next((one.index for one in reversed(entries) if log.has(one.index, one.term)), entries[0].index - 1)
