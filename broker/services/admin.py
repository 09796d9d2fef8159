"""Serve the Admin RPCs about topics and the state of the cluster. `nodes` serves those between brokers.

Changes run on the metadata leader. Other nodes forward the request to it by one hop. Everything that can be refused is refused
before proposing. Facts that may have changed in the meantime are checked again when the command is applied.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from typing import cast

from raftmq.broker.base.readiness import Reason
from raftmq.broker.base.request_error import RequestError
from raftmq.broker.partitions.kinds import LOG, require_offered
from raftmq.broker.partitions.partition import Partition
from raftmq.broker.replica.commands import refused
from raftmq.broker.services.call import Call
from raftmq.broker.services.cluster_health import ClusterHealth, GatheredHealth
from raftmq.broker.services.host import ServiceHost
from raftmq.broker.services.locator import Locator
from raftmq.broker.services.messages import leader_message, node_message, topic_message
from raftmq.broker.services.metadata_leader import MetadataLeader, on_metadata_leader
from raftmq.fsm.metadata import Metadata
from raftmq.fsm.metadata_commands import (
    AddPartitions,
    AlterTopicConfig,
    CreateTopic,
    DeleteTopic,
    Done,
    PartitionPlan,
    TopicCreated,
)
from raftmq.fsm.metadata_topics import PARTITIONS_PER_TOPIC_MAX, replication_factor_refusal
from raftmq.fsm.metadata_views import TopicView
from raftmq.fsm.placement import PlacementError, host_count, place
from raftmq.fsm.queue.topic_config import DEAD_LETTER_TOPIC, reason_against_copies, reason_against_partitions
from raftmq.fsm.topic_config import (
    TopicConfigError,
    check_topic_config,
    check_topic_config_changes,
    check_topic_name,
    effective_config_texts,
)
from raftmq.fsm.topic_kinds import QUEUE
from raftmq.proto import queue_pb2 as pb
from raftmq.types import METADATA_GROUP_ID, NO_NODE, GroupId, NodeId

DEFAULT_PARTITIONS = 1
DEFAULT_REPLICATION_FACTOR = 3
_BROKERS_WAIT_SECONDS = 10.0
"""Time for which the creation of a topic waits for the expected brokers."""
_NAMED_MAX = 5
"""Nodes named in a refusal."""
_CONFIRM_SECONDS = 1.0
"""Time that a list waits for a quorum to confirm that it is the newest, before it answers from this node's metadata."""


class AdminService:
    """Answers the RPCs about topics and the cluster."""

    def __init__(
        self, host: ServiceHost, locator: Locator[Partition], leader: MetadataLeader, health: ClusterHealth
    ) -> None:
        self._host = host
        self._locator = locator
        self.leader = leader
        self._health = health
        self._planning = asyncio.Lock()
        """Placements are planned one after another, so that each counts the replicas of the previous one."""

    @property
    def _metadata(self) -> Metadata:
        return self._host.metadata.state_machine

    # ------------------------------------------------------------------------------------------------ topics: changes

    @on_metadata_leader
    async def create_topic(self, request: pb.CreateTopicRequest, call: Call) -> pb.CreateTopicResponse:
        """Create a topic and wait, within its timeout, until every partition has a leader."""
        deadline = call.within(request.timeout_ms, self._host.loop.time())
        config, kind = dict(request.config), request.kind or LOG.name
        require_offered(kind)
        _checked(lambda: check_topic_name(request.name))
        _checked(lambda: check_topic_config(config, kind))
        if self._metadata.topic_by_name(request.name) is not None:
            await self._locator.confirm_metadata(deadline)  # a successor of this leader may have deleted it
        if self._metadata.topic_by_name(request.name) is not None:
            raise RequestError(pb.TOPIC_ALREADY_EXISTS, f"topic {request.name} exists")
        await self._check_dead_letter_topic(request.name, config, deadline)
        if not request.replication_factor:
            await self._wait_for_brokers(request.name, deadline)
        async with self._planning:
            replication_factor = request.replication_factor or min(
                DEFAULT_REPLICATION_FACTOR, max(1, host_count(self._metadata.nodes()))
            )
            created = await self._create(
                lambda: self._plan(request.partitions or DEFAULT_PARTITIONS, replication_factor, existing_count=0),
                lambda plans: CreateTopic(request.name, kind, replication_factor, config, plans),
                deadline,
            )
        await self._wait_leaders(created.topic_id, deadline)
        return pb.CreateTopicResponse(
            topic_id=created.topic_id, metadata_revision=created.revision, topic=self._topic(created.topic_id)
        )

    @on_metadata_leader
    async def add_partitions(self, request: pb.AddPartitionsRequest, call: Call) -> pb.AddPartitionsResponse:
        """Raise a topic's number of partitions to a total, and wait as `create_topic` does."""
        deadline = call.within(request.timeout_ms, self._host.loop.time())
        async with self._planning:
            topic = await self._locator.topic_by_name(request.name, deadline)
            count = len(topic.group_ids)
            if request.total <= count:
                raise RequestError(
                    pb.INVALID_PARTITIONS, f"topic {topic.name} has {count} partitions; the new total must be larger"
                )
            if not request.rehash:
                _check_growth(topic)
            created = await self._create(
                lambda: self._plan(request.total - count, topic.replication_factor, existing_count=count),
                lambda plans: AddPartitions(topic.topic_id, count, plans),
                deadline,
            )
        await self._wait_leaders(created.topic_id, deadline)
        return pb.AddPartitionsResponse(metadata_revision=created.revision, topic=self._topic(created.topic_id))

    async def _create(
        self,
        plan: Callable[[], tuple[PartitionPlan, ...]],
        command: Callable[[tuple[PartitionPlan, ...]], CreateTopic | AddPartitions],
        deadline: float,
    ) -> TopicCreated:
        """Place partitions and create them. They are placed again if one of their brokers was removed in the meantime."""
        while True:
            try:
                return await self.leader.execute(command(plan()), TopicCreated, deadline)
            except RequestError as error:
                if error.code != pb.UNKNOWN_BROKER:
                    raise

    @on_metadata_leader
    async def alter_topic(self, request: pb.AlterTopicRequest, call: Call) -> pb.AlterTopicResponse:
        """Set configuration keys, or reset them to their defaults."""
        changes: dict[str, str | None] = {**dict(request.set), **dict.fromkeys(request.unset)}
        both = set(request.set) & set(request.unset)
        if both:
            raise RequestError(pb.INVALID_CONFIG, f"{min(both)!r} is both set and unset")
        topic = await self._locator.topic_by_name(request.name, call.deadline)
        _checked(lambda: check_topic_config_changes(changes, topic.kind))
        await self._check_dead_letter_topic(topic.name, request.set, call.deadline)
        done = await self.leader.execute(AlterTopicConfig(topic.topic_id, changes), Done, call.deadline)
        return pb.AlterTopicResponse(metadata_revision=done.revision)

    @on_metadata_leader
    async def delete_topic(self, request: pb.DeleteTopicRequest, call: Call) -> pb.DeleteTopicResponse:
        """Delete a topic with its records. A topic of the same name that is created later is another one."""
        topic = await self._locator.topic_by_name(request.name, call.deadline)
        done = await self.leader.execute(DeleteTopic(topic.topic_id), Done, call.deadline)
        return pb.DeleteTopicResponse(metadata_revision=done.revision)

    async def _check_dead_letter_topic(self, name: str, config: Mapping[str, str], deadline: float) -> None:
        """Raise INVALID_CONFIG unless the dead letter topic of the topic `name` can take the copies of its dead messages."""
        target = config.get(DEAD_LETTER_TOPIC.name, "")
        if not target:
            return
        if target == name:
            raise _bad_target(target, "a topic cannot take the copies of its own dead messages: name another one")
        try:
            topic = await self._locator.topic_by_name(target, deadline)
        except RequestError as error:
            if error.code != pb.UNKNOWN_TOPIC:
                raise
            raise _bad_target(target, "there is no such topic: create it first, with --kind queue") from error
        if topic.kind != QUEUE:
            raise _bad_target(target, f"it is of kind {topic.kind!r}, but only a queue topic can take dead messages")
        reason = reason_against_copies(topic.config, len(topic.group_ids))
        if reason:
            raise _bad_target(target, reason)

    def _plan(self, count: int, replication_factor: int, existing_count: int) -> tuple[PartitionPlan, ...]:
        """Place new partitions. Every bound is checked before anything is computed in proportion to `count`."""
        metadata = self._metadata
        if existing_count + count > PARTITIONS_PER_TOPIC_MAX:
            raise RequestError(
                pb.TOO_MANY_PARTITIONS,
                f"a topic has at most {PARTITIONS_PER_TOPIC_MAX} partitions, not {existing_count + count}",
            )
        nodes = metadata.nodes()
        refusal = replication_factor_refusal(nodes, replication_factor)
        if refusal is not None:
            raise refused(refusal)
        reachable = [n for n in nodes if n.state == "active" and self._host.is_connected(NodeId(n.node_id))]
        # a node that is down would keep partitions from having a leader, or all replicas
        if len(reachable) >= replication_factor:
            nodes = tuple(reachable)
        counts = {node.node_id: metadata.replica_count_of_node(node.node_id) for node in nodes}
        # each node states its maximum; a node of an older version does not, and this node's maximum is used for it
        takes = {node.node_id: node.partitions_max or self._host.limits.partitions_max for node in nodes}
        try:
            return place(nodes, count, replication_factor, counts, self._preferred_leader_counts(), takes)
        except PlacementError as error:
            message = error.message
            if error.code == pb.TOO_MANY_PARTITIONS:
                message = f"{message}: {self._occupancy(counts, takes)}; add brokers or ask for fewer partitions"
            raise RequestError(cast("pb.ErrorCode", error.code), message) from error

    def _occupancy(self, counts: Mapping[int, int], takes: Mapping[int, int]) -> str:
        """Describe the fullest nodes and their limits."""

        def described(node_id: int) -> str:
            is_own = node_id == self._host.node_id
            reason = (
                self._host.limits.partitions_max_reason if is_own else "its setting partitions_max, or its open files"
            )
            return f"broker {node_id} has {counts[node_id]} of the {takes[node_id]} it takes ({reason})"

        fullest = sorted(counts, key=lambda node_id: takes[node_id] - counts[node_id])[:_NAMED_MAX]
        return ", ".join(map(described, fullest))

    def _preferred_leader_counts(self) -> Counter[int]:
        counts: Counter[int] = Counter()
        for topic in self._metadata.topics():
            for group_id in topic.group_ids:
                partition = self._metadata.partition(group_id)
                if partition is not None and partition.replicas:
                    counts[partition.replicas[0].node_id] += 1
        return counts

    async def _wait_for_brokers(self, name: str, deadline: float) -> None:
        """Wait until the cluster has begun with the brokers that it expects, as far as they decide the default replication factor.

        Raises:
            RequestError: INVALID_REPLICATION_FACTOR if they do not register in time.
        """
        wanted = min(DEFAULT_REPLICATION_FACTOR, self._host.limits.brokers_expected)
        now = self._host.loop.time()
        try:
            # so early that the answer is the reason, and not that the deadline has passed
            async with asyncio.timeout_at(min(now + _BROKERS_WAIT_SECONDS, now + (deadline - now) / 2)):
                while self._metadata.registered_count < wanted:
                    await self._host.next_topology_change()
        except TimeoutError:
            raise RequestError(
                pb.INVALID_REPLICATION_FACTOR,
                f"topic {name} would have fewer replicas than it is meant to have: {self._metadata.registered_count} of "
                f"{self._host.limits.brokers_expected} expected brokers have joined. Start the others, or give a replication factor",
            ) from None

    async def _wait_leaders(self, topic_id: int, deadline: float) -> None:
        """Return when every partition has had a leader, or at the deadline. The topic exists in any case."""
        try:
            async with asyncio.timeout_at(deadline):
                # the partitions before this one have had a leader: a change costs no look at all of them
                number = 0
                while (topic := self._metadata.topic(topic_id)) is not None and number < len(topic.group_ids):
                    if self._host.leadership.get(GroupId(topic.group_ids[number])).node_id:
                        number += 1
                    else:
                        await self._host.next_topology_change()
        except TimeoutError:
            return

    # ------------------------------------------------------------------------------------------------ topics: reads

    async def list_topics(self, request: pb.ListTopicsRequest, call: Call) -> pb.ListTopicsResponse:
        """Return all topics by name."""
        is_confirmed = await self._refresh(request.metadata_revision, call)
        metadata = self._metadata
        topics = sorted(metadata.topics(), key=lambda topic: topic.name)
        return pb.ListTopicsResponse(
            topics=[topic_message(metadata, topic) for topic in topics],
            metadata_revision=metadata.applied_index,
            is_unconfirmed=not is_confirmed,
        )

    async def describe_topic(self, request: pb.DescribeTopicRequest, call: Call) -> pb.DescribeTopicResponse:
        """Return one topic with its leaders and the configuration in force."""
        is_confirmed = await self._refresh(request.metadata_revision, call)
        topic = await self._locator.topic_by_name(request.name, call.deadline)
        response = pb.DescribeTopicResponse(
            topic=topic_message(self._metadata, topic),
            leaders=[leader_message(self._host, group_id) for group_id in topic.group_ids],
            effective_config=effective_config_texts(topic.config, topic.kind, self._metadata.config()),
            metadata_revision=self._metadata.applied_index,
            is_unconfirmed=not is_confirmed,
        )
        if request.with_states:
            response.states.extend(await self._health.partition_states(topic, call))
        return response

    async def _refresh(self, revision: int, call: Call) -> bool:
        """Return whether a quorum confirmed the newest metadata. Without a metadata leader this node's own metadata is still worth returning."""
        self._check_member()
        await self._locator.wait_revision(revision, call.deadline)
        try:
            await self._locator.confirm_metadata(min(call.deadline, self._host.loop.time() + _CONFIRM_SECONDS))
        except RequestError:
            return False
        return True

    # ------------------------------------------------------------------------------------------------ cluster

    async def describe_cluster(self, request: pb.DescribeClusterRequest, call: Call) -> pb.DescribeClusterResponse:
        """Return the cluster as this node sees it, and on request its health according to all reachable nodes.

        Raises:
            RequestError: NOT_READY if this node was removed.
        """
        self._check_member()
        gathered = await self._health.gather(call) if request.with_health else None
        response = self._describe_cluster()
        if gathered is not None:
            _add_health(response, gathered)
        return response

    def _check_member(self) -> None:
        """Raise NOT_READY if this node was removed: it learns of no change, and the others answer it nothing. A client asks another one."""
        for reason, message in self._host.standing.not_ready_reasons():
            if reason is Reason.REMOVED:
                raise RequestError(pb.NOT_READY, f"broker {self._host.node_id}: {message}", retry_after_ms=100)

    def _describe_cluster(self) -> pb.DescribeClusterResponse:
        host, group, metadata = self._host, self._host.metadata, self._metadata
        leader = leader_message(host, METADATA_GROUP_ID)
        group_ids = [group_id for topic in metadata.topics() for group_id in topic.group_ids]
        leaders = Counter(leader_message(host, group_id).broker_id for group_id in group_ids)
        voters = group.core.membership.voters
        return pb.DescribeClusterResponse(
            cluster_id=host.cluster_id,
            answering_broker_id=host.node_id,
            metadata_leader_broker_id=leader.broker_id,
            metadata_term=max(leader.leader_epoch, group.term),
            metadata_revision=metadata.applied_index,
            brokers=[
                pb.ClusterBroker(
                    broker=node_message(node),
                    is_metadata_voter=node.metadata_replica_id in voters,
                    is_connected=host.is_connected(NodeId(node.node_id)),
                    replica_count=metadata.replica_count_of_node(node.node_id),
                    leader_count=leaders[node.node_id],
                    feature_level_max=node.feature_level_max,
                )
                for node in metadata.nodes()
            ],
            topic_count=metadata.topic_count,
            partition_count=len(group_ids),
            partitions_without_leader=leaders[NO_NODE],
            feature_level=metadata.feature_level,
            feature_level_max=metadata.feature_level_max,
        )

    # ------------------------------------------------------------------------------------------------ helpers

    def _topic(self, topic_id: int) -> pb.Topic | None:
        topic = self._metadata.topic(topic_id)
        return topic_message(self._metadata, topic) if topic is not None else None


def _add_health(response: pb.DescribeClusterResponse, gathered: GatheredHealth) -> None:
    response.health.CopyFrom(gathered.cluster)
    for broker in response.brokers:
        health = gathered.nodes.get(NodeId(broker.broker.broker_id))
        if health is not None:
            broker.health.CopyFrom(health)


def _check_growth(topic: TopicView) -> None:
    """Raise INVALID_PARTITIONS for a queue topic, whose messages would be looked for in other partitions than they are in."""
    if topic.kind == QUEUE:
        raise RequestError(
            pb.INVALID_PARTITIONS,
            f"adding partitions to queue topic {topic.name} would break a promise: {reason_against_partitions(topic.config)}. Let the topic "
            "run empty first, or use no ids and keys, and repeat the call with rehash (raftmq topic add-partitions --rehash)",
        )


def _bad_target(target: str, reason: str) -> RequestError:
    return RequestError(pb.INVALID_CONFIG, f"{DEAD_LETTER_TOPIC.name} = {target!r}: {reason}")


def _checked(check: Callable[[], None]) -> None:
    try:
        check()
    except TopicConfigError as error:
        raise RequestError(cast("pb.ErrorCode", error.code), error.message) from error
