"""`Admin`: topics, consumer groups and cluster, as typed values. Must not hold state beyond its connection."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Final, Literal, Self

from raftmq.client.admin.cluster_health import (
    BrokerHealth,
    ClusterHealth,
    PartitionState,
    read_broker_health,
    read_cluster_health,
    read_state,
)
from raftmq.client.admin.group_admin import (
    GroupDescription,
    GroupListing,
    OffsetChange,
    ResetTarget,
    delete_group,
    describe_group,
    list_groups,
    remove_group_member,
    reset_group_offsets,
)
from raftmq.client.base import settings
from raftmq.client.base.affinity import ClientAffinity
from raftmq.client.base.arguments import check_positive
from raftmq.client.base.background import Deadline
from raftmq.client.base.texts import check_text, check_texts
from raftmq.client.connection.leader_calls import delete_records
from raftmq.client.connection.resolver import Resolver
from raftmq.client.connection.transport import GrpcTransport, Transport
from raftmq.errors import ClosedClientError, InvalidArgumentError, RaftMQError, TopicAlreadyExistsError
from raftmq.methods import (
    ADD_PARTITIONS,
    ALTER_TOPIC,
    CREATE_TOPIC,
    DELETE_TOPIC,
    DESCRIBE_CLUSTER,
    DESCRIBE_TOPIC,
    LIST_TOPICS,
    REMOVE_BROKER,
)
from raftmq.proto import queue_pb2 as pb
from raftmq.types import TopicPartition

BROKER_SHARE: Final = 0.9
"""Of the time that a change may take: the rest is for the way there and back, and for looking at what was made."""


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create; as the arguments of `Admin.create_topic`."""

    name: str
    partitions: int | None = None
    replication_factor: int | None = None
    config: Mapping[str, str | int] | None = None


@dataclass(frozen=True, slots=True)
class PartitionDescription:
    """One partition of a topic."""

    partition: int
    group_id: int
    """Its Raft group."""
    replica_brokers: tuple[int, ...]
    leader_broker_id: int = 0
    """0: nobody is known to lead it (or it was not asked for: see `Admin.describe_topic`)."""
    leader_epoch: int = 0
    state: PartitionState | None = None
    """None: not asked for, or its leader did not answer."""


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """A topic as the cluster has it."""

    name: str
    topic_id: int
    kind: str
    replication_factor: int
    config: dict[str, str]
    """What was set for the topic."""
    partitions: tuple[PartitionDescription, ...]
    effective_config: dict[str, str] | None = None
    """Defaults included; only from `Admin.describe_topic`."""


@dataclass(frozen=True, slots=True)
class BrokerDescription:
    """One broker process."""

    broker_id: int
    address: str
    host: str
    rack: str
    version: str
    state: str
    http_address: str
    peer_address: str
    is_metadata_voter: bool
    is_connected: bool
    """As the answering broker sees it."""
    replica_count: int
    leader_count: int
    health: BrokerHealth | None = None
    """None: not asked for, or it did not answer."""


@dataclass(frozen=True, slots=True)
class ClusterDescription:
    """The cluster as one of its brokers sees it."""

    cluster_id: str
    answering_broker_id: int
    metadata_leader_broker_id: int
    metadata_term: int
    metadata_revision: int
    brokers: tuple[BrokerDescription, ...]
    topic_count: int
    partition_count: int
    partitions_without_leader: int
    """As the answering broker believes; `health.leaderless` knows better."""
    health: ClusterHealth | None = None
    """Only with ``ask_brokers``."""


@dataclass(frozen=True, slots=True)
class BrokerRemoval:
    """What the removal of a broker left to do."""

    broker_id: int
    replica_count: int
    """Partition replicas it held; the other brokers make them again, a few at a time."""
    without_majority_count: int
    """Partitions among them without a majority of replicas within reach: unavailable until enough of their other brokers are back,
    and lost if they had no other."""
    without_majority: tuple[TopicPartition, ...]
    """The first hundred of them."""


class Admin:
    """Creates, changes and describes topics; describes consumer groups and the cluster. One event loop.

    ::

        async with Admin(bootstrap_servers="localhost:9400") as admin:
            await admin.create_topic("flights", partitions=6, replication_factor=3)

    Every method waits at most `request_timeout_ms` and raises `RaftMQError`: a refusal is definite (nothing changed); with
    `RequestTimedOutError`, `BrokenConnectionError` or `LeadershipLostError` a change may have been made, or may yet be. Cancelling
    a change leaves its outcome unknown too. On another event loop than the one that it was started on, every method raises
    `WrongEventLoopError`.

    Args:
        bootstrap_servers: ``"host:port[,host:port...]"`` or a sequence; any of the cluster's brokers.
        cluster_id: the only cluster to be used, as `raftmq cluster status` shows it. Without one it is the first that answers; then an
            address where a cluster was formed by mistake is used as well.
        client_id: a name for logs.
        request_timeout_ms: for each call, finding a broker included.
        transport: replaces gRPC, for simulations.
    """

    def __init__(
        self,
        *,
        bootstrap_servers: str | Sequence[str] = "localhost:9400",
        cluster_id: str = "",
        client_id: str = "raftmq",
        request_timeout_ms: float = 30_000,
        transport: Transport | None = None,
    ) -> None:
        check_positive(request_timeout_ms=request_timeout_ms)
        check_text(client_id, "client_id")
        self.client_id = client_id
        self._timeout_seconds = request_timeout_ms / 1000
        self._resolver = Resolver(bootstrap_servers, transport or GrpcTransport(), cluster_id=cluster_id)
        self._affinity = ClientAffinity("admin")
        self._is_open = False
        self._is_closed = False

    async def start(self) -> None:
        """Connect, within `request_timeout_ms`. ``async with`` calls it. Raises `BootstrapError`; failed or cancelled, the admin is closed."""
        self._affinity.check()
        if self._is_closed or self._is_open:
            raise ClosedClientError("an admin is started once: create a new one")
        self._affinity.bind()
        try:
            await self._resolver.start(self._timeout_seconds)
        except BaseException:
            await self.close()
            raise
        self._is_open = True

    async def close(self) -> None:
        """Close the connections, at once. Calling it again does nothing."""
        self._affinity.check()
        self._is_open, self._is_closed = False, True
        try:
            await self._resolver.close()
        finally:
            self._affinity.release()

    def __del__(self) -> None:
        if getattr(self, "_is_open", False):
            self._affinity.warn_unclosed(self, "its connections stay open")

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    # ------------------------------------------------------------------------------------------------------------ topics

    async def create_topic(
        self,
        name: str,
        partitions: int | None = None,
        replication_factor: int | None = None,
        config: Mapping[str, str | int] | None = None,
        *,
        if_not_exists: bool = False,
    ) -> TopicDescription:
        """Create a topic, and wait until each partition has a leader (at most `request_timeout_ms`).

        Args:
            name: letters, digits, ``.``, ``_`` and ``-``.
            partitions: default 1.
            replication_factor: default: the smaller of 3 and the number of hosts.
            config: topic configuration, such as ``{"retention.ms": 3_600_000}``; strings, or numbers written as such.
            if_not_exists: return the topic that exists instead of raising, whatever its settings.

        Raises:
            TopicAlreadyExistsError, InvalidTopicNameError, InvalidConfigError, InvalidPartitionsError,
            InvalidReplicationFactorError, TooManyPartitionsError: nothing was created.
        """
        self._check_usable()
        request = self._creation(NewTopic(name, partitions, replication_factor, config))
        return await self._create(request, Deadline(self._timeout_seconds), if_not_exists=if_not_exists)

    async def create_topics(
        self, topics: Iterable[NewTopic], *, if_not_exists: bool = False
    ) -> dict[str, TopicDescription]:
        """Create many topics, and wait until each partition has a leader (at most `request_timeout_ms` for all).

        All are tried, whatever becomes of the others.

        Args:
            topics: what to create; each name once.
            if_not_exists: a topic that exists counts as created, whatever its settings.

        Returns:
            What was created, by name.

        Raises:
            InvalidArgumentError, TypeError: the arguments are wrong; nothing was created.
            RaftMQError: as `create_topic`, the first failure. A note names the topics that were not created, each with its error; the
                others are. Repeating the call with `if_not_exists` is harmless.
        """
        self._check_usable()
        requests = [self._creation(topic) for topic in topics]
        names = [request.name for request in requests]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise InvalidArgumentError(f"topics: {twice[0]!r} is there more than once")
        deadline = Deadline(self._timeout_seconds)
        places = asyncio.Semaphore(settings.TOPICS_IN_CREATION_MAX)

        async def create(request: pb.CreateTopicRequest) -> TopicDescription | RaftMQError:
            async with places:
                try:
                    return await self._create(request, deadline, if_not_exists=if_not_exists)
                except RaftMQError as error:
                    return error

        results = dict(zip(names, await asyncio.gather(*map(create, requests)), strict=True))
        created = {name: result for name, result in results.items() if not isinstance(result, RaftMQError)}
        failed = {name: result for name, result in results.items() if isinstance(result, RaftMQError)}
        if failed:
            each = ", ".join(f"{name} ({type(error).__name__})" for name, error in failed.items())
            first = next(iter(failed.values()))
            first.add_note(f"{len(failed)} of {len(names)} topics were not created: {each}; the others were")
            raise first
        return created

    def _creation(self, topic: NewTopic) -> pb.CreateTopicRequest:
        """The request for a new topic. Raises `InvalidArgumentError` or `TypeError`."""
        if not isinstance(topic, NewTopic):
            raise TypeError(
                f"topics are NewTopics in a list, such as [NewTopic('flights', partitions=6)], not {topic!r}"
            )
        if not isinstance(topic.name, str):
            raise TypeError(f"a topic's name is a string, not {topic.name!r}")
        check_text(topic.name, "name")
        return pb.CreateTopicRequest(
            name=topic.name,
            partitions=_positive(topic.partitions, "partitions"),
            replication_factor=_positive(topic.replication_factor, "replication_factor"),
            config=_texts(topic.config or {}),
            timeout_ms=self._broker_timeout_ms(),
        )

    async def _create(
        self, request: pb.CreateTopicRequest, deadline: Deadline, *, if_not_exists: bool
    ) -> TopicDescription:
        try:
            response = await self._resolver.call_any(CREATE_TOPIC, request, deadline.remaining())
        except TopicAlreadyExistsError:
            if not if_not_exists:
                raise
            return await self._described(request.name, deadline)
        return await self._made(request.name, response.metadata_revision, response.topic, deadline)

    async def delete_topic(self, name: str) -> None:
        """Delete a topic and its records. Raises `UnknownTopicError`."""
        self._check_usable()
        check_text(name, "name")
        request = pb.DeleteTopicRequest(name=name, metadata_revision=self._resolver.metadata_revision)
        response = await self._resolver.call_any(DELETE_TOPIC, request, self._timeout_seconds)
        self._resolver.record_revision(response.metadata_revision)

    async def list_topics(self) -> list[TopicDescription]:
        """All topics, by name."""
        self._check_usable()
        request = pb.ListTopicsRequest(metadata_revision=self._resolver.metadata_revision)
        response = await self._resolver.call_any(LIST_TOPICS, request, self._timeout_seconds, is_read=True)
        self._resolver.record_revision(response.metadata_revision)
        return sorted((_topic(topic) for topic in response.topics), key=lambda topic: topic.name)

    async def describe_topic(self, name: str, *, ask_leaders: bool = False) -> TopicDescription:
        """One topic with its leaders and its whole configuration. Raises `UnknownTopicError`.

        Args:
            name: the topic's.
            ask_leaders: also ask the partitions' leaders for each partition's `state`. A broker that hangs makes this take 1 s, and
                its partitions have none.
        """
        self._check_usable()
        check_text(name, "name")
        return await self._described(name, Deadline(self._timeout_seconds), with_states=ask_leaders)

    async def _described(self, name: str, deadline: Deadline, *, with_states: bool = False) -> TopicDescription:
        request = pb.DescribeTopicRequest(
            name=name, metadata_revision=self._resolver.metadata_revision, with_states=with_states
        )
        response = await self._resolver.call_any(DESCRIBE_TOPIC, request, deadline.remaining(), is_read=True)
        self._resolver.record_revision(response.metadata_revision)
        leaders = {leader.group_id: leader for leader in response.leaders}
        states = {state.partition: state for state in response.states if not state.HasField("error")}
        return _topic(response.topic, leaders, dict(response.effective_config), states)

    async def alter_topic_config(
        self,
        name: str,
        set: Mapping[str, str | int] | None = None,  # noqa: A002 - reads as what it does
        unset: Sequence[str] = (),
    ) -> None:
        """Set some configuration keys of a topic, and return others to their defaults.

        Raises `UnknownTopicError` or `InvalidConfigError`; then nothing changed.
        """
        self._check_usable()
        check_text(name, "name")
        unset = list(unset)
        check_texts(unset, "a configuration key")
        request = pb.AlterTopicRequest(
            name=name, set=_texts(set or {}), unset=unset, metadata_revision=self._resolver.metadata_revision
        )
        response = await self._resolver.call_any(ALTER_TOPIC, request, self._timeout_seconds)
        self._resolver.record_revision(response.metadata_revision)

    async def add_partitions(self, name: str, total: int) -> TopicDescription:
        """Raise the number of partitions to `total`. Keys of new records may then belong elsewhere.

        Raises `UnknownTopicError` or `InvalidPartitionsError` (not above today's number); then nothing changed.
        """
        self._check_usable()
        check_text(name, "name")
        deadline = Deadline(self._timeout_seconds)
        request = pb.AddPartitionsRequest(
            name=name,
            total=_positive(total, "total"),
            metadata_revision=self._resolver.metadata_revision,
            timeout_ms=self._broker_timeout_ms(),
        )
        response = await self._resolver.call_any(ADD_PARTITIONS, request, self._timeout_seconds)
        return await self._made(name, response.metadata_revision, response.topic, deadline)

    async def delete_records(self, before_offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Delete records below an offset, per partition (-1: all that are committed); returns the new first offsets.

        Repeating it is harmless. On an error some partitions may have been trimmed (none on `InvalidArgumentError`: below -1).
        """
        self._check_usable()
        for partition, offset in before_offsets.items():
            if offset < -1:
                raise InvalidArgumentError(
                    f"before_offsets: {offset} is no offset of {partition.topic}/{partition.partition}; -1 means all records"
                )
        return await delete_records(self._resolver, dict(before_offsets), self._timeout_seconds)

    # ----------------------------------------------------------------------------------------------------------- groups

    async def list_groups(self) -> list[GroupListing]:
        """All consumer groups that have, or lately had, members, by name."""
        self._check_usable()
        return await list_groups(self._resolver, self._timeout_seconds)

    async def describe_group(self, group: str) -> GroupDescription:
        """A group's members, and its offsets with their lag. Raises `UnknownGroupError` when it has neither."""
        self._check_usable()
        check_text(group, "group")
        return await describe_group(self._resolver, group, self._timeout_seconds)

    async def reset_group_offsets(
        self,
        group: str,
        *,
        to: Literal["earliest", "latest"] | None = None,
        time_ms: int | None = None,
        shift: int | None = None,
        offsets: Mapping[TopicPartition, int] | None = None,
        topics: Iterable[str] = (),
        partitions: Iterable[TopicPartition] = (),
        dry_run: bool = False,
        fence_members: bool = False,
    ) -> list[OffsetChange]:
        """Let a group go on elsewhere; returns what changed, or with `dry_run` would change.

        Args:
            group: one without members, or see `fence_members`. One that does not exist begins there.
            to: ``"earliest"`` or ``"latest"``.
            time_ms: the first record appended at or after this (milliseconds since the epoch); the end where there is none.
            shift: so many records on, or back; at most to the end, or the start.
            offsets: the next to read, by partition.
            topics: all partitions of these. Without topics and partitions: all that the group has to do with.
            partitions: these.
            dry_run: change nothing.
            fence_members: reset under the group's members: they lose the partitions for a moment, begin at the new offsets, and
                their commits until then are refused.

        Raises:
            GroupNotEmptyError: it has members; nothing changed.
            OffsetOutOfRangeError: an offset does not exist; nothing changed.
            UnknownGroupError, UnknownTopicError, UnknownPartitionError, InvalidArgumentError: nothing changed.
            RaftMQError: some partitions may have changed. Repeating it is harmless (but for `shift`).
        """
        self._check_usable()
        check_text(group, "group")
        topics, partitions = tuple(topics), tuple(partitions)
        check_texts(topics, "topic")
        check_texts((partition.topic for partition in (*partitions, *(offsets or ()))), "topic")
        return await reset_group_offsets(
            self._resolver,
            group,
            ResetTarget(to, time_ms, shift, offsets),
            self._timeout_seconds,
            topics=topics,
            partitions=partitions,
            dry_run=dry_run,
            fence_members=fence_members,
        )

    async def delete_group(self, group: str) -> int:
        """Forget a group without members and its offsets; returns in how many partitions it had any.

        Raises `GroupNotEmptyError` or `UnknownGroupError`; then nothing changed.
        """
        self._check_usable()
        check_text(group, "group")
        return await delete_group(self._resolver, group, self._timeout_seconds)

    async def remove_group_member(self, group: str, *, member_id: str = "", instance_id: str = "") -> None:
        """End a member's session, as if it had left. One that still runs joins again. Raises `UnknownMemberError`."""
        self._check_usable()
        for argument, text in (("group", group), ("member_id", member_id), ("instance_id", instance_id)):
            check_text(text, argument)
        await remove_group_member(
            self._resolver, group, self._timeout_seconds, member_id=member_id, instance_id=instance_id
        )

    # ----------------------------------------------------------------------------------------------------------- cluster

    async def describe_cluster(self, *, ask_brokers: bool = False) -> ClusterDescription:
        """Brokers and totals, as the answering broker sees them.

        Args:
            ask_brokers: also have every broker asked how it is, and what it leads: see `ClusterDescription.health` and
                `BrokerDescription.health`. A broker that hangs makes this take 1 s.
        """
        self._check_usable()
        request = pb.DescribeClusterRequest(with_health=ask_brokers)
        response = await self._resolver.call_any(DESCRIBE_CLUSTER, request, self._timeout_seconds, is_read=True)
        self._resolver.record_revision(response.metadata_revision)
        return ClusterDescription(
            cluster_id=response.cluster_id,
            answering_broker_id=response.answering_broker_id,
            metadata_leader_broker_id=response.metadata_leader_broker_id,
            metadata_term=response.metadata_term,
            metadata_revision=response.metadata_revision,
            brokers=tuple(sorted(map(_broker, response.brokers), key=lambda broker: broker.broker_id)),
            topic_count=response.topic_count,
            partition_count=response.partition_count,
            partitions_without_leader=response.partitions_without_leader,
            health=read_cluster_health(response.health) if response.HasField("health") else None,
        )

    async def remove_broker(self, broker_id: int, *, force: bool = False) -> BrokerRemoval:
        """Remove a broker for good: its data directory is refused for ever.

        Without `force` it must hold no replica and have no vote on metadata. With it, a broker that died is removed with all that it
        held: partitions get other replicas on the brokers that are left, in the background (the metric
        ``raftmq_under_replicated_partitions`` shows how far that is). Raises `UnknownBrokerError`, or `BrokerInUseError` when the broker
        still runs or is needed; then nothing changed.
        """
        self._check_usable()
        request = pb.RemoveBrokerRequest(
            broker_id=_positive(broker_id, "broker_id"), force=force, timeout_ms=self._broker_timeout_ms()
        )
        response = await self._resolver.call_any(REMOVE_BROKER, request, self._timeout_seconds)
        self._resolver.record_revision(response.metadata_revision)
        return BrokerRemoval(
            broker_id=broker_id,
            replica_count=response.replica_count,
            without_majority_count=response.without_majority_count,
            without_majority=tuple(TopicPartition(name.topic, name.partition) for name in response.without_majority),
        )

    async def _made(self, name: str, revision: int, made: pb.Topic, deadline: Deadline) -> TopicDescription:
        """A topic that was just made or changed, with its leaders if they can be had.

        The change is made: an error of the question that follows must not be reported as the outcome of the change, as most errors
        say that nothing was applied.
        """
        self._resolver.record_revision(revision)
        if made.topic_id:  # 0: it was deleted again before the answer was written
            self._resolver.record_topic(made)
        try:
            return await self._described(name, deadline)
        except RaftMQError:
            return replace(_topic(made), name=name)

    def _broker_timeout_ms(self) -> int:
        """What a broker may take for a change: it answers before our own patience ends."""
        return max(1, int(self._timeout_seconds * 1000 * BROKER_SHARE))

    def _check_usable(self) -> None:
        self._affinity.check()
        if not self._is_open:
            raise ClosedClientError(
                "the admin is closed: create a new one"
                if self._is_closed
                else "the admin is not started: use async with, or await start()"
            )


def _texts(config: Mapping[str, str | int]) -> dict[str, str]:
    pairs: Iterable[tuple[object, object]] = config.items()
    for name, value in pairs:
        if not isinstance(name, str) or not isinstance(value, str | int) or isinstance(value, bool):
            raise TypeError(f"a configuration key is a string, its value a string or a number: {name!r}: {value!r}")
        check_text(name, "a configuration key")
        check_text(value, f"the value of {name}")
    return {name: str(value) for name, value in config.items()}


def _positive(number: int | None, name: str) -> int:
    if number is None:
        return 0
    if not isinstance(number, int):
        raise TypeError(f"{name} is a number, not {number!r}")
    if not 0 < number < 1 << 32:
        raise InvalidArgumentError(f"{name} must be positive, not {number}")
    return number


def _topic(
    topic: pb.Topic,
    leaders: Mapping[int, pb.PartitionLeader] | None = None,
    effective_config: dict[str, str] | None = None,
    states: Mapping[int, pb.PartitionState] | None = None,
) -> TopicDescription:
    known, stated = leaders or {}, states or {}
    nobody = pb.PartitionLeader()
    return TopicDescription(
        name=topic.name,
        topic_id=topic.topic_id,
        kind=topic.kind,
        replication_factor=topic.replication_factor,
        config=dict(topic.config),
        partitions=tuple(
            PartitionDescription(
                partition=partition.partition,
                group_id=partition.group_id,
                replica_brokers=tuple(partition.replica_brokers),
                leader_broker_id=known.get(partition.group_id, nobody).broker_id,
                leader_epoch=known.get(partition.group_id, nobody).leader_epoch,
                state=read_state(stated[partition.partition]) if partition.partition in stated else None,
            )
            for partition in sorted(topic.partitions, key=lambda partition: partition.partition)
        ),
        effective_config=effective_config,
    )


def _broker(entry: pb.ClusterBroker) -> BrokerDescription:
    broker = entry.broker
    return BrokerDescription(
        broker_id=broker.broker_id,
        address=broker.address,
        host=broker.host,
        rack=broker.rack,
        version=broker.version,
        state=broker.state,
        http_address=broker.http_address,
        peer_address=broker.peer_address,
        is_metadata_voter=entry.is_metadata_voter,
        is_connected=entry.is_connected,
        replica_count=entry.replica_count,
        leader_count=entry.leader_count,
        health=read_broker_health(entry.health) if entry.HasField("health") else None,
    )
