"""Create the two states in which a new replica can start: as founder of a group, or as a newcomer to one."""

from __future__ import annotations

from raftmq.raft.core import RestoredState
from raftmq.raft.entry import GENESIS, LogPosition
from raftmq.raft.hard_state import HardState
from raftmq.raft.membership import EMPTY_MEMBERSHIP, Membership
from raftmq.types import LogIndex, Offset, ReplicaId, Term


def founder_state(membership: Membership) -> RestoredState:
    """Return the state in which every founding replica of a group starts: after the synthetic first snapshot."""
    return RestoredState(
        hard_state=HardState(GENESIS.term, ReplicaId(0), GENESIS.index),
        position=GENESIS,
        last_index=GENESIS.index,
        last_next_offset=GENESIS.next_offset,
        last_append_time_ms=0,
        term_starts=(),
        membership=membership,
        state_index=GENESIS.index,
    )


def joiner_state() -> RestoredState:
    """Return the state of a replica that joins an existing group: it is empty and waits for a snapshot."""
    nothing = LogPosition(LogIndex(0), Term(0), Offset(0))
    return RestoredState(
        hard_state=HardState(Term(0), ReplicaId(0), LogIndex(0)),
        position=nothing,
        last_index=LogIndex(0),
        last_next_offset=Offset(0),
        last_append_time_ms=0,
        term_starts=(),
        membership=EMPTY_MEMBERSHIP,
        state_index=LogIndex(0),
    )
