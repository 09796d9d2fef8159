"""`AcknowledgedNeverLost`: a record whose send succeeded is committed at the acknowledged offset, and readable there until it is
trimmed (promise: acknowledged means on disk on a majority).
"""

from __future__ import annotations

from raftmq.types import TopicPartition

from sim.cluster.invariants.committed_log import CommittedLog
from sim.core.invariants.violation import InvariantViolation


class Acknowledged:
    """The records that were acknowledged to producers."""

    def __init__(self, committed: CommittedLog) -> None:
        self._committed = committed
        self.values: dict[tuple[int, int], bytes] = {}
        """(group, offset) -> value."""
        self.trimmed: dict[int, int] = {}
        """Group -> records below this offset may be deleted."""
        self.expired: dict[int, int] = {}
        """Group -> records below this offset are deleted."""
        self.deleted: dict[int, None] = {}
        """Groups of topics whose deletion was requested."""
        self.count = 0

    def on_acknowledged(
        self, group_id: int, where: TopicPartition, offset: int, value: bytes, sent_to: int | None = None
    ) -> None:
        """Check and record a send that succeeded. `sent_to` is the group when it began, whose end may be lost since then."""
        self.count += 1
        if offset < 0:
            return  # the broker knows that the batch is a duplicate, but not the offset of the first one
        held = self._committed.values.get((group_id, offset))
        if held != value:
            if sent_to is not None and self._committed.holds(group_id, offset, value, sent_to):
                return
            raise InvariantViolation(
                "AcknowledgedNeverLost",
                f"{value!r} was acknowledged at {where} offset {offset}, committed there is {held!r}",
            )
        self.values[group_id, offset] = value

    def shorten(self, group_id: int, new_group_id: int, offset: int) -> None:
        """Expect of a group the records that the one before it had below an offset."""
        for (known_id, number), value in list(self.values.items()):
            if known_id == group_id and number < offset:
                self.values[new_group_id, number] = value
        for known in (self.trimmed, self.expired):
            if group_id in known:
                known[new_group_id] = known[group_id]

    def on_trim(self, group_id: int, before: int) -> None:
        """Record a request to delete records below an offset."""
        self.trimmed[group_id] = max(self.trimmed.get(group_id, 0), before)

    def on_expired(self, group_id: int, before: int) -> None:
        """Record that records below an offset are deleted, perhaps while a client reads them."""
        self.expired[group_id] = max(self.expired.get(group_id, 0), before)

    def check_read(self, group_id: int, start: int, read: dict[int, bytes]) -> None:
        """Check the records that were read from the log's start after healing."""
        allowed = self.trimmed.get(group_id, 0)
        if start > allowed:
            raise InvariantViolation(
                "AcknowledgedNeverLost",
                f"g{group_id} begins at {start}, records were only to be deleted below {allowed}",
            )
        for (replica, offset), value in self.values.items():
            is_due = replica == group_id and offset >= max(start, self.expired.get(group_id, 0))
            if is_due and read.get(offset) != value:
                raise InvariantViolation(
                    "AcknowledgedNeverLost",
                    f"g{group_id} offset {offset}: {value!r} was acknowledged, {read.get(offset)!r} is read",
                )
