"""What a program hears of the partitions that it gets and gives up."""

from __future__ import annotations

from raftmq.types import TopicPartition


class RebalanceListener:
    """Subclass it, override what you need, and give it to a `Consumer` with a group.

    The methods run one at a time in the consumer's event loop and are awaited; partitions that do not move are read meanwhile. An
    exception in one is raised by the next call that reads, and the rebalance goes on. They must not close the consumer.
    """

    async def on_assigned(self, partitions: frozenset[TopicPartition]) -> None:
        """The consumer has these now, and none of their records was handed out: the moment to `seek`."""

    async def on_revoked(self, partitions: frozenset[TopicPartition]) -> None:
        """The consumer is about to release these: the moment to finish and to `commit`, which works.

        Nothing more of them is handed out, and what was handed out is done with: a release waits until the program asked for
        records again (at most `max_poll_interval_ms`). The next owner begins where the last commit says.
        """

    async def on_lost(self, partitions: frozenset[TopicPartition]) -> None:
        """These may be another member's already (the session ended, or offsets were reset): a commit of them is refused."""
