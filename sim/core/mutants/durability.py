"""Bugs of the shell around the core: a message, a state or a vote that leaves before it is on disk."""

from __future__ import annotations

from dataclasses import replace

from raftmq.raft.core import RaftCore
from raftmq.raft.messages import (
    AppendResponse,
    Message,
    VoteRequest,
    VoteResponse,
)
from raftmq.raft.ready import AppendWork
from raftmq.types import ReplicaId

from sim.core.disk import CompactionJob, DerivedState, DiskJob, SimDisk
from sim.core.replica import SimReplica
from sim.core.state_machine import MachineState


class VoteBeforeDurable(SimReplica):
    """Sends a vote before term and vote are durable (thesis 3.8). PySyncObj never persists them."""

    def _write(self, core: RaftCore, work: AppendWork) -> None:
        early = tuple(message for message in work.responses if isinstance(message, VoteResponse))
        for message in early:
            self.world.checker.on_response(self, message)
            self._send(message)
        rest = tuple(message for message in work.responses if message not in early)
        super()._write(core, replace(work, responses=rest))


class AckBeforeDurable(SimReplica):
    """Acknowledges entries before they are durable (thesis 3.8). PySyncObj never syncs its journal."""

    def _write(self, core: RaftCore, work: AppendWork) -> None:
        early = tuple(message for message in work.responses if isinstance(message, AppendResponse))
        for message in early:
            self._send(message)  # not shown to the checker: only the consequences count
        rest = tuple(message for message in work.responses if message not in early)
        super()._write(core, replace(work, responses=rest))


class AsksAheadOfLog(SimReplica):
    """Writes term and vote before the pending entries, and asks for votes with a log end that the disk does not hold."""

    def _write(self, core: RaftCore, work: AppendWork) -> None:
        early = tuple(message for message in work.responses if isinstance(message, VoteRequest))
        if early and work.hard_state is not None:
            self.disk.hard_state = replace(work.hard_state, commit_index=self.disk.hard_state.commit_index)
        for message in early:
            self._send_early(message)
        super()._write(core, replace(work, responses=tuple(one for one in work.responses if one not in early)))


class UnseenVotes(SimReplica):
    """Hides vote requests and the answers to them from the checker, so that only their consequences count."""

    def _send_early(self, message: Message) -> None:
        self._send(message)

    def _step(self, core: RaftCore, message: Message) -> None:
        core.step(message)


class IndexAheadOfState(SimReplica):
    """Persists an applied index ahead of the state it names: an entry is skipped after a crash (etcd 3.5.0)."""

    def _derived(self, core: RaftCore) -> DerivedState | None:
        state = super()._derived(core)
        if state is None:
            return None
        ahead = min(core.commit_index, self.disk.log.last_index)
        return replace(state, machine=replace(state.machine, index=max(ahead, state.machine.index)))


class StateNotRestored(SimReplica):
    """Restarts with a snapshot's position but without its state (aioraft-ng)."""

    def start(self) -> None:
        """Start without the state of the state machine."""
        state = self.disk.state
        if self.life:
            self.disk.state = replace(state, machine=MachineState(state.machine.index, 0, 0))
        super().start()


class WrongTermAcknowledged(SimReplica):
    """Acknowledges a client's entry when another term's entry was applied at its index (raft.md 1.11)."""

    def _apply(self, life: int) -> None:
        for entries in self._applying:
            for entry in entries:
                waiting = self.waiters.pop(entry.index, None)
                if waiting is not None:
                    self.world.checker.acknowledged.on_acknowledged(waiting)
        super()._apply(life)


class TermNotKept(SimDisk):
    """Never writes term and vote (PySyncObj)."""

    def _perform(self, job: DiskJob) -> None:
        kept = self.hard_state
        super()._perform(job)
        self.hard_state = replace(kept, commit_index=self.hard_state.commit_index)


class VoteWrittenLater(SimDisk):
    """Writes term and vote separately: a crash between the writes loses a vote that was given (aioraft-ng)."""

    def _perform(self, job: DiskJob) -> None:
        before = self.hard_state
        super()._perform(job)
        if self.hard_state.term != before.term:
            self.hard_state = replace(self.hard_state, vote=ReplicaId(0))


class CompactedBeforeState(SimDisk):
    """Deletes log entries before the state derived from them is durable (raft.md 3.3, dragonboat's contract)."""

    def _perform(self, job: DiskJob) -> None:
        if isinstance(job, CompactionJob):
            job = replace(job, state=self.state)
        super()._perform(job)
