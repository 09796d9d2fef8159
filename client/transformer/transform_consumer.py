"""`TransformConsumer`: a consumer that commits a note with an offset, and says what the last owner of a partition noted."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from raftmq.client.connection.resolver import Resolver
from raftmq.client.consumer.consumer import Consumer
from raftmq.client.membership.group_calls import OffsetCommit
from raftmq.types import TopicPartition


class OpenedPartition(NamedTuple):
    """A partition as its new owner found it."""

    offset: int | None
    """What the group has committed; None: nothing."""
    note: str
    owner_epoch: int


class TransformConsumer(Consumer):
    """In a group, without automatic commit."""

    @property
    def resolver(self) -> Resolver:
        """Of the cluster; for whoever writes because of what is read."""
        return self._resolver

    def opened(self, partition: TopicPartition) -> OpenedPartition:
        """How a partition was when it was assigned. For the listener's `on_assigned`."""
        state = self._fetcher.partitions[partition]
        return OpenedPartition(state.committed, state.note, state.owner_epoch)

    def known_position(self, partition: TopicPartition) -> int | None:
        """The offset of the record that is handed out next; None while that is being looked up, or when the partition is gone."""
        state = self._fetcher.partitions.get(partition)
        return state.position if state is not None else None

    def submit(self, partition: TopicPartition, offset: int, note: str) -> asyncio.Future[None]:
        """Commit and do not wait; the future has the outcome, as `Consumer.commit`. The last one submitted wins."""
        self._check_alive()
        return self._assignment.commits().submit({partition: OffsetCommit(offset, note=note)})
