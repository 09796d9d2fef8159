"""Apply committed entries to the machine of one replica, in order, also when the machine must wait for rows on disk.

While the machine waits, the entry is half applied: later entries queue here, other groups continue, and nobody may read the machine or
take rows from it (`is_suspended`). A machine whose rows are all in memory never waits.

A machine that reads rows for every entry may be at rest for too short a time for anyone to look at it. `held` makes that time longer.
Between two holders all entries are applied that had to wait for the first one: otherwise many holders would slow each entry down by a whole look.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from raftmq.broker.replica.pending_proposals import PendingProposals
from raftmq.errors import violated
from raftmq.fsm.row_reads import RowsFound, RowsNeeded
from raftmq.fsm.state_machine import DiskBackedMachine, StateMachine
from raftmq.raft.core import RaftCore
from raftmq.raft.entry import Entry

AppliedListener = Callable[[Entry, object], None]
ReadRows = Callable[[RowsNeeded, Callable[[RowsFound], None]], None]
"""Reads rows of the durable state in a thread, then calls the function on the loop, unless the replica is closed."""


class EntryApplier:
    """Applies the entries of one replica."""

    def __init__(
        self,
        machine: StateMachine,
        core: RaftCore,
        proposals: PendingProposals,
        read_rows: ReadRows,
        on_progress: Callable[[], None],
    ) -> None:
        """Take `on_progress`, which is called after entries were applied, when the machine has the state of a whole entry."""
        self._machine = machine
        self._core = core
        self._proposals = proposals
        self._read_rows = read_rows
        self._on_progress = on_progress
        self.listeners: list[AppliedListener] = []
        """Called in order after each applied entry, with its result."""
        self._delayed: deque[Entry] = deque()
        """The entry that is half applied or waits for a holder, and those after it."""
        self._is_suspended = False
        self._is_held = False
        self._entries_owed = 0
        """Entries that waited for the last holder and are not applied yet. They come before the next holder."""
        self._holders: deque[asyncio.Future[None]] = deque()
        """Those who wait for `held`, each a call with a deadline."""
        self._disk_backed = machine if isinstance(machine, DiskBackedMachine) else None
        self._is_prefetching = False
        self._missed: RowsNeeded | None = None
        """Rows that were read ahead and arrived while an entry was half applied."""
        self._clock_ns: Callable[[], int] | None = None
        self.entry_seconds = 0.0
        """The time for which the entry that was applied last kept the event loop, if entries are timed. For an entry that needed rows, that
        of its longest part. Listeners read it."""
        self._epoch = 0
        """Counts replacements of the machine's state. Rows that were read for an earlier state are not passed on."""

    @property
    def is_suspended(self) -> bool:
        """Return whether an entry is half applied."""
        return self._is_suspended

    def time_entries(self, clock_ns: Callable[[], int]) -> None:
        """Measure `entry_seconds` from now on, with a clock that counts nanoseconds."""
        self._clock_ns = clock_ns

    def apply(self, entries: Sequence[Entry]) -> None:
        """Apply committed entries, and answer their proposals. Called by the engine, in order."""
        machine, listeners, proposals, clock_ns = self._machine, self.listeners, self._proposals, self._clock_ns
        pending = proposals.queue
        if pending and entries:
            proposals.on_committed(entries[-1].index)
        if self._delayed or self._is_held:
            self._delayed.extend(entries)
            return
        applied = 0
        for entry in entries:
            if clock_ns is None:
                result = machine.apply(entry)
            else:
                began_ns = clock_ns()
                result = machine.apply(entry)
                self.entry_seconds = (clock_ns() - began_ns) / 1e9
            if type(result) is RowsNeeded:
                self._delayed.extend(entries[applied:])
                self._is_suspended = True
                self._wait_for(result)
                break
            applied += 1
            for listener in listeners:
                listener(entry, result)
            if pending:
                proposals.on_applied(entry, result)
        if applied:
            self._entries_owed = max(0, self._entries_owed - applied)
            self._record(entries[applied - 1])
            if not self._is_suspended:  # otherwise the state is not that of any index
                self._progressed()

    def _wait_for(self, needed: RowsNeeded) -> None:
        epoch = self._epoch
        self._read_rows(needed, lambda found: self._resume(epoch, found))

    def _resume(self, epoch: int, found: RowsFound) -> None:
        """Continue with the entry that is half applied, and apply those after it."""
        if epoch != self._epoch:
            return
        machine = self._disk_backed
        assert machine is not None
        began_ns = 0 if self._clock_ns is None else self._clock_ns()
        result = machine.resume(found)
        if self._clock_ns is not None:
            self.entry_seconds = max(self.entry_seconds, (self._clock_ns() - began_ns) / 1e9)
        if type(result) is RowsNeeded:
            self._wait_for(result)
            return
        entry = self._delayed.popleft()
        self._entries_owed = max(0, self._entries_owed - 1)
        self._is_suspended = False
        for listener in self.listeners:
            listener(entry, result)
        if self._proposals.queue:
            self._proposals.on_applied(entry, result)
        self._record(entry)
        self._progressed()
        self._continue()

    def _continue(self) -> None:
        """Apply the entries that waited."""
        if self._delayed and not self._is_held:
            entries = list(self._delayed)
            self._delayed.clear()
            self.apply(entries)

    def _record(self, last: Entry) -> None:
        core, machine = self._core, self._machine
        core.apply_done(last.index)
        # the next write combines the machine's state with the core's membership, under one index
        due = max(core.applied_index, core.state_floor)
        if machine.applied_index != due:
            violated("machine_at_applied_index", applied_index=machine.applied_index, due=due)

    def _progressed(self) -> None:
        self._on_progress()
        if self._disk_backed is not None and not self._is_prefetching:
            self._prefetch(self._disk_backed)
        self._grant()

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """Apply no entry inside the context. Entered when the machine is at rest.

        The entries that waited at its end are applied before the next holder.
        """
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._holders.append(turn)
        if not self._is_suspended and not self._delayed:
            self._grant()
        try:
            await turn
            yield
        finally:
            if turn in self._holders:
                self._holders.remove(turn)
            elif turn.done() and not turn.cancelled():
                self._is_held = False
                self._entries_owed = len(self._delayed)
                self._continue()
                if not self._is_suspended:
                    self._grant()

    def _grant(self) -> None:
        """Let the next one of those who wait hold the machine, which is at rest, unless entries are owed."""
        while self._holders and not self._is_held and not self._entries_owed:
            turn = self._holders.popleft()
            if not turn.done():
                self._is_held = True
                turn.set_result(None)

    def _prefetch(self, machine: DiskBackedMachine) -> None:
        """Read rows ahead, if the machine wants any. One read is under way."""
        if self._missed is not None:
            machine.on_prefetched(self._missed, ())
            self._missed = None
        needed = machine.prefetch()
        if needed is not None:
            self._is_prefetching = True
            epoch = self._epoch
            self._read_rows(needed, lambda found: self._on_prefetched(machine, epoch, needed, found))

    def _on_prefetched(self, machine: DiskBackedMachine, epoch: int, needed: RowsNeeded, found: RowsFound) -> None:
        if epoch != self._epoch:
            return
        self._is_prefetching = False
        if self._is_suspended:
            # nobody may touch the machine now, and rows that were kept until then would be outdated: they are read again
            self._missed = needed
        else:
            machine.on_prefetched(needed, found)

    def give_up(self) -> None:
        """Apply nothing more of this state: the core has taken a snapshot. A machine whose entry is half applied stays suspended until `drop`."""
        self._delayed.clear()
        self._entries_owed = 0
        self._epoch += 1

    def drop(self) -> None:
        """Forget the entries that are not applied: a snapshot replaces the state, or the replica is closed."""
        self.give_up()
        self._is_suspended = False
        self._is_prefetching = False
        self._missed = None
        self._grant()  # those who wait learn that this replica does not lead
