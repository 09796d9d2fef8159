"""Reports a wall clock that differs from the majority's, and hands leaderships over to nodes whose clocks are right.

A leader expires records by its clock. While the clock is not in the majority, this node expires nothing (`PeerClocks.is_trusted`):
another node must lead for old records to be deleted. Where no other node can lead, this one goes on leading.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog
from raftmq.broker.base.log_throttle import LogThrottle
from raftmq.broker.base.readiness import NotReady, Reason
from raftmq.broker.cluster.leadership_drain import offer
from raftmq.broker.peers.clocks import Agreement, ClockStanding
from raftmq.broker.replica.engine import Engine
from raftmq.raft.ready import Role
from raftmq.types import GroupId, NodeId

log = structlog.get_logger(__name__)


class ClockWatch:
    """Watches one node's wall clock."""

    def __init__(self, engine: Engine, is_connected: Callable[[NodeId], bool]) -> None:
        self._engine = engine
        self._is_connected = is_connected
        self._throttle = LogThrottle()
        self._is_wrong = False
        self._last_given: GroupId | None = None
        """The group that was offered last: the next look continues after it."""

    async def run(self) -> None:
        """Look every `Timing.clock_check_seconds`, until cancelled."""
        while True:
            await asyncio.sleep(self._engine.timing.clock_check_seconds)
            self.look()

    def look(self) -> None:
        """Log a change of the clock's standing. Hand some leaderships over while the clock is wrong."""
        standing = self._engine.clocks.look()
        seconds = round(standing.offset_ms / 1000, 1)
        is_wrong = standing.agreement in (Agreement.DIFFERS, Agreement.DISPUTED)
        if is_wrong and self._throttle.is_due(standing.agreement):
            log.warning("clock_differs", offset_seconds=seconds, reason=standing.agreement.value)
        elif self._is_wrong and standing.agreement is Agreement.AGREES:
            log.info("clock_agrees", offset_seconds=seconds)
            self._throttle.forget(Agreement.DIFFERS)
            self._throttle.forget(Agreement.DISPUTED)
        self._is_wrong = is_wrong or (self._is_wrong and standing.agreement is Agreement.UNHEARD)
        if standing.agreement is Agreement.DIFFERS:
            self._give_away(standing)

    @property
    def offset_seconds(self) -> float:
        """How far this node's clock is ahead of the majority's."""
        return self._engine.clocks.look().offset_ms / 1000

    def not_ready(self) -> NotReady | None:
        """The reason that the clock gives not to be ready; None when it is right, or nobody knows."""
        standing = self._engine.clocks.look()
        seconds = standing.offset_ms / 1000
        differs = f"this broker's clock is {abs(seconds):,.0f} s {'ahead of' if seconds > 0 else 'behind'}"
        if standing.agreement is Agreement.DIFFERS:
            text = (
                f"{differs} those of the majority: it deletes nothing for its age and gives its leaderships away; set the clock, "
                "and keep it set (NTP)"
            )
        elif standing.agreement is Agreement.DISPUTED:
            text = (
                f"{differs} that of another, and no majority says which is right: nothing is deleted for its age; set the clocks, "
                "and keep them set (NTP)"
            )
        else:
            return None
        return NotReady(Reason.CLOCK_DIFFERS, text)

    def _give_away(self, standing: ClockStanding) -> None:
        engine = self._engine
        led = sorted(group_id for group_id, replica in engine.replicas.items() if replica.core.role is Role.LEADER)
        last = self._last_given
        behind_last = [group_id for group_id in led if last is not None and group_id > last]
        for group_id in (behind_last + led)[: min(len(led), engine.limits.clock_transfers_max)]:
            self._last_given = group_id
            replica = engine.replicas[group_id]
            engine.guarded(
                replica, offer, engine, replica, lambda node: node in standing.majority and self._is_connected(node)
            )
