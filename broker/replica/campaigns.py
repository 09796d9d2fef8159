"""Which replicas here may ask for votes now: a bounded number at once, none while its disk hangs.

Decides nothing about elections, which is the core's: it says when a core that wants to campaign, or should, may. The
metadata group and leadership transfers do not wait at the gate. Source: a mass failover (a dead node that led a thousand
groups) must not become a storm of campaigns that time each other out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from raftmq.broker.base.limits import Limits, Timing
from raftmq.broker.replica.commits import Commits
from raftmq.broker.replica.engine_host import EngineHost
from raftmq.broker.replica.replica import Group
from raftmq.fsm.state_machine import StateMachine
from raftmq.raft.ready import Role
from raftmq.types import METADATA_GROUP_ID, NO_NODE, GroupId, NodeId, Term

FIRST_CAMPAIGN_SECONDS = 0.15
"""The preferred leader of a new group asks for votes again after this time, until its peers have created their replicas too."""
_FIRST_CAMPAIGN_GROWTH = 1.5
"""Each further asking waits so many times longer: answers to an earlier one do not count, so one must be given the time for them."""
_FIRST_CAMPAIGNS_SECONDS = 6.0
"""So long; then the election timeout sees to it."""
_GOLDEN_RATIO = 0.6180339887
"""Multiples of it, without their whole part, spread evenly however many they are."""
_JITTER = 0.25
"""Of a turn."""
_WAITING = (Role.FOLLOWER, Role.PRE_CANDIDATE)
"""Roles in which a group without a leader may ask (again): nobody's term changes before a majority would vote."""


class Campaigns:
    """One node's gate, and the campaigns that do not wait for an election timeout."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        host: EngineHost,
        commits: Commits,
        groups: Mapping[GroupId, Group[StateMachine]],
        limits: Limits,
        timing: Timing,
        uniform: Callable[[], float],
    ) -> None:
        self._loop = loop
        self._host = host
        self._commits = commits
        self._groups = groups
        self._limits = limits
        self._timing = timing
        self._uniform = uniform
        self._held: dict[GroupId, float] = {}
        """Groups that hold a place at the gate, and when each took it; in the order of these times."""

    @property
    def held(self) -> int:
        """Places at the gate that are taken."""
        return len(self._held)

    def ask(self, group: Group[StateMachine]) -> None:
        """Campaign if the gate lets the group through; else whoever asked asks again later."""
        if self._commits.is_hanging(group):
            return
        if group.group_id != METADATA_GROUP_ID and not self._enter_gate(group.group_id):
            return
        group.core.campaign()
        self._host.mark_dirty(group)

    def _enter_gate(self, group_id: GroupId) -> bool:
        """Take a place, or keep the one held. A place is given for one election timeout: a group without a quorum is a
        candidate for ever, and must not keep the others from campaigning, nor itself from trying again.
        """
        held = self._held
        now = self._loop.time()
        if group_id not in held and len(held) >= self._limits.campaigns_max:
            began_after = now - self._timing.election_seconds(group_id)
            while held and next(iter(held.values())) <= began_after:
                del held[next(iter(held))]
            if len(held) >= self._limits.campaigns_max:
                return False
        held.pop(group_id, None)  # the dict is in the order of the times
        held[group_id] = now
        return True

    def leave_gate(self, group_id: GroupId) -> None:
        """The group's campaign ended, however it did."""
        self._held.pop(group_id, None)

    def on_peer_refused(self, node_id: NodeId) -> None:
        """The peer's process is gone: followers of its groups need not wait for their election timeout."""
        for group in list(self._groups.values()):
            core = group.core
            if core.role is Role.FOLLOWER and core.leader_id and group.node_of(core.leader_id) == node_id:
                core.forget_leader()
                self._host.mark_dirty(group)
                self._ask_soon(group, gone=node_id)

    def on_peer_up(self, node_id: NodeId) -> None:
        """A peer can be reached again: groups that had no majority without it may have one now."""
        for group in list(self._groups.values()):
            core = group.core
            if (
                not core.leader_id
                and core.role in _WAITING
                and any(group.node_of(member) == node_id for member in core.membership.voter_ids)
            ):
                core.peer_returned()
                self._ask_soon(group)

    def _ask_soon(self, group: Group[StateMachine], gone: NodeId = NO_NODE) -> None:
        """Campaign when it is this replica's turn: two that ask at once may split the votes, and a term is lost.

        When a group's turns begin is the same everywhere and differs from group to group; whose turn is first goes round, so
        that the groups of a dead leader spread over its followers.
        """
        voters = sorted(voter for voter in group.core.membership.voter_ids if group.node_of(voter) != gone)
        turn = 0
        if group.replica_id in voters:
            turn = (voters.index(group.replica_id) + group.group_id) % len(voters)
        low, high = self._timing.refused_campaign_min_seconds, self._timing.refused_campaign_max_seconds
        begin = low + (high - low) * (group.group_id * _GOLDEN_RATIO % 1.0)
        delay = begin + self._timing.campaign_turn_seconds * (turn + _JITTER * self._uniform())
        self._loop.call_later(delay, self._ask_if_leaderless, group, group.core.term)

    def _ask_if_leaderless(self, group: Group[StateMachine], term: Term) -> None:
        """`term`: when the wait began. A later one says that another's campaign is under way: it must not be disturbed."""
        core = group.core
        if not group.is_closed and not core.leader_id and core.role in _WAITING and core.term == term:
            self._host.guarded(group, self.ask, group)
            if len(self._held) >= self._limits.campaigns_max and group.group_id not in self._held:
                # the gate was full, which passes quickly: waiting for the election timeout would take ten times longer
                self._loop.call_later(self._timing.refused_campaign_min_seconds, self._ask_if_leaderless, group, term)

    def begin_first(self, group: Group[StateMachine]) -> None:
        """A new group need not wait for an election timeout: its first replica takes the lead at once."""
        self._ask_first(group, FIRST_CAMPAIGN_SECONDS, self._loop.time() + _FIRST_CAMPAIGNS_SECONDS)

    def _ask_first(self, group: Group[StateMachine], pause: float, until: float) -> None:
        if group.is_closed or group.core.leader_id or self._loop.time() >= until:
            return
        if group.core.role in _WAITING:
            self._host.guarded(group, self.ask, group)
        next_pause = pause * _FIRST_CAMPAIGN_GROWTH if group.core.role is Role.PRE_CANDIDATE else pause
        self._loop.call_later(pause, self._ask_first, group, next_pause, until)
