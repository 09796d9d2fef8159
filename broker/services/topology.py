"""Serve Topology.Watch: the full table first, then the changes, for any number of watchers at the cost of one.

One feed per node compares metadata and leadership with its last update and creates one message from the difference. Every watcher is
sent the same messages. A watcher that falls behind gets the full table again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator

from raftmq.broker.base.request_error import RequestError, check_cluster
from raftmq.broker.base.supervisor import Work
from raftmq.broker.services.call import Call
from raftmq.broker.services.host import ServiceHost
from raftmq.broker.services.messages import node_message, topic_message
from raftmq.fsm.metadata_views import NodeView, PartitionView, TopicView
from raftmq.proto import queue_pb2 as pb
from raftmq.types import GroupId

_DEFECT_SECONDS = 1.0
"""The pause after a comparison that failed because of a defect. The comparison is cheap and is repeated soon."""
COALESCE_SECONDS = 0.02
"""Time for which changes are gathered: a failover moves hundreds of leaders within milliseconds."""
_COALESCE_COST_FACTOR = 10
"""The feed pauses this many times as long as its last comparison took, so it never uses more than a tenth of the event loop."""
_UPDATES_KEPT = 64
WATCHERS_MAX = 2048


class TopologyFeed:
    """The last table sent and the latest updates. Views are compared by identity, because they are replaced and never changed."""

    def __init__(self, host: ServiceHost) -> None:
        self._host = host
        self._nodes: tuple[NodeView, ...] = ()
        self._topics: dict[int, TopicView] = {}
        self._partitions: dict[int, PartitionView | None] = {}
        self._leaders: dict[int, tuple[int, int]] = {}
        self._updates: deque[pb.TopologyUpdate] = deque(maxlen=_UPDATES_KEPT)
        self.number = 0
        """The number of updates, which is also the number of the newest one."""
        self._changed: asyncio.Future[None] | None = None
        self.watchers = 0
        self.task: asyncio.Task[None] | None = None
        """Runs while there are watchers."""

    def enter(self) -> None:
        """Add a watcher. The first one starts the feed. Raises NOT_FORMED, NOT_READY or THROTTLED."""
        if self.watchers >= WATCHERS_MAX:
            raise RequestError(pb.THROTTLED, "too many clients watch this broker's topology", retry_after_ms=1000)
        if self.task is None or self.task.done():
            self.advance()
            self.task = self._host.loop.create_task(self._run())
        self.watchers += 1

    def leave(self) -> None:
        """Remove a watcher. The last one stops the feed."""
        self.watchers -= 1
        if self.watchers == 0 and self.task is not None:
            self.task.cancel()
            self.task = None

    def full(self) -> pb.TopologyUpdate:
        """Return the whole table as of `number`."""
        metadata = self._host.metadata.state_machine
        return pb.TopologyUpdate(
            cluster_id=self._host.cluster_id,
            metadata_revision=metadata.applied_index,
            is_full=True,
            has_brokers=True,
            brokers=[node_message(node) for node in self._nodes],
            topics=[topic_message(metadata, topic) for topic in self._topics.values()],
            leaders=[
                pb.PartitionLeader(group_id=group_id, broker_id=node_id, leader_epoch=term)
                for group_id, (node_id, term) in self._leaders.items()
            ],
        )

    def after(self, number: int) -> list[pb.TopologyUpdate] | None:
        """Return the updates after `number`, or None if some of them are no longer kept."""
        missing = self.number - number
        if missing > len(self._updates):
            return None
        return list(self._updates)[len(self._updates) - missing :]

    async def wait_after(self, number: int) -> None:
        """Return when there is an update after `number`."""
        while self.number == number:
            if self._changed is None:
                self._changed = self._host.loop.create_future()
            await asyncio.shield(self._changed)

    async def _run(self) -> None:
        seen = -1
        while True:
            started = self._host.loop.time()
            version = self._host.topology_version()
            if version == seen:
                await self._host.next_topology_change()
                await asyncio.sleep(COALESCE_SECONDS)
                continue
            seen = version
            try:
                self.advance()
            except RequestError:
                seen = -1  # metadata is not ready yet
            except Exception as error:  # noqa: BLE001 -- the task's root: if it ended, watchers would get no further update
                self._host.supervisor.record_failure(Work.TOPOLOGY, error)
                seen = -1
                await asyncio.sleep(_DEFECT_SECONDS)
            await asyncio.sleep(max(COALESCE_SECONDS, _COALESCE_COST_FACTOR * (self._host.loop.time() - started)))

    def advance(self) -> None:
        """Compare with the last update, and add an update if anything differs."""
        try:
            metadata = self._host.metadata.state_machine
        except RequestError:
            if self.number:
                return  # a snapshot is being installed: its end is the next change
            raise
        update = pb.TopologyUpdate(cluster_id=self._host.cluster_id, metadata_revision=metadata.applied_index)
        nodes = metadata.nodes()
        if nodes != self._nodes:
            self._nodes = nodes
            update.has_brokers = True
            update.brokers.extend(node_message(node) for node in nodes)
        self._compare_topics(update)
        self._compare_leaders(update)
        if update.has_brokers or update.topics or update.deleted_topic_ids or update.leaders:
            self._updates.append(update)
            self.number += 1
            if self._changed is not None:
                changed, self._changed = self._changed, None
                if not changed.done():
                    changed.set_result(None)

    def _compare_topics(self, update: pb.TopologyUpdate) -> None:
        metadata = self._host.metadata.state_machine
        topics = {topic.topic_id: topic for topic in metadata.topics()}
        partitions = {
            group_id: metadata.partition(group_id) for topic in topics.values() for group_id in topic.group_ids
        }
        for topic_id, topic in topics.items():
            if self._topics.get(topic_id) is not topic or any(
                self._partitions.get(group_id) is not partitions[group_id] for group_id in topic.group_ids
            ):
                update.topics.append(topic_message(metadata, topic))
        update.deleted_topic_ids.extend(topic_id for topic_id in self._topics if topic_id not in topics)
        self._topics, self._partitions = topics, partitions

    def _compare_leaders(self, update: pb.TopologyUpdate) -> None:
        leaders: dict[int, tuple[int, int]] = {}
        for group_id in self._partitions:
            term, node_id = self._host.leadership.get(GroupId(group_id))
            leader = leaders[group_id] = (node_id, term)
            if self._leaders.get(group_id) != leader:
                update.leaders.add(group_id=group_id, broker_id=node_id, leader_epoch=term)
        self._leaders = leaders


class TopologyService:
    """Answers Topology.Watch."""

    def __init__(self, host: ServiceHost) -> None:
        self._host = host
        self._feed = TopologyFeed(host)
        self._stopping: asyncio.Future[None] = host.loop.create_future()

    @property
    def watchers(self) -> int:
        """Return the number of clients that are watching."""
        return self._feed.watchers

    def begin_shutdown(self) -> None:
        """End every watch."""
        if not self._stopping.done():
            self._stopping.set_result(None)

    async def watch(self, request: pb.WatchRequest, call: Call) -> AsyncGenerator[pb.TopologyUpdate, None]:
        """Yield the full table, then changes until the client leaves or the node stops.

        Raises:
            RequestError: WRONG_CLUSTER if the client knows another cluster; NOT_FORMED; NOT_READY; THROTTLED.
        """
        check_cluster(self._host.metadata.state_machine.cluster_id, request.cluster_id)
        feed = self._feed
        feed.enter()
        try:
            number = feed.number
            yield feed.full()
            while not self._stopping.done():
                if not await self._next(number):
                    return
                updates = feed.after(number)
                number = feed.number
                if updates is None:
                    yield feed.full()
                    continue
                for update in updates:
                    yield update
        finally:
            feed.leave()

    async def _next(self, number: int) -> bool:
        """Wait for an update after `number`. Return False if the node stops or the feed failed, after which the client reconnects."""
        task = self._feed.task
        assert task is not None
        waiting = self._host.loop.create_task(self._feed.wait_after(number))
        try:
            await asyncio.wait((waiting, task, self._stopping), return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
        if task.done() and not task.cancelled():
            task.result()
        return not self._stopping.done()
