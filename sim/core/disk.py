"""The simulated disk of one replica: writes take time and become durable in order, and a crash drops the rest.

The durable image is exactly the state after the last completed write. A write carries the derived state and membership of
the time when it was submitted. So a restarted replica replays from an older `state_index`, as in the product.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from raftmq.raft.core import RestoredState
from raftmq.raft.entry import GENESIS, Entry, EntryHeader, LogPosition, fitting
from raftmq.raft.hard_state import HardState
from raftmq.raft.membership import EMPTY_MEMBERSHIP, Membership
from raftmq.raft.ready import AppendWork
from raftmq.types import LogIndex, Offset, ReplicaId, Term

from sim.core.invariants.violation import demand
from sim.core.state_machine import MachineState

BLANK = LogPosition(index=LogIndex(0), term=Term(0), next_offset=Offset(0))
"""The position of a replica's log before its first snapshot."""


@dataclass(frozen=True, slots=True)
class DerivedState:
    """The state computed from the log: the state machine and the membership, both as of `machine.index`."""

    machine: MachineState
    membership: Membership


BLANK_STATE = DerivedState(MachineState(0, 0, 0), EMPTY_MEMBERSHIP)


@dataclass(frozen=True, slots=True)
class AppendJob:
    """An `AppendWork` with the derived state to write in the same transaction, or None."""

    work: AppendWork
    state: DerivedState | None


@dataclass(frozen=True, slots=True)
class CompactionJob:
    """Deletes the log up to `position` and writes the derived state that covers it, in one transaction."""

    position: LogPosition
    state: DerivedState


DiskJob = AppendJob | CompactionJob


class LogCopy:
    """A log as a list of entries after a position."""

    __slots__ = ("entries", "position")

    def __init__(self, position: LogPosition) -> None:
        self.position = position
        self.entries: list[Entry] = []

    @property
    def last_index(self) -> int:
        """Index of the last entry, or of the position."""
        return self.position.index + len(self.entries)

    @property
    def last_term(self) -> int:
        """Term of the last entry, or of the position."""
        return self.entries[-1].term if self.entries else self.position.term

    def entry(self, index: int) -> Entry | None:
        """Return the entry at `index`, or None outside of the log."""
        slot = index - self.position.index - 1
        return self.entries[slot] if 0 <= slot < len(self.entries) else None

    def term(self, index: int) -> int | None:
        """Return the term at `index`, which may be the position, or None outside of the log."""
        if index == self.position.index:
            return self.position.term
        entry = self.entry(index)
        return None if entry is None else entry.term

    def write(self, entries: tuple[Entry, ...]) -> None:
        """Replace the suffix from the first of `entries` on."""
        if entries:
            del self.entries[entries[0].index - self.position.index - 1 :]
            self.entries.extend(entries)

    def reset(self, position: LogPosition) -> None:
        """Drop all entries and start after `position`."""
        self.position = position
        self.entries.clear()

    def compact(self, position: LogPosition) -> None:
        """Delete entries up to `position`."""
        del self.entries[: position.index - self.position.index]
        self.position = position

    def position_at(self, index: int) -> LogPosition:
        """Return the position that the log would have after deleting the entries up to `index`, which it must hold."""
        entry = self.entry(index)
        if entry is None:
            return self.position
        return LogPosition(entry.index, entry.term, entry.next_offset, entry.append_time_ms)


class SimDisk:
    """A durable image and the pending writes. Its owner decides when writes complete."""

    def __init__(self, membership: Membership | None) -> None:
        """Create the disk of an initial member, which has a `membership`, or the empty disk of a later replica."""
        is_born = membership is not None
        self.log = LogCopy(GENESIS if is_born else BLANK)
        self.state = (
            DerivedState(MachineState(GENESIS.index, 0, 0), membership) if membership is not None else BLANK_STATE
        )
        self.hard_state = HardState(self.log.position.term, ReplicaId(0), self.log.position.index)
        self.pending: deque[DiskJob] = deque()
        """Submitted writes that are not durable, in order."""
        self._unsynced: HardState | None = None
        """The hard state of completed writes that needed no sync. It becomes durable with the next synced write."""

    def submit(self, job: DiskJob) -> None:
        """Queue a write."""
        self.pending.append(job)

    def complete(self) -> DiskJob:
        """Make the oldest pending write durable and return it."""
        job = self.pending.popleft()
        self._perform(job)
        return job

    def crash(self, completed: int) -> None:
        """Drop the pending writes, except the first `completed` ones, which reached the disk unnoticed."""
        for _ in range(completed):
            self.complete()
        self.pending.clear()
        self._unsynced = None

    def _perform(self, job: DiskJob) -> None:
        if isinstance(job, CompactionJob):
            self.state = job.state
            if job.position.index > self.log.position.index:
                self.log.compact(job.position)
            return
        work = job.work
        if not work.must_sync:
            self._unsynced = work.hard_state or self._unsynced
            return
        if work.snapshot is not None:
            data = work.snapshot.data
            assert isinstance(data, MachineState)
            self.log.reset(work.snapshot.meta.position)
            self.state = DerivedState(data, work.snapshot.meta.membership)
        elif job.state is not None:
            self.state = job.state
        self.log.write(work.entries)
        self.hard_state = work.hard_state or self._unsynced or self.hard_state
        self._unsynced = None

    def restored(self) -> RestoredState:
        """Return the state from which a core starts."""
        log = self.log
        starts: list[tuple[Term, LogIndex]] = []
        for entry in log.entries:
            if not starts or starts[-1][0] != entry.term:
                starts.append((entry.term, entry.index))
        last = log.entries[-1] if log.entries else None
        return RestoredState(
            hard_state=self.hard_state,
            position=log.position,
            last_index=LogIndex(log.last_index),
            last_next_offset=last.next_offset if last else log.position.next_offset,
            last_append_time_ms=last.append_time_ms if last else log.position.append_time_ms,
            term_starts=tuple(starts),
            membership=self.state.membership,
            state_index=LogIndex(self.state.machine.index),
        )

    def read(self, first: int, last: int, bytes_max: int) -> tuple[Entry, ...]:
        """Return the durable entries `first`..`last`, but stop before `bytes_max` payload bytes are exceeded. At least one is returned."""
        start = first - self.log.position.index - 1
        is_inside = start >= 0 and last <= self.log.last_index
        detail = f"{first}..{last} of a durable log {self.log.position.index + 1}..{self.log.last_index}"
        demand(is_inside, "ReadsDurable", detail)
        return fitting(self.log.entries[start : last - self.log.position.index], bytes_max)

    def header(self, index: int) -> EntryHeader:
        """Return the header of a durable entry."""
        entry = self.log.entry(index)
        assert entry is not None, f"header of {index}, not in the durable log"
        return entry.header()
