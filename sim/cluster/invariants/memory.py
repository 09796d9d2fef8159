"""`NothingForgotten`: producers, names and offsets of consumer groups are remembered for days, so none of them is forgotten in a run,
even by wrong clocks (promise: a retry is recognised, and a group continues at its committed offsets).
"""

from __future__ import annotations

from raftmq.broker.replica.replica import Replica
from raftmq.fsm.log_commands import ForgetOffsets, LogPartitionCommand
from raftmq.fsm.log_partition import LogPartition
from raftmq.fsm.metadata import Metadata
from raftmq.fsm.metadata_commands import DeleteConsumerGroup, MetadataCommand
from raftmq.fsm.state_machine import StateMachine

from sim.core.invariants.violation import demand


class Memory:
    """The check of all groups of a run. Nobody deletes a consumer group in a run."""

    def __init__(self, *, is_forgetful: bool) -> None:
        """Create the check. `is_forgetful` says that producers are forgotten on purpose."""
        self._is_forgetful = is_forgetful

    def check(self, replica: Replica[StateMachine]) -> None:
        """Check the producers and names that a replica remembers."""
        machine = replica.state_machine
        if isinstance(machine, LogPartition):
            producers = machine.producers
            forgotten = producers.forgotten_named_id or (0 if self._is_forgetful else producers.forgotten_id)
            demand(not forgotten, "NothingForgotten", f"g{replica.group_id} forgot producer {forgotten}")
        elif isinstance(machine, Metadata):
            # a replica that lags may know fewer names, but it never knows a name under two ids
            names = machine._tables.cluster.next_named_producer - 1
            known = len(machine._tables.producer_names)
            demand(known == names, "NothingForgotten", f"of {names} named producers {known} are known")

    def on_command(self, command: LogPartitionCommand | None) -> None:
        """Check a command of a partition."""
        is_expiry = isinstance(command, ForgetOffsets)
        demand(not is_expiry, "NothingForgotten", f"offsets are forgotten: {command}")

    def on_metadata_command(self, command: MetadataCommand | None) -> None:
        """Check a command of the metadata group."""
        is_expiry = isinstance(command, DeleteConsumerGroup)
        demand(not is_expiry, "NothingForgotten", f"a consumer group is forgotten: {command}")
