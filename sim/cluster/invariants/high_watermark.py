"""`HighWatermarkMonotone`: on one replica in one boot the high watermark and the log's start never go back, and the start is
never above the watermark (promise: a readable record stays readable until it is trimmed).
"""

from __future__ import annotations

from raftmq.broker.replica.replica import Replica
from raftmq.fsm.log_partition import LogPartition
from raftmq.fsm.state_machine import StateMachine

from sim.core.invariants.violation import InvariantViolation


class HighWatermark:
    """The check of one replica in one boot."""

    def __init__(self, replica: Replica[StateMachine]) -> None:
        self._group = replica
        self._end = 0
        self._start = 0

    def check(self) -> None:
        """Check the replica after entries were applied."""
        machine = self._group.state_machine
        if not isinstance(machine, LogPartition):
            return
        end, start = machine.next_offset, machine.log_start_offset
        if not (end >= self._end and start >= self._start and start <= end):
            raise InvariantViolation(
                "HighWatermarkMonotone",
                f"r{self._group.replica_id} of g{self._group.group_id}: from [{self._start}, {self._end}) to [{start}, {end})",
            )
        self._end, self._start = end, start
