"""Decide how long a tail of the log is kept beyond need, so that members that were absent briefly need no snapshot.

The durable state contains every command before it, but no records. So the whole metadata log, and the commands before the first
record of a partition's log, may be deleted. A member that still needs them gets a snapshot.

Every replica keeps a tail, because each may lead when an absent member returns. The leader keeps more for a member that is absent, up to a
size and a time. Both count what was appended since the replica was opened. Of earlier entries a fixed number is kept.
"""

from __future__ import annotations

from raftmq.broker.replica.replica import Replica
from raftmq.fsm.state_machine import StateMachine
from raftmq.raft.ready import Role
from raftmq.types import LogIndex

TAIL_BYTES = 64 << 20
"""Entries that every replica keeps: a restart of half a minute must not cost a snapshot."""
TAIL_ENTRIES = 1000
"""Entries from before the replica was opened that it keeps, and those for whose deletion alone a write is worth it."""
LAGGING_BYTES_MAX = 1 << 30
"""The most that a leader keeps for an absent member."""
LAGGING_MS_MAX = 10 * 60 * 1000
"""The longest time for which it does."""
WORTH_BYTES = 8 << 20
"""Entries for whose deletion a write is worth it, however few they are."""


def index_before_tail(replica: Replica[StateMachine]) -> LogIndex | None:
    """Return the last index before the tail, or None while too little could be deleted to be worth a write."""
    core, marks = replica.core, replica.log.marks
    opened_index = core.last_index if marks.opened_index is None else marks.opened_index
    tail = max(marks.index_before_bytes(TAIL_BYTES), opened_index - TAIL_ENTRIES)
    index = min(replica.durable_state_index, tail)
    start = replica.log_start.index
    if index <= start:
        return None
    if core.role is Role.LEADER:
        matches = [match for match in core.match_indexes().values() if match]
        # a member that is absent for very long gets a snapshot, so that it does not make the log grow without bound
        lag = max(marks.index_before_bytes(LAGGING_BYTES_MAX), marks.index_before_time(LAGGING_MS_MAX))
        index = max(min([index, *matches]), min(index, lag))
    is_worth_it = index > start + TAIL_ENTRIES or marks.bytes_between(start, LogIndex(index)) >= WORTH_BYTES
    return LogIndex(index) if index > start and is_worth_it else None
