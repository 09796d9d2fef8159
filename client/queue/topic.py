"""The topic of a `Queue`: looked up once, checked for its kind, and followed when partitions are added or it is created again."""

from __future__ import annotations

from typing import NamedTuple

from raftmq.client.base import settings
from raftmq.client.connection.resolver import Resolver, TopicInfo
from raftmq.errors import TopicKindMismatchError, UnknownPartitionError


class QueuePartition(NamedTuple):
    """A partition of one incarnation of a topic."""

    topic_id: int
    partition: int
    group_id: int


class QueueTopic:
    """One topic by name, as the resolver sees it."""

    def __init__(self, resolver: Resolver, name: str, timeout_seconds: float) -> None:
        self.name = name
        self._resolver = resolver
        self._timeout_seconds = timeout_seconds

    def known(self) -> TopicInfo | None:
        """Return the topic if it is in the topology."""
        return self._resolver.topics.get(self.name)

    async def info(self) -> TopicInfo:
        """Return the topic. It waits only if the topology does not contain it.

        Raises:
            UnknownTopicError: the cluster has no such topic.
            TopicKindMismatchError: the topic is a log.
        """
        found = self._resolver.topics.get(self.name)
        if found is None:
            found = await self._resolver.topic(self.name, self._timeout_seconds)
        if found.kind != settings.QUEUE_KIND:
            raise TopicKindMismatchError(
                f"{self.name!r} is a topic of kind {found.kind!r}: use Producer and Consumer for logs (in the shell: raftmq produce and "
                "raftmq consume), or create a topic with kind='queue'"
            )
        return found

    async def partition(self, number: int) -> QueuePartition:
        """Return a partition by its number. Raises `UnknownPartitionError`, and the errors of `info`."""
        info = await self.info()
        if not 0 <= number < info.partition_count:
            raise UnknownPartitionError(f"{self.name} has partitions 0 to {info.partition_count - 1}, not {number}")
        return QueuePartition(info.topic_id, number, info.group_ids[number])
