"""Tell which brokers have been connected long enough to be given replicas and leaderships.

A broker that restarts is not connected for a while, or another process of it is. Both restart its time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from raftmq.fsm.metadata_views import NodeView
from raftmq.types import NodeId


class Stability:
    """The times since which one node sees the others run without a break."""

    def __init__(self, now: Callable[[], float], seconds: float) -> None:
        """Take `now`, which returns loop time, and the time after which a broker counts as stable."""
        self._now = now
        self._seconds = seconds
        self._since: dict[int, tuple[bytes, float]] = {}
        """Broker id → its process, and the loop time since which it is seen to run."""
        self._doubted_at: dict[int, float] = {}
        """Broker id → the loop time at which it last said that it is not ready."""
        self._lost_at = float("-inf")
        """Loop time at which a broker was last seen to be gone, or to be another process."""

    def observe(self, nodes: Iterable[NodeView], process_of: Callable[[NodeId], bytes | None]) -> None:
        """Look at every broker once. It is called regularly.

        Args:
            nodes: All brokers.
            process_of: Returns the mark that distinguishes a broker's process from an earlier one, or None while it is not connected.
        """
        now, before = self._now(), self._since
        self._since = {}
        self._doubted_at = {node_id: at for node_id, at in self._doubted_at.items() if now - at < self._seconds}
        for node in nodes:
            process = process_of(NodeId(node.node_id))
            if process is not None:
                earlier, since = before.get(node.node_id, (b"", now))
                self._since[node.node_id] = (process, since if earlier == process else now)
        if any(self._since.get(node_id, (b"", 0))[0] != process for node_id, (process, _) in before.items()):
            self._lost_at = now

    def is_stable(self, node_id: int) -> bool:
        """Return whether the broker has run for long enough."""
        is_doubted = self._now() - self._doubted_at.get(node_id, float("-inf")) < self._seconds
        return node_id in self._since and not self.is_new(node_id) and not is_doubted

    def is_new(self, node_id: int) -> bool:
        """Return whether the broker runs, but not for long enough. It ends although the broker says again and again that it is not ready."""
        known = self._since.get(node_id)
        return known is not None and self._now() - known[1] < self._seconds

    @property
    def is_calm(self) -> bool:
        """Return whether no broker was lost lately, so that no failover should be under way."""
        return self._now() - self._lost_at >= self._seconds

    def doubt(self, node_id: int) -> None:
        """Restart a broker's time, because it says that it is not ready."""
        self._doubted_at[node_id] = self._now()
