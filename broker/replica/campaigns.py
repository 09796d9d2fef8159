"""Decide which replicas here may request votes now: a bounded number simultaneously, and none while its disk hangs.

This module decides nothing about elections, which the core does. It decides when a core that wants to campaign may. The metadata
group and leadership transfers need no place at the gate. Reason: a mass failover (a dead node that led a thousand groups) must not
cause so many campaigns that they time each other out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from raftmq.broker.base.limits import Limits, Timing
from raftmq.broker.replica.commits import Commits
from raftmq.broker.replica.engine_host import EngineHost
from raftmq.broker.replica.replica import Replica
from raftmq.fsm.state_machine import StateMachine
from raftmq.raft.ready import Role
from raftmq.types import METADATA_GROUP_ID, NO_NODE, GroupId, NodeId, Term

FIRST_CAMPAIGN_SECONDS = 0.15
"""The preferred leader of a new group requests votes again after this time, until its peers have created their replicas too."""
_FIRST_CAMPAIGN_GROWTH = 1.5
"""Each pause is longer than the previous one by this factor: responses to an earlier round do not count, so one must have enough time."""
_FIRST_CAMPAIGNS_SECONDS = 6.0
"""The time for first campaigns. After it the election timeout applies."""
_GOLDEN_RATIO = 0.6180339887
"""The fractional parts of its multiples spread evenly, for any number of them."""
_JITTER = 0.25
"""Random part of a turn."""
_WAITING = (Role.FOLLOWER, Role.PRE_CANDIDATE)
"""Roles in which a group without a leader may ask again: no term changes before a majority would vote."""


class Campaigns:
    """One node's gate for campaigns, and the campaigns that do not wait for an election timeout."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        host: EngineHost,
        commits: Commits,
        replicas: Mapping[GroupId, Replica[StateMachine]],
        limits: Limits,
        timing: Timing,
        uniform: Callable[[], float],
    ) -> None:
        self._loop = loop
        self._host = host
        self._commits = commits
        self._replicas = replicas
        self._limits = limits
        self._timing = timing
        self._uniform = uniform
        self._held: dict[GroupId, float] = {}
        """Groups that hold a place at the gate, with the times at which they took it, in that order."""

    @property
    def held(self) -> int:
        """Return the number of places at the gate in use."""
        return len(self._held)

    def ask(self, replica: Replica[StateMachine]) -> None:
        """Campaign if the gate admits the group. Otherwise the caller asks again later."""
        if self._commits.is_hanging(replica):
            return
        if replica.group_id != METADATA_GROUP_ID and not self._enter_gate(replica.group_id):
            return
        replica.core.campaign()
        self._host.mark_dirty(replica)

    def _enter_gate(self, group_id: GroupId) -> bool:
        """Take a place, or renew the one held, and return whether there is one.

        A place is given for one election timeout. A group without a quorum stays a candidate without end, and must neither keep
        the others from campaigning, nor itself from trying again.
        """
        held = self._held
        now = self._loop.time()
        if group_id not in held and len(held) >= self._limits.campaigns_max:
            began_after = now - self._timing.election_seconds(group_id)
            while held and next(iter(held.values())) <= began_after:
                del held[next(iter(held))]
            if len(held) >= self._limits.campaigns_max:
                return False
        held.pop(group_id, None)  # the dict is ordered by time
        held[group_id] = now
        return True

    def leave_gate(self, group_id: GroupId) -> None:
        """Free the place of a group whose campaign ended."""
        self._held.pop(group_id, None)

    def on_peer_refused(self, node_id: NodeId) -> None:
        """Start campaigns after a peer's process died: followers of its groups need not wait for their election timeout."""
        for replica in list(self._replicas.values()):
            core = replica.core
            if core.role is Role.FOLLOWER and core.leader_id and replica.node_of(core.leader_id) == node_id:
                core.forget_leader()
                self._host.mark_dirty(replica)
                self._ask_soon(replica, gone=node_id)

    def on_peer_up(self, node_id: NodeId) -> None:
        """Start campaigns after a peer became reachable: groups that had no majority without it may have one now."""
        for replica in list(self._replicas.values()):
            core = replica.core
            if (
                not core.leader_id
                and core.role in _WAITING
                and any(replica.node_of(member) == node_id for member in core.membership.voter_ids)
            ):
                core.peer_returned()
                self._ask_soon(replica)

    def _ask_soon(self, replica: Replica[StateMachine], gone: NodeId = NO_NODE) -> None:
        """Campaign when it is this replica's turn: two simultaneous campaigns may split the votes, and a term is lost.

        The start of a group's turns is the same on every node and differs from group to group. The order of turns rotates by group,
        so that the groups of a dead leader spread over its followers.
        """
        voters = sorted(voter for voter in replica.core.membership.voter_ids if replica.node_of(voter) != gone)
        turn = 0
        if replica.replica_id in voters:
            turn = (voters.index(replica.replica_id) + replica.group_id) % len(voters)
        low, high = self._timing.refused_campaign_min_seconds, self._timing.refused_campaign_max_seconds
        begin = low + (high - low) * (replica.group_id * _GOLDEN_RATIO % 1.0)
        delay = begin + self._timing.campaign_turn_seconds * (turn + _JITTER * self._uniform())
        self._loop.call_later(delay, self._ask_if_leaderless, replica, replica.core.term)

    def _ask_if_leaderless(self, replica: Replica[StateMachine], term: Term) -> None:
        """Campaign unless the term has changed since `term`, when the wait began: then another campaign is under way."""
        core = replica.core
        if not replica.is_closed and not core.leader_id and core.role in _WAITING and core.term == term:
            self._host.guarded(replica, self.ask, replica)
            if len(self._held) >= self._limits.campaigns_max and replica.group_id not in self._held:
                # the gate was full, which passes quickly, and waiting for the election timeout would take ten times longer
                self._loop.call_later(self._timing.refused_campaign_min_seconds, self._ask_if_leaderless, replica, term)

    def begin_first(self, replica: Replica[StateMachine]) -> None:
        """Campaign for a new group without waiting for an election timeout: its first replica takes the lead immediately."""
        self._ask_first(replica, FIRST_CAMPAIGN_SECONDS, self._loop.time() + _FIRST_CAMPAIGNS_SECONDS)

    def _ask_first(self, replica: Replica[StateMachine], pause: float, until: float) -> None:
        if replica.is_closed or replica.core.leader_id or self._loop.time() >= until:
            return
        if replica.core.role in _WAITING:
            self._host.guarded(replica, self.ask, replica)
        next_pause = pause * _FIRST_CAMPAIGN_GROWTH if replica.core.role is Role.PRE_CANDIDATE else pause
        self._loop.call_later(pause, self._ask_first, replica, next_pause, until)
