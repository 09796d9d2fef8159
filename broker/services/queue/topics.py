"""Find the partitions of a queue topic that have a replica here, and keep waiting consumers at them when replicas come and go."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from raftmq.broker.base.request_error import RequestError
from raftmq.broker.base.supervisor import Work
from raftmq.broker.partitions.kinds import QUEUE
from raftmq.broker.partitions.partition import Partition
from raftmq.broker.partitions.queue.partition import PartitionQueue
from raftmq.broker.services.host import ServiceHost
from raftmq.broker.services.locator import Locator
from raftmq.broker.services.queue.consumer import QueueConsumer
from raftmq.broker.services.queue.deliveries import ServedPartition
from raftmq.fsm.metadata_views import TopicView
from raftmq.proto import queue_pb2 as pb
from raftmq.types import GroupId

_FOLLOW_SECONDS: Final = 0.05
"""Changes of metadata within this time are followed together."""


class _Followed(NamedTuple):
    topic_id: int
    numbers: Sequence[int]
    """Empty: all."""
    on_gone: Callable[[RequestError], None]


class QueueTopics:
    """The queue topics of one broker."""

    def __init__(
        self, host: ServiceHost, partitions: Mapping[GroupId, Partition], locator: Locator[PartitionQueue]
    ) -> None:
        self._host = host
        self._partitions = partitions
        self._locator = locator
        self._followed: dict[QueueConsumer, _Followed] = {}
        self._task: asyncio.Task[None] | None = None

    async def topic(self, topic_id: int, revision: int, deadline: float) -> TopicView:
        """Return a queue topic, after waiting for a revision of the metadata.

        Raises:
            RequestError: UNKNOWN_TOPIC (confirmed by a quorum), TOPIC_KIND_MISMATCH, NOT_READY.
        """
        await self._locator.wait_revision(revision, deadline)
        topic = self._host.metadata.state_machine.topic(topic_id)
        if topic is None:
            await self._locator.confirm_metadata(deadline)
            topic = self._host.metadata.state_machine.topic(topic_id)
        if topic is None:
            raise _unknown(topic_id)
        QUEUE.require(topic)
        return topic

    def served(self, topic: TopicView, numbers: Sequence[int] = ()) -> list[ServedPartition]:
        """Return the topic's partitions that have a replica here, of those numbers. Without numbers: all."""
        found = []
        for number in numbers or range(len(topic.group_ids)):
            if number >= len(topic.group_ids):
                continue
            partition = self._partitions.get(GroupId(topic.group_ids[number]))
            if isinstance(partition, PartitionQueue) and not partition.replica.is_closed:
                found.append(ServedPartition(topic.topic_id, number, partition))
        return found

    def require_led(self, topic: TopicView, served: Sequence[ServedPartition]) -> None:
        """Raise RequestError NOT_LEADER or NO_LEADER unless this broker leads one of the partitions."""
        if any(partition.queue.replica.is_leader for partition in served):
            return
        if not served:
            self._locator.locate(topic.topic_id, 0)
            raise RequestError(pb.NO_LEADER, f"this broker has no replica of topic {topic.name}", retry_after_ms=100)
        served[0].queue.replica.require_leader()

    def follow(
        self,
        consumer: QueueConsumer,
        topic: TopicView,
        numbers: Sequence[int] = (),
        on_gone: Callable[[RequestError], None] = lambda _: None,
    ) -> None:
        """Have a consumer wait at the partitions that have a replica here, until `forget`. `on_gone` is called if the topic is deleted."""
        version = self._host.topology_version()
        self._followed[consumer] = _Followed(topic.topic_id, numbers, on_gone)
        served = self.served(topic, numbers)
        for partition in served:
            partition.queue.upkeep.configure()  # a limit that was lowered binds from the first lease on
        consumer.attach(served)
        if self._task is None:
            self._task = self._host.loop.create_task(self._follow(version))

    def forget(self, consumer: QueueConsumer) -> None:
        """Close a consumer."""
        self._followed.pop(consumer, None)
        consumer.close()
        if not self._followed and self._task is not None:
            self._task.cancel()
            self._task = None

    async def _follow(self, version: int) -> None:
        """Follow changes after a version of the topology."""
        while True:
            if self._host.topology_version() == version:
                await self._host.next_topology_change()
            await asyncio.sleep(_FOLLOW_SECONDS)
            version = self._host.topology_version()
            for consumer, followed in list(self._followed.items()):
                try:
                    self._update(consumer, followed)
                except Exception as error:  # noqa: BLE001 -- a defect must not leave the other consumers behind
                    self._host.supervisor.record_failure(Work.TOPOLOGY, error)

    def _update(self, consumer: QueueConsumer, followed: _Followed) -> None:
        topic = self._host.metadata.state_machine.topic(followed.topic_id)
        if topic is None:
            followed.on_gone(_unknown(followed.topic_id))
        else:
            served = self.served(topic, followed.numbers)
            for partition in served:
                partition.queue.upkeep.configure()  # consumers may wait for a limit that was raised
            consumer.attach(served)


def _unknown(topic_id: int) -> RequestError:
    return RequestError(pb.UNKNOWN_TOPIC, f"there is no topic with id {topic_id}")
