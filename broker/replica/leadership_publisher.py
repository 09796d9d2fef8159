"""Tells every other node which groups this one leads, and takes in what they say of themselves.

On each change, to a peer that has just connected, and again from time to time. Must not decide who leads: it repeats what
the cores say here, and believes of another node only what it says about itself, in a group that it has a replica of.

The table keeps the last leader known, since that is the best place to ask for the next one. Whether a group has a leader now
is another question (`is_led`): a dead leader withdraws nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from raftmq.broker.base.limits import Timing
from raftmq.broker.peers.codec import FrameType, encode_leadership
from raftmq.broker.peers.protocol import Channel, Transport
from raftmq.broker.replica.leadership_table import LeadershipTable
from raftmq.broker.replica.replica import Replica
from raftmq.fsm.state_machine import StateMachine
from raftmq.raft.ready import Role, RoleChange
from raftmq.types import NO_NODE, GroupId, NodeId, Term

Rows = Sequence[tuple[int, int, int]]
"""(group id, term, leader's node id or 0), as on the wire."""
_GONE_ELECTIONS = 2
"""Election timeouts after which a leader out of reach is taken to lead no more: by then its group has another, if it can."""


class LeadershipPublisher:
    """One node's part in the leadership table that all nodes keep."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        table: LeadershipTable,
        replicas: Mapping[GroupId, Replica[StateMachine]],
        transport: Transport,
        timing: Timing,
    ) -> None:
        self._loop = loop
        self._timing = timing
        self._began_at = loop.time()
        self._down_since: dict[NodeId, float] = {}
        """When the connection to a node was lost; none of those that are connected."""
        self._withdrawn: dict[GroupId, Term] = {}
        """Groups that this node led last, as far as it knows, and leads no more: told again to whoever missed it."""
        self.node_id = NO_NODE
        """This node; 0 before the engine's start."""
        self.peers: Sequence[NodeId] = ()
        """Every other node of the cluster; kept by the node."""
        self.may_lead: Callable[[GroupId, NodeId], bool] = lambda group_id, node_id: True
        """Whether a node has a replica of a group, as far as metadata says; kept by the node."""
        self._table = table
        self._replicas = replicas
        self._transport = transport
        self._changed: dict[GroupId, tuple[Term, NodeId]] = {}

    def on_role_change(self, replica: Replica[StateMachine], change: RoleChange) -> None:
        """A replica here gained, lost or learned of the leadership of its group."""
        group_id = replica.group_id
        if change.role is Role.LEADER:
            self._table.claim(group_id, change.term, self.node_id)
            self._changed[group_id] = (change.term, self.node_id)
            self._withdrawn.pop(group_id, None)
        elif change.leader_id:
            self._withdrawn.pop(group_id, None)
            node_id = replica.node_of(change.leader_id)
            if node_id != NO_NODE:
                self._table.claim(group_id, change.term, node_id)
        else:
            term, node_id = self._table.get(group_id)
            if node_id == self.node_id:
                self._table.withdraw(group_id, term, node_id)
                self._changed[group_id] = (term, NO_NODE)
                self._withdrawn[group_id] = term

    def publish_changes(self) -> None:
        """Send what changed since the last call; the caller flushes."""
        if self._changed:
            rows = [(group_id, term, node) for group_id, (term, node) in self._changed.items()]
            self._changed = {}
            self._broadcast(rows)

    def publish_all(self) -> None:
        """Say everything again, for whoever missed it."""
        self._broadcast(self._own_rows())
        self._transport.flush()

    def on_peer_up(self, node_id: NodeId) -> None:
        """Tell a peer at once what this node leads."""
        self._down_since.pop(node_id, None)
        rows = self._own_rows()
        if rows:
            self._transport.send(node_id, Channel.CONTROL, FrameType.LEADERSHIP, encode_leadership(rows))
            self._transport.flush()

    def on_peer_down(self, node_id: NodeId) -> None:
        """The connection to a peer is gone."""
        self._down_since[node_id] = self._loop.time()

    def is_led(self, group_id: GroupId) -> bool:
        """Whether the group has a leader, as far as this node can tell.

        A replica here that follows one knows. Else the last claim counts, until the claimant said that it leads no more, was
        out of reach for some election timeouts, or did not repeat its claim when it should have.
        """
        replica = self._replicas.get(group_id)
        if replica is not None and replica.core.leader_id:
            return True
        _, node_id = self._table.get(group_id)
        if node_id in (NO_NODE, self.node_id):
            return False
        now = self._loop.time()
        grace = _GONE_ELECTIONS * self._timing.election_seconds(group_id)
        if not self._transport.is_connected(node_id):
            return now - self._down_since.get(node_id, self._began_at) <= grace
        heard_at = self._table.heard_at(group_id)
        if replica is not None and replica.leaderless_since is not None and heard_at < replica.leaderless_since:
            return now - replica.leaderless_since <= grace  # it would have been heard by the replica here
        return now - heard_at <= self._timing.leadership_publish_seconds + grace

    def on_rows(self, node_id: NodeId, rows: Rows) -> None:
        """What a peer says that it leads, or leads no longer."""
        for group_number, term_number, leader_number in rows:
            group_id, term, leader = GroupId(group_number), Term(term_number), NodeId(leader_number)
            if not self.may_lead(group_id, node_id):
                continue
            if leader == NO_NODE:
                self._table.withdraw(group_id, term, node_id)
            elif leader == node_id:
                self._table.claim(group_id, term, node_id)
                self._table.confirm(group_id, node_id, self._loop.time())

    def _own_rows(self) -> Rows:
        """What this node leads, and what it led last and leads no more: a message that said so may have been lost."""
        led = [
            (replica.group_id, replica.core.term, int(self.node_id))
            for replica in self._replicas.values()
            if replica.core.role is Role.LEADER
        ]
        self._withdrawn = {group_id: term for group_id, term in self._withdrawn.items() if group_id in self._replicas}
        return led + [(group_id, term, int(NO_NODE)) for group_id, term in self._withdrawn.items()]

    def _broadcast(self, rows: Rows) -> None:
        if rows:
            for node_id in self.peers:
                self._transport.send(node_id, Channel.CONTROL, FrameType.LEADERSHIP, encode_leadership(rows))
