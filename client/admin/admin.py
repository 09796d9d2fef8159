"""`Admin`: manages topics, consumer groups and the cluster with typed values. Must not hold state beyond its connection."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from types import TracebackType
from typing import Final, Literal, Self

from raftmq.client.admin import configuration, placement_admin, producer_names, recovery
from raftmq.client.admin.cluster_health import read_cluster_health
from raftmq.client.admin.configuration import ConfigValue, RuntimeSetting
from raftmq.client.admin.descriptions import (
    BrokerRemoval,
    ClusterDescription,
    NewTopic,
    TopicDescription,
    read_broker,
    read_topic,
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
from raftmq.client.admin.move_descriptions import (
    BalancingSettings,
    BrokerDrain,
    LeaderTransfer,
    MovesDescription,
    PartitionMove,
    RebalancePlan,
    ReplicationChange,
)
from raftmq.client.admin.producer_names import ForgottenNames
from raftmq.client.admin.recovery import LostPartitions, PartitionRecovery
from raftmq.client.admin.schedules import CatchUp, ScheduleDescription, ScheduleRule, Schedules
from raftmq.client.base import settings
from raftmq.client.base.affinity import ClientAffinity
from raftmq.client.base.arguments import check_positive
from raftmq.client.base.background import Deadline
from raftmq.client.base.texts import check_text, check_texts
from raftmq.client.connection.leader_calls import delete_records
from raftmq.client.connection.resolver import Resolver
from raftmq.client.connection.transport import GrpcTransport, Transport
from raftmq.client.queue.new_message import NewMessage
from raftmq.errors import (
    ClosedClientError,
    InvalidArgumentError,
    RaftMQError,
    TopicAlreadyExistsError,
    TopicKindMismatchError,
)
from raftmq.methods import (
    ADD_PARTITIONS,
    ALTER_TOPIC,
    CREATE_TOPIC,
    DELETE_TOPIC,
    DESCRIBE_CLUSTER,
    DESCRIBE_TOPIC,
    LIST_TOPICS,
    RAISE_FEATURE_LEVEL,
    REMOVE_BROKER,
)
from raftmq.proto import queue_pb2 as pb
from raftmq.types import TopicPartition

BROKER_SHARE: Final = 0.9
"""The broker's share of the time limit of a change. The rest is for the network and for describing the result."""


class Admin:
    """Creates, changes and describes topics, and describes consumer groups and the cluster. One event loop.

    ::

        async with Admin(bootstrap_servers="localhost:9400") as admin:
            await admin.create_topic("flights", partitions=6, replication_factor=3)

    Every method waits at most `request_timeout_ms` and raises `RaftMQError`. A refusal is definite (nothing changed). With
    `RequestTimedOutError`, `BrokenConnectionError` or `LeadershipLostError` a change may have been applied, or may still be. Cancelling
    a change leaves its outcome unknown, too. On another event loop than its own, every method raises `WrongEventLoopError`.

    Args:
        bootstrap_servers: ``"host:port[,host:port...]"`` or a sequence; any of the cluster's brokers.
        cluster_id: the only cluster to use, as `raftmq cluster status` shows it. By default it is the cluster of the first broker that
            answers, even if that cluster was formed by mistake.
        client_id: a name for logs.
        request_timeout_ms: time limit of each call, including the search for a broker.
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
        """Connect, within `request_timeout_ms`. ``async with`` calls it.

        If it fails or is cancelled, the admin is closed. Raises `BootstrapError`.
        """
        self._affinity.check()
        if self._is_closed or self._is_open:
            raise ClosedClientError("an admin is started only once: create a new one")
        self._affinity.bind()
        try:
            await self._resolver.start(self._timeout_seconds)
        except BaseException:
            await self.close()
            raise
        self._is_open = True

    async def close(self) -> None:
        """Close the connections immediately. A repeated call does nothing."""
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
        kind: str = "log",
        if_not_exists: bool = False,
    ) -> TopicDescription:
        """Create a topic, and wait until each partition has a leader (at most `request_timeout_ms`).

        Args:
            name: letters, digits, ``.``, ``_`` and ``-``.
            partitions: number of partitions; default 1.
            replication_factor: number of replicas of each partition; default: the smaller of 3 and the number of hosts.
            config: topic configuration, such as ``{"retention.ms": 3_600_000}``. Values are strings or numbers.
            kind: the kind of topic. ``"log"`` keeps records for any number of readers, ``"queue"`` holds messages until they are done.
            if_not_exists: return an existing topic of this kind instead of raising, whatever its settings.

        Raises:
            TopicAlreadyExistsError: nothing was created.
            InvalidTopicNameError: nothing was created.
            InvalidConfigError: nothing was created.
            InvalidPartitionsError: nothing was created.
            InvalidReplicationFactorError: nothing was created.
            TooManyPartitionsError: nothing was created.
            TopicKindMismatchError: with `if_not_exists`, the existing topic is of another kind.
            UnsupportedVersionError: the cluster's feature level is too low for the kind (`raise_feature_level`). Nothing was created.
        """
        self._check_usable()
        request = self._creation(NewTopic(name, partitions, replication_factor, config, kind))
        return await self._create(request, Deadline(self._timeout_seconds), if_not_exists=if_not_exists)

    async def create_topics(
        self, topics: Iterable[NewTopic], *, if_not_exists: bool = False
    ) -> dict[str, TopicDescription]:
        """Create several topics, and wait until each partition has a leader (at most `request_timeout_ms` for all).

        Every topic is attempted, even if others fail.

        Args:
            topics: the topics to create, with distinct names.
            if_not_exists: treat an existing topic of the same kind as created, whatever its settings.

        Returns:
            The created topics, by name.

        Raises:
            InvalidArgumentError, TypeError: the arguments are wrong. Nothing was created.
            RaftMQError: the first failure, as for `create_topic`. A note names the topics that were not created, each with its error. The
                others were created. Repeating the call with `if_not_exists` is harmless.
        """
        self._check_usable()
        requests = [self._creation(topic) for topic in topics]
        names = [request.name for request in requests]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise InvalidArgumentError(f"topics contains {twice[0]!r} more than once")
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
            first.add_note(f"{len(failed)} of {len(names)} topics were not created: {each}. The others were created")
            raise first
        return created

    def _creation(self, topic: NewTopic) -> pb.CreateTopicRequest:
        """Return the request for a new topic. Raises `InvalidArgumentError` or `TypeError`."""
        if not isinstance(topic, NewTopic):
            raise TypeError(
                f"topics must be a list of NewTopics, such as [NewTopic('flights', partitions=6)], not {topic!r}"
            )
        if not isinstance(topic.name, str):
            raise TypeError(f"a topic's name must be a string, not {topic.name!r}")
        check_text(topic.name, "name")
        check_text(topic.kind, "kind")
        return pb.CreateTopicRequest(
            name=topic.name,
            partitions=_positive(topic.partitions, "partitions"),
            replication_factor=_positive(topic.replication_factor, "replication_factor"),
            config=_texts(topic.config or {}),
            kind=topic.kind,
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
            return _of_kind(request.kind, await self._described(request.name, deadline))
        return await self._made(request.name, response.metadata_revision, response.topic, deadline)

    async def delete_topic(self, name: str) -> None:
        """Delete a topic and its records. Raises `UnknownTopicError`."""
        self._check_usable()
        check_text(name, "name")
        request = pb.DeleteTopicRequest(name=name, metadata_revision=self._resolver.metadata_revision)
        response = await self._resolver.call_any(DELETE_TOPIC, request, self._timeout_seconds)
        self._resolver.record_revision(response.metadata_revision)

    async def list_topics(self) -> list[TopicDescription]:
        """Return all topics, by name. A list of a broker that hears no majority may lack the last changes (`TopicDescription.is_unconfirmed`)."""
        self._check_usable()
        request = pb.ListTopicsRequest(metadata_revision=self._resolver.metadata_revision)
        response = await self._resolver.call_any(LIST_TOPICS, request, self._timeout_seconds, is_read=True)
        self._resolver.record_revision(response.metadata_revision)
        topics = (read_topic(topic, is_unconfirmed=response.is_unconfirmed) for topic in response.topics)
        return sorted(topics, key=lambda topic: topic.name)

    async def describe_topic(self, name: str, *, ask_leaders: bool = False) -> TopicDescription:
        """Return one topic with its leaders and its whole configuration. Raises `UnknownTopicError`.

        A description of a broker that hears no majority may lack the last changes (`TopicDescription.is_unconfirmed`).

        Args:
            name: the name of the topic.
            ask_leaders: also ask the partitions' leaders for each partition's `state`. A broker that hangs delays the answer by 1 s, and its
                partitions have no state.
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
        config = dict(response.effective_config)
        return read_topic(response.topic, leaders, config, states, is_unconfirmed=response.is_unconfirmed)

    async def alter_topic_config(
        self,
        name: str,
        set: Mapping[str, str | int] | None = None,  # noqa: A002 - calls read well with it
        unset: Sequence[str] = (),
    ) -> None:
        """Set some configuration keys of a topic, and reset others to their defaults.

        Raises `UnknownTopicError` or `InvalidConfigError`. Nothing changed then.
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

    async def add_partitions(self, name: str, total: int, *, rehash: bool = False) -> TopicDescription:
        """Raise the number of partitions to `total`. Keys of new records may then belong to other partitions.

        A queue topic gets more partitions only with `rehash`: deduplication by ids, and with `ordered.by.key` the order, do not hold between
        messages before and after it. Let it run empty first. Without ids and keys there is nothing to lose. Schedules stay in their partitions.

        Raises `UnknownTopicError` or `InvalidPartitionsError` (not above the current number, or without `rehash`). Nothing changed then.
        """
        self._check_usable()
        check_text(name, "name")
        deadline = Deadline(self._timeout_seconds)
        request = pb.AddPartitionsRequest(
            name=name,
            total=_positive(total, "total"),
            metadata_revision=self._resolver.metadata_revision,
            timeout_ms=self._broker_timeout_ms(),
            rehash=rehash,
        )
        response = await self._resolver.call_any(ADD_PARTITIONS, request, self._timeout_seconds)
        return await self._made(name, response.metadata_revision, response.topic, deadline)

    async def delete_records(self, before_offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Delete records below an offset of each partition (-1: all committed records). Return the new first offsets.

        Repeating it is harmless. After an error some partitions may have been trimmed (none after `InvalidArgumentError`: an offset below -1).
        """
        self._check_usable()
        for partition, offset in before_offsets.items():
            if offset < -1:
                raise InvalidArgumentError(
                    f"before_offsets: {offset} is not a valid offset of {partition.topic}/{partition.partition} (-1 means all records)"
                )
        return await delete_records(self._resolver, dict(before_offsets), self._timeout_seconds)

    # ---------------------------------------------------------------------------------------------------- schedules

    async def put_schedule(
        self,
        topic: str,
        name: str,
        value: bytes,
        *,
        cron: str | None = None,
        every: timedelta | None = None,
        at: datetime | None = None,
        timezone: str = "UTC",
        catch_up: CatchUp = "skip",
        key: str | bytes | None = None,
        tenant: str | None = None,
        priority: int = 0,
        expires_ms: float | None = None,
        headers: Iterable[tuple[str, bytes]] = (),
        paused: bool | None = None,
        version: int | None = None,
    ) -> ScheduleDescription:
        """Create a schedule of a queue topic, or replace the one of this name. Each firing puts one message.

        Args:
            topic: the queue topic.
            name: the schedule's name, unique in its topic.
            value: the message's body.
            cron: five fields, such as ``"0 9 * * mon-fri"``, in `timezone`.
            every: an interval of at least one second.
            at: a single firing, with a time zone.
            timezone: a name of the time zone database, such as ``"Europe/Berlin"``.
            catch_up: the treatment of firings that were missed while no broker could make them.
            key: the message's, as for `Queue.put`. So are the next four.
            tenant: the message's.
            priority: the message's.
            expires_ms: the message's.
            headers: the message's.
            paused: whether it is paused. None: a schedule that exists stays as it is, and a new one is not paused.
            version: replace only this version; 0: create only. None: either.

        Raises:
            VersionConflictError: the schedule has another version. Nothing was changed.
            TooManySchedulesError: the partition has the maximum number.
        """
        self._check_usable()
        return await self._schedules(topic).put(
            name,
            ScheduleRule(cron, every, at, timezone, catch_up),
            NewMessage(value, key, tenant, priority, expires_ms=expires_ms, headers=headers),
            is_paused=paused,
            version=version,
        )

    async def list_schedules(self, topic: str) -> list[ScheduleDescription]:
        """Return the schedules of a queue topic, by name."""
        self._check_usable()
        return await self._schedules(topic).list_all()

    async def pause_schedule(self, topic: str, name: str) -> None:
        """Stop a schedule's firings until it is resumed. Raises `UnknownScheduleError`."""
        self._check_usable()
        await self._schedules(topic).change(name, pause=True)

    async def resume_schedule(self, topic: str, name: str) -> None:
        """Let a paused schedule fire again. Raises `UnknownScheduleError`."""
        self._check_usable()
        await self._schedules(topic).change(name, resume=True)

    async def run_schedule(self, topic: str, name: str) -> None:
        """Fire a schedule now, additionally to its rule. Raises `UnknownScheduleError`."""
        self._check_usable()
        await self._schedules(topic).change(name, run_now=True)

    async def delete_schedule(self, topic: str, name: str) -> None:
        """Delete a schedule. Messages that it has put remain. Raises `UnknownScheduleError`."""
        self._check_usable()
        await self._schedules(topic).delete(name)

    def _schedules(self, topic: str) -> Schedules:
        check_text(topic, "topic")
        return Schedules(self._resolver, topic, self._timeout_seconds)

    # ----------------------------------------------------------------------------------------------------------- groups

    async def list_groups(self) -> list[GroupListing]:
        """Return all consumer groups that have or had members, or that have committed offsets, by name, with their lag."""
        self._check_usable()
        return await list_groups(self._resolver, self._timeout_seconds)

    async def describe_group(self, group: str) -> GroupDescription:
        """Return a group's members, and its offsets with their lag. `GroupDescription.is_partial` says if partitions may be missing.

        Raises `UnknownGroupError` if it has neither, and the leaders of all partitions say so.
        """
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
        """Move a group to other offsets. Return the changes, or with `dry_run` the changes that it would make.

        Args:
            group: a group without members (but see `fence_members`). A new group begins at the given offsets.
            to: ``"earliest"`` or ``"latest"``.
            time_ms: the first record with a timestamp at or after this time (milliseconds since the epoch), or the end if there is none.
            shift: number of records to go forward, or back if negative, limited to the start and end.
            offsets: the next offsets to read, by partition.
            topics: reset all partitions of these topics. Without topics and partitions: all partitions that the group uses.
            partitions: reset these partitions.
            dry_run: change nothing.
            fence_members: reset despite members: they lose the partitions briefly and continue at the new offsets, and their commits until
                then are refused.

        Raises:
            GroupNotEmptyError: the group has members. Nothing changed.
            OffsetOutOfRangeError: an offset does not exist. Nothing changed.
            UnknownGroupError, UnknownTopicError, UnknownPartitionError, InvalidArgumentError: nothing changed.
            FailedPreconditionError: a partition has no committed offset to shift. Nothing changed.
            RaftMQError: some partitions may have changed. Repeating it is harmless (except with `shift`).
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
        """Delete a group without members and its offsets. Return the number of partitions in which it had offsets.

        Raises `GroupNotEmptyError` or `UnknownGroupError`. Nothing changed then. If partitions have no leader, or leaders do not answer, until
        the end of the time limit, partitions may keep offsets: the error's `outcome` is UNKNOWN, and the call may be repeated.
        """
        self._check_usable()
        check_text(group, "group")
        return await delete_group(self._resolver, group, self._timeout_seconds)

    async def remove_group_member(self, group: str, *, member_id: str = "", instance_id: str = "") -> None:
        """End a member's session, as if it had left. A member that is still running joins again. Raises `UnknownMemberError`."""
        self._check_usable()
        for argument, text in (("group", group), ("member_id", member_id), ("instance_id", instance_id)):
            check_text(text, argument)
        await remove_group_member(
            self._resolver, group, self._timeout_seconds, member_id=member_id, instance_id=instance_id
        )

    # ----------------------------------------------------------------------------------------------------------- cluster

    async def describe_cluster(self, *, ask_brokers: bool = False) -> ClusterDescription:
        """Return brokers and totals, as the answering broker sees them.

        Args:
            ask_brokers: also ask every broker for its health and the partitions that it leads: see `ClusterDescription.health` and
                `BrokerDescription.health`. A broker that hangs delays the answer by 1 s.
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
            brokers=tuple(sorted(map(read_broker, response.brokers), key=lambda broker: broker.broker_id)),
            topic_count=response.topic_count,
            partition_count=response.partition_count,
            partitions_without_leader=response.partitions_without_leader,
            feature_level=response.feature_level,
            feature_level_max=response.feature_level_max,
            health=read_cluster_health(response.health) if response.HasField("health") else None,
        )

    async def remove_broker(self, broker_id: int, *, force: bool = False) -> BrokerRemoval:
        """Remove a broker permanently: its data directory is never accepted again.

        Without `force` it must hold no replica and have no vote on metadata. With `force`, a dead broker is removed with everything that it
        held: the remaining brokers rebuild its replicas in the background (the metric ``raftmq_under_replicated_partitions`` shows the
        progress). Raises `UnknownBrokerError`, or `BrokerInUseError` if the broker is running or needed. Nothing changed then.
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

    async def raise_feature_level(self, level: int | None = None) -> int:
        """Permit the features of newer brokers, after an upgrade of all brokers. Return the cluster's level.

        It cannot be undone: a broker of an older version cannot join any more. Repeating it is harmless.

        Args:
            level: the new level. By default the highest that every broker supports (`ClusterDescription.feature_level_max`).

        Raises:
            UnsupportedVersionError: a broker does not support the level. Nothing changed.
            FailedPreconditionError: the cluster's level is higher. Nothing changed.
        """
        self._check_usable()
        request = pb.RaiseFeatureLevelRequest(level=_positive(level, "level"))
        response = await self._resolver.call_any(RAISE_FEATURE_LEVEL, request, self._timeout_seconds)
        self._resolver.record_revision(response.metadata_revision)
        return response.level

    # --------------------------------------------------------------------------------------------------------- placement

    async def drain_broker(self, broker_id: int, *, dry_run: bool = False) -> BrokerDrain:
        """Begin to drain a broker: its leaderships, replicas and vote on metadata move to the other brokers in the background.

        It gets no further replicas. When it holds nothing any more (`describe_cluster`), `remove_broker` accepts it. Repeating the call
        is harmless.

        Args:
            broker_id: the broker to empty.
            dry_run: change nothing, and return the moves that it would plan.

        Raises:
            UnknownBrokerError: there is no such broker. Nothing changed.
            BrokerInUseError: a topic wants more replicas than there are other brokers. Nothing changed.
        """
        self._check_usable()
        return await placement_admin.drain_broker(self._resolver, broker_id, self._timeout_seconds, dry_run=dry_run)

    async def undrain_broker(self, broker_id: int) -> BrokerDrain:
        """End the draining of a broker: it gets replicas again. Replicas that have moved do not return by themselves.

        Repeating the call is harmless: `BrokerDrain.was_active` says whether there was nothing to end. Raises `UnknownBrokerError`.
        """
        self._check_usable()
        return await placement_admin.drain_broker(self._resolver, broker_id, self._timeout_seconds, is_ended=True)

    async def rebalance(self, *, dry_run: bool = False, leaders_only: bool = False) -> RebalancePlan:
        """Give the brokers equal shares of replicas and leaderships, once, even while `auto_balance` is off. All pins end, unless `leaders_only`.

        The answer contains the plan. The cluster makes the moves in the background: see `describe_moves`.

        Args:
            dry_run: change nothing.
            leaders_only: move leaderships between existing replicas, and no data.
        """
        self._check_usable()
        return await placement_admin.rebalance(
            self._resolver, self._timeout_seconds, dry_run=dry_run, leaders_only=leaders_only
        )

    async def move_partition(
        self, topic: str, partition: int, broker_ids: Sequence[int], *, dry_run: bool = False
    ) -> PartitionMove:
        """Move a partition to the given brokers in the background. Brokers that hold it already copy nothing.

        It is pinned there: automatic balancing does not move it, nor prefers another leader. The pin ends when its replicas change for another
        reason (a drained or lost broker, another replication factor), by `unpin_partition` and by `rebalance`. A cluster below feature level 5
        has no pins.

        Args:
            topic: the topic of the partition.
            partition: the number of the partition.
            broker_ids: all brokers that will hold it, as many as the replication factor. The first is its preferred leader.
            dry_run: change nothing, and return the move.

        Raises:
            UnknownTopicError, UnknownPartitionError, UnknownBrokerError: nothing changed.
            InvalidReplicationFactorError: the number of brokers is not the replication factor of the topic. Nothing changed.
            FailedPreconditionError: a broker cannot take the partition, for example because it is being drained. Nothing changed.
            ConflictError: the partition moves already, or has no healthy majority. Nothing changed.
        """
        self._check_usable()
        return await placement_admin.move_partition(
            self._resolver, topic, partition, broker_ids, self._timeout_seconds, dry_run=dry_run
        )

    async def unpin_partition(self, topic: str, partition: int) -> bool:
        """Let automatic balancing move a partition again that `move_partition` placed.

        Return whether it was pinned: without a pin nothing changes. After an attempt whose answer was lost, a repetition may find no pin.

        Args:
            topic: the topic's name.
            partition: the partition's number.

        Raises:
            UnknownTopicError, UnknownPartitionError: nothing changed.
        """
        self._check_usable()
        return await placement_admin.unpin_partition(self._resolver, topic, partition, self._timeout_seconds)

    async def transfer_leader(self, topic: str, partition: int, broker_id: int | None = None) -> LeaderTransfer:
        """Transfer the leadership of a partition to one of its replicas, and wait until the new leader answers.

        Args:
            topic: the topic of the partition.
            partition: the number of the partition.
            broker_id: the new leader. By default the preferred leader.

        Raises:
            UnknownTopicError, UnknownPartitionError, UnknownBrokerError: nothing changed.
            FailedPreconditionError: the broker has no replica of the partition, or cannot lead now. Nothing changed.
            NotReadyError, NoLeaderError: the replica is behind, or the partition has no leader. Nothing changed.
        """
        self._check_usable()
        return await placement_admin.transfer_leader(
            self._resolver, topic, partition, broker_id, self._timeout_seconds, self._broker_timeout_ms()
        )

    async def list_lost_partitions(self, topic: str | None = None) -> LostPartitions:
        """List the partitions without a majority of running replicas, with the known positions of each replica.

        Such a partition is served again when enough of its brokers are back. The answer also contains the recoveries of earlier ones.

        Args:
            topic: only the partitions of this topic. By default those of all topics.

        Raises:
            UnknownTopicError: there is no such topic.
        """
        self._check_usable()
        return await recovery.list_lost_partitions(self._resolver, topic, self._timeout_seconds)

    async def recover_partition(
        self,
        topic: str,
        partition: int,
        keep_broker_id: int,
        *,
        unsafe: bool,
        dry_run: bool = False,
        group_id: int | None = None,
    ) -> PartitionRecovery:
        """Revive a partition that has lost its majority from one replica. Acknowledged records may be lost.

        A new group continues the data of this replica and gets new replicas on other brokers. The old group is never served again.
        Its other replicas are deleted when their brokers return. The call returns before the new group has a leader.

        Args:
            topic: the topic of the partition.
            partition: the number of the partition.
            keep_broker_id: the broker whose replica is kept.
            unsafe: must be True: it says that the loss is accepted.
            dry_run: change nothing, and return the recovery that it would make.
            group_id: the group to replace, from `LostPartition.group_id`. By default the present one.

        Raises:
            UnknownTopicError, UnknownPartitionError: nothing changed.
            InvalidArgumentError: `unsafe` is not set. Nothing changed.
            FailedPreconditionError: the partition has a leader or another group than `group_id`, or the broker has no replica that can be
                kept. Nothing changed.
            ConflictError: a majority of the replicas runs and can elect a leader. Nothing changed.
            UnsupportedVersionError: the feature level of the cluster is too low. Nothing changed.
        """
        self._check_usable()
        return await recovery.recover_partition(
            self._resolver, topic, partition, keep_broker_id, self._timeout_seconds,
            unsafe=unsafe, dry_run=dry_run, group_id=group_id,
        )  # fmt: skip

    async def set_replication_factor(
        self, topic: str, replication_factor: int, *, dry_run: bool = False
    ) -> ReplicationChange:
        """Set the number of replicas of each partition of a topic. The cluster adds or removes replicas in the background.

        Args:
            topic: the name of the topic.
            replication_factor: the new number of replicas, at most the number of brokers.
            dry_run: change nothing, and return the moves that it would plan.

        Raises:
            UnknownTopicError, InvalidReplicationFactorError: nothing changed.
        """
        self._check_usable()
        return await placement_admin.set_replication_factor(
            self._resolver, topic, replication_factor, self._timeout_seconds, dry_run=dry_run
        )

    async def describe_moves(self) -> MovesDescription:
        """Return the moves under way, the number of those that wait, and the settings for moves."""
        self._check_usable()
        return await placement_admin.describe_moves(self._resolver, self._timeout_seconds)

    async def set_balancing(
        self, auto_balance: bool | None = None, moves_max: int | None = None, bytes_per_second: int | None = None
    ) -> BalancingSettings:
        """Change how replicas are moved. Return all settings.

        Args:
            auto_balance: whether the cluster moves replicas and leaderships by itself when brokers have unequal shares. None: unchanged.
            moves_max: the maximum number of partitions that move simultaneously. None: unchanged.
            bytes_per_second: the maximum rate at which each broker sends the data of moves, at least 65,536. 0: unlimited. Repair is never
                slowed. None: unchanged.

        Raises:
            InvalidArgumentError: a value is out of range, or no argument was given. Nothing changed.
        """
        self._check_usable()
        return await placement_admin.set_balancing(
            self._resolver,
            self._timeout_seconds,
            auto_balance=auto_balance,
            moves_max=moves_max,
            bytes_per_second=bytes_per_second,
        )

    async def forget_producer_names(
        self, *, prefix: str = "", unused_seconds: float, dry_run: bool = False
    ) -> ForgottenNames:
        """Remove names of producers that nobody has used for some time, so that others can be used.

        A running producer with a name uses it every few minutes, and each task of a Spark write once. A producer whose name was removed is not
        fenced any more by a later producer of that name, and a Spark batch that was interrupted before is written again as a whole.

        Args:
            prefix: remove only names that begin with it. Names of brokers, which begin with ``~``, and those that hide Spark's open batches,
                which begin with ``spark-batches/``, must be named with it.
            unused_seconds: remove only names that were not used for so long.
            dry_run: remove nothing, and return what would be removed.

        Raises:
            InvalidArgumentError: `unused_seconds` is negative. Nothing was removed.
            RaftMQError: the call failed. A part of the names may have been removed. It can be repeated.
        """
        self._check_usable()
        return await producer_names.forget_producer_names(
            self._resolver, self._timeout_seconds, prefix=prefix, unused_seconds=unused_seconds, dry_run=dry_run
        )

    async def alter_config(
        self,
        set: Mapping[str, str | int] | None = None,  # noqa: A002 - calls read well with it
        unset: Sequence[str] = (),
        *,
        broker_id: int | None = None,
    ) -> None:
        """Set some settings of all brokers or of one while they run, and remove others, which are then taken from the next source.

        Brokers follow the change without a restart, and brokers that start or join later follow it, too. `list_config` has the settings.

        Args:
            set: values by key, such as ``{"log_level": "debug"}``. A broker's setting has the form of ``raftmq.toml`` (``"14d"``), and a default of
                topics that of `create_topic` (``{"retention.ms": 86_400_000}``).
            unset: keys to remove.
            broker_id: the broker to change. None: all brokers. A value for one broker has precedence.

        Raises:
            InvalidConfigError: a key is unknown or cannot be changed at run time, or a value is not accepted. Nothing changed.
            UnknownBrokerError: the cluster has no such broker. Nothing changed.
            UnsupportedVersionError: the cluster's feature level is below 7. Nothing changed.
        """
        self._check_usable()
        unset = list(unset)
        check_texts(unset, "a configuration key")
        await configuration.alter_config(self._resolver, self._timeout_seconds, _texts(set or {}), unset, broker_id)

    async def list_config(self) -> list[RuntimeSetting]:
        """Return the settings that can be changed while brokers run, with the values that the cluster has for them."""
        self._check_usable()
        return await configuration.list_config(self._resolver, self._timeout_seconds)

    async def describe_config(self, broker_id: int) -> dict[str, ConfigValue]:
        """Return the settings in force on a broker by key, with their sources. That broker answers.

        Raises `UnknownBrokerError`, or an error for a broker that cannot be reached.
        """
        self._check_usable()
        return await configuration.describe_config(self._resolver, self._timeout_seconds, broker_id)

    async def _made(self, name: str, revision: int, made: pb.Topic, deadline: Deadline) -> TopicDescription:
        """Return a topic that was just created or changed, with its leaders if possible.

        The change was applied. An error of the description must not be reported as the outcome of the change, because most errors mean that
        nothing was applied.
        """
        self._resolver.record_revision(revision)
        if made.topic_id:  # 0: it was deleted again before the answer was built
            self._resolver.record_topic(made)
        try:
            return await self._described(name, deadline)
        except RaftMQError:
            return replace(read_topic(made), name=name)

    def _broker_timeout_ms(self) -> int:
        """Return the broker's time limit for a change. It is shorter than ours, so that its answer arrives in time."""
        return max(1, int(self._timeout_seconds * 1000 * BROKER_SHARE))

    def _check_usable(self) -> None:
        self._affinity.check()
        if not self._is_open:
            raise ClosedClientError(
                "the admin is closed: create a new one"
                if self._is_closed
                else "the admin is not started: use async with, or await start()"
            )


def _of_kind(kind: str, topic: TopicDescription) -> TopicDescription:
    """Return an existing topic, which a caller wanted to create with this kind."""
    if topic.kind != kind:
        raise TopicKindMismatchError(f"topic {topic.name} exists and is of kind {topic.kind!r}, not {kind!r}")
    return topic


def _texts(config: Mapping[str, str | int]) -> dict[str, str]:
    pairs: Iterable[tuple[object, object]] = config.items()
    for name, value in pairs:
        if not isinstance(name, str) or not isinstance(value, str | int) or isinstance(value, bool):
            raise TypeError(
                f"a configuration key must be a string, its value a string or a number: {name!r}: {value!r}"
            )
        check_text(name, "a configuration key")
        check_text(value, f"the value of {name}")
    return {name: str(value) for name, value in config.items()}


def _positive(number: int | None, name: str) -> int:
    if number is None:
        return 0
    if not isinstance(number, int):
        raise TypeError(f"{name} must be a number, not {number!r}")
    if not 0 < number < 1 << 32:
        raise InvalidArgumentError(f"{name} must be positive, not {number}")
    return number
