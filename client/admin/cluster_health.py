"""The health of partitions, brokers and the cluster, as they report it, which `Admin` adds to its descriptions on request."""

from __future__ import annotations

from dataclasses import dataclass

from raftmq.client.admin.move_descriptions import StuckReplica, read_stuck
from raftmq.proto import queue_pb2 as pb
from raftmq.types import TopicPartition


@dataclass(frozen=True, slots=True)
class PartitionState:
    """The state of a partition, as its leader reports it."""

    in_sync_brokers: tuple[int, ...]
    """Brokers whose replicas vote and keep up with the leader, including the leader itself."""
    log_start_offset: int
    high_watermark: int
    size_bytes: int
    """Size of the file of the leader's replica."""


@dataclass(frozen=True, slots=True)
class PartitionNames:
    """A number of partitions, with some of their names."""

    count: int
    first: tuple[TopicPartition, ...]
    """The first hundred of them, by name."""


@dataclass(frozen=True, slots=True)
class BrokerHealth:
    """The health of a broker, as it reports it."""

    not_ready: tuple[str, ...]
    """The reasons why its ``/readyz`` reports that it is not ready. Empty if it is ready."""
    under_replicated: PartitionNames
    """Partitions led by it of which fewer replicas than wanted vote and keep up."""
    not_served: PartitionNames
    """Partitions of which it should serve a replica but does not."""
    quarantined: PartitionNames
    """Partitions of which its replica is damaged and not replaced yet."""
    warnings: tuple[str, ...] = ()
    """The first warnings of its ``/readyz``: failures on it, and the reasons why replicas are not served."""


@dataclass(frozen=True, slots=True)
class ClusterHealth:
    """The health of the cluster, combined from all brokers that answered."""

    leaderless: PartitionNames
    """Partitions that none of these brokers leads."""
    unknown: PartitionNames
    """Partitions whose last known leader did not answer."""
    metadata_voters_behind: tuple[int, ...]
    """Brokers whose vote on metadata does not keep up."""
    is_metadata_led: bool
    """Whether one of these brokers leads the metadata."""
    stuck: tuple[StuckReplica, ...] = ()
    """The new replicas that cannot come up now, at most the first hundred."""
    stuck_count: int = 0
    """The number of all of them."""


def read_state(state: pb.PartitionState) -> PartitionState:
    """Convert the answer of a partition's leader."""
    return PartitionState(
        in_sync_brokers=tuple(state.in_sync_brokers),
        log_start_offset=state.log_start_offset,
        high_watermark=state.high_watermark,
        size_bytes=state.size_bytes,
    )


def _names(names: pb.PartitionNames) -> PartitionNames:
    return PartitionNames(names.count, tuple(TopicPartition(name.topic, name.partition) for name in names.first))


def read_cluster_health(health: pb.ClusterHealth) -> ClusterHealth:
    """Convert the combined answer of all brokers."""
    return ClusterHealth(
        leaderless=_names(health.leaderless),
        unknown=_names(health.unknown),
        metadata_voters_behind=tuple(health.metadata_voters_behind),
        is_metadata_led=health.is_metadata_led,
        stuck=read_stuck(health.stuck),
        stuck_count=health.stuck_count,
    )


def read_broker_health(health: pb.BrokerHealth) -> BrokerHealth:
    """Convert one broker's report on itself."""
    return BrokerHealth(
        not_ready=tuple(health.not_ready),
        under_replicated=_names(health.under_replicated),
        not_served=_names(health.not_served),
        quarantined=_names(health.quarantined),
        warnings=tuple(health.warnings),
    )
