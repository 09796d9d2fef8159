"""`CommittedReads`: a consumer is handed only committed records, with the value that was committed there (promise: only committed
records are readable; damage is never served). That they come in order and without a gap is for the history's `skipped_poll`
and `nonmonotonic_poll`.
"""

from __future__ import annotations

from raftmq.types import Record

from sim.cluster.invariants.committed_log import CommittedLog
from sim.core.invariants.violation import InvariantViolation


class CommittedReads:
    """What consumers were handed."""

    def __init__(self, committed: CommittedLog) -> None:
        self._committed = committed
        self.count = 0

    def on_read(self, group_id: int, record: Record) -> None:
        """A consumer was handed a record."""
        self.count += 1
        held = self._committed.values.get((group_id, record.offset))
        if held != record.value:
            raise InvariantViolation(
                "CommittedReads",
                f"{record.topic}/{record.partition} (g{group_id}) offset {record.offset}: {record.value!r} was read, "
                f"committed is {held!r}",
            )
