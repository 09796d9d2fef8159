"""`SettlementsFirst`: no lease takes the work of an entry from the settlements in it.

A lease removes the expired messages that it meets, as many as its entry has work left for. A settlement that finds nothing left is refused, and its
consumer takes that for final.
"""

from __future__ import annotations

from raftmq.fsm.queue.commands import Lease, Settle, decode_commands
from raftmq.fsm.queue.results import Code, Results, Settled
from raftmq.raft.entry import Entry, EntryKind

from sim.core.invariants.violation import demand


def check_settlements_first(group_id: int, entry: Entry, result: object) -> None:
    """Check an entry of a queue that a replica has just applied."""
    if entry.kind is not EntryKind.COMMAND or not isinstance(result, Results):
        return
    refused = [
        number for number, one in enumerate(result.items) if isinstance(one, Settled) and Code.OVER_LIMIT in one.codes
    ]
    commands = decode_commands(entry.payload) if refused else None
    if commands is None:
        return
    for number in refused:
        has_lease = any(isinstance(item, Lease) for item in commands.items[:number])
        demand(
            not has_lease or not isinstance(commands.items[number], Settle),
            "SettlementsFirst",
            f"entry {entry.index} of g{group_id} refuses the settlement {number}, since a lease before it has used the work up",
        )
