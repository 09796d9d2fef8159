"""`RowLevels`: a field that was added to a row has its default until the cluster's feature level permits it, so that a broker of the version
before can read the row.
"""

from __future__ import annotations

import msgspec
from raftmq.broker.replica.replica import Replica
from raftmq.fsm.field_levels import level_of_fields
from raftmq.fsm.metadata import Metadata
from raftmq.fsm.row_levels import ROW_LEVELS
from raftmq.fsm.state_machine import StateMachine

from sim.core.invariants.violation import demand


class RowLevels:
    """Checks each row once: rows do not change, and the level of a replica only rises."""

    def __init__(self) -> None:
        self._checked: dict[int, msgspec.Struct] = {}
        """Rows by identity. They are kept, so that no other row gets the same identity."""

    def check(self, replica: Replica[StateMachine]) -> None:
        """Check the rows of metadata: those of partitions have no later fields."""
        machine = replica.state_machine
        if not isinstance(machine, Metadata):
            return
        tables, level = machine._tables, machine.feature_level
        checked = self._checked
        for row in (tables.cluster, *tables.topics(), *tables._partitions.by_key.values()):
            if id(row) in checked:
                continue
            needed = level_of_fields(row, ROW_LEVELS)
            demand(needed <= level, "RowLevels", f"at level {level} there is a row of level {needed}: {row}")
            checked[id(row)] = row
