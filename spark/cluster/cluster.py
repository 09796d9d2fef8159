"""Give a Python process of Spark synchronous access to clusters, over one shared connection per cluster.

All calls run on the process's one event loop (`LoopThread`). Must not plan or decode.

Invariants: a connection opens at first use, so objects that hold `ClientOptions` can be pickled, and forked workers open their own
connections. At most `CLUSTERS_MAX` are open. The least recently used one is closed for another.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeVar

from raftmq.client.base.fork_guard import current_generation
from raftmq.client.base.loop_thread import LoopThread
from raftmq.client.base.settings import LOG_KIND
from raftmq.client.connection.leader_calls import LATEST_TIME, kept_ends, list_offsets
from raftmq.client.connection.resolver import Resolver, TopicInfo
from raftmq.client.connection.time_search import OffsetAndTimestamp
from raftmq.client.connection.transport import GrpcTransport
from raftmq.client.membership.group_calls import MemberIdentity, OffsetCommit, OwnedPartition, commit_offsets
from raftmq.errors import NotReadyError, RaftMQError, TopicKindMismatchError, UnknownTopicError
from raftmq.methods import LIST_TOPICS
from raftmq.proto import queue_pb2 as pb
from raftmq.spark.atomic.batch_marks import TopicMarks, find_cut
from raftmq.spark.atomic.mark_calls import run_marks
from raftmq.spark.base.offsets import Position
from raftmq.spark.base.options import ClientOptions
from raftmq.spark.base.worker_garbage import exempt_modules
from raftmq.spark.cluster.leader_poll import Polled, poll_leader
from raftmq.spark.cluster.subscriptions import Assigned, Matching, Named, Subscription
from raftmq.types import TopicPartition

CLUSTERS_MAX: Final = 8
"""Connections of one process. An application uses one or two clusters. Each costs a watch stream and a channel per broker."""

_BOOTTIME: Final[int | None] = getattr(time, "CLOCK_BOOTTIME", None)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TopicView:
    """Describe one incarnation of a topic."""

    topic_id: int
    partitions: frozenset[int]
    """The partitions that the query subscribes to."""
    groups: Mapping[int, int] = field(default_factory=dict, compare=False)
    """The Raft group of each partition. A recovery gives it another one."""


class ClusterView(Protocol):
    """Answer the questions of planning. It is a real cluster or, in tests, a dictionary."""

    def topics(self, subscription: Subscription, *, is_fresh: bool = False) -> dict[str, TopicView]:
        """Return the subscribed topics that exist. A pattern includes log topics only.

        Without `is_fresh` a topic may be shown as it was a moment ago, with fewer partitions or as an earlier incarnation.

        Raises:
            TopicKindMismatchError: a named topic is no log.
        """
        ...

    def offsets(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return the first offset at or after a time for each partition, or -1 where there is none.

        Raises:
            UnknownTopicError, UnknownPartitionError: a topic or partition certainly does not exist.
        """
        ...

    def kept_ends(self, groups: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return the partitions that were recovered since these Raft groups served them, with the lowest end of the logs that were kept.

        Raises:
            UnknownTopicError, UnknownPartitionError: a topic or partition certainly does not exist.
        """
        ...

    def find_cut(self, topic: str, topic_id: int, known: TopicMarks | None) -> TopicMarks:
        """Return marks with the latest cut between whole batches of a topic, as `batch_marks.find_cut` does.

        Raises:
            UnknownTopicError: this incarnation of the topic does not exist.
        """
        ...


class BrokersClock:
    """Continue the clock of the broker that has told its time last. Use it on the loop only."""

    def __init__(self) -> None:
        self._ahead_ms = 0
        """The difference between that clock, when its time arrived, and the time since this machine's start. 0: no broker has told its time."""

    def note(self, time_ms: int) -> None:
        """Take a broker's time, in milliseconds since 1970, as it arrives. 0: not known."""
        self._ahead_ms = time_ms - _since_start_ms() if time_ms else self._ahead_ms

    def now_ms(self) -> int:
        """Return the time of that clock unless it was set back since, or 0 if no broker has told its time."""
        return _since_start_ms() + self._ahead_ms if self._ahead_ms else 0


def _since_start_ms() -> int:
    """Return the milliseconds since the machine's start, where it is possible with those in which it was suspended."""
    return (time.monotonic_ns() if _BOOTTIME is None else time.clock_gettime_ns(_BOOTTIME)) // 1_000_000


class Cluster:
    """Represent one cluster, with its connection. Thread-safe. The pool closes it."""

    def __init__(self, options: ClientOptions) -> None:
        self.clock = BrokersClock()
        self._loop = LoopThread.get()
        self._timeout_seconds = options.request_timeout_ms / 1000
        self._retries = options.lookup_retries
        self._pause_seconds = options.lookup_pause_ms / 1000
        self._resolver = self._look_up(lambda: _started(options))

    def run(self, coroutine_of: Callable[[], Coroutine[object, object, T]]) -> T:
        """Run the coroutine that `coroutine_of` creates on the process's loop, and wait for its result."""
        return self._loop.run(coroutine_of())

    def start(self, coroutine_of: Callable[[], Coroutine[object, object, T]]) -> Future[T]:
        """Start the coroutine that `coroutine_of` creates. Cancelling the future cancels it."""
        return self._loop.start(coroutine_of())

    @property
    def resolver(self) -> Resolver:
        """Return the resolver, which finds the leaders. Use it on the loop only."""
        return self._resolver

    @property
    def is_usable(self) -> bool:
        """Return whether the connection is open and was not ended by a defect."""
        return self._resolver.failure is None

    def close(self) -> None:
        """Close all connections."""
        self.run(self._resolver.close)

    # --------------------------------------------------------------------------------------------------------- planning

    def topics(self, subscription: Subscription, *, is_fresh: bool = False) -> dict[str, TopicView]:
        """Return the subscribed topics that exist, as `ClusterView.topics` describes."""
        return self._look_up(lambda: self._topics(subscription, is_fresh))

    def offsets(
        self, times: Mapping[TopicPartition, int], *, by_append_time: bool = False
    ) -> dict[TopicPartition, int]:
        """Return the first offsets at or after the times, as `ClusterView.offsets` describes.

        With `by_append_time` the times are those at which brokers appended the records, instead of the records' timestamps.

        Raises `UnknownTopicError`, `NoLeaderError`, or the error that kept a leader from answering in time.
        """
        if not times:
            return {}

        async def ask() -> dict[TopicPartition, OffsetAndTimestamp]:
            return await list_offsets(self._resolver, dict(times), self._timeout_seconds, by_append_time=by_append_time)

        return {partition: answer.offset for partition, answer in self._look_up(ask).items()}

    def kept_ends(self, groups: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return the ends that recoveries have kept, as `ClusterView.kept_ends` describes. Raises as `offsets`."""
        return self._look_up(lambda: kept_ends(self._resolver, groups, self._timeout_seconds))

    def find_cut(self, topic: str, topic_id: int, known: TopicMarks | None) -> TopicMarks:
        """Return marks with the latest cut, as `ClusterView.find_cut` describes."""
        return run_marks(self, topic, topic_id, find_cut(known), self._timeout_seconds)

    def ends(self, topic: str, topic_id: int, count: int) -> tuple[int, ...]:
        """Return the ends of all partitions of this incarnation of a topic, which has at least `count`.

        Raises `UnknownTopicError` when this incarnation does not exist, `NotReadyError` when the broker that was asked does not know it yet, and
        otherwise as `offsets`.
        """

        async def look() -> TopicInfo:
            last, seconds = max(count - 1, 0), self._timeout_seconds
            info = await self._resolver.topic(topic, seconds, partition=last)
            if info.topic_id != topic_id or info.partition_count < count:
                info = await self._resolver.topic(topic, seconds, is_fresh=True)
            if info.topic_id > topic_id:
                raise UnknownTopicError(f"{topic} was deleted and created again")
            if info.topic_id < topic_id or info.partition_count < count:
                raise NotReadyError(f"the broker that was asked knows an older state of {topic}")
            return info

        info = self._look_up(look)
        partitions = [TopicPartition(topic, number) for number in range(info.partition_count)]
        found = self.offsets(dict.fromkeys(partitions, LATEST_TIME))
        return tuple(found[partition] for partition in partitions)

    def _look_up(self, coroutine_of: Callable[[], Coroutine[object, object, T]]) -> T:
        """Run a lookup, and repeat it as often as the options allow after failures that may pass."""
        for _ in range(self._retries):
            try:
                return self.run(coroutine_of)
            except RaftMQError as error:
                if not error.retriable:
                    raise
            time.sleep(self._pause_seconds)
        return self.run(coroutine_of)

    def commit(self, group: str, position: Position) -> dict[TopicPartition, RaftMQError]:
        """Commit a position to a consumer group without members. Return the error of each partition that was not committed.

        Repeating it is harmless. A partition of a group with members has `FencedError`.
        """
        commits = {partition: OffsetCommit(offset) for partition, offset in position.partitions()}
        owned = {partition: OwnedPartition(position.topics[partition.topic].topic_id, 0) for partition in commits}

        async def ask() -> dict[TopicPartition, RaftMQError | None]:
            return await commit_offsets(self._resolver, MemberIdentity(group), commits, owned, self._timeout_seconds)

        return {partition: error for partition, error in self.run(ask).items() if error is not None}

    async def _topics(self, subscription: Subscription, is_fresh: bool) -> dict[str, TopicView]:
        match subscription:
            case Matching():  # always fresh
                request = pb.ListTopicsRequest(metadata_revision=self._resolver.metadata_revision)
                listed = await self._resolver.call_any(LIST_TOPICS, request, self._timeout_seconds, is_read=True)
                self._resolver.record_revision(listed.metadata_revision)
                return {
                    topic.name: TopicView(
                        topic.topic_id,
                        frozenset(p.partition for p in topic.partitions),
                        {p.partition: p.group_id for p in topic.partitions},
                    )
                    for topic in listed.topics
                    if subscription.takes(topic.name) and topic.kind in ("", LOG_KIND)
                }
            case Named(topics):
                found = {topic: await self._find(topic, is_fresh) for topic in topics}
                return {
                    topic: TopicView(info.topic_id, frozenset(range(info.partition_count)), _groups_of(info))
                    for topic, info in found.items()
                    if info is not None
                }
            case Assigned(partitions):
                views = {}
                for topic in sorted({partition.topic for partition in partitions}):
                    info = await self._find(topic, is_fresh)
                    if info is not None:
                        wanted = {p.partition for p in partitions if p.topic == topic}
                        views[topic] = TopicView(info.topic_id, frozenset(wanted), _groups_of(info))
                return views

    async def _find(self, topic: str, is_fresh: bool) -> TopicInfo | None:
        try:
            found = await self._resolver.topic(topic, self._timeout_seconds, is_fresh=is_fresh)
        except UnknownTopicError:
            return None
        if found.kind != LOG_KIND:
            raise TopicKindMismatchError(
                f"{topic!r} is a topic of kind {found.kind!r}, which has no offsets to subscribe to: look at the messages of a queue"
                f' topic with spark.read and option("browse", "{topic}"), and work on them with spark.readStream and'
                ' option("kind", "queue"), in a query without log topics'
            )
        return found

    # ---------------------------------------------------------------------------------------------------------- reading

    async def poll(
        self, topic: str, topic_id: int, partition: int, offset: int, timeout_seconds: float, read_group_id: int = 0
    ) -> Polled:
        """Poll a partition once, as `poll_leader` describes. Use it on the loop only."""
        return await poll_leader(self._resolver, topic, topic_id, partition, offset, timeout_seconds, read_group_id)


def _groups_of(info: TopicInfo) -> dict[int, int]:
    return dict(enumerate(info.group_ids))


async def _started(options: ClientOptions) -> Resolver:
    resolver = Resolver(options.bootstrap_servers, GrpcTransport())
    try:
        await resolver.start(options.request_timeout_ms / 1000)
    except BaseException:
        await resolver.close()
        raise
    return resolver


class _Pool:
    """Hold the clusters that this process has open."""

    def __init__(self) -> None:
        self.generation = current_generation()
        self.lock = threading.Lock()
        self.clusters: OrderedDict[ClientOptions, Cluster] = OrderedDict()


_pools = [_Pool()]


def cluster_of(options: ClientOptions) -> Cluster:
    """Return this process's shared connection, and open it if there is none. Raises `BootstrapError`."""
    if _pools[0].generation != current_generation():
        _pools[0] = _Pool()  # a fork leaves the parent's connections behind, and a lock that nobody may ever release
    pool = _pools[0]
    exempt_modules()
    with pool.lock:
        cluster = pool.clusters.pop(options, None)
        if cluster is None or not cluster.is_usable:
            cluster = Cluster(options)
        pool.clusters[options] = cluster
        surplus = pool.clusters.popitem(last=False)[1] if len(pool.clusters) > CLUSTERS_MAX else None
    if surplus is not None:
        surplus.close()
    return cluster
