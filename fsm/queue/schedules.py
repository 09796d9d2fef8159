"""Schedules: names under which messages are enqueued again and again.

The leader computes due times, because calendars differ between machines. A firing is a DATA entry that names the schedule, its revision,
the due time, and the next one. It counts only if the schedule still awaits exactly this firing. So there is one firing per due time,
under any leader, and a deletion wins over a firing that was proposed before.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

import msgspec
from raftmq.fsm.queue import limits
from raftmq.fsm.queue.commands import (
    ANY_VERSION,
    KEEP_DUE,
    NEVER,
    U64_MAX,
    ChangeSchedule,
    DeleteSchedule,
    PutSchedule,
    SkipFirings,
)
from raftmq.fsm.queue.limits import SCHEDULES_MAX
from raftmq.fsm.queue.results import Code, Refused, ScheduleChanged
from raftmq.fsm.queue.rows import SCHEDULES
from raftmq.fsm.tables import text_table
from raftmq.queue_batch import Firing


class ScheduleRow(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A schedule."""

    definition: bytes
    next_due: int
    """-1: it does not fire again."""
    version: int
    """Set by each change of a user, and never used twice in a partition. A firing names it as its revision."""
    is_paused: bool
    last_due: int = NEVER
    fired_count: int = 0
    skipped_count: int = 0
    """Firings that were missed, and passed over."""


class ScheduleTable:
    """Hold the schedules of one partition."""

    def __init__(self) -> None:
        self.table = text_table(SCHEDULES, ScheduleRow)
        self._due: list[tuple[int, str]] = []
        """A heap of (next due, name), with outdated entries."""
        self.definition_bytes = 0
        """Of all definitions."""

    def put(self, command: PutSchedule, next_version: int) -> ScheduleChanged | Refused:
        """Create or replace a schedule."""
        row = self.table.get(command.name)
        if row is None and len(self.table.by_key) >= SCHEDULES_MAX:
            return Refused(Code.TOO_MANY_SCHEDULES)
        growth = len(command.definition) - (0 if row is None else len(row.definition))
        if growth > 0 and self.definition_bytes + growth > limits.SCHEDULES_BYTES_MAX:
            return Refused(Code.TOO_MANY_SCHEDULES)
        version = 0 if row is None else row.version
        if command.version not in (ANY_VERSION, version):
            return Refused(Code.VERSION_CONFLICT)
        next_due = command.next_due
        if next_due == KEEP_DUE:
            if row is None:
                return Refused(Code.NO_SUCH_SCHEDULE)
            next_due = row.next_due
        self.definition_bytes += growth
        last_due, fired, skipped = (NEVER, 0, 0) if row is None else (row.last_due, row.fired_count, row.skipped_count)
        return self._store(
            command.name,
            ScheduleRow(command.definition, next_due, next_version, command.is_paused, last_due, fired, skipped),
        )

    def change(self, command: ChangeSchedule, next_version: int) -> ScheduleChanged | Refused:
        """Pause or resume a schedule, or give it another due time."""
        row = self.table.get(command.name)
        if row is None:
            return Refused(Code.NO_SUCH_SCHEDULE)
        if command.version not in (ANY_VERSION, row.version):
            return Refused(Code.VERSION_CONFLICT)
        next_due = row.next_due if command.next_due == KEEP_DUE else command.next_due
        changed = msgspec.structs.replace(row, next_due=next_due, is_paused=command.is_paused, version=next_version)
        return self._store(command.name, changed)

    def delete(self, command: DeleteSchedule) -> ScheduleChanged | Refused:
        """Delete a schedule."""
        row = self.table.get(command.name)
        if row is None:
            return Refused(Code.NO_SUCH_SCHEDULE)
        if command.version not in (ANY_VERSION, row.version):
            return Refused(Code.VERSION_CONFLICT)
        self.table.delete(command.name)
        self.definition_bytes -= len(row.definition)
        return ScheduleChanged(row.version)

    def skip(self, command: SkipFirings) -> ScheduleChanged | Refused:
        """Pass over missed firings, if the schedule still awaits the first of them."""
        row = self.table.get(command.name)
        if row is None:
            return Refused(Code.NO_SUCH_SCHEDULE)
        if (row.version, row.next_due) != (command.version, command.due):
            return Refused(Code.VERSION_CONFLICT)
        skipped_count = min(row.skipped_count + max(command.count, 0), U64_MAX)
        passed = msgspec.structs.replace(row, next_due=command.next_due, skipped_count=skipped_count)
        return self._store(command.name, passed)

    def fire(self, firing: Firing) -> bool:
        """Record a firing. Return whether the schedule awaited it."""
        name = firing.schedule.decode(errors="replace")
        row = self.table.get(name)
        if row is None or row.is_paused or (row.version, row.next_due) != (firing.revision, firing.due_ms):
            return False
        fired = msgspec.structs.replace(
            row, next_due=firing.next_due_ms, last_due=firing.due_ms, fired_count=row.fired_count + 1
        )
        self._store(name, fired)
        return True

    def next_due(self) -> tuple[int, str] | None:
        """Return the earliest due time of a schedule that is not paused, and its name."""
        due = self._due
        while due:
            row = self.table.get(due[0][1])
            if row is not None and not row.is_paused and row.next_due == due[0][0]:
                return due[0]
            heappop(due)
        return None

    def due_by(self, now: int, count_max: int) -> list[str]:
        """Return the schedules that are due, the earliest first, at most `count_max`."""
        found: list[tuple[int, str]] = []
        while len(found) < count_max:
            first = self.next_due()
            if first is None or first[0] > now:
                break
            found.append(heappop(self._due))
            while self._due and self._due[0] == first:
                heappop(self._due)  # the same due time was stored twice
        for one in found:
            heappush(self._due, one)
        return [name for _, name in found]

    def finish_loading(self) -> None:
        """Build the order of due times from the loaded rows, and count their bytes."""
        self.definition_bytes = sum(len(row.definition) for row in self.table.by_key.values())
        self._sort()

    def _sort(self) -> None:
        self._due = [(row.next_due, name) for name, row in self.table.by_key.items() if row.next_due != NEVER]
        heapify(self._due)

    def _store(self, name: str, row: ScheduleRow) -> ScheduleChanged:
        self.table.put(name, row)
        if row.next_due != NEVER and not row.is_paused:
            heappush(self._due, (row.next_due, name))
            if len(self._due) > 2 * len(self.table.by_key) + 64:
                self._sort()
        return ScheduleChanged(row.version)
