"""Hold everything that a replica has only while it leads: members, own tail, transfer, confirmation, reads.

Must not send anything. Invariant: `CoreState.leadership` holds one exactly while the role is LEADER. A step down drops the
whole object, so that a later leadership starts from nothing.
Source: Ongaro's thesis, figure 3.1 (volatile state on leaders), 3.10 (transfer), 6.2 (quorum check), 6.4 (reads).
"""

from __future__ import annotations

from collections import deque

from raftmq.raft.membership import Membership
from raftmq.raft.progress import Progress
from raftmq.raft.read_queue import ReadQueue
from raftmq.raft.settings import RaftSettings
from raftmq.raft.ticks import Ticks
from raftmq.types import NO_REPLICA, ReplicaId


class Leadership:
    """Hold the state of one leadership. `replication.py` and `read_index.py` read and write it."""

    __slots__ = (
        "confirm_began_at",
        "confirm_round",
        "flush_due",
        "heartbeat_at",
        "is_announcing",
        "last_index_at_tick",
        "noop_index",
        "progress",
        "quorum_checked_at",
        "reads",
        "transfer_began_at",
        "transferee",
        "uncommitted",
        "uncommitted_bytes",
    )

    def __init__(self, membership: Membership, last_index: int, settings: RaftSettings, ticks: Ticks) -> None:
        self.progress: dict[ReplicaId, Progress] = {
            member: Progress(last_index + 1, settings, ticks) for member in membership.member_ids
        }
        """Every member as the leader sees it, itself included."""
        # entries
        self.noop_index: int = last_index + 1
        """The first entry of this leadership. The leader judges no request before it is applied."""
        self.flush_due = False
        """Whether entries or a commit index may wait to be sent. `ready` sends once, so that one message carries all of them."""
        self.is_announcing = True
        """Whether a commit index is sent by itself when no other message carries it."""
        self.uncommitted: deque[tuple[int, int]] = deque()
        """(last index, payload bytes) of each batch that this leader proposed and that is not committed, oldest first."""
        self.uncommitted_bytes: int = 0
        """Payload bytes of all batches in `uncommitted`."""
        # ticks
        self.heartbeat_at: int = ticks.now
        """The tick of the last regular heartbeat."""
        self.quorum_checked_at: int = ticks.now
        """The tick of the last quorum check."""
        self.last_index_at_tick: int = last_index + 1
        """The end of this leader's log at its last tick. A member that lacks it at the next tick is behind."""
        # transfer
        self.transferee: ReplicaId = NO_REPLICA
        """The voter that is to lead next, or 0 when no transfer runs. Proposals are refused while one runs."""
        self.transfer_began_at: int = 0
        """The tick at which a transfer closed proposals. A timer of its own, as transfers must not postpone the quorum check."""
        # reads and confirmation
        self.reads = ReadQueue()
        """Reads that wait for this leader's first commit, or for a round of heartbeats."""
        self.confirm_round: int = 0
        """The round of heartbeats that a quorum must acknowledge after a stall, or 0 when the leader is not in doubt."""
        self.confirm_began_at: int = 0
        """The tick at which `confirm_round` was set."""
