"""`AppliedOnce`: a replica applies each index once and in order, beginning after its durable state (thesis 3.8, 5.1)."""

from __future__ import annotations

from collections.abc import Sequence

from raftmq.broker.replica.replica import Replica
from raftmq.fsm.state_machine import StateMachine
from raftmq.raft.entry import Entry

from sim.core.invariants.violation import InvariantViolation


class AppliedOnce:
    """The check of one replica in one boot."""

    def __init__(self, replica: Replica[StateMachine]) -> None:
        self._group = replica

    def on_apply(self, entries: Sequence[Entry]) -> None:
        """Check entries that are about to be applied. The state machine skips those that its state already includes.

        While an entry waits for rows, the ones after it wait for it.
        """
        machine = self._group.state_machine
        first, last = entries[0].index, entries[-1].index
        waiting = self._group.applier._delayed
        next_index = waiting[-1].index + 1 if waiting else machine.applied_index + 1
        if not (first <= next_index and last - first + 1 == len(entries)):
            raise InvariantViolation(
                "AppliedOnce",
                f"r{self._group.replica_id} of g{self._group.group_id} applies {first}..{last} after {next_index - 1}",
            )
