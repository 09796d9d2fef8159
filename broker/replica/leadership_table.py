"""Record which node leads which group, according to the leaders themselves. The highest term wins.

Leaderships are not in the metadata log, so that a mass failover causes no metadata traffic.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from raftmq.fsm.recent_changes import RecentChanges
from raftmq.types import NO_NODE, GroupId, NodeId, Term


class Leadership(NamedTuple):
    """A claim that `node_id` leads the group in `term`. Node 0 means that the claimant knows no leader."""

    term: Term
    node_id: NodeId


_UNKNOWN = Leadership(Term(0), NodeId(0))


class LeaderHint(NamedTuple):
    """Name the best node to ask for the leader of a group."""

    node_id: NodeId
    """The node that is believed to lead, or that led last; 0 if none is known."""
    address: str
    """The node's client address; empty if it is not known."""
    term: Term


class LeadershipTable:
    """The claims that one node knows."""

    def __init__(self, on_change: Callable[[GroupId], None], address_of: Callable[[NodeId], str]) -> None:
        """Take `on_change`, called for each group whose entry changed, and `address_of`.

        `address_of` returns a node's client address, or an empty text if it is not known.
        """
        self._address_of = address_of
        self._rows: dict[GroupId, Leadership] = {}
        self._heard_at: dict[GroupId, float] = {}
        self._on_change = on_change
        self.changes: RecentChanges[GroupId] = RecentChanges()
        """The groups whose entries changed lately."""

    def get(self, group_id: GroupId) -> Leadership:
        """Return the best known claim."""
        return self._rows.get(group_id, _UNKNOWN)

    def leader_hint(self, group_id: GroupId) -> LeaderHint:
        """Return the leader that this node believes in, and its address."""
        term, node_id = self.get(group_id)
        return LeaderHint(node_id, self._address_of(node_id) if node_id != NO_NODE else "", term)

    def claim(self, group_id: GroupId, term: Term, node_id: NodeId) -> bool:
        """Accept a claim unless a better one is known. Return whether the table changed.

        In one term a leader is better than none. Only `withdraw` replaces a leader by none in the same term.
        """
        known = self._rows.get(group_id, _UNKNOWN)
        if term < known.term or (term == known.term and (node_id == known.node_id or node_id == 0)):
            return False
        self._rows[group_id] = Leadership(term, node_id)
        self._note(group_id)
        return True

    def confirm(self, group_id: GroupId, node_id: NodeId, now: float) -> None:
        """Record the time of a node's repeated claim, if it is the known leader."""
        if self.get(group_id).node_id == node_id:
            self._heard_at[group_id] = now

    def heard_at(self, group_id: GroupId) -> float:
        """Return the time at which the known leader last claimed the group, or minus infinity if it never did."""
        return self._heard_at.get(group_id, float("-inf"))

    def withdraw(self, group_id: GroupId, term: Term, node_id: NodeId) -> bool:
        """Remove the claim of the leader of `term`, which no longer leads. Return whether the table changed."""
        if self._rows.get(group_id) != Leadership(term, node_id):
            return False
        self._rows[group_id] = Leadership(term, NodeId(0))
        self._note(group_id)
        return True

    def groups(self) -> list[GroupId]:
        """Return every group that was ever claimed and is not forgotten."""
        return list(self._rows)

    def forget(self, group_id: GroupId) -> None:
        """Forget a deleted group."""
        if self._rows.pop(group_id, None) is not None:
            self.changes.record(group_id)
        self._heard_at.pop(group_id, None)

    def _note(self, group_id: GroupId) -> None:
        self.changes.record(group_id)
        self._on_change(group_id)
