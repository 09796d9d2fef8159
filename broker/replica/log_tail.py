"""Decide how long a tail of the log is kept beyond need, so that members that were absent briefly need no snapshot.

The durable state contains every command before it, but no records. So the whole metadata log, and the commands before the first
record of a partition's log, may be deleted. A member that still needs them gets a snapshot.
"""

from __future__ import annotations

from raftmq.broker.replica.replica import Replica
from raftmq.fsm.state_machine import StateMachine
from raftmq.raft.ready import Role
from raftmq.types import LogIndex

TAIL_ENTRIES = 1000
"""Entries that are kept before the durable state."""
LAGGING_ENTRIES_MAX = 50_000
"""The most entries that a leader keeps for an absent member."""


def index_before_tail(replica: Replica[StateMachine]) -> LogIndex | None:
    """Return the last index before the tail, or None while too few entries could be deleted to be worth a write."""
    core = replica.core
    index = replica.durable_state_index - TAIL_ENTRIES
    if core.role is Role.LEADER:
        matches = [match for match in core.match_indexes().values() if match]
        # a member that is absent for very long gets a snapshot, so that it does not make the log grow without bound
        index = max(min([index, *matches]), index - LAGGING_ENTRIES_MAX)
    return LogIndex(index) if index > replica.log_start.index + TAIL_ENTRIES else None
