"""`GivenUpMovesAreUndone`: when a move is given up, the partition has the replicas that were to leave, and none of those that were to take their
seats. Nothing else changes.
"""

from __future__ import annotations

from raftmq.fsm.metadata import Metadata
from raftmq.fsm.metadata_commands import Done, RevertReplicas, decode_command
from raftmq.fsm.metadata_views import PartitionView
from raftmq.raft.entry import Entry, EntryKind

from sim.core.invariants.violation import demand


class RevertedMoves:
    """The check of one replica of the metadata."""

    def __init__(self, machine: Metadata) -> None:
        """Take the state machine, which stays the same object for the replica's life."""
        self._machine = machine
        self._before: dict[int, PartitionView] = {}
        """The partitions that moved or were rebuilt before the entry, by group."""
        self.look()

    def look(self) -> None:
        """Take the present state as the one before the next entry: at the beginning, and when a snapshot has replaced it."""
        self._before = {partition.group_id: partition for partition in self._machine.unsettled_partitions()}

    def on_applied(self, entry: Entry, result: object) -> None:
        """Check the effect of an entry, right after it was applied."""
        machine = self._machine
        command = decode_command(entry.payload) if entry.kind is EntryKind.COMMAND else None
        if isinstance(command, RevertReplicas) and isinstance(result, Done):
            before, after = self._before.get(command.group_id), machine.partition(command.group_id)
            if before is not None and after is not None:
                found = tuple(replica.replica_id for replica in after.replicas)
                demand(
                    found == (wanted := _replicas_of_before(before)),
                    "GivenUpMovesAreUndone",
                    f"g{command.group_id} has the replicas {found} and should have {wanted}",
                )
        self.look()


def _replicas_of_before(partition: PartitionView) -> tuple[int, ...]:
    """Return the replicas of a partition without its move: in each seat, the first one that is not lost and was to leave."""
    wanted: list[int] = []
    for replica in partition.replicas:
        leaving = [gone for gone in partition.retiring if gone.seat == replica.seat and not gone.is_lost]
        wanted.append(leaving[0].replica_id if leaving and not replica.is_newcomer else replica.replica_id)
    return tuple(wanted)
