"""`RestIsQuiet`: nothing is due in a replica that rests, and a resting leader repeats the heartbeats that it would collect now.

The engine leaves out the ticks of a resting replica (`RaftCore.rest`). A rest that an input does not end would delay an election or an
answer, and repeat a term, a commit index or a counter of reads that is no longer true.
"""

from __future__ import annotations

from raftmq.broker.replica.disk import Idle
from raftmq.broker.replica.replica import Replica
from raftmq.fsm.state_machine import StateMachine
from raftmq.raft.leadership import Leadership
from raftmq.raft.ready import Role
from raftmq.types import METADATA_GROUP_ID

from sim.core.invariants.violation import demand


def check_rest(replica: Replica[StateMachine]) -> None:
    """Check a replica if it rests. That of the metadata never does."""
    core = replica.core
    if replica.group_id == METADATA_GROUP_ID or replica.is_closed or core.next_tick <= core.ticks.now:
        return
    leadership = core.leadership
    found = {
        "its disk works": not isinstance(replica.disk, Idle),
        "its leadership is in doubt": replica.is_doubted,
        "reads wait": replica.reads.are_waiting,
        "a campaign is due": core.campaign_due,
        "heartbeats are due": core.heartbeat_due,
        "its election timeout has passed": core.role is not Role.LEADER
        and core._election_elapsed >= core._timeout_ticks,
        "it is a candidate": core.role is Role.CANDIDATE,
        "it repeats other heartbeats": leadership is not None
        and replica.heartbeats != _heartbeats(replica, leadership),
        "its quorum check is due": leadership is not None
        and core.ticks.now - leadership.quorum_checked_at >= core.settings.election_ticks,
        "a transfer or confirmation runs": leadership is not None
        and bool(leadership.transferee or leadership.confirm_round),
    }
    why = ", ".join(reason for reason, holds in found.items() if holds)
    demand(not why, "RestIsQuiet", f"r{replica.replica_id} of g{replica.group_id} rests although {why}")


def _heartbeats(replica: Replica[StateMachine], leadership: Leadership) -> list[object]:
    """Return the heartbeats that the leader would collect now, without collecting them."""
    core = replica.core
    return [
        (
            replica.node_of(peer),
            (
                replica.group_id,
                core.replica_id,
                peer,
                core.term,
                min(progress.match_index, core.commit_index),
                leadership.reads.round,
            ),
        )
        for peer, progress in leadership.progress.items()
        if peer != core.replica_id
    ]
