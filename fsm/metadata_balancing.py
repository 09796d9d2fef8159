"""The command about how the controller moves replicas.

It is a pure function over `MetadataTables`. The settings and the wish for one rebalancing are replicated, so that a new metadata leader
continues with both.
"""

from __future__ import annotations

from typing import Final

import msgspec
from raftmq.fsm import codes
from raftmq.fsm.metadata_commands import Done, Rejected, SetBalancing
from raftmq.fsm.metadata_tables import MetadataTables

REBALANCE_LEADERS: Final = "leaders"
REBALANCE_REPLICAS: Final = "replicas"
REBALANCES: Final = ("", REBALANCE_LEADERS, REBALANCE_REPLICAS)
"""The wishes for one rebalancing: none, only of leaderships, or of replicas too."""
MOVES_LIMIT: Final = 1000
"""The most partitions that may move simultaneously. A larger number would be a typing error."""
BYTES_PER_SECOND_MIN: Final = 64 * 1024
"""The lowest rate of moves. Below it a single large entry would take minutes, and the end of a move would not be foreseeable."""
BYTES_PER_SECOND_LIMIT: Final = 1 << 40
"""The highest rate of moves. A larger number would be a typing error."""


def set_balancing(tables: MetadataTables, command: SetBalancing) -> Done | Rejected:
    """Change the settings that the command names. The same command again is `Done`."""
    refusal = balancing_refusal(command)
    if refusal is not None:
        return refusal
    named = {
        "auto_balance": command.auto_balance,
        "moves_max": command.moves_max,
        "rebalance": command.rebalance,
        "bytes_per_second": command.bytes_per_second,
    }
    changes = {
        name: value for name, value in named.items() if value is not None and value != getattr(tables.cluster, name)
    }
    if changes:
        tables.update_cluster(**changes)
        tables.record_layout_change()
    if command.rebalance == REBALANCE_REPLICAS:
        _unpin_all(tables)
    return Done(tables.cluster.revision)


def _unpin_all(tables: MetadataTables) -> None:
    """End every pin: the operator wants the cluster's order now, and pins are the operator's own."""
    for group_id in tables.pinned_groups():
        partition = tables.partition(group_id)
        if partition is not None:  # always: the index is derived from the partitions
            tables.put_partition(msgspec.structs.replace(partition, is_pinned=False, revision=tables.index))


def balancing_refusal(command: SetBalancing) -> Rejected | None:
    """Return why these settings are impossible, or None."""
    if command.moves_max is not None and not 1 <= command.moves_max <= MOVES_LIMIT:
        return Rejected(
            codes.INVALID_ARGUMENT,
            f"between 1 and {MOVES_LIMIT} partitions may move simultaneously, not {command.moves_max}: to pause "
            "automatic balancing, set auto_balance to false",
        )
    rate = command.bytes_per_second
    if rate and not BYTES_PER_SECOND_MIN <= rate <= BYTES_PER_SECOND_LIMIT:
        return Rejected(
            codes.INVALID_ARGUMENT,
            f"the rate of moves is 0 (unlimited), or between {BYTES_PER_SECOND_MIN} and {BYTES_PER_SECOND_LIMIT} bytes per second, not "
            f"{rate}: to pause automatic balancing, set auto_balance to false",
        )
    if command.rebalance is not None and command.rebalance not in REBALANCES:
        return Rejected(codes.INVALID_ARGUMENT, f"there is no rebalancing {command.rebalance[:20]!r}")
    return None
