"""Tells every other node which groups this one leads, and takes in what they say of themselves.

On each change, to a peer that has just connected, and again from time to time. Must not decide who leads: it repeats what
the cores say here, and believes of another node only what it says about itself, in a group that it has a replica of.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from raftmq.broker.group import Group
from raftmq.broker.leadership_table import LeadershipTable
from raftmq.broker.peer_codec import FrameType, encode_leadership
from raftmq.broker.peer_transport import Channel, Transport
from raftmq.fsm.state_machine import StateMachine
from raftmq.raft.ready import Role, RoleChange
from raftmq.types import NO_NODE, GroupId, NodeId, Term

Rows = Sequence[tuple[int, int, int]]
"""(group id, term, leader's node id or 0), as on the wire."""


class LeadershipPublisher:
    """One node's part in the leadership table that all nodes keep."""

    peers: Sequence[NodeId] = ()
    """Every other node of the cluster; kept by the node."""
    may_lead: Callable[[GroupId, NodeId], bool] = staticmethod(lambda group_id, node_id: True)
    """Whether a node has a replica of a group, as far as metadata says; kept by the node."""

    def __init__(
        self, table: LeadershipTable, groups: Mapping[GroupId, Group[StateMachine]], transport: Transport
    ) -> None:
        self.node_id = NO_NODE
        """This node; 0 before the engine's start."""
        self._table = table
        self._groups = groups
        self._transport = transport
        self._changed: dict[GroupId, tuple[Term, NodeId]] = {}

    def on_role_change(self, group: Group[StateMachine], change: RoleChange) -> None:
        """A replica here gained, lost or learned of the leadership of its group."""
        group_id = group.group_id
        if change.role is Role.LEADER:
            self._table.claim(group_id, change.term, self.node_id)
            self._changed[group_id] = (change.term, self.node_id)
        elif change.leader_id:
            node_id = group.node_of(change.leader_id)
            if node_id != NO_NODE:
                self._table.claim(group_id, change.term, node_id)
        else:
            term, node_id = self._table.get(group_id)
            if node_id == self.node_id:
                self._table.withdraw(group_id, term, node_id)
                self._changed[group_id] = (term, NO_NODE)

    def publish_changes(self) -> None:
        """Send what changed since the last call; the caller flushes."""
        if self._changed:
            rows = [(group_id, term, node) for group_id, (term, node) in self._changed.items()]
            self._changed = {}
            self._broadcast(rows)

    def publish_all(self) -> None:
        """Say everything again, for whoever missed it."""
        self._broadcast(self._led_rows())
        self._transport.flush()

    def on_peer_up(self, node_id: NodeId) -> None:
        """Tell a peer at once what this node leads."""
        rows = self._led_rows()
        if rows:
            self._transport.send(node_id, Channel.CONTROL, FrameType.LEADERSHIP, encode_leadership(rows))
            self._transport.flush()

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

    def _led_rows(self) -> Rows:
        return [
            (group.group_id, group.core.term, self.node_id)
            for group in self._groups.values()
            if group.core.role is Role.LEADER
        ]

    def _broadcast(self, rows: Rows) -> None:
        if rows:
            for node_id in self.peers:
                self._transport.send(node_id, Channel.CONTROL, FrameType.LEADERSHIP, encode_leadership(rows))
