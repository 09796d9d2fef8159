"""`RowLevels`: a field that was added to a row has its default until the cluster's feature level permits it, so that a broker of the version
before can read the row.
"""

from __future__ import annotations

from raftmq.broker.replica.replica import Replica
from raftmq.fsm.field_levels import level_of_fields
from raftmq.fsm.metadata import Metadata
from raftmq.fsm.row_levels import ROW_LEVELS
from raftmq.fsm.state_machine import StateMachine

from sim.core.invariants.violation import demand


def check_row_levels(replica: Replica[StateMachine]) -> None:
    """Check the rows of metadata: those of partitions have no later fields."""
    machine = replica.state_machine
    if not isinstance(machine, Metadata):
        return
    tables, level = machine._tables, machine.feature_level
    for row in (tables.cluster, *tables.topics(), *tables._partitions.by_key.values()):
        needed = level_of_fields(row, ROW_LEVELS)
        demand(needed <= level, "RowLevels", f"at level {level} there is a row of level {needed}: {row}")
