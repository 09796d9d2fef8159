"""`TransformConsumer`: a consumer that commits a note with each offset, and returns the note of a partition's last owner."""

from __future__ import annotations

import asyncio
from typing import ClassVar, NamedTuple

from raftmq.client.connection.leader_calls import kept_ends
from raftmq.client.connection.resolver import Resolver
from raftmq.client.consumer.consumer import Consumer
from raftmq.client.membership.group_calls import OffsetCommit
from raftmq.types import TopicPartition


class OpenedPartition(NamedTuple):
    """A partition as its new owner found it."""

    offset: int | None
    """The committed offset, or None if the group has committed nothing."""
    note: str
    owner_epoch: int


class TransformConsumer(Consumer):
    """A consumer in a group, without automatic commits."""

    _has_receive_spans: ClassVar[bool] = False

    @property
    def resolver(self) -> Resolver:
        """Return the resolver, for appending the outputs of what is read."""
        return self._resolver

    def opened(self, partition: TopicPartition) -> OpenedPartition:
        """Return the state of a partition at its assignment. For the listener's `on_assigned`."""
        state = self._fetcher.partitions[partition]
        return OpenedPartition(state.committed, state.note, state.owner_epoch)

    def known_position(self, partition: TopicPartition) -> int | None:
        """Return the offset of the next record, or None while it is being looked up, or if the partition is not assigned."""
        state = self._fetcher.partitions.get(partition)
        return state.position if state is not None else None

    def read_group(self, partition: TopicPartition) -> int:
        """Return the Raft group that served the latest records of a partition, or 0 if it is not known."""
        state = self._fetcher.partitions.get(partition)
        return 0 if state is None else state.read_group_id or self._resolver.present_group(state.group_id)

    async def kept_end(self, partition: TopicPartition, group_id: int, timeout_seconds: float) -> int | None:
        """Return the offset from which on records of a Raft group may be lost by a recovery, or None without one. Raises as `kept_ends`."""
        return (await kept_ends(self._resolver, {partition: group_id}, timeout_seconds)).get(partition)

    def submit(self, partition: TopicPartition, offset: int, note: str, group_id: int) -> asyncio.Future[None]:
        """Commit an offset after records of a Raft group without waiting. The future has the outcome of `Consumer.commit`.

        The last submitted commit wins.
        """
        self._check_alive()
        return self._assignment.commits().submit({partition: OffsetCommit(offset, note=note, read_group_id=group_id)})
