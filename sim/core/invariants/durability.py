"""`CommittedIsDurable`, `AckDurable`, `StableIsDurable`, `NoHole`: entries that a replica believes durable, applies or acknowledges
are on its disk (thesis 3.8). A leader may commit before its own write is done (10.2.1), but not apply. The state of all entries
that were deleted from the log is on disk too (5.1).
"""

from __future__ import annotations

from raftmq.raft.core import RaftCore
from raftmq.raft.entry import Entry
from raftmq.raft.messages import AppendResponse

from sim.core.disk import SimDisk
from sim.core.invariants.violation import demand


def check_applied_durable(replica_id: int, disk: SimDisk, entries: tuple[Entry, ...]) -> None:
    """Check that entries handed out for applying are durable."""
    for entry in (entries[0], entries[-1]):
        held = disk.log.entry(entry.index)
        is_durable = held is entry or held == entry
        demand(is_durable, "CommittedIsDurable", f"r{replica_id} applies {entry}, on its disk is {held}")


def check_ack_durable(disk: SimDisk, response: AppendResponse) -> None:
    """Check that the entries and the term that an acknowledgement covers are durable when it leaves."""
    replica_id = response.source
    demand(
        disk.hard_state.term >= response.term,
        "AckDurable",
        f"r{replica_id} answers in term {response.term}, durable is {disk.hard_state}",
    )
    if not response.is_rejected and disk.hard_state.term == response.term:
        demand(
            disk.log.last_index >= response.index,
            "AckDurable",
            f"r{replica_id} acknowledges {response.index}, its durable log ends at {disk.log.last_index}",
        )


def check_no_hole(replica_id: int, disk: SimDisk) -> None:
    """Check after a write that no entry is missing between the durable state and the durable log."""
    demand(
        disk.state.machine.index >= disk.log.position.index,
        "NoHole",
        f"r{replica_id} has state as of {disk.state.machine.index}, its log starts after {disk.log.position.index}",
    )


def check_stable_durable(replica_id: int, disk: SimDisk, core: RaftCore) -> None:
    """Check that the disk holds the last entry that a core believes durable, with the same term: a late completion must not cover later entries."""
    if core.log.snapshot is not None:
        return  # the log restarts at a snapshot that is still being written
    index = core.log.durable_index
    held, believed = disk.log.term(index), core.log.term_at(index)
    is_same = index <= disk.log.position.index or held == believed
    demand(is_same, "StableIsDurable", f"r{replica_id} believes {believed}/{index} durable, its disk has term {held}")
