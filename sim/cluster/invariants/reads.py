"""`CommittedReads`: a consumer receives only committed records, with their committed values (promises: only committed records are
readable, and damaged ones are never served). The history's `skipped_poll` and `nonmonotonic_poll` check order and gaps.
"""

from __future__ import annotations

from raftmq.types import Record

from sim.cluster.invariants.committed_log import CommittedLog
from sim.core.invariants.violation import InvariantViolation


class CommittedReads:
    """The check of the records that consumers receive."""

    def __init__(self, committed: CommittedLog) -> None:
        self._committed = committed
        self.count = 0

    def on_read(self, group_id: int, record: Record) -> None:
        """Check a record that a consumer received."""
        self.count += 1
        held = self._committed.values.get((group_id, record.offset))
        if held != record.value and not self._committed.holds(group_id, record.offset, record.value):
            raise InvariantViolation(
                "CommittedReads",
                f"{record.topic}/{record.partition} (g{group_id}) offset {record.offset}: {record.value!r} was read, "
                f"committed is {held!r}",
            )
