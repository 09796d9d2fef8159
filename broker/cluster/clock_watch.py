"""Report a wall clock that differs from the majority's, and transfer leaderships to nodes whose clocks are right.

A leader expires records by its clock. While the clock is not in the majority, this node expires nothing (`PeerClocks.is_trusted`).
Another node must lead so that old records are deleted. If no other node can lead, this one continues to lead.
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
        """The group that was offered last. The next check continues after it."""

    async def run(self) -> None:
        """Check every `Timing.clock_check_seconds`, until cancelled."""
        while True:
            await asyncio.sleep(self._engine.timing.clock_check_seconds)
            self.look()

    def look(self) -> None:
        """Log a change of the clock's standing. Transfer some leaderships while the clock is wrong."""
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
        """Return how far this node's clock is ahead of the majority's."""
        return self._engine.clocks.look().offset_ms / 1000

    def not_ready(self) -> NotReady | None:
        """Return the clock's reason for not being ready, or None if the clock is right or cannot be compared."""
        standing = self._engine.clocks.look()
        seconds = standing.offset_ms / 1000
        differs = f"this broker's clock is {abs(seconds):,.0f} s {'ahead of' if seconds > 0 else 'behind'}"
        if standing.agreement is Agreement.DIFFERS:
            text = (
                f"{differs} those of the majority: it deletes no records for their age and transfers its leaderships; set the clock, "
                "and keep it synchronised (NTP)"
            )
        elif standing.agreement is Agreement.DISPUTED:
            text = (
                f"{differs} that of another broker, and no majority shows which clock is right: no records are deleted for their age; "
                "set the clocks, and keep them synchronised (NTP)"
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
