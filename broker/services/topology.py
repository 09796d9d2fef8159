"""Serve Topology.Watch: the full table first, then the changes, for any number of watchers at the cost of one.

One feed per node looks at the changes of metadata and leadership since its last update and creates one message from them. Every watcher is
sent the same messages. A watcher that falls behind gets the full table again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Iterable

from raftmq.broker.base.request_error import RequestError, check_cluster
from raftmq.broker.base.supervisor import Work
from raftmq.broker.services.call import Call
from raftmq.broker.services.host import ServiceHost
from raftmq.broker.services.messages import node_message, partition_message, topic_message
from raftmq.fsm.metadata import Metadata
from raftmq.fsm.metadata_views import NodeView
from raftmq.proto import queue_pb2 as pb
from raftmq.types import METADATA_GROUP_ID, GroupId

_DEFECT_SECONDS = 1.0
"""The pause after a comparison that failed because of a defect. The comparison is cheap and is repeated soon."""
COALESCE_SECONDS = 0.02
"""Time for which changes are gathered: a failover moves hundreds of leaders within milliseconds."""
_COALESCE_COST_FACTOR = 10
"""The feed pauses this many times as long as its last comparison took, so it never uses more than a tenth of the event loop."""
_UPDATES_KEPT = 64
WATCHERS_MAX = 2048


class TopologyFeed:
    """The last table sent and the latest updates."""

    def __init__(self, host: ServiceHost) -> None:
        self._host = host
        self._nodes: tuple[NodeView, ...] = ()
        self._topics: dict[int, pb.Topic] = {}
        """The message of each topic, by id. It changes with the topic's partitions."""
        self._groups: dict[int, tuple[int, int]] = {}
        """The topic and the number of the partition of each group."""
        self._leaders: dict[int, tuple[int, int]] = {}
        self._seen_topics = self._seen_groups = self._seen_leaders = -1
        """The versions of the changes that the table includes."""
        self._revision = -1
        """The revision of the metadata that the table includes."""
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

    def refresh(self) -> None:
        """Compare now if there is newer metadata. A client takes topics that a full table lacks for deleted at its revision.

        Leaders need no comparison: clients go by their epochs. A failover with many new watchers would have an update for each of them.
        """
        if self._host.metadata.state_machine.applied_index != self._revision:
            self.advance()

    def full(self) -> pb.TopologyUpdate:
        """Return the whole table as of `number`, after a failed comparison that of a new one, whose errors it raises."""
        if self._seen_topics < 0:
            self.advance()
        return pb.TopologyUpdate(
            cluster_id=self._host.cluster_id,
            metadata_revision=self._host.metadata.state_machine.applied_index,
            is_full=True,
            has_brokers=True,
            brokers=[node_message(node) for node in self._nodes],
            topics=self._topics.values(),
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
        """Advance after each change, until this node learns that it was removed. Its removal is the last change in its metadata, if it is there."""
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
            if self._host.standing.removal():
                return
            await asyncio.sleep(max(COALESCE_SECONDS, _COALESCE_COST_FACTOR * (self._host.loop.time() - started)))

    def advance(self) -> None:
        """Look at the changes since the last update, and add an update if clients must know of them.

        Raises:
            RequestError: NOT_FORMED or NOT_READY.
        """
        try:
            metadata = self._host.metadata.state_machine
        except RequestError:
            if self._seen_topics >= 0:
                return  # a snapshot is being installed: its end is the next change
            raise
        update = pb.TopologyUpdate(cluster_id=self._host.cluster_id, metadata_revision=metadata.applied_index)
        try:
            self._compare_nodes(metadata, update)
            new_groups = self._compare_topics(metadata, update)
            self._compare_leaders(new_groups, update)
        except BaseException:
            self._start_over()
            raise
        self._revision = metadata.applied_index
        if update.has_brokers or update.topics or update.deleted_topic_ids or update.leaders:
            self._updates.append(update)
            self.number += 1
            if self._changed is not None:
                changed, self._changed = self._changed, None
                if not changed.done():
                    changed.set_result(None)

    def _start_over(self) -> None:
        """Forget the table after a comparison that ended halfway. Every watcher will get the full table."""
        self._nodes, self._topics, self._groups, self._leaders = (), {}, {}, {}
        self._seen_topics = self._seen_groups = self._seen_leaders = self._revision = -1
        self._updates.clear()
        self.number += 1

    def _compare_nodes(self, metadata: Metadata, update: pb.TopologyUpdate) -> None:
        nodes = metadata.nodes()
        if nodes != self._nodes:
            self._nodes = nodes
            update.has_brokers = True
            update.brokers.extend(node_message(node) for node in nodes)

    def _compare_topics(self, metadata: Metadata, update: pb.TopologyUpdate) -> set[int]:
        """Add the topics that changed to the update. Return the groups that are new."""
        topic_ids = metadata.topic_changes.after(self._seen_topics)
        group_ids = metadata.group_changes.after(self._seen_groups)
        self._seen_topics, self._seen_groups = metadata.topic_changes.version, metadata.group_changes.version
        if topic_ids is None or group_ids is None:
            topic_ids, group_ids = sorted({*self._topics, *(topic.topic_id for topic in metadata.topics())}), []
        changed, new_groups = set[int](), set[int]()
        for topic_id in topic_ids:
            topic, known = metadata.topic(topic_id), self._topics.pop(topic_id, None)
            old_groups = {partition.group_id for partition in known.partitions} if known is not None else set[int]()
            groups = set(topic.group_ids) if topic is not None else set[int]()
            for group_id in old_groups - groups:
                del self._groups[group_id]
                self._leaders.pop(group_id, None)
            new_groups |= groups - old_groups
            if topic is not None:
                message = self._topics[topic_id] = topic_message(metadata, topic)
                self._groups |= {group_id: (topic_id, number) for number, group_id in enumerate(topic.group_ids)}
                if message != known:
                    changed.add(topic_id)
            elif known is not None:
                update.deleted_topic_ids.append(topic_id)
        changed.update(self._groups[group_id][0] for group_id in group_ids if self._refresh(metadata, group_id))
        update.topics.extend(self._topics[topic_id] for topic_id in sorted(changed))
        return new_groups

    def _refresh(self, metadata: Metadata, group_id: int) -> bool:
        """Refresh a partition in the message of its topic. Return whether clients see a difference."""
        partition, place = metadata.partition(group_id), self._groups.get(group_id)
        if partition is None or place is None:
            return False
        topic_id, number = place
        message, fresh = self._topics[topic_id].partitions[number], partition_message(number, group_id, partition)
        if message == fresh:
            return False
        message.CopyFrom(fresh)
        return True

    def _compare_leaders(self, new_groups: set[int], update: pb.TopologyUpdate) -> None:
        leadership = self._host.leadership
        changed: Iterable[int] | None = leadership.changes.after(self._seen_leaders)
        self._seen_leaders = leadership.changes.version
        if changed is None:
            changed = (METADATA_GROUP_ID, *self._groups)
        for group_id in sorted(new_groups.union(changed)):
            if group_id not in self._groups and group_id != METADATA_GROUP_ID:
                continue
            term, node_id = leadership.get(GroupId(group_id))
            if self._leaders.get(group_id) != (node_id, term):
                self._leaders[group_id] = (node_id, term)
                update.leaders.add(group_id=group_id, broker_id=node_id, leader_epoch=term)


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

        A node that was removed learns of no later change, and perhaps of its removal only from the other nodes. It ends the watch, so that the
        client watches another node.

        Raises:
            RequestError: WRONG_CLUSTER if the client knows another cluster; NOT_FORMED; NOT_READY; THROTTLED.
        """
        check_cluster(self._host.metadata.state_machine.cluster_id, request.cluster_id)
        feed = self._feed
        feed.enter()
        try:
            feed.refresh()
            number, is_last = feed.number, bool(self._host.standing.removal())
            yield feed.full()
            while not is_last and not self._stopping.done():
                if not await self._next(number):
                    return
                updates, is_last = feed.after(number), bool(self._host.standing.removal())
                if updates is None:
                    feed.refresh()
                    number = feed.number
                    yield feed.full()
                    continue
                number = feed.number
                for update in updates:
                    yield update
        finally:
            feed.leave()

    async def _next(self, number: int) -> bool:
        """Wait for an update after `number`, or for the end of the feed because the node was removed. Return False if the node stops.

        Raises what the feed failed with, after which the client reconnects.
        """
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
