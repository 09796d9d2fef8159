"""Find the queue partitions that a request names, and run the request in each of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Generic, TypeVar

from raftmq.broker.base.request_error import RequestError, expired
from raftmq.broker.partitions.kinds import QUEUE
from raftmq.broker.partitions.partition import Partition
from raftmq.broker.partitions.queue.partition import PartitionQueue
from raftmq.broker.services.host import ServiceHost
from raftmq.broker.services.locator import Locator, check_partitions
from raftmq.broker.services.request_metrics import RequestMetrics
from raftmq.proto import queue_pb2 as pb
from raftmq.types import GroupId

T = TypeVar("T")


class Outcome(Generic[T]):
    """The result of one partition: an answer or a refusal."""

    __slots__ = ("answer", "error", "partition")

    def __init__(self, partition: int, answer: T | None, error: RequestError | None) -> None:
        self.partition = partition
        self.answer = answer
        self.error = error


class QueuePartitions:
    """The queue partitions of one broker, for the services."""

    def __init__(
        self, host: ServiceHost, partitions: Mapping[GroupId, Partition], metrics: RequestMetrics | None = None
    ) -> None:
        self._host = host
        self._locator = Locator(host, partitions, QUEUE)
        self._metrics = metrics or RequestMetrics()

    @property
    def now(self) -> float:
        """Return the loop time."""
        return self._host.loop.time()

    async def one(self, topic_id: int, partition: int, revision: int, deadline: float) -> PartitionQueue:
        """Return a partition that this broker leads.

        Raises:
            RequestError: UNKNOWN_TOPIC, UNKNOWN_PARTITION, TOPIC_KIND_MISMATCH, NOT_LEADER, NO_LEADER, NOT_READY.
        """
        await self._locator.wait_revision(revision, deadline)
        found = await self._locator.locate_confirmed(topic_id, partition, deadline)
        found.replica.require_leader()
        return found

    async def each(
        self,
        method: str,
        topic_id: int,
        numbers: Sequence[int],
        revision: int,
        deadline: float,
        run: Callable[[PartitionQueue], Awaitable[T]],
    ) -> list[Outcome[T]]:
        """Run a request in each partition, or without numbers in all that this broker leads. Errors are refusals of one partition.

        Raises:
            RequestError: INVALID_ARGUMENT for too many partitions. UNKNOWN_TOPIC or TOPIC_KIND_MISMATCH without numbers. NOT_READY.
        """
        await self._locator.wait_revision(revision, deadline)
        if numbers:
            check_partitions(len(numbers))
        else:
            numbers = await self._led(topic_id, deadline)
        return list(
            await asyncio.gather(
                *(self._run_one(method, topic_id, number, deadline, run) for number in dict.fromkeys(numbers))
            )
        )

    async def _run_one(
        self,
        method: str,
        topic_id: int,
        number: int,
        deadline: float,
        run: Callable[[PartitionQueue], Awaitable[T]],
    ) -> Outcome[T]:
        try:
            partition = await self._locator.locate_confirmed(topic_id, number, deadline)
            partition.replica.require_leader()
            return Outcome(number, await run(partition), None)
        except RequestError as error:
            self._metrics.observe_refusal(method, pb.ErrorCode.Name(error.code))
            return Outcome(number, None, error)

    async def _led(self, topic_id: int, deadline: float) -> list[int]:
        """Return the numbers of a topic's partitions that this broker leads."""
        metadata = self._host.metadata.state_machine
        if metadata.topic(topic_id) is None:
            await self._locator.confirm_metadata(deadline)
        topic = metadata.topic(topic_id)
        if topic is None:
            raise RequestError(pb.UNKNOWN_TOPIC, f"there is no topic with id {topic_id}")
        QUEUE.require(topic)
        here = {partition.replica.group_id: partition for partition in self._locator.here()}
        led = {group_id for group_id, partition in here.items() if partition.replica.is_leader}
        return [number for number, group_id in enumerate(topic.group_ids) if group_id in led]


def answers(outcomes: Sequence[Outcome[T]]) -> list[T]:
    """Return the answers of all partitions. Raises the first refusal if there is one."""
    found: list[T] = []
    for outcome in outcomes:
        if outcome.error is not None:
            raise outcome.error
        assert outcome.answer is not None
        found.append(outcome.answer)
    return found


async def reading(work: Awaitable[T], deadline: float) -> T:
    """Wait for a read until the deadline. Raises RequestError REQUEST_TIMED_OUT, after which nothing was changed."""
    try:
        async with asyncio.timeout_at(deadline):
            return await work
    except TimeoutError:
        raise expired() from None
