"""`TransformLoop`: reads for all partitions of a transformer, and runs a `PartitionTransform` for each one that it owns.

Must not know the rules of exactly once. Invariants: when the last commit of a released partition is sent, nothing runs for it any more. The
consumer is polled all the time, because a member that does not poll is removed from its group.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from raftmq.client.base import settings
from raftmq.client.base.background import cancel_and_wait, done_before, spawn
from raftmq.client.base.error_details import name_of
from raftmq.client.base.logs import log
from raftmq.client.consumer.rebalance_listener import RebalanceListener
from raftmq.client.transformer.partition_transform import PartitionTransform, TransformParts
from raftmq.client.transformer.transform_consumer import TransformConsumer
from raftmq.errors import RaftMQError
from raftmq.types import TopicPartition


class TransformLoop(RebalanceListener):
    """Runs the partitions of one transformer, once, by `run`. It is the consumer's rebalance listener."""

    def __init__(
        self,
        make_consumer: Callable[[RebalanceListener], TransformConsumer],
        make_parts: Callable[[TransformConsumer], TransformParts],
    ) -> None:
        self._consumer = make_consumer(self)
        self._parts = make_parts(self._consumer)
        self._transforms: dict[TopicPartition, PartitionTransform] = {}
        self._tasks: dict[PartitionTransform, asyncio.Task[None]] = {}
        self._stopped = asyncio.Event()
        self._hurried = asyncio.Event()
        self._failure: BaseException | None = None

    async def run(self) -> None:
        """Transform until `stop`, then finish the current chunks and commit. If it is cancelled, it ends immediately.

        Ending immediately duplicates no output. Raises the first error of a partition or of the consumer.
        """
        polling: asyncio.Task[None] | None = None
        try:
            if await done_before(self._consumer.start(), self._stopped):
                log.info("transformer_started consumer_group=%s", self._parts.group_id)
                polling = spawn(self._poll_forever(), "raftmq-transform-poll", self._fail)
                await self._stopped.wait()
                await self._drain()
                await self._give_up(list(self._transforms.values()), may_commit=True)
        finally:
            await cancel_and_wait(polling)
            await self._give_up(list(self._transforms.values()), may_commit=False)
            self._parts.calls.close()
            await self._consumer.close()
        log.info("transformer_stopped consumer_group=%s", self._parts.group_id)
        if self._failure is not None:
            raise self._failure

    def stop(self, *, at_once: bool = False) -> None:
        """Begin to end. With `at_once`, do not wait for chunks."""
        if at_once:
            self._hurried.set()
        for transform in self._transforms.values():
            transform.end()
        self._stopped.set()

    # -------------------------------------------------------------------------------------------------------- rebalance

    async def on_assigned(self, partitions: frozenset[TopicPartition]) -> None:
        """Begin the partitions."""
        for partition in sorted(partitions):
            transform = PartitionTransform(self._parts, partition)
            self._transforms[partition] = transform
            if not self._stopped.is_set():
                self._tasks[transform] = spawn(transform.run(), f"raftmq-transform-{partition.partition}", self._fail)

    async def on_revoked(self, partitions: frozenset[TopicPartition]) -> None:
        """Stop the partitions immediately, which duplicates no output, and commit their written outputs."""
        await self._give_up(self._of(partitions), may_commit=True)

    async def on_lost(self, partitions: frozenset[TopicPartition]) -> None:
        """Stop partitions that may already belong to another member."""
        await self._give_up(self._of(partitions), may_commit=False)

    def _of(self, partitions: Iterable[TopicPartition]) -> list[PartitionTransform]:
        return [self._transforms[partition] for partition in partitions if partition in self._transforms]

    async def _give_up(self, transforms: list[PartitionTransform], *, may_commit: bool) -> None:
        await cancel_and_wait(*(self._tasks.pop(transform, None) for transform in transforms))
        for transform in transforms:
            self._transforms.pop(transform.partition, None)
            transform.close()
        if may_commit:
            await self._commit_last(transforms)

    async def _commit_last(self, transforms: list[PartitionTransform]) -> None:
        try:
            commits = [future for transform in transforms if (future := transform.submit_last()) is not None]
            async with asyncio.timeout(settings.CLOSE_COMMIT_SECONDS):
                await asyncio.gather(*commits)
        except (RaftMQError, TimeoutError) as error:  # uncommitted records are handled again, and written once
            code = name_of(error) if isinstance(error, RaftMQError) else type(error).__name__
            log.warning("progress_not_committed partitions=%d error_code=%s", len(transforms), code)

    # ---------------------------------------------------------------------------------------------------------- reading

    async def _poll_forever(self) -> None:
        while True:
            found = await self._consumer.getmany(timeout_ms=settings.WORKER_POLL_MS)
            for partition, records in found.items():
                transform = self._transforms.get(partition)
                if transform is not None:
                    transform.feed(records)
            self._begin_idle()
            self._hold_back()
            await asyncio.sleep(
                0
            )  # a consumer that always has records never waits, and the partitions must get their turn

    def _begin_idle(self) -> None:
        """Set the beginning of partitions without records. With "latest" it must be committed before records arrive."""
        for partition, transform in self._transforms.items():
            if transform.needs_beginning and (position := self._consumer.known_position(partition)) is not None:
                transform.begin_at(position)

    def _hold_back(self) -> None:
        """Pause full partitions, and resume the others."""
        assigned = self._consumer.assignment()
        full = {partition for partition, transform in self._transforms.items() if transform.is_full} & assigned
        paused = self._consumer.paused()
        if full - paused:
            self._consumer.pause(*(full - paused))
        if paused - full:
            self._consumer.resume(*(paused - full))

    # ----------------------------------------------------------------------------------------------------------- ending

    async def _drain(self) -> None:
        """Wait for the current chunks, until the time limit or a second stop."""
        running = [task for task in self._tasks.values() if not task.done()]
        if not running:
            return
        log.info("transformer_draining partitions=%d", len(running))
        ended = asyncio.ensure_future(asyncio.wait(running))
        hurried = asyncio.ensure_future(self._hurried.wait())
        try:
            await asyncio.wait(
                (ended, hurried), timeout=settings.TRANSFORM_DRAIN_SECONDS, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            ended.cancel()
            hurried.cancel()

    def _fail(self, error: BaseException) -> None:
        self._failure = self._failure or error
        self.stop()
