"""The scenarios by name. A prelude leads to a state from which a few events suffice to break an implementation."""

from __future__ import annotations

from raftmq.raft.membership import MembershipChange, MembershipOp
from raftmq.raft.settings import RaftSettings
from raftmq.types import ReplicaId

from sim.core.explore.node import ELECTION_TICKS
from sim.core.explore.search import Scenario

ADD, LEARN, REMOVE = MembershipOp.ADD_VOTER, MembershipOp.ADD_LEARNER, MembershipOp.REMOVE


def change(*steps: tuple[MembershipOp, int], is_explicit: bool = False) -> MembershipChange:
    """Return a change of membership."""
    return MembershipChange(tuple((op, ReplicaId(number)) for op, number in steps), 0, is_explicit)


LEAVE = change()
ELECTED = ((1, ("tick", 2 * ELECTION_TICKS), ()),)
"""Replica 1 leads term 6, and its first entry is on all disks."""
GROWN = (*ELECTED, (1, ("change", change((LEARN, 4))), ()))
"""Replica 4 is a learner, too."""
DIVERGED = (
    *ELECTED,
    (1, ("propose", b"a"), (1,)),
    (1, ("propose", b"b"), (1,)),
    (2, ("campaign",), (1,)),
)
"""Replica 1 still leads term 6 and has two more entries, alone. Replica 2 leads term 7, and has committed another entry with replica 3."""
BEHIND = (*ELECTED, (1, ("propose", b"a"), (3,)), (1, ("compact",), ()), (1, ("unreachable", 3), (3,)))
"""Replica 3 will need a snapshot of replica 1, the leader."""

SCENARIOS = {
    "elections": Scenario({"timeout": 2, "forget": 1, "crash": 1, "late": 1}, has_heartbeats=True),
    "campaigns": Scenario({"campaign": 2, "crash": 1, "slow_disk": 1, "late": 1}),
    "old_leader": Scenario(
        {"timeout": 2, "forget": 1, "check": 2, "propose": 1}, ELECTED, has_heartbeats=True, is_deaf=False
    ),
    "replication": Scenario({"campaign": 1, "propose": 1, "crash": 1, "slow_disk": 1, "late": 1, "repeat": 1}, ELECTED),
    "earlier_term": Scenario(
        {"campaign": 3}, (*ELECTED, (1, ("propose", b"aa"), (1,))), settings=RaftSettings(append_bytes_max=1)
    ),
    "diverged": Scenario({"campaign": 2, "propose": 1, "crash": 1}, DIVERGED),
    "diverged_heartbeats": Scenario({"beat": 1, "propose": 1, "repeat": 1, "late": 1}, DIVERGED, has_heartbeats=True),
    "joint": Scenario(
        {"change": 1, "campaign": 1, "crash": 1, "slow_apply": 1},
        GROWN,
        others=1,
        changes=(change((ADD, 4), (REMOVE, 1)), change((ADD, 4), (LEARN, 2))),
    ),
    "half_joint": Scenario(
        {"change": 1, "campaign": 2, "crash": 1},
        (*GROWN, (1, ("change", change((ADD, 4), (REMOVE, 1), is_explicit=True)), (3, 4))),
        others=1,
        changes=(LEAVE,),
    ),
    "changes": Scenario(
        {"change": 2, "campaign": 1, "slow_apply": 1},
        GROWN,
        others=1,
        changes=(change((ADD, 4)), change((REMOVE, 1)), change((LEARN, 2))),
    ),
    "pending_change": Scenario(
        {"change": 1, "campaign": 2, "crash": 1},
        (*GROWN, (1, ("change", change((ADD, 4))), (1,)), (2, ("campaign",), (1,))),
        others=1,
        changes=(change((REMOVE, 1)), change((ADD, 4), (REMOVE, 3))),
    ),
    "learner": Scenario(
        {"campaign": 2, "propose": 1, "crash": 1, "slow_disk": 1, "change": 1},
        (*ELECTED, (1, ("change", change((LEARN, 3))), ())),
        voters=2,
        others=1,
        changes=(change((ADD, 3)), change((REMOVE, 2))),
    ),
    "lost_disk": Scenario(
        {"change": 2, "campaign": 2, "crash": 1},
        GROWN,
        others=1,
        dead=(3,),
        changes=(change((ADD, 4), (REMOVE, 3)), change((ADD, 4))),
    ),
    "transfer": Scenario(
        {"transfer": 1, "change": 1, "propose": 1, "timeout": 1, "slow_apply": 1, "check": 1},
        ELECTED,
        changes=(change((REMOVE, 1)), change((REMOVE, 2))),
    ),
    "snapshot": Scenario(
        {"beat": 1, "campaign": 1, "propose": 1, "snapshot_lost": 1, "crash": 1, "slow_disk": 1},
        BEHIND,
        has_heartbeats=True,
    ),
    "diverged_snapshot": Scenario(
        {"beat": 1, "campaign": 1, "propose": 1, "crash": 1, "slow_disk": 1, "repeat": 1},
        (*DIVERGED, (2, ("propose", b"c"), (1,)), (2, ("compact",), (1,))),
        has_heartbeats=True,
    ),
    "reads": Scenario(
        {"read": 1, "beat": 1, "campaign": 1, "propose": 1, "late": 1},
        (*ELECTED, (1, ("propose", b"a"), ())),
        has_heartbeats=True,
        settings=RaftSettings(announce_commits=False),
    ),
}
