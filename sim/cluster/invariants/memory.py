"""`NothingForgotten`: producers, names and offsets of consumer groups are remembered for days, so in a run none of them is forgotten,
whatever clocks say (promise: a retry is recognised, a group goes on where it was).
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
    """All groups of a run. Nobody deletes a consumer group in one."""

    def __init__(self, *, is_forgetful: bool) -> None:
        """`is_forgetful`: producers are forgotten on purpose."""
        self._is_forgetful = is_forgetful

    def check(self, replica: Replica[StateMachine]) -> None:
        """What a replica remembers."""
        machine = replica.state_machine
        if isinstance(machine, LogPartition):
            producers = machine.producers
            forgotten = producers.forgotten_named_id or (0 if self._is_forgetful else producers.forgotten_id)
            demand(not forgotten, "NothingForgotten", f"g{replica.group_id} forgot producer {forgotten}")
        elif isinstance(machine, Metadata):
            # a replica that is behind may know fewer, and none that was known before is known again under another id
            names = machine._tables.cluster.next_named_producer - 1
            known = len(machine._tables.producer_names)
            demand(known == names, "NothingForgotten", f"of {names} named producers {known} are known")

    def on_command(self, command: LogPartitionCommand | None) -> None:
        """A partition's command."""
        is_expiry = isinstance(command, ForgetOffsets)
        demand(not is_expiry, "NothingForgotten", f"offsets are forgotten: {command}")

    def on_metadata_command(self, command: MetadataCommand | None) -> None:
        """A command of the metadata."""
        is_expiry = isinstance(command, DeleteConsumerGroup)
        demand(not is_expiry, "NothingForgotten", f"a consumer group is forgotten: {command}")
