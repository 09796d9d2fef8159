"""Turns what the cores want durable into writes, one in flight per replica, and tells the cores when it is.

One transaction holds the log, the hard state and the derived state applied since the last one. While a write is under way
proposals and appends gather for the next: that is the group commit. Must not retry a failed commit, which ends the process.

Invariants: at most one write of a replica is in flight; no write names an entry, as committed, that the disk does not hold
with it; a truncation is never past the durable state.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Sequence

import structlog
from raftmq.broker.base.limits import Timing
from raftmq.broker.base.log_throttle import LogThrottle
from raftmq.broker.replica.disk import Idle, Installing, Writing
from raftmq.broker.replica.engine_counters import EngineCounters
from raftmq.broker.replica.engine_host import EngineHost
from raftmq.broker.replica.inbound_bytes import InboundBytes
from raftmq.broker.replica.log_trimmer import LogTrimmer
from raftmq.broker.replica.replica import Replica
from raftmq.broker.replica.writers import Writers
from raftmq.fsm.state_machine import StateMachine
from raftmq.raft.hard_state import HardState
from raftmq.raft.ready import AppendWork
from raftmq.storage.log_store import LogStore, Update
from raftmq.storage.writer_threads import Completion
from raftmq.types import LogIndex

log = structlog.get_logger(__name__)

SPACE_RETRY_SECONDS = 1.0
"""A write that found no room is submitted again this often, until there is."""


@dataclasses.dataclass(slots=True)
class _Write:
    """An append on its way to the disk."""

    replica: Replica[StateMachine]
    work: AppendWork | None
    """None: derived state or a truncation only."""
    update: Update
    inbound_bytes: int = 0
    """What of the inbound budget this write gives back."""
    began_at: float = dataclasses.field(default_factory=time.perf_counter)
    """For its time alone: a loop's clock may stand still within one turn."""


class Commits:
    """The writes of one node's replicas."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        host: EngineHost,
        store: LogStore,
        writers: Writers,
        timing: Timing,
        inbound: InboundBytes,
        counters: EngineCounters,
    ) -> None:
        self._loop = loop
        self._host = host
        self._writers = writers
        self._timing = timing
        self._inbound = inbound
        self._counters = counters
        self._space_throttle = LogThrottle()
        self._log_trimmer = LogTrimmer(loop, host, store, writers)

    def close(self) -> None:
        """Begin nothing more. Writes already handed over still complete."""
        self._log_trimmer.close()

    # ------------------------------------------------------------------------------------------------ appends

    def start(self, replica: Replica[StateMachine], work: AppendWork, *, with_inbound: bool = True) -> None:
        """Write what a Ready wants durable. `with_inbound`: it holds what the core was handed, whose budget comes back with it."""
        if work.entries:
            replica.log.append(work.entries)
        if not work.must_sync:
            # rides with the next write; every earlier one is durable, because only one is in flight
            if with_inbound:
                self._inbound.forget(replica.group_id)
            self.finish(replica, work)
            return
        update = self._update(replica, work)
        replica.begin_write()
        # from here on the write gives it back; a defect before this line leaves it to the group's end
        inbound_bytes = self._inbound.waiting.pop(replica.group_id, 0) if with_inbound else 0
        self._writers.submit(replica.key, update, _Write(replica, work, update, inbound_bytes))

    def finish(self, replica: Replica[StateMachine], work: AppendWork) -> None:
        """The work is durable: send what waited for that, and tell the core."""
        for message in work.responses:
            self._host.send(replica, message)
        replica.core.append_done(work.token)
        self._host.mark_dirty(replica)

    def _update(self, replica: Replica[StateMachine], work: AppendWork | None) -> Update:
        """The one transaction: the log, the hard state, and the derived state applied since the last one."""
        machine, core = replica.state_machine, replica.core
        entries = work.entries if work is not None else ()
        # what is committed may still wait for a later write: the disk must never name an entry that it does not hold
        end = entries[-1].index if entries else core.log.durable_index
        rows: tuple[tuple[bytes, bytes | None], ...] = ()
        state_index: LogIndex | None = None
        membership = None
        if machine.applied_index > replica.durable_state_index:
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
        """Writes that are durable, or found no room."""
        now = time.perf_counter()
        counters = self._counters
        for completion in completions:
            write = completion.token
            assert isinstance(write, _Write)
            replica = write.replica
            if completion.error is not None:
                # prevented by the reserve; if it happens all the same the write waits for space, in order
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
        if write.update.truncation is not None:
            self._log_trimmer.delete(replica)
        if write.work is not None:
            self.finish(replica, write.work)
        else:
            self._host.mark_dirty(replica)

    def is_hanging(self, replica: Replica[StateMachine], elections: int = 1) -> bool:
        """Whether the write in flight has taken longer than so many election timeouts."""
        match replica.disk:
            case Idle():
                return False
            case Writing(started_at) | Installing(started_at):
                return self._loop.time() - started_at > elections * self._timing.election_seconds(replica.group_id)

    # ------------------------------------------------------------------------------------------------ derived state

    def flush_state(self, replica: Replica[StateMachine]) -> None:
        """Make the derived state durable on its own, when no append does it (before a trim on an idle group)."""
        if isinstance(replica.disk, Idle) and self._may_write_derived(replica):
            self._write_derived(replica)

    async def truncate(self, replica: Replica[StateMachine], index: LogIndex) -> None:
        """Delete the log up to `index` (inclusive) as far as safety allows now: never past the durable state, nor past
        a snapshot being streamed.
        """
        index = LogIndex(min(index, replica.durable_state_index, replica.core.applied_index))
        if index <= replica.log_start.index or not self._may_truncate(replica):
            return
        position = await replica.find_position(index)
        # while a thread read, the log may have been truncated, or replaced by a snapshot's, and closed
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
        is_free = replica.pending_truncation is None and not replica.outgoing_snapshots.are_in_progress
        return is_free and self._may_write_derived(replica)

    def delete_truncated_rows(self, replica: Replica[StateMachine]) -> None:
        """Delete rows behind the truncation point that an earlier attempt, or another life of this process, left."""
        self._log_trimmer.delete(replica)

    @staticmethod
    def _may_write_derived(replica: Replica[StateMachine]) -> bool:
        """False once the core stands on a snapshot that the machine and the disk do not have yet."""
        return not replica.is_closed and not isinstance(replica.disk, Installing) and replica.core.log.snapshot is None

    def _write_derived(self, replica: Replica[StateMachine]) -> None:
        # rows that were taken from the machine and never written would be missing from the disk: that must end the replica
        self._host.guarded(replica, self._submit_derived, replica)

    def _submit_derived(self, replica: Replica[StateMachine]) -> None:
        update = self._update(replica, None)
        replica.begin_write()
        self._writers.submit(replica.key, update, _Write(replica, None, update))
