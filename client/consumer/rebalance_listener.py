"""`RebalanceListener`: callbacks for the partitions that a consumer gains and loses."""

from __future__ import annotations

from raftmq.types import TopicPartition


class RebalanceListener:
    """Subclass it, override the methods you need, and pass an instance to a `Consumer` with a group.

    The methods run one at a time in the consumer's event loop and are awaited. Partitions that do not move are still read while they run.
    The next call that reads raises an exception of a method, and the rebalance continues. The methods must not close the consumer.
    """

    async def on_assigned(self, partitions: frozenset[TopicPartition]) -> None:
        """Handle newly assigned partitions, before any of their records is returned. This is the time to `seek`."""

    async def on_revoked(self, partitions: frozenset[TopicPartition]) -> None:
        """Handle partitions that are about to be released. This is the time to finish work and to `commit`, which still succeeds.

        None of their records are returned any more, and the returned ones are processed: a release waits until the program asks for
        records again (at most `max_poll_interval_ms`). The next owner begins at the last committed offset.
        """

    async def on_lost(self, partitions: frozenset[TopicPartition]) -> None:
        """Handle partitions that may already belong to another member (the session ended, or offsets were reset). Commits are refused."""
