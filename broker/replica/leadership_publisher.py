"""Tell every other node the groups that this one leads, and process their claims.

Leaderships are sent on each change, to a peer that has just connected, and at intervals. This module must not decide which node leads:
it repeats the statements of the cores here, and accepts another node's claims only for itself, in a group that it has a replica of.

The table keeps the last known leader, because that is the best place to ask for the next one. Whether a group has a leader now is a
different question (`is_led`): a dead leader withdraws nothing.
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
"""Election timeouts after which an unreachable leader counts as lost. By then its group has elected another if it can."""


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
        """Times at which connections to nodes were lost. Connected nodes are not in it."""
        self._withdrawn: dict[GroupId, Term] = {}
        """Groups whose last known leader was this node, and which it no longer leads. Repeated for nodes that missed it."""
        self.node_id = NO_NODE
        """This node. 0 before the engine's start."""
        self.peers: Sequence[NodeId] = ()
        """Every other node of the cluster. Kept by the node."""
        self.may_lead: Callable[[GroupId, NodeId], bool] = lambda group_id, node_id: True
        """Returns whether a node has a replica of a group according to metadata. Kept by the node."""
        self._table = table
        self._replicas = replicas
        self._transport = transport
        self._changed: dict[GroupId, tuple[Term, NodeId]] = {}

    def on_role_change(self, replica: Replica[StateMachine], change: RoleChange) -> None:
        """Record that a replica here gained, lost or learned of the leadership of its group."""
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
        """Send the changes since the last call. The caller flushes the transport."""
        if self._changed:
            rows = [(group_id, term, node) for group_id, (term, node) in self._changed.items()]
            self._changed = {}
            self._broadcast(rows)

    def publish_all(self) -> None:
        """Repeat all leaderships, for nodes that missed one."""
        self._broadcast(self._own_rows())
        self._transport.flush()

    def on_peer_up(self, node_id: NodeId) -> None:
        """Send the groups that this node leads to a new peer immediately."""
        self._down_since.pop(node_id, None)
        rows = self._own_rows()
        if rows:
            self._transport.send(node_id, Channel.CONTROL, FrameType.LEADERSHIP, encode_leadership(rows))
            self._transport.flush()

    def on_peer_down(self, node_id: NodeId) -> None:
        """Record that the connection to a peer was lost."""
        self._down_since[node_id] = self._loop.time()

    def down_seconds(self, node_id: NodeId) -> float:
        """Return the time since the connection to a peer was lost, or since this node's start if there was none."""
        return self._loop.time() - self._down_since.get(node_id, self._began_at)

    def is_led(self, group_id: GroupId) -> bool:
        """Return whether the group has a leader, as far as this node can tell.

        A replica here that follows a leader knows. Otherwise the last claim counts, until the claimant withdrew it, was unreachable
        for some election timeouts, or did not repeat it when it should have.
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
            return now - replica.leaderless_since <= grace  # the replica here would have heard its leader
        return now - heard_at <= self._timing.leadership_publish_seconds + grace

    def on_rows(self, node_id: NodeId, rows: Rows) -> None:
        """Process a peer's statement of the groups that it leads, or no longer leads."""
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
        """Return the groups that this node leads, and those that it led last: an earlier withdrawal may have been lost."""
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
