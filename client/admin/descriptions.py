"""Describe topics, brokers and the cluster: the values that `Admin` takes and returns, and their conversion from the protocol."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from raftmq.client.admin.cluster_health import (
    BrokerHealth,
    ClusterHealth,
    PartitionState,
    read_broker_health,
    read_state,
)
from raftmq.proto import queue_pb2 as pb
from raftmq.types import TopicPartition


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create, with the arguments of `Admin.create_topic`."""

    name: str
    partitions: int | None = None
    replication_factor: int | None = None
    config: Mapping[str, str | int] | None = None
    kind: str = "log"


@dataclass(frozen=True, slots=True)
class PartitionDescription:
    """One partition of a topic."""

    partition: int
    group_id: int
    """The partition's Raft group."""
    replica_brokers: tuple[int, ...]
    leader_broker_id: int = 0
    """0: no leader is known, or it was not requested (see `Admin.describe_topic`)."""
    leader_epoch: int = 0
    state: PartitionState | None = None
    """None: not requested, or its leader did not answer."""
    is_pinned: bool = False
    """Whether an operator moved it: automatic balancing leaves it there (see `Admin.move_partition`)."""


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """A topic as the cluster has it."""

    name: str
    topic_id: int
    kind: str
    replication_factor: int
    config: dict[str, str]
    """The configuration that was set for the topic."""
    partitions: tuple[PartitionDescription, ...]
    effective_config: dict[str, str] | None = None
    """The configuration including defaults. Only `Admin.describe_topic` returns it."""
    is_unconfirmed: bool = False
    """Whether the description may be older than the last change of the topic: the broker that answered could not make sure in time that its
    metadata is the newest, for example because no majority of the metadata's voters answers. It is never older than an earlier result of the
    same `Admin`. A broker of an earlier version never says so.
    """


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
    """Whether the answering broker is connected to it."""
    replica_count: int
    leader_count: int
    feature_level_max: int
    """The highest feature level that it supports."""
    health: BrokerHealth | None = None
    """None: not requested, or it did not answer."""


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
    """The number as the answering broker believes it. `health.leaderless` is more accurate."""
    feature_level: int
    """The features that the cluster may use. `Admin.raise_feature_level` raises it after an upgrade of the brokers."""
    feature_level_max: int
    """The highest feature level that every broker supports."""
    health: ClusterHealth | None = None
    """Only with ``ask_brokers``."""


@dataclass(frozen=True, slots=True)
class BrokerRemoval:
    """The remaining effects of a broker's removal."""

    broker_id: int
    replica_count: int
    """The number of partition replicas that it held. The other brokers rebuild them in the background, a few at a time."""
    without_majority_count: int
    """The number of these partitions that have no majority of reachable replicas. They are unavailable until enough of their other brokers
    return, and lost if they had no other."""
    without_majority: tuple[TopicPartition, ...]
    """The first hundred of these partitions."""


def read_topic(
    topic: pb.Topic,
    leaders: Mapping[int, pb.PartitionLeader] | None = None,
    effective_config: dict[str, str] | None = None,
    states: Mapping[int, pb.PartitionState] | None = None,
    *,
    is_unconfirmed: bool = False,
) -> TopicDescription:
    """Convert a topic, with its leaders, its whole configuration and the states of its partitions, as far as they are known."""
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
                is_pinned=partition.is_pinned,
            )
            for partition in sorted(topic.partitions, key=lambda partition: partition.partition)
        ),
        effective_config=effective_config,
        is_unconfirmed=is_unconfirmed,
    )


def read_broker(entry: pb.ClusterBroker) -> BrokerDescription:
    """Convert a broker, with its health if it was requested."""
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
        feature_level_max=entry.feature_level_max,
        health=read_broker_health(entry.health) if entry.HasField("health") else None,
    )
