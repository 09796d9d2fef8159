"""Find the replica that a request names, and make sure that a reply "there is no such topic" is true.

A node's metadata may be older than the metadata that a client has seen elsewhere. It therefore waits for the revision that the request
names. Before it reports a topic as unknown, a quorum confirms that there is no newer metadata.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Generic, TypeVar, cast

from raftmq.broker.base.request_error import RequestError
from raftmq.broker.partitions.kinds import TopicKind
from raftmq.broker.partitions.partition import Partition
from raftmq.broker.services.host import ServiceHost
from raftmq.fsm.config_keys import is_topic_name
from raftmq.fsm.metadata_views import TopicView
from raftmq.fsm.topic_config import invalid_name_text
from raftmq.proto import queue_pb2 as pb
from raftmq.types import GroupId

PartitionT = TypeVar("PartitionT", bound=Partition)

_UNKNOWN_CODES = frozenset({pb.UNKNOWN_TOPIC, pb.UNKNOWN_PARTITION})


PARTITIONS_PER_REQUEST_MAX = 2000
"""The most partitions in a request: twice the default maximum of a node. A 4 MiB request could name a million, and looking them up
would stall the event loop."""


def check_partitions(count: int) -> None:
    """Raise INVALID_ARGUMENT unless a request may name this many partitions."""
    if not 1 <= count <= PARTITIONS_PER_REQUEST_MAX:
        raise RequestError(
            pb.INVALID_ARGUMENT,
            f"a request must name between 1 and {PARTITIONS_PER_REQUEST_MAX} partitions, not {count}",
        )


class Locator(Generic[PartitionT]):
    """Finds the topics of one node, and its partitions: those of one kind of topic, or those of all kinds."""

    def __init__(
        self, host: ServiceHost, partitions: Mapping[GroupId, Partition], kind: TopicKind[PartitionT] | None = None
    ) -> None:
        """Take the `kind` of topics that calls may name. None: any."""
        self._host = host
        self._kind = kind
        # the kind of its topic is checked before a partition is returned
        self._partitions = cast("Mapping[GroupId, PartitionT]", partitions)

    def has_revision(self, revision: int) -> bool:
        """Return whether the local metadata includes `revision`."""
        return self._host.metadata.state_machine.applied_index >= revision

    @staticmethod
    def is_unconfirmed(error: RequestError) -> bool:
        """Return whether newer metadata may know the topic or partition that `locate` did not find."""
        return error.code in _UNKNOWN_CODES

    async def wait_revision(self, revision: int, deadline: float) -> None:
        """Wait until the local metadata includes `revision`. Raises NOT_READY if that takes too long."""
        if self.has_revision(revision):
            return
        try:
            async with asyncio.timeout_at(deadline):
                await self._host.wait_revision(revision)
        except TimeoutError:
            raise RequestError(
                pb.NOT_READY, f"this broker's metadata has not reached revision {revision} yet", retry_after_ms=100
            ) from None

    def locate(self, topic_id: int, partition: int) -> PartitionT:
        """Return the replica of a partition here, as far as this node knows.

        Raises:
            RequestError: UNKNOWN_TOPIC or UNKNOWN_PARTITION, not confirmed. TOPIC_KIND_MISMATCH. NOT_LEADER (with the leader) or
                NO_LEADER if this node has no replica.
        """
        topic = self._host.metadata.state_machine.topic(topic_id)
        if topic is None:
            raise RequestError(pb.UNKNOWN_TOPIC, f"there is no topic with id {topic_id}")
        if self._kind is not None:
            self._kind.require(topic)
        if partition >= len(topic.group_ids):
            raise RequestError(
                pb.UNKNOWN_PARTITION, f"topic {topic.name} has {len(topic.group_ids)} partitions, none is {partition}"
            )
        group_id = GroupId(topic.group_ids[partition])
        found = self._partitions.get(group_id)
        if found is None or found.replica.is_closed:
            raise self._elsewhere(group_id)
        return found

    async def locate_confirmed(self, topic_id: int, partition: int, deadline: float) -> PartitionT:
        """Return the replica as `locate`, but report a topic or partition as unknown only after a quorum confirmed it."""
        try:
            return self.locate(topic_id, partition)
        except RequestError as error:
            if not self.is_unconfirmed(error):
                raise
        await self.confirm_metadata(deadline)
        return self.locate(topic_id, partition)

    def here(self) -> list[PartitionT]:
        """Return the partitions that this node serves, of the locator's kind."""
        if self._kind is None:
            return list(self._partitions.values())
        wanted = self._kind.partition_type
        return [partition for partition in self._partitions.values() if isinstance(partition, wanted)]

    async def topic_by_name(self, name: str, deadline: float) -> TopicView:
        """Return a topic. UNKNOWN_TOPIC is confirmed. Raises INVALID_TOPIC_NAME for a name that no topic can have."""
        topic = self._host.metadata.state_machine.topic_by_name(name)
        if topic is None:
            if not is_topic_name(name):
                raise RequestError(pb.INVALID_TOPIC_NAME, invalid_name_text(name))
            await self.confirm_metadata(deadline)
            topic = self._host.metadata.state_machine.topic_by_name(name)
        if topic is None:
            raise RequestError(pb.UNKNOWN_TOPIC, f"there is no topic {name[:249]!r}")
        return topic

    async def confirm_metadata(self, deadline: float) -> None:
        """Wait until the local metadata includes everything committed before. Callers share one round of messages.

        Its errors name no leader. A client would take the metadata leader for that of the partition it asked about, in a term of metadata,
        and would then ignore the partition's true leaders, whose terms are lower.
        """
        try:
            async with asyncio.timeout_at(deadline):
                await self._host.metadata.read_index()
        except TimeoutError:
            raise RequestError(
                pb.NOT_READY, "this broker could not confirm its metadata in time", retry_after_ms=200
            ) from None
        except RequestError as error:
            error.detail.ClearField("leader")
            raise

    def _elsewhere(self, group_id: GroupId) -> RequestError:
        node_id, address, term = self._host.leadership.leader_hint(group_id)
        if node_id in (0, self._host.node_id):
            return RequestError(pb.NO_LEADER, f"group {group_id} has no known leader at the moment", retry_after_ms=100)
        return RequestError(
            pb.NOT_LEADER,
            f"broker {node_id} at {address} leads group {group_id}",
            leader_broker_id=node_id,
            leader_address=address,
            leader_epoch=term,
        )
