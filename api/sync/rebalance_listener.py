"""Tell synchronous code which partitions its consumer gains and loses: `RebalanceListener`."""

from __future__ import annotations

import asyncio

from raftmq.client.consumer.rebalance_listener import RebalanceListener as AsyncRebalanceListener
from raftmq.types import TopicPartition


class RebalanceListener:
    """`raftmq.RebalanceListener` for synchronous code. Its methods run one at a time in a separate thread.

    They may call the consumer (`commit`, `seek`, `position`). They must not read from it or close it.
    """

    def on_assigned(self, partitions: frozenset[TopicPartition]) -> None:
        """Handle newly assigned partitions. See `raftmq.RebalanceListener.on_assigned`."""

    def on_revoked(self, partitions: frozenset[TopicPartition]) -> None:
        """Handle partitions that are about to be released. See `raftmq.RebalanceListener.on_revoked`."""

    def on_lost(self, partitions: frozenset[TopicPartition]) -> None:
        """Handle lost partitions. See `raftmq.RebalanceListener.on_lost`."""


class ListenerInThread(AsyncRebalanceListener):
    """Calls a synchronous listener in a thread, where it may wait for the event loop."""

    def __init__(self, listener: RebalanceListener) -> None:
        self._listener = listener

    async def on_assigned(self, partitions: frozenset[TopicPartition]) -> None:
        """Call the listener's `on_assigned`."""
        await asyncio.to_thread(self._listener.on_assigned, partitions)

    async def on_revoked(self, partitions: frozenset[TopicPartition]) -> None:
        """Call the listener's `on_revoked`."""
        await asyncio.to_thread(self._listener.on_revoked, partitions)

    async def on_lost(self, partitions: frozenset[TopicPartition]) -> None:
        """Call the listener's `on_lost`."""
        await asyncio.to_thread(self._listener.on_lost, partitions)
