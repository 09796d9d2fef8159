"""Knows the leaders of partitions: watches the topology, follows hints, and shares one connection per broker among all callers.

Must not send records or decide about their retries. Invariants: the first cluster id seen is pinned, and an answer of another cluster is
never used. A known leader is never replaced by one of an older epoch. All state changes happen in functions without `await`.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from operator import gt
from typing import Final, NamedTuple

from raftmq.client.base import settings
from raftmq.client.base.background import Backoff, cancel_and_wait, spawn
from raftmq.client.base.error_details import fresh_copy, name_of
from raftmq.client.base.logs import LogThrottle, log
from raftmq.client.base.texts import check_text
from raftmq.client.connection.addresses import parse_addresses
from raftmq.client.connection.transport import Connection, Transport
from raftmq.errors import (
    BootstrapError,
    ClosedClientError,
    NotLeaderError,
    Outcome,
    PermissionDeniedError,
    RaftMQError,
    RequestTimedOutError,
    UnknownTopicError,
    UnreachableError,
    UnsupportedVersionError,
    WrongClusterError,
)
from raftmq.methods import DESCRIBE_TOPIC, RequestT, ResponseT, UnaryMethod
from raftmq.proto import queue_pb2 as pb
from raftmq.types import METADATA_GROUP_ID

REFUSALS: Final = (WrongClusterError, UnsupportedVersionError, PermissionDeniedError)
"""Errors that waiting cannot cure. A client that meets only these at its start raises them instead of retrying."""
_CLOSED_TEXTS: Final = ("Socket closed", "Connection reset by peer")
"""Texts of gRPC for a server that accepts a connection and closes it. A broker's peer port does this to a client."""
_CLOSED_REASON: Final = "the server there closes the connection without an answer: is it a broker's peer port? Clients need its client port, 9400 by default"
"""A question, because a broker that is just ending closes connections, too."""


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """One incarnation of a topic. Replaced as a whole when anything about it changes."""

    name: str
    topic_id: int
    group_ids: tuple[int, ...]
    """The Raft group of each partition, by partition number."""
    batch_bytes_max: int = settings.TOPIC_BATCH_BYTES_MAX
    """Maximum size of a batch of the topic, compressed and including the header."""
    kind: str = settings.LOG_KIND
    is_ordered_by_key: bool = False
    """Whether a queue topic delivers the messages of a key one after the other."""
    message_bytes_max: int = settings.MESSAGE_BYTES_DEFAULT
    """Maximum size of a message of a queue topic, with its headers and as it is stored."""
    schedule_partitions: int = 1
    """The name of a schedule chooses one of so many partitions."""
    is_single_active: bool = False
    """Whether one consumer at a time gets the messages of a partition of a queue topic."""

    @property
    def record_bytes_max(self) -> int:
        """Return the maximum size of a record of the topic, with its overhead and before compression."""
        return max(settings.RECORD_BYTES_MAX, self.batch_bytes_max - settings.TOPIC_BATCH_OVERHEAD_BYTES)

    @property
    def partition_count(self) -> int:
        """Return the number of partitions, which are numbered from 0."""
        return len(self.group_ids)


class Leader(NamedTuple):
    """The last known leader of a group."""

    broker_id: int
    leader_epoch: int


class Resolver:
    """The client's view of the cluster. One per producer, consumer or admin."""

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str],
        transport: Transport,
        *,
        rng: random.Random | None = None,
        cluster_id: str = "",
    ) -> None:
        """Create it. With a `cluster_id`, only that cluster is used, otherwise the first one that answers."""
        self.bootstrap_addresses = parse_addresses(bootstrap_servers)
        check_text(cluster_id, "cluster_id")
        self.cluster_id = cluster_id
        """The cluster id. Empty until it is given or the first topology arrives, then fixed."""
        self.metadata_revision = 0
        """The highest revision seen. It is sent with requests, so that a broker that is behind waits."""
        self.topics: dict[str, TopicInfo] = {}
        self.rng = rng or random.Random()
        self._transport = transport
        self._connections: dict[str, Connection] = {}
        self._cleaner: asyncio.TimerHandle | None = None
        """Timer that closes the connections to addresses that are no longer used."""
        self._endings: dict[asyncio.Task[None], None] = {}
        """Connections that are being closed."""
        self._broker_addresses: dict[int, str] = {}
        self._hidden: dict[str, TopicInfo] = {}
        """Topics that a whole table of a broker that is behind lacks. That broker may describe their older states next."""
        self._deleted: dict[int, None] = {}
        """The ids of the topics deleted last. An answer that was under way must not bring one back."""
        self._successors: dict[int, int] = {}
        """Group that was replaced -> the group that serves its partition now."""
        self._leaders: dict[int, Leader] = {}
        self._late_leader: Leader | None = None
        """A metadata leader that has not answered in time, until `_late_until`. It may be behind a firewall."""
        self._late_until = 0.0
        self._refused: set[str] = set()
        """Addresses at which another cluster answered, until our cluster reports a broker there."""
        self._listeners: list[Callable[[], None]] = []
        self._change = asyncio.Event()
        self._watch_tasks: dict[asyncio.Task[None], None] = {}
        """The task that watches, and earlier ones that are ending."""
        self._watch_address = ""
        self._has_topology = asyncio.Event()
        self._failure: BaseException | None = None
        self._errors: dict[str, RaftMQError] = {}
        """The last error of each address that could not be watched. Empty while an address is watched."""
        self._lost_at = 0.0
        self._throttle = LogThrottle(settings.LOG_INTERVAL_SECONDS)

    # -------------------------------------------------------------------------------------------------------- lifecycle

    async def start(self, timeout_seconds: float) -> None:
        """Start watching and wait for the first topology.

        Raises:
            BootstrapError: no address answered in time.
            UnsupportedVersionError, PermissionDeniedError, WrongClusterError: every address refuses us permanently.
        """
        self._lost_at = asyncio.get_running_loop().time()
        self._restart_watch()
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._has_topology.wait()
        except TimeoutError:
            reasons = [f"{address} ({self._reason(address)})" for address in self.bootstrap_addresses]
            cause = next(iter(self._errors.values()), None)
            raise BootstrapError(f"no broker answered within {timeout_seconds:g} s: {', '.join(reasons)}") from cause
        self.check()

    async def close(self) -> None:
        """Stop watching and close every connection, waiting only until calls have ended. A repeated call does nothing."""
        self._failure = self._failure or ClosedClientError("the client is closed")
        self._has_topology.set()  # wakes `start`, which raises the failure
        if self._cleaner is not None:
            self._cleaner.cancel()
        try:
            await cancel_and_wait(*self._watch_tasks)
        finally:
            connections, self._connections = list(self._connections.values()), {}
            await asyncio.gather(*self._endings, *(connection.close() for connection in connections))

    @property
    def failure(self) -> BaseException | None:
        """Return the error that ended the client: a defect, a permanent refusal, or `close`. Subscribers are notified."""
        return self._failure

    def check(self) -> None:
        """Raise the error that ended the client, if any."""
        if self._failure is not None:
            if isinstance(self._failure, RaftMQError):
                raise fresh_copy(self._failure) from self._failure.__cause__
            raise ClosedClientError("the client stopped after an internal error") from self._failure

    # ---------------------------------------------------------------------------------------------------------- looking

    def leader(self, group_id: int) -> Leader | None:
        """Return the leader of the group, or None if no leader with an address is known."""
        leader = self._leaders.get(self.present_group(group_id))
        if leader is None or leader.broker_id not in self._broker_addresses:
            return None
        return leader

    def has_partition(self, topic: str, group_id: int) -> bool:
        """Return whether the partition is known to exist.

        If it is, a broker that denies it is behind, or belongs to another cluster that reuses an old address.
        """
        info = self.topics.get(topic)
        return info is not None and self.present_group(group_id) in info.group_ids

    def present_group(self, group_id: int) -> int:
        """Return the group that serves the partition now. After the recovery of a partition, callers still name the group that it had."""
        return self._successors.get(group_id, group_id)

    def address(self, leader: Leader) -> str:
        """Return the address of the leader's broker."""
        return self._broker_addresses[leader.broker_id]

    def connection(self, address: str) -> Connection:
        """Return the shared connection to an address."""
        self.check()
        connection = self._connections.get(address)
        if connection is None:
            connection = self._connections[address] = self._transport.connect(address)
            connection.cluster_id = self.cluster_id
            log.debug("connection_made address=%s", address)
        return connection

    async def topic(
        self, name: str, timeout_seconds: float, *, partition: int | None = None, is_fresh: bool = False
    ) -> TopicInfo:
        """Return a topic. One that is not known yet is looked up in the cluster, so `UnknownTopicError` is certain.

        A known topic without this `partition` is looked up, too, because the partition may be new. If the answer does not contain it either, it
        does not exist. With `is_fresh` the topic is always looked up, as of `metadata_revision` at least.

        Raises:
            UnknownTopicError: the cluster has no such topic.
            InvalidTopicNameError: no topic can have this name.
            RequestTimedOutError: no broker answered in time.
        """
        self.check()
        info = self.topics.get(name)
        if info is not None and not is_fresh and (partition is None or partition < info.partition_count):
            return info
        check_text(name, "topic")
        request = pb.DescribeTopicRequest(name=name, metadata_revision=self.metadata_revision)
        response = await self.call_any(DESCRIBE_TOPIC, request, timeout_seconds, is_read=True)
        self._learn_topic(response.topic, self._known(response.topic.name))
        for leader in response.leaders:
            known = self._leaders.get(leader.group_id)
            # The broker may only have lost its connection to the leader. When it is back, nothing has changed for the watch to tell.
            if leader.broker_id or known is None or leader.leader_epoch > known.leader_epoch:
                self._learn_leader(leader.group_id, Leader(leader.broker_id, leader.leader_epoch))
        self.record_revision(response.metadata_revision)
        self._notify()
        info = self.topics.get(name)
        if info is None:
            raise UnknownTopicError(f"there is no topic {name!r}")
        return info

    def broker_addresses(self) -> list[str]:
        """Return the addresses of all known brokers."""
        return list(self._broker_addresses.values())

    def addresses(self) -> list[str]:
        """Return the addresses of brokers to ask, best first."""
        return self._candidates()

    # --------------------------------------------------------------------------------------------------------- learning

    def subscribe(self, listener: Callable[[], None]) -> None:
        """Call `listener` (which must not block) after every change of the topology."""
        self._listeners.append(listener)

    async def wait_change(self, timeout_seconds: float) -> None:
        """Return when the topology has changed, or the time is over."""
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._change.wait()
        except TimeoutError:
            return

    def record_revision(self, revision: int) -> None:
        """Store the revision of an answer."""
        self.metadata_revision = max(self.metadata_revision, revision)

    def record_topic(self, topic: pb.Topic) -> None:
        """Store a topic from the answer of a call that created or changed it."""
        self._learn_topic(topic, self._known(topic.name))
        self._notify()

    def on_not_leader(self, group_id: int, error: NotLeaderError) -> bool:
        """Follow a hint. Return whether it names a new leader, so that a retry need not wait.

        A refusal without a hint changes nothing: a leader that stalled refuses briefly and remains leader in its epoch.
        """
        if not error.leader_broker_id:
            return False
        if error.leader_address and error.leader_broker_id not in self._broker_addresses:
            self._broker_addresses[error.leader_broker_id] = error.leader_address
        changed = self._learn_leader(self.present_group(group_id), Leader(error.leader_broker_id, error.leader_epoch))
        if changed:
            self._notify()
        return changed

    def mark_suspect(self, address: str) -> None:
        """Stop watching the topology through a broker that answers late or not at all."""
        if address == self._watch_address and len(self._candidates()) > 1:
            self._restart_watch()

    # ---------------------------------------------------------------------------------------------------------- calling

    async def call_any(
        self,
        method: UnaryMethod[RequestT, ResponseT],
        request: RequestT,
        timeout_seconds: float,
        *,
        is_read: bool = False,
        prefers_metadata_leader: bool = False,
    ) -> ResponseT:
        """Make a call that every broker can answer, on one that works.

        Calls that other brokers forward to the metadata leader may prefer it, which saves a hop. Definite failures that are retriable are
        retried on other brokers until the time is over, and on one that was asked before when all were asked. A failure with an unknown
        outcome is retried only if `is_read`.

        Raises:
            RaftMQError: the broker's refusal, or the last failure when the time is over. A broker that is down does not hide the last answer.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_seconds
        backoff = Backoff(settings.RETRY_BACKOFF_MIN_SECONDS, settings.RETRY_BACKOFF_MAX_SECONDS, self.rng)
        tried = 0
        asked = set[str]()  # since every broker was asked last
        answered: RaftMQError | None = None
        while True:
            self.check()
            leader = self._prompt_metadata_leader() if prefers_metadata_leader else None
            candidates = self._candidates(self.address(leader) if leader is not None else "")
            if asked.issuperset(candidates):
                asked.clear()
            address = next(candidate for candidate in candidates if candidate not in asked)
            asked.add(address)
            tried += 1
            remaining = max(deadline - loop.time(), 0.001)
            # A read may abandon a frozen broker early. A change must not, because its outcome would be unknown.
            patience = min(remaining, settings.LATE_ANSWER_SECONDS) if is_read and len(candidates) > 1 else remaining
            try:
                return await self.connection(address).call(method, request, patience)
            except RaftMQError as error:
                self.check()
                may_repeat = error.retriable and (is_read or error.outcome is Outcome.NOT_APPLIED)
                if isinstance(error, RequestTimedOutError):
                    self.mark_suspect(address)
                    is_leader = leader is not None and address == self._broker_addresses.get(leader.broker_id)
                    if is_leader and patience >= settings.LATE_ANSWER_SECONDS:
                        self._late_leader, self._late_until = leader, loop.time() + settings.LATE_LEADER_SECONDS
                pause = max(backoff.next_seconds() if tried >= len(candidates) else 0.0, error.retry_after_ms / 1000)
                is_down = isinstance(error, UnreachableError)
                if not may_repeat or loop.time() + pause >= deadline:
                    if is_down and answered is not None:
                        raise answered from error
                    raise
                answered = answered if is_down else error
            await asyncio.sleep(pause)

    # --------------------------------------------------------------------------------------------------------- watching

    def _restart_watch(self) -> None:
        if self._failure is not None:
            return
        for ending in self._watch_tasks:
            ending.cancel()
        task = spawn(self._watch_forever(self._watch_address), "raftmq-topology", self._on_crash)
        self._watch_tasks[task] = None
        task.add_done_callback(self._watch_tasks.pop)

    async def _watch_forever(self, avoid: str) -> None:
        backoff = Backoff(settings.WATCH_BACKOFF_MIN_SECONDS, settings.WATCH_BACKOFF_MAX_SECONDS, self.rng)
        while self._failure is None:
            # Avoid the broker that was watched last, and prefer those that have not failed since the topology was lost.
            candidates = [a for a in self._candidates() if a != avoid] or self._candidates()
            untried = [a for a in candidates if a not in self._errors]
            address = self.rng.choice(untried or candidates)
            self._watch_address = address
            try:
                await self._watch(address, backoff)
            except RaftMQError as error:
                self._on_watch_failed(address, error)
            else:
                log.info("topology_watch_ended address=%s", address)  # the broker stops, or restarts its feed
            avoid = address
            await asyncio.sleep(backoff.next_seconds())

    async def _watch(self, address: str, backoff: Backoff) -> None:
        async with aclosing(self.connection(address).watch(pb.WatchRequest(cluster_id=self.cluster_id))) as updates:
            try:
                async with asyncio.timeout(settings.WATCH_FIRST_UPDATE_SECONDS):
                    first = await anext(updates, None)
            except TimeoutError as error:
                raise RequestTimedOutError(
                    f"{address}: no topology within {settings.WATCH_FIRST_UPDATE_SECONDS:g} s"
                ) from error
            if first is None:
                return
            self._apply(first, address)
            backoff.reset()
            self._on_watching(address)
            async for update in updates:
                self._apply(update, address)

    def _on_watching(self, address: str) -> None:
        elapsed = asyncio.get_running_loop().time() - self._lost_at if self._errors else 0.0
        self._errors.clear()
        data = (address, self.cluster_id, len(self._broker_addresses), len(self.topics), elapsed)
        log.info("topology_watched address=%s cluster_id=%s brokers=%d topics=%d elapsed_seconds=%.3f", *data)

    def _on_watch_failed(self, address: str, error: RaftMQError) -> None:
        """Try another address, or give up if all addresses refuse us permanently."""
        if not self._errors and self._has_topology.is_set():
            self._lost_at = asyncio.get_running_loop().time()
        self._errors[address] = error
        log.debug("topology_watch_failed address=%s error_code=%s", address, name_of(error))
        if isinstance(error, WrongClusterError):
            self._refused.add(address)
            log.warning("address_of_another_cluster address=%s cluster_id=%s", address, self.cluster_id)
        candidates = self._candidates()
        failures = [self._errors.get(candidate) for candidate in candidates]
        is_starting = not self._has_topology.is_set()
        if not candidates or (is_starting and all(isinstance(failure, REFUSALS) for failure in failures)):
            self._on_crash(error)
            return
        elapsed = asyncio.get_running_loop().time() - self._lost_at
        other = next((one for one in self._errors.values() if isinstance(one, WrongClusterError)), None)
        if other is not None and not is_starting and all(failures) and elapsed >= settings.OTHER_CLUSTER_SECONDS:
            self._on_crash(other)
            return
        if all(failures) and elapsed >= settings.UNREACHABLE_BEFORE_WARNING_SECONDS and self._throttle.is_due():
            data = (",".join(candidates), name_of(error), elapsed)
            log.warning("no_broker_reachable addresses=%s error_code=%s elapsed_seconds=%.1f", *data)

    def _reason(self, address: str) -> str:
        """Return a short reason why an address cannot be used."""
        error = self._errors.get(address)
        if error is None:
            return "did not answer"
        text = str(error.args[0]).removeprefix(f"{address}: ")
        return _CLOSED_REASON if text.endswith(_CLOSED_TEXTS) else text

    def _apply(self, update: pb.TopologyUpdate, address: str) -> None:
        if self.cluster_id and update.cluster_id and update.cluster_id != self.cluster_id:
            raise WrongClusterError(f"{address} belongs to cluster {update.cluster_id}, not to {self.cluster_id}")
        if not self.cluster_id:
            self.cluster_id = update.cluster_id
            for connection in self._connections.values():
                connection.cluster_id = self.cluster_id
        is_newest = update.metadata_revision >= self.metadata_revision
        self.record_revision(update.metadata_revision)
        if update.has_brokers or update.is_full:
            self._broker_addresses = {broker.broker_id: broker.address for broker in update.brokers if broker.address}
            self._refused.difference_update(self._broker_addresses.values())  # another cluster there may be gone again
        if update.is_full:  # it may come from a broker that is behind
            self.topics, self._hidden = {}, self._hidden | self.topics
        deleted = set(update.deleted_topic_ids)
        if deleted:
            self.topics = {name: info for name, info in self.topics.items() if info.topic_id not in deleted}
            self._hidden = {name: info for name, info in self._hidden.items() if info.topic_id not in deleted}
            self._deleted = dict.fromkeys([*self._deleted, *deleted][-settings.DELETED_TOPICS_MAX :])
        for topic in update.topics:
            self._learn_topic(topic, self._known(topic.name))
        if update.is_full and is_newest:
            self._hidden = {}
        for leader in update.leaders:
            self._learn_leader(leader.group_id, Leader(leader.broker_id, leader.leader_epoch))
        if deleted or (update.is_full and is_newest):
            # Group ids are never reused. A table that is behind may lack a topic whose leaders' epochs must not be forgotten. The leaders of
            # the topics deleted last remain known: producers ask them, and learn that the topic was deleted.
            existing = {METADATA_GROUP_ID, *(id_ for info in self.topics.values() for id_ in info.group_ids)}
            gone = [group_id for group_id in self._leaders if group_id not in existing][-settings.DELETED_LEADERS_MAX :]
            there = [group_id for group_id in self._leaders if group_id in existing]
            self._leaders = {group_id: self._leaders[group_id] for group_id in (*gone, *there)}
        if self._cleaner is None and self._unused_addresses():
            loop = asyncio.get_running_loop()
            self._cleaner = loop.call_later(settings.UNUSED_CONNECTION_SECONDS, self._close_unused)
        self._has_topology.set()
        self._notify()

    def _unused_addresses(self) -> list[str]:
        """Return connected addresses that no broker uses any more."""
        return sorted(self._connections.keys() - set(self._candidates()))

    def _close_unused(self) -> None:
        self._cleaner = None
        for address in self._unused_addresses():
            ending = spawn(self._connections.pop(address).close(), "raftmq-connection-end", self._on_crash)
            self._endings[ending] = None
            ending.add_done_callback(self._endings.pop)
            log.debug("connection_dropped address=%s", address)

    def _known(self, name: str) -> TopicInfo | None:
        """Return the newest state of a topic that was seen and is not known to be deleted."""
        return self.topics.get(name) or self._hidden.get(name)

    def _learn_successors(self, known: TopicInfo | None, topic: pb.Topic) -> None:
        """Learn which groups of a topic were replaced, as the recovery of a partition without a majority does."""
        if known is None or known.topic_id != topic.topic_id:
            return
        for partition in topic.partitions:
            old = known.group_ids[partition.partition] if partition.partition < known.partition_count else 0
            if 0 < old < partition.group_id:
                successors = {one: partition.group_id if two == old else two for one, two in self._successors.items()}
                successors[old] = partition.group_id
                self._successors = dict(list(successors.items())[-settings.DELETED_LEADERS_MAX :])

    def _learn_topic(self, topic: pb.Topic, known: TopicInfo | None) -> None:
        """Take a topic as a broker describes it, unless `known`, the state until now, is newer."""
        if topic.topic_id in self._deleted:
            return
        self._hidden.pop(topic.name, None)
        self._learn_successors(known, topic)
        partitions = sorted(topic.partitions, key=lambda partition: partition.partition)
        group_ids = tuple(partition.group_id for partition in partitions)
        if known is not None:
            self.topics[topic.name] = known
            if (known.topic_id, known.partition_count) > (topic.topic_id, len(group_ids)):
                return  # an older incarnation, or an older state of it: partitions are only ever added
            if known.topic_id == topic.topic_id and any(map(gt, known.group_ids, group_ids)):
                return  # older than the recovery of a partition, which gives it a later group
        info = TopicInfo(
            topic.name,
            topic.topic_id,
            group_ids,
            _number(topic.config, settings.TOPIC_BATCH_BYTES_KEY, settings.TOPIC_BATCH_BYTES_MAX),
            topic.kind or settings.LOG_KIND,
            topic.config.get(settings.TOPIC_ORDERED_BY_KEY_KEY) == "true",
            _number(topic.config, settings.TOPIC_MESSAGE_BYTES_KEY, settings.MESSAGE_BYTES_DEFAULT),
            topic.schedule_partitions or 1,
            topic.config.get(settings.TOPIC_SINGLE_ACTIVE_KEY) == "true",
        )
        if info != known:
            self.topics[topic.name] = info

    def _learn_leader(self, group_id: int, leader: Leader) -> bool:
        known = self._leaders.get(group_id)
        if known is not None and leader.leader_epoch < known.leader_epoch:
            return False
        if known == leader:
            return False
        self._leaders[group_id] = leader
        return True

    def _notify(self) -> None:
        change, self._change = self._change, asyncio.Event()
        change.set()
        for listener in self._listeners:
            listener()

    def _prompt_metadata_leader(self) -> Leader | None:
        """Return the metadata leader if it is known, and has not been late a moment ago."""
        leader = self.leader(METADATA_GROUP_ID)
        is_late = leader == self._late_leader and asyncio.get_running_loop().time() < self._late_until
        return None if is_late else leader

    def _candidates(self, first: str = "") -> list[str]:
        """Return the addresses to ask, without duplicates: `first`, if there is one, then the watched one."""
        known = dict.fromkeys((first, self._watch_address, *self._broker_addresses.values(), *self.bootstrap_addresses))
        return [address for address in known if address and address not in self._refused]

    def _on_crash(self, error: BaseException) -> None:
        if self._failure is None:
            log.error("client_stopped error_code=%s", name_of(error))
        self._failure = self._failure or error
        self._has_topology.set()
        self._notify()


def _number(config: Mapping[str, str], key: str, default: int) -> int:
    """Return a topic setting, or the default for a value that only a newer broker understands."""
    text = config.get(key, "")
    return int(text) if text.isdigit() else default
