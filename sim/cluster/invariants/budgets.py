"""`BudgetsHold`: the bytes that a node holds for clients and leaders stay within their limits, and are released (promise: everything
that can grow has a named bound).

There is one exception by contract: a piece of any size is accepted while nothing else is held, because otherwise it never could be
accepted. A piece is one proposal, one append of a leader, or one recent entry. No other piece is accepted before it is released.
"""

from __future__ import annotations

from raftmq.broker.replica.disk import DiskState, Idle
from raftmq.broker.replica.recent_entries import _OVERHEAD_BYTES
from raftmq.broker.replica.replica import Replica
from raftmq.fsm.state_machine import StateMachine

from sim.cluster.cluster import SimNode
from sim.core.invariants.violation import InvariantViolation


class Budgets:
    """The budgets of one node in one boot. It is informed of each accepted piece: only they increase these two accounts."""

    def __init__(self, node: SimNode) -> None:
        self._node = node
        limits = node.limits
        self._limits = {"uncommitted": limits.uncommitted_bytes_max, "inbound": limits.inbound_append_bytes_max}
        self._first_piece = {"uncommitted": 0, "inbound": 0}
        """Size of the last piece that was accepted while nothing else was held."""
        self._writes: dict[int, tuple[Replica[StateMachine], DiskState, int]] = {}
        """Group -> its replica, its latest write, and the inbound bytes that the write releases at its end."""

    def on_proposal(self, held_before: int) -> None:
        """Check the budget after a proposal was accepted."""
        self._on_piece("uncommitted", held_before, self._node.engine.uncommitted_bytes)

    def on_append(self, held_before: int) -> None:
        """Check the budget after a leader's append was accepted."""
        self._on_piece("inbound", held_before, self._node.engine.inbound_bytes)

    def on_write(self, replica: Replica[StateMachine], inbound_bytes: int) -> None:
        """Record a write that began, except writes of derived state alone."""
        self._writes[replica.group_id] = replica, replica.disk, inbound_bytes

    def _on_piece(self, name: str, held_before: int, held: int) -> None:
        if held_before == 0:
            self._first_piece[name] = held
        self._check_account(name, held)

    def _check_account(self, name: str, held: int) -> None:
        limit, first = self._limits[name], self._first_piece[name]
        if held > max(limit, first):
            raise self._broken(f"{name} is {held} of {limit}, the first piece was {first}")

    def check(self) -> None:
        """Check the current accounts."""
        engine = self._node.engine
        self._check_account("uncommitted", engine.uncommitted_bytes)
        self._check_account("inbound", engine.inbound_bytes)
        proposed = sum(pending.size for replica in engine.replicas.values() for pending in replica.proposals.queue)
        if engine.uncommitted_bytes != proposed:
            raise self._broken(f"uncommitted is {engine.uncommitted_bytes}, and {proposed} wait")
        waiting = sum(engine._inbound.waiting.values())
        written = sum(size for replica, write, size in self._writes.values() if self._is_written(replica, write))
        if engine.inbound_bytes < waiting + written:
            raise self._broken(f"inbound is {engine.inbound_bytes}; {waiting} wait, {written} are being written")
        used, limit = engine.recent_budget.bytes_used, self._node.limits.recent_entries_bytes_max
        if used > limit:
            held = sum(
                len(replica.log.recent._entries) - replica.log.recent._start for replica in engine.replicas.values()
            )
            if held != 1:
                raise self._broken(f"{held} recent entries are {used} of {limit}")

    def _is_written(self, replica: Replica[StateMachine], write: DiskState) -> bool:
        """Return whether this write is still in flight. A replica has one at a time."""
        is_hosted = self._node.engine.replicas.get(replica.group_id) is replica
        return is_hosted and not isinstance(write, Idle) and replica.disk is write

    def check_recent_entries(self) -> None:
        """Check that the counted bytes of the recent entries equal their actual bytes, by looking at each entry."""
        held = 0
        for replica in self._node.engine.replicas.values():
            recent = replica.log.recent
            for position in range(recent._start, len(recent._entries)):
                held += len(recent._entries[position].payload) + _OVERHEAD_BYTES
        used = self._node.engine.recent_budget.bytes_used
        if used != held:
            raise self._broken(f"recent entries are {used}, and {held} are there")

    def check_given_back(self) -> None:
        """Check that nothing is held when the node is idle."""
        engine = self._node.engine
        is_idle = engine.write_refusal is None and all(
            isinstance(replica.disk, Idle) and replica.core.applied_index >= replica.core.last_index
            for replica in engine.replicas.values()
        )
        if is_idle and (engine.uncommitted_bytes or engine.inbound_bytes):
            raise self._broken(
                f"idle, and holds {engine.uncommitted_bytes} uncommitted, {engine.inbound_bytes} inbound"
            )

    def _broken(self, what: str) -> InvariantViolation:
        return InvariantViolation("BudgetsHold", f"node {self._node.view.node_id}: {what}")
